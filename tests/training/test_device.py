import re

import pytest
import torch

from trellis.errors import TrellisError
from trellis.training.device import choose_device

from ..pretend_device import pretend_device
from .runs import run, settings


@pytest.fixture
def machine(monkeypatch):
    """A machine with so many GPUs of NVIDIA's, and perhaps Apple's."""

    def of(gpus: int, apple: bool = False) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: apple)

    return of


@pytest.mark.parametrize(
    ("gpus", "apple", "found"), [(0, False, "cpu"), (2, False, "cuda:0"), (0, True, "mps"), (1, True, "cuda:0")]
)
def test_auto_takes_a_gpu_if_there_is_one(gpus, apple, found, machine):
    machine(gpus, apple)
    assert str(choose_device("auto")) == found


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:1", "mps"])
def test_a_device_that_is_there_is_taken_by_name(name, machine):
    machine(2, apple=True)
    assert choose_device(name) == torch.device("cuda:0" if name == "cuda" else name)


def test_a_process_of_torchrun_takes_the_gpu_it_was_given(machine, monkeypatch):
    machine(2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert [str(choose_device(name)) for name in ("auto", "cuda", "cuda:0", "cpu")] == [
        "cuda:1", "cuda:1", "cuda:0", "cpu",
    ]  # fmt: skip
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(TrellisError, match=r"^there is no cuda:2: this machine has 2 GPUs\.$"):
        choose_device("cuda")


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "mps", "xpu"])
def test_a_device_that_this_machine_has_not_is_one_sentence(name, machine, tmp_path):
    machine(0)
    with pytest.raises(
        TrellisError, match=rf"^this machine has no {name[:4].rstrip(':')} device: set training\.device="
    ):
        run(tmp_path, settings(device=name))
    assert not (tmp_path / "run").exists()


def test_this_machine_has_no_gpu_or_has_one():
    """Asked as it is, without a pretence."""
    if torch.cuda.is_available():
        assert choose_device("cuda").type == "cuda"
    else:
        with pytest.raises(
            TrellisError, match=r"^this machine has no cuda device: set training\.device=cpu, or auto\.$"
        ):
            choose_device("cuda")


@pytest.mark.parametrize(
    ("name", "near"),
    [("cudda", "did you mean 'cuda'"), ("atuo", "did you mean 'auto'"), ("mp", "did you mean 'mps'"), ("?", "choose")],
)
def test_an_unknown_device_names_the_nearest(name, near, tmp_path):
    with pytest.raises(TrellisError, match=rf"^training\.device cannot be '{re.escape(name)}': {near}"):
        run(tmp_path, settings(device=name))
    assert not (tmp_path / "run").exists()


def test_a_device_of_another_make_is_taken_if_it_holds_tensors():
    with pytest.raises(TrellisError, match="this machine has no lazy device"):
        choose_device("lazy")
    with pretend_device() as device:
        assert choose_device("lazy:0") == device
