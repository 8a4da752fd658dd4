"""Ctrl-G's folders: the same scores on both sides, and one sentence for each that is broken."""

import itertools
import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close

from trellis import HMM, HMMConfig, TrellisError
from trellis.models.ctrl_g import read_ctrl_g, write_ctrl_g
from trellis.models.supports import partition

H, V, END = 3, 5, 4


def tensors(seed=0, dtype=torch.float32):
    drawn = torch.Generator().manual_seed(seed)
    alpha, beta, gamma = (torch.randn(shape, generator=drawn) for shape in ((H, H), (H, V), (H,)))
    return {
        "alpha_exp": alpha.softmax(1).to(dtype),
        "beta": beta.log_softmax(1).to(dtype),
        "gamma": gamma.log_softmax(0).to(dtype),
    }


def a_folder(path, found=None, **config):
    path.mkdir(exist_ok=True)
    save_file(tensors() if found is None else found, path / "model.safetensors")
    told = {"hidden_states": H, "vocab_size": V, "eos_token_id": END} | config
    (path / "config.json").write_text(json.dumps(told))
    return path


def slow(found, tokens):
    """log p(tokens): every path of states, by probabilities."""
    start, transition = found["gamma"].double().softmax(0).tolist(), found["alpha_exp"].double().tolist()
    emission, total = found["beta"].double().exp().tolist(), 0.0
    for path in itertools.product(range(H), repeat=len(tokens)):
        chance = start[path[0]] * emission[path[0]][tokens[0]]
        for before, state, token in zip(path, path[1:], tokens[1:], strict=False):
            chance *= transition[before][state] * emission[state][token]
        total += chance
    return math.log(total)


def test_scores_are_those_of_its_tables(tmp_path):
    model, end = read_ctrl_g(a_folder(tmp_path / "a"))
    assert end == END
    for tokens in ([0], [3, 1], [4, 4, 2, 0, 1]):
        assert float(model.score(torch.tensor([tokens]))[0].sum().detach()) == pytest.approx(
            slow(tensors(), tokens), rel=1e-5
        )


@pytest.mark.parametrize("change", ["names", "logits", "column", "no config", "half"])
def test_other_ways_to_store_the_same_are_read(tmp_path, change):
    found = tensors()
    want = read_ctrl_g(a_folder(tmp_path / "a"))[0].tables()
    if change == "names":
        found = {"alpha": found["alpha_exp"].log(), "beta_exp": found["beta"].exp(), "gamma_exp": found["gamma"].exp()}
    elif change == "logits":  # of which Ctrl-G takes the softmax itself
        found["gamma"] = found["gamma"] + 3.0
    elif change == "column":
        found["gamma"] = found["gamma"][None]
    elif change == "half":
        found = tensors(dtype=torch.float16)
    path = a_folder(tmp_path / "b", found)
    if change == "no config":
        (path / "config.json").unlink()
    near = 1e-2 if change == "half" else 1e-6
    for table, other in zip(read_ctrl_g(path)[0].tables(), want, strict=True):
        assert_close(table, other, rtol=near, atol=near)


KINDS = {
    "scalar": HMMConfig(V, H),
    "low-rank": HMMConfig(V, H, start="low_rank", transition="low_rank", emission="low_rank", width=2),
    "blocks": HMMConfig(V, 4, "brown", 2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_trip_keeps_scores(tmp_path, kind):
    support = partition(torch.tensor([0, 1, 0, 1, 0]), 4, 2) if kind == "blocks" else None
    model = HMM(KINDS[kind], 1, support).eval()
    write_ctrl_g(model, tmp_path / "out", END)
    again, end = read_ctrl_g(tmp_path / "out")
    ids = torch.randint(V, (6, 30), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert_close(again.score(ids)[0], model.score(ids)[0], rtol=1e-6, atol=1e-6)
    assert end == END
    write_ctrl_g(again, tmp_path / "out", END)  # which may take the place of its like
    for name, tensor in load_file(tmp_path / "out" / "model.safetensors").items():
        assert tensor.dtype == torch.float32, name


def test_what_is_improbable_stays_possible(tmp_path):
    found = tensors()
    found["beta"][0] = torch.tensor([-200.0, -1e30, -torch.inf, 0.0, -300.0])
    model, _ = read_ctrl_g(a_folder(tmp_path / "a", found))
    assert model.log_emission().T[0].tolist() == pytest.approx([-200, -1e30, -math.inf, 0, -300])


def test_the_hugging_face_library_reads_what_is_written(tmp_path):
    hub = pytest.importorskip("huggingface_hub")

    class Theirs(nn.Module, hub.PyTorchModelHubMixin):
        """Only the names of what such a folder holds."""

        def __init__(self, hidden_states: int, vocab_size: int, eos_token_id: int):
            super().__init__()
            self.alpha_exp = nn.Parameter(torch.zeros(hidden_states, hidden_states))
            self.beta = nn.Parameter(torch.zeros(hidden_states, vocab_size))
            self.gamma = nn.Parameter(torch.zeros(hidden_states))
            self.eos_token_id = eos_token_id

    model = HMM(KINDS["scalar"], 2).eval()
    write_ctrl_g(model, tmp_path / "out", END)
    theirs = Theirs.from_pretrained(tmp_path / "out", local_files_only=True)
    assert_close(theirs.alpha_exp.detach(), model.tables().transition_SS)
    assert theirs.eos_token_id == END
    theirs.save_pretrained(tmp_path / "back")
    again, end = read_ctrl_g(tmp_path / "back")
    assert end == END
    for table, want in zip(again.tables(), model.tables(), strict=True):
        assert_close(table, want)


def broken(**changes):
    return {name: tensor for name, tensor in (tensors() | changes).items() if tensor is not None}


@pytest.mark.parametrize(
    ("found", "config", "said"),
    [
        (broken(alpha_exp=None), {}, "neither alpha nor alpha_exp for its transition"),
        (broken(beta=None), {}, "neither beta nor beta_exp for its emission"),
        (broken(gamma=None), {}, "neither gamma nor gamma_exp for its start"),
        (broken(alpha=torch.zeros(H, H)), {}, "has alpha and alpha_exp for its transition"),
        (
            broken(alpha_exp=torch.ones(H, H + 1)),
            {},
            r"alpha_exp in .* has the shape \(3, 4\), but beta is of 3 states",
        ),
        (broken(gamma=torch.zeros(H + 1)), {}, r"gamma in .* has the shape \(4,\), but beta is of 3 states"),
        (broken(beta=torch.zeros(H)), {}, "not states × words"),
        (broken(beta=torch.zeros(0, V)), {}, "not states × words"),
        (broken(alpha_exp=torch.full((H, H), 0.5)), {}, r"row 0 of alpha_exp .* sums to 1\.5, not to one"),
        (broken(beta=torch.zeros(H, V)), {}, "row 0 of beta .* sums to 5, not to one"),
        (broken(gamma=torch.full((H,), -torch.inf)), {}, "row 0 of gamma .* sums to 0, not to one"),
        (broken(gamma=None, gamma_exp=torch.ones(H)), {}, "row 0 of gamma_exp .* sums to 3, not to one"),
        (broken(alpha_exp=torch.tensor([[2.0, -1.0, 0.0]] * H)), {}, "holds what is no probability"),
        (broken(beta=torch.full((H, V), torch.nan)), {}, "holds what is no logarithm"),
        (broken(beta=torch.full((H, V), torch.inf)), {}, "holds what is no logarithm"),
        (broken(alpha_exp=torch.eye(H).long()), {}, "holds whole numbers"),
        (None, {"hidden_states": 7}, "has hidden_states 7, but the tensors have 3"),
        (None, {"vocab_size": 50257}, "has vocab_size 50,257, but the tensors have 5"),
        (None, {"hidden_states": "many"}, "has hidden_states 'many', which cannot be"),
        (None, {"eos_token_id": 5}, "has eos_token_id 5, which cannot be"),
        (None, {"eos_token_id": True}, "has eos_token_id True, which cannot be"),
    ],
)
def test_a_broken_folder_is_refused_in_a_sentence(tmp_path, found, config, said):
    with pytest.raises(TrellisError, match=said) as refused:
        read_ctrl_g(a_folder(tmp_path / "a", found, **config))
    assert "\n" not in str(refused.value)


def test_files_that_are_none_are_refused(tmp_path):
    with pytest.raises(TrellisError, match=r"has no model\.safetensors"):
        read_ctrl_g(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(TrellisError, match="pickled weights, which are not opened"):
        read_ctrl_g(tmp_path)
    path = a_folder(tmp_path / "a")
    (path / "config.json").write_text("{")
    with pytest.raises(TrellisError, match=r"config\.json is cut short or damaged"):
        read_ctrl_g(path)
    path = a_folder(tmp_path / "b")
    (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:-9])
    with pytest.raises(TrellisError, match="cut short or damaged"):
        read_ctrl_g(path)


def test_what_cannot_be_written_is_refused(tmp_path):
    model = HMM(KINDS["scalar"], 0).eval()
    with pytest.raises(TrellisError, match="token 5 is none of the 5 words"):
        write_ctrl_g(model, tmp_path / "out", V)
    (tmp_path / "mine.txt").write_text("dear")
    with pytest.raises(TrellisError, match="other files, which would be lost"):
        write_ctrl_g(model, tmp_path, END)
    assert (tmp_path / "mine.txt").read_text() == "dear"
