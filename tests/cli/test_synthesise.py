"""`trellis synthesise` writes what the library draws."""

import json

import pytest
import torch

from trellis.cli import main
from trellis.mixtures import load_mixture
from trellis.synthesis import SynthesisSettings, draw_mixture

from .commands import call, done, records

SMALL = ["--documents", 12, "--length", 6, "--concepts", 2, "--states", 3, "--vocab-size", 4]


@pytest.mark.parametrize("kind", ["dirichlet", "permutations"])
def test_documents_and_their_mixture_are_written(capsys, tmp_path, kind):
    (told,) = records(done(capsys, "synthesise", tmp_path / "made", *SMALL, "--transitions", kind, "--json"))
    found = records((tmp_path / "made" / "documents.jsonl").read_text())
    assert (told["documents"], told["tokens"], told["concepts"]) == (12, 72, 2)
    assert {frozenset(one) for one in found} == {frozenset(["text", "concept", "states", "ids"])}
    mixture, tokenizer = load_mixture(tmp_path / "made" / "mixture")
    drawn = draw_mixture(SynthesisSettings(2, 3, 4, kind))
    ids = torch.tensor([tokenizer.encode(one["text"]) for one in found])
    assert ids.tolist() == [one["ids"] for one in found]
    torch.testing.assert_close(mixture.score(ids)[0].double(), drawn.score(ids)[0], rtol=1e-5, atol=1e-5)
    path = tmp_path / "made" / "documents.jsonl"
    tiny = ["data.tokenizer=integers", "model.states=3", "training.epochs=1", f"out={tmp_path / 'run'}"]
    assert main(["train", str(path), *tiny]) == 0


def test_the_same_seed_draws_the_same(capsys, tmp_path):
    texts = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        done(capsys, "synthesise", tmp_path / name, *SMALL, "--seed", seed)
        texts.append((tmp_path / name / "documents.jsonl").read_text())
    assert texts[0] == texts[1] != texts[2]
    done(capsys, "synthesise", tmp_path / "a", *SMALL, "--seed", 4)  # its own folder it may replace
    assert (tmp_path / "a" / "documents.jsonl").read_text() == texts[2]


def test_models_that_are_given_are_mixed_by_their_weights(capsys, run, tmp_path):
    done(capsys, "synthesise", tmp_path / "made", run, run, "--weights", "0,2", "--documents", 5, "--length", 4)
    found = records((tmp_path / "made" / "documents.jsonl").read_text())
    assert [one["concept"] for one in found] == [1] * 5
    assert json.loads((tmp_path / "made" / "mixture" / "mixture.json").read_text())["prior"] == [0, 1]
    assert all(one["text"].replace(" ", "").replace("<unk>", "").isalpha() for one in found if one["text"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["OUT", "--weights", "1,2"], "name them, or leave it out"),
        (["OUT", "RUN", "RUN", "--weights", "1;2"], "write numbers with commas between"),
        (["OUT", "RUN", "--weights", "1,2"], "1 models need as many weights"),
        (["OUT", "--transitions", "circular"], "transitions are dirichlet or permutations"),
        (["OUT", "--concentration", "0"], "concentration must be above 0"),
        (["PLACE"], "holds other files, which would be lost"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(capsys, run, place, tmp_path, arguments, said):
    names = {"RUN": run, "OUT": tmp_path / "out", "PLACE": place}
    code, _, err = call(capsys, "synthesise", *(names.get(argument, argument) for argument in arguments))
    assert (code, err.count("error:")) == (2, 1)
    assert said in err
    assert not (tmp_path / "out").exists()
