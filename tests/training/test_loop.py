import dataclasses
import itertools
import math
import shutil
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import load_file

from trellis.errors import TrellisError
from trellis.evaluation import evaluate
from trellis.models import HMM, HMMConfig, Unigram, load_model
from trellis.models.kneser_ney import KneserNey, KneserNeyConfig
from trellis.models.lstm import LSTM, LSTMConfig
from trellis.text import BATCHINGS, Windows
from trellis.training import checkpoints, loop
from trellis.training.learners import BaumWelchLearner, GradientLearner
from trellis.training.schedules import Schedule

from .runs import (
    METHODS,
    STATES,
    WORDS,
    assert_same_run,
    diary,
    make_model,
    run,
    settings,
    text,
    visible,
)


def low_rank(seed):
    parts = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank", "width": 2, "shared": True}
    return HMM(HMMConfig(WORDS.vocab_size, STATES, **parts), seed=seed)


def lstm(seed):
    """A model that draws at random while it learns."""
    return LSTM(LSTMConfig(WORDS.vocab_size, width=6, dropout=0.5), seed=seed)


def test_an_impossible_token_stops_the_run_with_its_sentence(tmp_path):
    def make(seed):
        model = make_model(seed)
        start, transition, emission = model.tables()
        emission[:, WORDS.id("c")] = 0.0
        model.set_tables(start, transition, emission / emission.sum(1, keepdim=True))
        return model

    with pytest.raises(TrellisError, match=r"the token at row \d, position \d of the batch is impossible"):
        run(tmp_path, settings(), make=make)


# What a run leaves behind


@pytest.mark.parametrize(
    "changes", [{}, {"method": "sgd", "lr": 5.0}, {"method": "baum_welch", "full_batch": True}], ids=METHODS
)
def test_it_learns_more_than_how_often_words_come(changes, tmp_path):
    found = run(tmp_path, settings(epochs=20.0, **changes))
    learnt, held_out = text(tmp_path / "cache"), text(tmp_path / "cache", 8, seed=1)
    assert found.perplexity < 0.95 * evaluate(Unigram.fit(learnt, WORDS.vocab_size), held_out, "windows").perplexity
    assert found.tokens == 20 * len(learnt)


def test_the_diary_notes_every_update_with_its_rate_and_tokens(tmp_path):
    run(tmp_path, settings(schedule="constant", warmup=0.2))
    learnt = [line for line in diary(tmp_path) if "loss" in line]
    updates = len(learnt)
    assert [line["update"] for line in learnt] == list(range(1, updates + 1))
    warm = round(0.2 * updates)
    assert [line["rate"] for line in learnt] == pytest.approx([0.1 * min(1, (n + 1) / warm) for n in range(updates)])
    assert learnt[-1]["tokens"] == 2 * len(text(tmp_path / "cache"))
    assert learnt[0]["tokens"] == 24


def test_the_first_loss_is_that_of_the_fresh_model_on_the_first_batch(tmp_path):
    run(tmp_path, settings())
    batching = Windows(text(tmp_path / "cache"), batch_size=4, length=6, seed=0)
    batch = next(batching.batches())
    log_prob, _ = make_model(0).score(batch.ids, lengths_B=batch.lengths)
    assert diary(tmp_path)[0]["loss"] == pytest.approx(-float(log_prob.detach().sum()) / batch.tokens)


@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_run_is_its_learner_its_batches_and_its_schedule(method, batching, shuffle, tmp_path):
    """The loop once more, as plainly as can be."""
    chosen = settings(method=method, batching=batching, shuffle=shuffle, warmup=0.3, validations=1000.0)
    run(tmp_path, chosen)
    model = make_model(0)
    learner = (BaumWelchLearner if method == "baum_welch" else GradientLearner)(model, chosen)
    batches = BATCHINGS[batching](text(tmp_path / "cache"), batch_size=4, length=6, shuffle=shuffle, seed=0).batches()
    updates, state = int(diary(tmp_path)[-1]["update"]), None
    for update in range(updates):
        batch = next(batches)
        learnt = learner.learn(batch, state[: len(batch.ids)] if batch.carried else None)
        learner.update(learnt.tokens, Schedule(chosen, updates).at(update))
        state = learnt.state
    found = load_file(tmp_path / "run" / f"checkpoint-{updates}" / "model.safetensors")
    assert all(torch.equal(found[name], parameter) for name, parameter in model.named_parameters())


def test_text_is_read_as_it_stands_where_it_is_not_shuffled(tmp_path):
    """Then the second epoch's first batch is the first epoch's: a model that hardly moves finds it as probable."""
    for name, shuffle in (("shuffled", True), ("standing", False)):
        run(tmp_path / name, settings(batching="streams", shuffle=shuffle, lr=1e-9))
    losses = {
        name: [line["loss"] for line in diary(tmp_path / name) if "loss" in line] for name in ("shuffled", "standing")
    }
    for name, found in losses.items():
        half = len(found) // 2
        assert (found[:half] == pytest.approx(found[half:], abs=1e-5)) == (name == "standing")


@pytest.mark.parametrize("batching", BATCHINGS)
def test_the_model_with_the_lowest_validation_loss_is_kept(batching, tmp_path):
    found = run(tmp_path, settings(batching=batching, lr=2.5, epochs=6.0, schedule="constant"))
    losses = [line["valid_loss"] for line in diary(tmp_path) if "valid_loss" in line]
    assert min(losses) < losses[-1]  # otherwise this says nothing
    best = evaluate(HMM.from_pretrained(found.best), text(tmp_path / "cache", 8, seed=1), batching)
    assert best.nats / best.tokens == min(losses)
    assert found.perplexity == pytest.approx(math.exp(min(losses)))


def test_validations_come_as_often_as_asked(tmp_path):
    run(tmp_path / "four", settings(epochs=3.0, validations=4.0))
    steps = Windows(text(tmp_path / "cache"), batch_size=4, length=6).steps_per_epoch
    every = round(steps / 4)
    noted = [line["update"] for line in diary(tmp_path / "four") if "valid_loss" in line]
    assert noted == sorted({*range(every, 3 * steps + 1, every), 3 * steps})


def test_without_validation_text_the_last_model_is_kept(tmp_path):
    found = run(tmp_path, settings(), valid=False)
    assert found.perplexity is None
    last = load_file(checkpoints.found(tmp_path / "run")[-1] / "model.safetensors")
    best = load_file(found.best / "model.safetensors")
    assert last.keys() == best.keys()
    assert all(torch.equal(best[name], tensor) for name, tensor in last.items())


@pytest.mark.parametrize("keep", [1, 3])
def test_the_newest_checkpoints_are_kept(keep, tmp_path):
    run(tmp_path, settings(keep=keep, checkpoint_every=5))
    updates = int(diary(tmp_path)[-1]["update"])
    wanted = sorted({*range(5, updates + 1, 5), updates})[-keep:]
    assert [path.name for path in checkpoints.found(tmp_path / "run")] == [f"checkpoint-{n}" for n in wanted]
    assert visible(tmp_path) == sorted(["best", "metrics.jsonl", "tensorboard", *(f"checkpoint-{n}" for n in wanted)])


def test_old_checkpoints_vanish_before_they_are_deleted(tmp_path, monkeypatch):
    """A kill in the middle of deleting must not leave half a checkpoint in sight."""
    deleted, rmtree = [], shutil.rmtree
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda path, **how: (deleted.append(path.name), rmtree(path, **how)))
        run(tmp_path, settings(keep=1, checkpoint_every=1))
    assert any(name.startswith(".checkpoint-") for name in deleted)
    assert [name for name in deleted if not name.startswith(".")] == []


def test_a_run_is_decided_by_its_seed(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(tmp_path / name, settings(seed=seed))
    assert_same_run(tmp_path / "a", tmp_path / "b")
    assert diary(tmp_path / "a")[0]["loss"] != diary(tmp_path / "c")[0]["loss"]


def test_accumulated_batches_learn_like_larger_ones(tmp_path):
    """Windows of an epoch come in one order, so two batches of 3 rows are one of 6."""
    common = {"epochs": 1.0, "schedule": "constant"}
    run(tmp_path / "two", settings(batch_size=3, accumulate=2, **common))
    run(tmp_path / "one", settings(batch_size=6, **common))
    two, one = ([line["loss"] for line in diary(tmp_path / name) if "loss" in line] for name in ("two", "one"))
    assert len(two) == 4
    assert two == pytest.approx(one[:4], rel=1e-5)


# Models with dropout


def test_dropout_is_drawn_from_the_seed_and_the_batch_number(tmp_path, monkeypatch):
    """Every batch draws anew, the same in another run, and nobody else's generator moves."""
    drawn, learn = [], GradientLearner.learn

    def noted(self, *arguments):
        drawn.append((torch.initial_seed(), self.model.training))
        return learn(self, *arguments)

    monkeypatch.setattr(GradientLearner, "learn", noted)
    torch.manual_seed(5)
    undisturbed = torch.random.get_rng_state()
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(tmp_path / name, settings(seed=seed, accumulate=2), make=lstm)
    assert torch.equal(torch.random.get_rng_state(), undisturbed)
    a, b, c = (drawn[n * len(drawn) // 3 : (n + 1) * len(drawn) // 3] for n in range(3))
    assert a == b
    assert len(set(a) | set(c)) == len(a) + len(c)
    assert all(training for _, training in a)  # although it was validated in between


def test_what_a_gpu_draws_is_seeded_too_and_its_generator_left_as_it_was(monkeypatch):
    kept, seeded = [], []
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: nullcontext(kept.append(devices)))
    monkeypatch.setattr(torch, "manual_seed", seeded.append)
    for device in (torch.device("cuda", 1), torch.device("cpu")):
        with loop._chance(3, 5, device):
            pass
    assert kept == [[torch.device("cuda", 1)], []]
    assert seeded[0] == seeded[1]


def test_the_loss_of_learning_is_with_dropout_and_that_of_validation_without(tmp_path):
    found = run(tmp_path, settings(lr=1e-9), make=lstm)
    learnt, held_out = [line["loss"] for line in diary(tmp_path) if "loss" in line], text(tmp_path / "cache", 8, seed=1)
    fresh = lstm(0)
    assert found.perplexity == pytest.approx(evaluate(fresh, held_out, "windows").perplexity, rel=1e-6)
    batch = next(Windows(text(tmp_path / "cache"), batch_size=4, length=6, seed=0).batches())
    log_prob, _ = fresh.eval().score(batch.ids, lengths_B=batch.lengths)
    assert abs(learnt[0] + float(log_prob.detach().sum()) / batch.tokens) > 1e-4


# Models that count


def count_text(folder):
    text_of_run = text(folder / "cache")
    return lambda seed: KneserNey.for_text(KneserNeyConfig(WORDS.vocab_size, order=3), text_of_run, WORDS, seed)


@pytest.mark.parametrize("batching", BATCHINGS)
def test_a_model_that_counts_is_measured_and_kept(batching, tmp_path):
    found = run(tmp_path, settings(batching=batching), make=count_text(tmp_path))
    assert [path.name for path in checkpoints.found(tmp_path / "run")] == ["checkpoint-0"]
    best = evaluate(load_model(found.best), text(tmp_path / "cache", 8, seed=1), batching)
    assert found.perplexity == pytest.approx(best.perplexity)
    assert diary(tmp_path) == [{"update": 0, "valid_loss": math.log(found.perplexity)} | diary(tmp_path)[0]]
    assert found.tokens == len(text(tmp_path / "cache"))
    again = run(tmp_path, settings(batching=batching), make=count_text(tmp_path), resume=True)
    assert again == found
    with pytest.raises(TrellisError, match="Baum–Welch is for kind hmm, not kneser_ney"):
        run(tmp_path / "other", settings(method="baum_welch"), make=count_text(tmp_path))


def test_passes_of_baum_welch_stop_when_they_gain_too_little(tmp_path):
    told = settings(method="baum_welch", full_batch=True, epochs=60.0, smoothing=0.0)
    run(tmp_path / "all", told)
    losses = [line["loss"] for line in diary(tmp_path / "all") if "loss" in line]
    tolerance = (losses[5] - losses[6]) * 1.0001
    run(tmp_path / "some", dataclasses.replace(told, tolerance=tolerance))
    kept = [line["loss"] for line in diary(tmp_path / "some") if "loss" in line]
    gains = [before - after for before, after in itertools.pairwise(losses)]
    assert len(kept) == 2 + next(number for number, gain in enumerate(gains) if gain < tolerance) < len(losses)
    assert kept == pytest.approx(losses[: len(kept)])
    run(tmp_path / "some", dataclasses.replace(told, tolerance=tolerance), resume=True)
    assert len([line for line in diary(tmp_path / "some") if "loss" in line]) == len(kept), "it is finished"


def test_validation_shows_how_far_it_is(tmp_path, monkeypatch):
    seen = []

    def advance(bar, amount=1, status=None):
        seen.append(status)

    monkeypatch.setattr(loop.Progress, "advance", advance)
    loop.train(make_model, WORDS, text(tmp_path), text(tmp_path, 8, seed=1), settings(epochs=0.5), tmp_path / "run")
    assert any(status and status.startswith("validating 100%, perplexity") for status in seen)


def test_a_run_that_diverges_ends_instead_of_going_on_for_hours(tmp_path):
    with pytest.raises(TrellisError, match=r"training has diverged, at \d+ nats a token: lower training.lr."):
        run(tmp_path, settings(lr=2000.0, clip=1e9, epochs=8.0, schedule="constant", warmup=0.0))
    assert all(line.get("loss", 0.0) < loop.DIVERGED for line in diary(tmp_path))


def test_a_run_whose_loss_leaps_ends_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "DIVERGED", float("inf"))
    with pytest.raises(TrellisError, match=r"training has diverged, at \d+ nats a token: lower training.lr."):
        run(tmp_path, settings(lr=2000.0, clip=1e9, epochs=8.0, schedule="constant", warmup=0.0))
    assert all(line.get("loss", 0.0) < loop.LEAP for line in diary(tmp_path))


def test_a_model_that_begins_with_as_high_a_loss_learns(tmp_path):
    def scattered(seed):
        return HMM(HMMConfig(WORDS.vocab_size, STATES, emission="low_rank", width=2, init_scale=8.0), seed=seed)

    run(tmp_path, settings(), make=scattered)
    losses = [line["loss"] for line in diary(tmp_path) if "loss" in line]
    assert loop.LEAP < losses[0] < loop.DIVERGED
