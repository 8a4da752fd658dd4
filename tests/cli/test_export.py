"""`trellis export` on tiny models."""

import pytest
import torch

from trellis import load_model
from trellis.cli import main

from .commands import TINY, call, done, records

KINDS = {
    "low-rank": ["start=low_rank", "transition=low_rank", "emission=low_rank", "width=3"],
    "blocks": ["support=brown", "states=12", "blocks=4", "width=8", "encoder=residual", "transition=hierarchical",
               "emission=low_rank", "bias=true"],
    "subsets": ["support=uniform", "states=8", "blocks=2", "width=4", "transition=low_rank", "emission=low_rank"],
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_hmm_has_the_same_scores(capsys, texts, tmp_path, kind):
    shape = [f"model.{setting}" for setting in KINDS[kind]]
    assert main(["train", *texts, *TINY, *shape, f"out={tmp_path / 'run'}"]) == 0
    capsys.readouterr()
    (told,) = records(done(capsys, "export", tmp_path / "run", tmp_path / "plain", "--json"))
    first, plain = (load_model(tmp_path / name) for name in ("run", "plain"))
    assert told["parameters"] == sum(parameter.numel() for parameter in plain.parameters())
    assert (plain.config.transition, plain.config.emission) == ("scalar", "scalar")
    ids = torch.randint(first.config.vocab_size, (4, 9), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(plain.score(ids)[0], first.score(ids)[0], rtol=1e-6, atol=1e-6)
    for name in ("run", "plain"):
        (found,) = records(done(capsys, "evaluate", tmp_path / name, texts[2].partition("=")[2], "--json"))
        assert found["perplexity"] == pytest.approx(told.setdefault("perplexity", found["perplexity"]), rel=1e-6)


def test_what_cannot_be_exported_says_so(capsys, texts, tmp_path):
    assert main(["train", *texts, "model.kind=kneser_ney", "model.order=2", f"out={tmp_path / 'run'}"]) == 0
    code, _, said = call(capsys, "export", tmp_path / "run", tmp_path / "plain")
    assert code == 2
    assert "kind kneser_ney" in said
    assert not (tmp_path / "plain").exists()
