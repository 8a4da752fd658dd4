import dataclasses

import numpy as np
import pytest

from trellis.errors import TrellisError
from trellis.training import fingerprint as module
from trellis.training.fingerprint import fingerprint

from .runs import STATES, make_model, run, settings, some_labels, taught, text


def of(folder, chosen=None, labels=None, distilled=None):
    ids = text(folder / "cache")
    return fingerprint(chosen or settings(), make_model(0), ids, None, 10, labels, distilled)


def test_how_often_to_save_and_where_to_compute_are_no_part_of_it(tmp_path):
    assert of(tmp_path) == of(tmp_path, settings(checkpoint_every=7, keep=9, device="cpu"))
    assert of(tmp_path) != of(tmp_path, settings(lr=0.3))


def test_labels_are_hashed_in_pieces_whatever_they_are_kept_as(monkeypatch, tmp_path):
    labels = some_labels(text(tmp_path / "cache"))
    want = of(tmp_path, labels=labels)
    monkeypatch.setattr(module, "PIECE", 10)
    assert of(tmp_path, labels=labels.astype(np.int16)) == want
    labels[-1] = (labels[-1] + 2) % STATES
    assert of(tmp_path, labels=labels) != want


def test_what_a_teacher_gave_counts_as_far_as_it_is_used(tmp_path):
    labels = some_labels(text(tmp_path / "cache"))
    plain = taught(labels)
    other = plain._replace(centroids_SR=plain.centroids_SR + 1, head_VR=plain.head_VR + 1, about={"seconds": 3})
    assert of(tmp_path, labels=labels, distilled=plain) == of(tmp_path, labels=labels, distilled=other)
    for name in ("centroids", "head"):
        used = taught(labels, **{name: True})
        moved = used._replace(**{f"{name}_SR" if name == "centroids" else f"{name}_VR": used[2 + (name == "head")] + 1})
        assert of(tmp_path, labels=labels, distilled=used) != of(tmp_path, labels=labels, distilled=moved)
    assert of(tmp_path, labels=labels, distilled=plain) != of(tmp_path, labels=labels)


@pytest.mark.parametrize(
    "changes", [{"tokens": 111}, {"lr": 0.1}, {"teacher": "another"}, {"layer": 1}, {"seed": 3}, {"counts": True}]
)
def test_a_run_goes_on_with_its_own_distillation_alone(changes, tmp_path):
    labels, chosen = some_labels(text(tmp_path / "cache")), settings(init="distill")
    first = run(tmp_path, chosen, distilled=taught(labels))
    assert run(tmp_path, chosen, distilled=taught(labels.astype(np.int32)), resume=True) == first
    distilled = taught(labels)
    other = distilled._replace(settings=dataclasses.replace(distilled.settings, **changes))
    with pytest.raises(TrellisError, match="belongs to a run with other settings, text or vocabulary"):
        run(tmp_path, chosen, distilled=other, resume=True)


def test_a_run_goes_on_with_its_own_labels_of_a_teacher_alone(tmp_path):
    labels, chosen = some_labels(text(tmp_path / "cache")), settings(init="distill")
    run(tmp_path, chosen, distilled=taught(labels))
    labels[7] = (labels[7] + 2) % STATES
    with pytest.raises(TrellisError, match="belongs to a run with other settings, text or vocabulary"):
        run(tmp_path, chosen, distilled=taught(labels), resume=True)
