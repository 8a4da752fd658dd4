import json

import pytest
import torch

from trellis.errors import TrellisError
from trellis.manifests import MANIFEST
from trellis.models import HMM
from trellis.models.tensor_files import read_tensors, write_tensors
from trellis.training import checkpoints
from trellis.training.checkpoints import Place

from .runs import WORDS, make_model, run, settings

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


def tell(folder, **changes):
    path = folder / "place.json"
    about = {name: value for name, value in (json.loads(path.read_text()) | changes).items() if value != "absent"}
    path.write_text(json.dumps(about))
    (folder / MANIFEST).unlink(missing_ok=True)


@pytest.mark.parametrize("name", ["training.safetensors", "model.safetensors", "place.json", "config.json"])
def test_a_checkpoint_whose_numbers_changed_is_refused(name, tmp_path):
    folder = checkpoints.save(tmp_path, make_model(0), WORDS, PLACE, {"0.step": torch.ones(4)}, torch.rand(4, 3), 2)
    data = bytearray((folder / name).read_bytes())
    data[-3] ^= 16
    (folder / name).write_bytes(data)
    with pytest.raises(TrellisError, match=f"{name} has changed since it was written"):
        checkpoints.load(folder, "fingerprint")


def test_a_checkpoint_of_an_older_version_has_no_manifest(tmp_path):
    folder = checkpoints.save(tmp_path, make_model(0), WORDS, PLACE, {}, torch.rand(4, 3), keep=2)
    tell(folder, sha256="0" * 64)
    with pytest.raises(TrellisError, match=r"training\.safetensors has changed since it was written"):
        checkpoints.load(folder, "fingerprint")
    tell(folder, sha256="absent")
    assert checkpoints.load(folder, "fingerprint")[0] == PLACE
    write_tensors(folder / "training.safetensors", {"state": torch.full((4, 3), torch.nan)})
    with pytest.raises(TrellisError, match=r"state in .* holds nan"):
        checkpoints.load(folder, "fingerprint")


@pytest.mark.parametrize(
    "change",
    [{"step": "6"}, {"step": -1}, {"update": 3.5}, {"tokens": None}, {"seconds": "long"}, {"best": "good"},
     {"best": float("nan")}, {"schedule": []}, {"schedule": {"level": "x", "best": 1, "waited": 0}}, {"loss": [1]},
     {"schedule": None}, {"converged": 1}, {"seconds": float("inf")}, {"run": "absent"}, {"more": 1}],
    ids=str,
)  # fmt: skip
def test_a_place_that_cannot_be_is_refused(change, tmp_path):
    folder = checkpoints.save(tmp_path, make_model(0), WORDS, PLACE, {}, None, keep=2)
    tell(folder, **change)
    with pytest.raises(TrellisError, match=r"place.json is damaged"):
        checkpoints.load(folder, "fingerprint")


STATES = {"none": None, "no rows": torch.rand(0, 3), "too many rows": torch.rand(9, 3), "no batch": torch.rand(4)}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_a_run_does_not_go_on_without_the_state_it_carried(state, tmp_path):
    chosen = settings(batching="streams", epochs=0.5)
    run(tmp_path, chosen)
    newest = checkpoints.found(tmp_path / "run")[-1]
    training = read_tensors(newest / "training.safetensors")
    del training["state"]
    write_tensors(newest / "training.safetensors", training if state is None else training | {"state": state})
    tell(newest, sha256="absent")
    with pytest.raises(TrellisError, match="is not that of this run: restore it or use an older"):
        run(tmp_path, chosen, resume=True)


def test_a_state_of_another_width_is_refused_too(tmp_path):
    chosen = settings(batching="streams", epochs=0.5, checkpoint_every=1, keep=20)
    run(tmp_path, chosen)
    *_, older, newest = checkpoints.found(tmp_path / "run")
    newest.rename(tmp_path / "aside")
    training = read_tensors(older / "training.safetensors")
    for state in (training["state"][:, :1], training["state"][:1]):
        write_tensors(older / "training.safetensors", training | {"state": state.contiguous()})
        tell(older, sha256="absent")
        with pytest.raises(TrellisError, match=r"a state of shape .* does not belong to"):
            run(tmp_path, chosen, resume=True)
