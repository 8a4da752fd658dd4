"""Runs and commands on a device that is not the processor (pretend_device.py): the same runs, no tensor left behind."""

import json
import re
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from trellis import ops
from trellis.cli import main
from trellis.errors import TrellisError
from trellis.models import HMM
from trellis.text import BATCHINGS
from trellis.training import checkpoints, loop

from .device_models import BASELINES, FLAT, LOW, blocks, counting, dense, uniform
from .pretend_device import PretendTensor, pretend_device
from .training.runs import (
    BLOCK_V,
    NEURAL,
    SCALAR,
    diary,
    run,
    settings,
    some_labels,
    tensors,
    text,
)


@pytest.fixture
def device():
    with pretend_device() as device:
        yield device


LEARNT = {
    "dense scalar": (dense, {}),
    "dense scalar, SGD": (dense, {"method": "sgd", "lr": 1.0, "weight_decay": 0.01}),
    "dense scalar, dropout": (partial(dense, dropout=0.5), {}),
    "dense low-rank": (partial(dense, **LOW, shared=True), {}),
    "Baum-Welch": (dense, {"method": "baum_welch", "step_size": 0.5}),
    "Baum-Welch, full batch": (dense, {"method": "baum_welch", "full_batch": True, "epochs": 2.0}),
    "joint": (dense, {"objective": "joint"}),
    "joint, Baum-Welch": (dense, {"objective": "joint", "method": "baum_welch"}),
    "joint, blocks": (partial(blocks, **NEURAL, dropout=0.5), {"objective": "joint", "lr": 0.01}),
    "neural hierarchical, dropout": (partial(blocks, **NEURAL, dropout=0.5), {"lr": 0.01, "accumulate": 2}),
    "neural hierarchical, SGD": (partial(blocks, **NEURAL, dropout=0.5), {"method": "sgd", "lr": 0.5}),
    "neural flat, dropout": (partial(blocks, **FLAT, dropout=0.5), {"lr": 0.01}),
    "factored hierarchical": (partial(blocks, **(NEURAL | {"encoder": "factored"})), {"lr": 0.01}),
    "hierarchical scalar, dropout": (partial(blocks, **SCALAR, dropout=0.5), {}),
    "flat scalar": (blocks, {}),
    "uniform neural, dropout": (partial(uniform, **FLAT, dropout=0.5), {"lr": 0.01}),
    "uniform scalar": (uniform, {}),
    "restarts": (dense, {"init": "restarts", "restarts": 2, "restart_steps": 2}),
    **{name: (make, {"lr": 0.01}) for name, make in BASELINES.items()},
}


def few(**changes):
    """Half the updates of other tests: here each of them takes longer."""
    return settings(**({"epochs": 1.0, "checkpoint_every": 4} | changes))


def labels_of(folder, make):
    """Labels for a model, if it is to learn from any."""
    model = make(0)
    states, block_V = model.config.states, None if model.support is None else BLOCK_V
    return some_labels(text(folder / "cache"), states, block_V)


def learn(folder, make, device, *, resume=False, **changes):
    labels = labels_of(folder, make) if changes.get("objective") == "joint" else None
    with ops.using(None):
        return run(folder, few(device=str(device), **changes), make=make, labels=labels, resume=resume)


def assert_near_runs(here, there):
    """Every number of the diary, and all that the newest checkpoint and the best model remember."""
    ours, theirs = diary(here), diary(there)
    assert [line.keys() for line in ours] == [line.keys() for line in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert other == pytest.approx(one, rel=1e-6)
    ours, theirs = tensors(here), tensors(there)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        if re.search(r"(starting|entering)\.norm\.bias", name):  # moves all logits alike: no matter but to rounding
            continue
        assert_close(theirs[name], tensor, rtol=1e-5, atol=1e-5, msg=lambda said, name=name: f"{name}: {said}")


@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize("name", LEARNT)
def test_a_run_there_is_the_processors(name, batching, device, tmp_path):
    make, changes = LEARNT[name]
    learn(tmp_path / "here", make, "cpu", batching=batching, **changes)
    learn(tmp_path / "there", make, device, batching=batching, **changes)
    assert_near_runs(tmp_path / "here", tmp_path / "there")


class CrashError(Exception):
    pass


@pytest.fixture
def crashing(monkeypatch):
    """Runs that crash after their fifth update, with a checkpoint of the fourth."""
    write = loop.Metrics.write

    def noted(self, update, **numbers):
        write(self, update, **numbers)
        if update == 5:
            raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(loop.Metrics, "write", noted)
        yield patch


@pytest.mark.parametrize("begun_here", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        "dense scalar",
        "Baum-Welch",
        "joint",
        "neural hierarchical, SGD",
        "neural flat, dropout",
        "uniform scalar",
        "lstm",
    ],
)
def test_a_run_goes_on_on_another_device(name, begun_here, crashing, device, tmp_path):
    """And ends with the weights of one that was never disturbed."""
    make, changes = LEARNT[name]
    changes = {"batching": "streams"} | changes
    places = ("cpu", device) if begun_here else (device, "cpu")
    with pytest.raises(CrashError):
        learn(tmp_path / "moved", make, places[0], **changes)
    crashing.undo()
    learn(tmp_path / "moved", make, places[1], resume=True, **changes)
    learn(tmp_path / "undisturbed", make, "cpu", **changes)
    assert_near_runs(tmp_path / "undisturbed", tmp_path / "moved")


def test_carried_states_and_moments_go_on_where_the_model_is(crashing, device, tmp_path):
    make, changes = LEARNT["neural hierarchical, dropout"]
    with pytest.raises(CrashError):
        learn(tmp_path, make, "cpu", batching="streams", **(changes | {"accumulate": 1}))
    found = []

    def noted(self, batch, state):
        found.extend([batch.ids, batch.lengths, state, *self.model.parameters(), *self.model.buffers()])
        found.extend(tensor for name, tensor in self.tensors().items() if not name.endswith("step"))
        raise CrashError

    crashing.setattr(loop.GradientLearner, "learn", noted)
    with pytest.raises(CrashError):
        learn(tmp_path, make, device, batching="streams", resume=True, **(changes | {"accumulate": 1}))
    assert all(isinstance(tensor, PretendTensor) for tensor in found)


def test_a_model_that_counts_is_measured_there(device, tmp_path):
    for name, where in (("here", "cpu"), ("there", device)):
        learn(tmp_path / name, lambda seed: counting(tmp_path), where)
    assert_near_runs(tmp_path / "here", tmp_path / "there")


def test_a_carried_state_that_a_run_leaves_on_the_processor_is_noticed(device, monkeypatch, tmp_path):
    monkeypatch.setattr(loop, "carry", lambda state, carried, rows: state.cpu()[:rows] if carried else None)
    with pytest.raises(TrellisError, match="a state on cpu is not where its model is"):
        learn(tmp_path, dense, device, batching="streams")


# The command line


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """`trellis train` of a small text: exit code and what it said."""
    lines = [" ".join("abcde"[(start + i) % 5] for i in range(6)) for start in range(5)] * 8
    (tmp_path / "text.txt").write_text("".join(f"{line}\n" for line in lines))
    told = {"data.corpus": tmp_path / "text.txt", "data.valid": tmp_path / "text.txt", "out": tmp_path / "run"}
    told |= {"model.states": 4, "training.batch_size": 4, "training.length": 8, "training.checkpoint_every": 2}

    def call(*more):
        code = main(["train", *(f"{name}={value}" for name, value in told.items()), *more])
        return code, capsys.readouterr().err

    return call


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
def test_a_gpu_that_is_full_is_one_sentence_and_the_run_goes_on_from_its_checkpoint(
    error, command, device, monkeypatch, tmp_path
):
    score, left = HMM.score, iter(range(5))

    def scarce(self, *arguments, **more):
        if self.training and next(left, None) is None:
            raise error("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB")
        return score(self, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(HMM, "score", scarce)
        code, said = command(f"training.device={device}")
    assert code == 2
    assert said.splitlines()[-1].startswith("error: the GPU has not enough memory: ask for fewer states, a smaller")
    assert "Traceback" not in said
    assert [path.name for path in checkpoints.found(tmp_path / "run")] == ["checkpoint-2", "checkpoint-4"]
    assert said.splitlines()[-1].endswith("or compute on the processor (--device cpu).")
    code, said = command("--device", "cpu", "--resume")
    assert code == 0, said
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines if "loss" in line] == list(range(1, 1 + lines[-1]["update"]))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["training.device=cudda"], r"training\.device cannot be 'cudda': did you mean 'cuda'\?"),
        (["training.device=lazy:0", "training.precision=bf16"], r"there are no bf16 products on lazy:0: set "),
    ],
)
def test_a_device_that_will_not_do_is_one_sentence_before_anything_is_written(
    settings, sentence, command, device, tmp_path
):
    code, said = command(*settings)
    assert code == 2
    assert re.search(f"error: {sentence}", said)
    assert not (tmp_path / "run").exists()
