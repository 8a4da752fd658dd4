import pytest
import torch

from trellis.errors import TrellisError
from trellis.models import HMM
from trellis.training import checkpoints
from trellis.training.checkpoints import Place

from .runs import WORDS, make_model

PLACE = Place(6, 3, 70, 1.5, None, {"level": 0.5, "best": 2.0, "waited": 1.0}, "fingerprint")


@pytest.mark.parametrize("state", [None, torch.rand(4, 3)], ids=["windows", "streams"])
def test_what_is_saved_is_what_is_loaded(state, tmp_path):
    model, learner = make_model(0), {"0.step": torch.tensor(3.0), "0.exp_avg": torch.rand(4)}
    folder = checkpoints.save(tmp_path, model, WORDS, PLACE, learner, state, keep=2)
    assert folder == tmp_path / "checkpoint-3"
    place, tensors, restored, carried = checkpoints.load(folder, "fingerprint")
    assert place == PLACE
    assert all(torch.equal(tensors[name], tensor) for name, tensor in model.state_dict().items())
    assert restored.keys() == learner.keys()
    assert all(torch.equal(restored[name], tensor) for name, tensor in learner.items())
    assert carried is None if state is None else torch.equal(carried, state)
    HMM.from_pretrained(folder)  # a model like any other
    with pytest.raises(TrellisError, match="belongs to a run with other settings, text or vocabulary"):
        checkpoints.load(folder, "another")


def test_checkpoints_are_told_apart_by_number_not_by_name(tmp_path):
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-2", "checkpoint-x", ".checkpoint-11-abc.partial"):
        (tmp_path / name).mkdir()
    assert [path.name for path in checkpoints.found(tmp_path)] == ["checkpoint-2", "checkpoint-9", "checkpoint-10"]


@pytest.mark.parametrize("made", ["checkpoint-3", "best", "restart-1/checkpoint-2"])
def test_a_folder_is_begun_once_anything_was_kept(made, tmp_path):
    assert not checkpoints.begun(tmp_path)
    (tmp_path / ".checkpoint-1-abc.partial").mkdir()
    (tmp_path / "metrics.jsonl").touch()
    assert not checkpoints.begun(tmp_path)
    (tmp_path / made).mkdir(parents=True)
    assert checkpoints.begun(tmp_path)
