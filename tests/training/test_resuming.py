"""Runs that were stopped, killed or crashed go on to the same weights, and what cannot be gone on with is refused."""

import itertools
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from trellis.errors import TrellisError
from trellis.manifests import MANIFEST
from trellis.models import HMM, HMMConfig
from trellis.models.lstm import LSTM, LSTMConfig
from trellis.text import BATCHINGS
from trellis.training import Stopped, checkpoints

from .runs import (
    METHODS,
    STATES,
    WORDS,
    assert_same_run,
    blocked,
    diary,
    make_model,
    run,
    settings,
    tensors,
    text,
)


class CrashError(Exception):
    """What a bug, or a full disk, would be."""


def crash():
    raise CrashError


def ask_to_stop(number=signal.SIGTERM):
    return lambda: os.kill(os.getpid(), number)


def low_rank(seed):
    parts = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank", "width": 2, "shared": True}
    return HMM(HMMConfig(WORDS.vocab_size, STATES, **parts), seed=seed)


def lstm(seed):
    """A model that draws at random while it learns."""
    return LSTM(LSTMConfig(WORDS.vocab_size, width=6, dropout=0.5), seed=seed)


@pytest.mark.parametrize(
    ("changes", "make"),
    [
        *(({"method": m, "batching": b}, make_model) for m, b in itertools.product(METHODS, BATCHINGS)),
        ({"batching": "streams", "accumulate": 3, "epochs": 6.0}, low_rank),
        (
            {
                "schedule": "plateau",
                "patience": 0,
                "factor": 0.5,
                "lr": 1.0,
                "init": "restarts",
                "restarts": 2,
                "restart_steps": 2,
            },
            low_rank,
        ),
        ({"method": "baum_welch", "full_batch": True, "epochs": 14.0, "step_size": 0.7}, make_model),
        *(({"batching": b, "lr": 0.01}, make) for b, make in itertools.product(BATCHINGS, (lstm, blocked))),
        ({"batching": "streams", "accumulate": 3, "epochs": 6.0, "lr": 0.01}, lstm),
        *(
            ({"method": m, "batching": b, "objective": "joint"}, make_model)
            for m, b in itertools.product(("adamw", "baum_welch"), BATCHINGS)
        ),
    ],
)
def test_a_run_stopped_and_crashed_ends_with_the_same_weights(changes, make, at_update, tmp_path):
    chosen = settings(**changes)
    run(tmp_path / "undisturbed", chosen, make=make)
    at_update(5, ask_to_stop())
    with pytest.raises(Stopped, match=r"stopped after update 6 of \d+$"):
        run(tmp_path / "disturbed", chosen, make=make)
    at_update(11, crash)  # after checkpoint 9
    with pytest.raises(CrashError):
        run(tmp_path / "disturbed", chosen, make=make, resume=True)
    assert diary(tmp_path / "disturbed")[-1]["update"] == 11
    at_update(0, crash)
    run(tmp_path / "disturbed", chosen, make=make, resume=True)
    assert_same_run(tmp_path / "disturbed", tmp_path / "undisturbed")


def test_a_finished_run_stays_as_it_is(tmp_path):
    first = run(tmp_path, settings())
    before = tensors(tmp_path)
    again = run(tmp_path, settings(), resume=True)
    assert again == first
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors(tmp_path).items())


def test_how_often_to_save_may_change_between_sessions(at_update, tmp_path):
    run(tmp_path / "undisturbed", settings())
    at_update(5, ask_to_stop())
    with pytest.raises(Stopped):
        run(tmp_path / "disturbed", settings())
    run(tmp_path / "disturbed", settings(checkpoint_every=1, keep=5), resume=True)
    assert_same_run(tmp_path / "disturbed", tmp_path / "undisturbed")


def test_a_request_to_stop_in_the_last_update_is_the_end(at_update, tmp_path):
    updates = diary_length(tmp_path)
    at_update(updates - 1, ask_to_stop())
    assert run(tmp_path / "asked", settings()).tokens == 2 * len(text(tmp_path / "cache"))


def diary_length(folder):
    run(folder / "counted", settings())
    return int(diary(folder / "counted")[-1]["update"])


def test_a_second_interrupt_stops_at_once(at_update, tmp_path):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    at_update(4, twice)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, settings())
    assert [path.name for path in checkpoints.found(tmp_path / "run")] == ["checkpoint-3"]
    assert signal.getsignal(signal.SIGINT) is handler


def test_training_works_in_a_thread(tmp_path):
    run(tmp_path / "main", settings())
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: (torch.set_num_threads(1), run(tmp_path / "thread", settings()))).result()
    assert_same_run(tmp_path / "thread", tmp_path / "main")


# Refusals


def contents(folder):
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def stopped(at_update, tmp_path):
    """A run stopped after six updates."""
    at_update(5, ask_to_stop())
    with pytest.raises(Stopped):
        run(tmp_path, settings(batching="streams"))
    at_update(0, crash)
    return tmp_path


@pytest.mark.parametrize("name", ["model.safetensors", "training.safetensors", "place.json"])
@pytest.mark.parametrize("share", [0.0, 0.6])
def test_a_checkpoint_cut_short_is_refused_and_left_alone(name, share, stopped):
    path = stopped / "run" / "checkpoint-6" / name
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    before = contents(stopped)
    sentence = "has changed since it was written: restore it" if name == "place.json" else "is cut short or damaged"
    with pytest.raises(TrellisError, match=f"{name} {sentence}"):
        run(stopped, settings(batching="streams"), resume=True)
    assert contents(stopped) == before
    path.write_bytes(data)
    run(stopped, settings(batching="streams"), resume=True)


@pytest.mark.parametrize("name", ["model.safetensors", "training.safetensors", "place.json"])
def test_a_checkpoint_that_lacks_a_file_is_refused(name, stopped):
    (stopped / "run" / "checkpoint-6" / name).unlink()
    with pytest.raises(TrellisError, match=name):
        run(stopped, settings(batching="streams"), resume=True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": 2}, "was written by another version of Trellis"),
        ({"run": "0123"}, "belongs to a run with other settings, text or vocabulary"),
        ({"stepp": 3}, r"place\.json is damaged"),
    ],
)
def test_another_place_is_refused(change, sentence, stopped):
    path = stopped / "run" / "checkpoint-6" / "place.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    (path.parent / MANIFEST).unlink()  # as of an older version, or of somebody who means it
    before = contents(stopped)
    with pytest.raises(TrellisError, match=sentence):
        run(stopped, settings(batching="streams"), resume=True)
    assert contents(stopped) == before


@pytest.mark.parametrize("change", [{"lr": 0.2}, {"epochs": 3.0}, {"seed": 1}, {"batching": "windows"}, {"length": 7}])
def test_other_settings_are_refused(change, stopped):
    before = contents(stopped)
    with pytest.raises(TrellisError, match="start a new run folder or restore the old settings"):
        run(stopped, settings(**({"batching": "streams"} | change)), resume=True)
    assert contents(stopped) == before


def test_another_model_or_other_text_is_refused(stopped):
    with pytest.raises(TrellisError, match="other settings, text or vocabulary"):
        run(stopped, settings(batching="streams"), resume=True, make=low_rank)
    with pytest.raises(TrellisError, match="other settings, text or vocabulary"):
        run(stopped, settings(batching="streams"), resume=True, valid=False)


def test_a_folder_with_a_run_is_not_begun_again(stopped):
    before = contents(stopped)
    with pytest.raises(TrellisError, match="holds a run already: go on with resume=True, or choose another folder"):
        run(stopped, settings(batching="streams"))
    assert contents(stopped) == before


def test_time_on_validation_text_is_told_apart_and_adds_up_over_sessions(at_update, tmp_path):
    chosen = settings(validations=4)
    began, worked = time.monotonic(), time.process_time()
    whole = run(tmp_path / "whole", chosen)
    assert whole.validating > 0
    assert whole.seconds + whole.validating < time.monotonic() - began
    place = json.loads((checkpoints.found(tmp_path / "whole" / "run")[-1] / "place.json").read_text())
    assert 0 < place["processor"] < time.process_time() - worked
    at_update(5, ask_to_stop())
    with pytest.raises(Stopped):
        run(tmp_path / "parts", chosen)
    (checkpoint,) = checkpoints.found(tmp_path / "parts" / "run")[-1:]
    earlier = json.loads((checkpoint / "place.json").read_text())
    at_update(10**6, lambda *_: None)
    assert run(tmp_path / "parts", chosen, resume=True).validating > earlier["validating"] > 0
    last = json.loads((checkpoints.found(tmp_path / "parts" / "run")[-1] / "place.json").read_text())
    assert last["processor"] > earlier["processor"] > 0
