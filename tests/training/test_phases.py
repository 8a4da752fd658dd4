import itertools
import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from trellis.distillation.settings import DistillSettings
from trellis.errors import TrellisError
from trellis.models import HMM, HMMConfig
from trellis.models.lstm import LSTM, LSTMConfig
from trellis.text import BATCHINGS
from trellis.training import Stopped, loop, train
from trellis.training.phases import Phase, phase_at
from trellis.training.schedules import Schedule
from trellis.training.settings import CompleteSettings

from .runs import (
    BLOCK_V,
    STATES,
    WORDS,
    assert_same_run,
    blocked,
    diary,
    make_model,
    run,
    settings,
    some_labels,
    taught,
    tensors,
    text,
)

CHOSEN = {"init": "distill"}


def first_labels(folder, tokens=110):
    """Labels of the text's first tokens alone, as a teacher gives them who was asked for no more."""
    labels = some_labels(text(folder / "cache"))
    return np.where(np.arange(len(labels)) < tokens, labels, -1)


def low_rank(seed):
    return HMM(HMMConfig(WORDS.vocab_size, STATES, transition="low_rank", emission="low_rank", width=3), seed)


def networked(encoder):
    def make(seed):
        parts = dict.fromkeys(("start", "transition", "emission"), "low_rank")
        return HMM(HMMConfig(WORDS.vocab_size, STATES, **parts, encoder=encoder, width=4, layers=1, heads=2), seed)

    return make


# Which phase it is


def test_the_labels_come_first_for_so_many_tokens():
    training, distill = CompleteSettings(lr=0.2), DistillSettings(tokens=100, lr=0.5, head=True, frozen=40)
    found = [phase_at(tokens, training, distill) for tokens in (0, 39, 40, 99, 100, 10**9)]
    joint, frozen = Phase("joint", 0.5), Phase("joint", 0.5, frozen=True)
    assert found == [frozen, frozen, joint, joint, *[Phase("marginal", 0.2)] * 2]


def test_what_is_frozen_may_outlast_the_labels():
    distill = DistillSettings(tokens=10, centroids=True, frozen=20)
    assert phase_at(15, CompleteSettings(lr=0.2), distill) == Phase("marginal", 0.2, frozen=True)


def test_without_a_rate_for_the_labels_there_is_one_rate():
    assert phase_at(0, CompleteSettings(lr=0.2), DistillSettings()) == Phase("joint", 0.2)


@pytest.mark.parametrize("objective", ["marginal", "joint"])
def test_a_run_without_a_teacher_has_one_phase(objective):
    training = CompleteSettings(lr=0.2, objective=objective)
    assert {phase_at(tokens, training, None) for tokens in (0, 10**9)} == {Phase(objective, 0.2)}


# What is learnt in it


def twin(folder, distilled, chosen, make):
    """Both phases written out: gradients of all batches in their order, and PyTorch's own AdamW."""
    model, distill = make(chosen.seed), distilled.settings
    kind = BATCHINGS[chosen.batching]
    batching = kind(
        text(folder / "cache"), batch_size=chosen.batch_size, length=chosen.length, seed=chosen.seed,
        labels=distilled.labels, labelled_first=True,
    )  # fmt: skip
    updates = round(chosen.epochs * batching.steps_per_epoch)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=chosen.weight_decay)
    tokens, state, losses = 0, None, []
    for update, batch in enumerate(itertools.islice(batching.batches(), updates)):
        labels, rate = (batch.labels, distill.lr or chosen.lr) if tokens < distill.tokens else (None, chosen.lr)
        before = state[: len(batch.ids)] if batch.carried else None
        log_prob, state = model.score(batch.ids, before, batch.lengths, labels_BT=labels)
        state, loss = state.detach(), -log_prob.sum() / batch.tokens
        optimizer.zero_grad(set_to_none=False)  # a start that no row of the batch has is still a parameter that moves
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), chosen.clip)
        optimizer.param_groups[0]["lr"] = rate * Schedule(chosen, updates).at(update)
        optimizer.step()
        tokens += batch.tokens
        losses.append(float(loss.detach()))
    return losses, model


@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize(("make", "changes"), [(make_model, {}), (make_model, {"lr": 0.02}), (low_rank, {"lr": 0.3})])
def test_a_run_is_two_phases_with_one_optimiser_and_one_schedule(make, changes, batching, tmp_path):
    chosen = settings(**CHOSEN, batching=batching, clip=0.5, weight_decay=0.01)
    distilled = taught(first_labels(tmp_path), **changes)
    run(tmp_path, chosen, make=make, distilled=distilled)
    losses, model = twin(tmp_path, distilled, chosen, make)
    lines = [line for line in diary(tmp_path) if "loss" in line]
    assert [line["loss"] for line in lines] == pytest.approx(losses, rel=1e-4)
    found = tensors(tmp_path)
    newest = {name.partition("/model/")[2]: t for name, t in found.items() if name.startswith("checkpoint-")}
    for name, parameter in model.named_parameters():
        assert_close(newest[name], parameter.detach(), rtol=1e-3, atol=1e-4)
    joint = [line["joint"] for line in lines]
    before = [0, *(line["tokens"] for line in lines[:-1])]
    assert joint == [float(tokens < distilled.settings.tokens) for tokens in before]
    assert 2 < sum(joint) < len(lines) - 2
    schedule = Schedule(chosen, len(lines))
    rates = [(changes.get("lr", chosen.lr) if line["joint"] else chosen.lr) for line in lines]
    want = [rate * schedule.at(update) for update, rate in enumerate(rates)]
    assert [line["rate"] for line in lines] == pytest.approx(want)


def test_networks_with_a_rate_of_their_own_keep_it(tmp_path):
    def make(seed):
        return HMM(HMMConfig(WORDS.vocab_size, STATES, transition="low_rank", encoder="residual", width=4), seed)

    chosen = settings(**CHOSEN, network_lr=1e-12)
    run(tmp_path, chosen, make=make, distilled=taught(first_labels(tmp_path), lr=0.3))
    fresh, found = make(0).state_dict(), tensors(tmp_path)
    newest = {name.partition("/model/")[2]: t for name, t in found.items() if name.startswith("checkpoint-")}
    moved = {name for name, tensor in fresh.items() if not torch.allclose(tensor, newest[name], atol=1e-6)}
    assert {name for name in fresh if "networks" not in name} == moved


def test_baum_welch_counts_the_labels_first(tmp_path):
    """One pass over the text with labels, then one without."""
    labels = some_labels(text(tmp_path / "cache"))
    chosen = {"method": "baum_welch", "full_batch": True}
    distilled = taught(labels, tokens=1)
    run(tmp_path / "both", settings(**CHOSEN, **chosen, epochs=2.0), distilled=distilled)
    run(tmp_path / "joint", settings(**chosen, objective="joint", epochs=1.0), labels=labels)
    after = HMM.from_pretrained(tmp_path / "joint" / "run" / "checkpoint-1")
    run(tmp_path / "marginal", settings(**chosen, epochs=1.0), make=lambda seed: after)
    ours, theirs = (
        HMM.from_pretrained(tmp_path / name / "run" / f"checkpoint-{n}") for name, n in (("both", 2), ("marginal", 1))
    )
    for found, want in zip(ours.tables(), theirs.tables(), strict=True):
        assert_close(found, want, rtol=1e-4, atol=1e-6)


def test_labels_that_run_out_leave_the_marginal_likelihood(tmp_path):
    """No label at all: the same losses as a run without a teacher, though another rate is set for the phase."""
    labels = np.full(len(text(tmp_path / "cache")), -1)
    run(tmp_path / "distilled", settings(**CHOSEN), distilled=taught(labels, tokens=10**6))
    run(tmp_path / "plain", settings())
    ours, theirs = ([line for line in diary(tmp_path / name) if "loss" in line] for name in ("distilled", "plain"))
    assert {line.pop("joint") for line in ours} == {1.0}
    for found, want in zip(ours, theirs, strict=True):
        assert found == pytest.approx(want, rel=1e-4)


def test_states_are_dropped_in_the_marginal_phase_alone(tmp_path):
    labels = some_labels(text(tmp_path / "cache"), 16, BLOCK_V)
    chosen = settings(**CHOSEN, lr=0.01)
    for name, dropout in (("dropout", 0.5), ("whole", 0.0)):

        def make(seed, dropout=dropout):
            return blocked(seed, dropout=dropout)

        run(tmp_path / name, chosen, make=make, distilled=taught(labels, 16))
    ours, theirs = ([line for line in diary(tmp_path / name) if "loss" in line] for name in ("dropout", "whole"))
    alike = [math.isclose(a["loss"], b["loss"], rel_tol=1e-6) for a, b in zip(ours, theirs, strict=True)]
    assert alike[:5] == [True] * 5
    assert not any(alike[5:])


def test_the_bar_says_which_phase_it_is(monkeypatch, tmp_path):
    said, advance = [], loop.Progress.advance

    def noted(self, amount=1, status=None):
        if status:
            said.append(status.rpartition(" ")[0])
        advance(self, amount, status)

    labels = first_labels(tmp_path)
    monkeypatch.setattr(loop.Progress, "advance", noted)
    run(tmp_path, settings(**CHOSEN), distilled=taught(labels), valid=False)
    assert [name for name, _ in itertools.groupby(said)] == ["joint perplexity", "marginal perplexity"]
    said.clear()
    run(tmp_path / "plain", settings(), valid=False)
    assert said[-1] == "perplexity"


# What does not go together

TOGETHER = r"^distilled=… and training\.init=distill belong together: give both or neither\.$"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, TOGETHER),
        ({"init": "restarts"}, TOGETHER),
        (
            {"init": "distill", "objective": "joint"},
            r"^training\.init=distill learns from labels of its own: set training\.objective=marginal\.$",
        ),
        ({"init": "distill", "method": "baum_welch"}, r"^distill\.lr is a learning rate, which Baum–Welch has n"),
    ],
)
def test_what_does_not_belong_together_is_refused_before_anything_is_written(changes, sentence, tmp_path):
    with pytest.raises(TrellisError, match=sentence):
        run(tmp_path, settings(**changes), distilled=taught(first_labels(tmp_path), lr=0.1))
    assert not (tmp_path / "run").exists()


def test_the_setting_without_a_teacher_is_refused(tmp_path):
    with pytest.raises(TrellisError, match=TOGETHER):
        train(make_model, WORDS, text(tmp_path / "cache"), None, settings(**CHOSEN), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_without_states_cannot_be_distilled(tmp_path):
    with pytest.raises(TrellisError, match=r"^distillation is for models with hidden states, not lstm: set train"):
        run(
            tmp_path, settings(**CHOSEN), make=lambda seed: LSTM(LSTMConfig(WORDS.vocab_size, width=6), seed),
            distilled=taught(first_labels(tmp_path)),
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_labels_of_more_states_than_the_model_has_are_refused(tmp_path):
    with pytest.raises(TrellisError, match=r"is none of the 4 states: give 0 to 3"):
        run(tmp_path, settings(**CHOSEN), distilled=taught(np.full(len(text(tmp_path / "cache")), STATES)))
    assert not (tmp_path / "run").exists()


# Going on


@pytest.mark.parametrize("at", [3, 5, 6, 9], ids=["joint", "last joint", "first marginal", "marginal"])
@pytest.mark.parametrize(
    ("changes", "make"),
    [
        ({}, make_model),
        ({"batching": "streams"}, low_rank),
        ({"method": "sgd"}, make_model),
        ({"method": "baum_welch", "step_size": 0.5}, make_model),
        ({"accumulate": 2, "epochs": 4.0}, make_model),
        ({"network_lr": 0.01}, networked("mlp")),
        ({"batching": "streams", "network_lr": 0.01}, networked("transformer")),
    ],
    ids=["free logits", "vectors", "SGD", "Baum-Welch", "accumulated", "MLP", "transformer"],
)
def test_a_distilled_run_resumes_to_the_bit(changes, make, at, monkeypatch, tmp_path):
    chosen, distilled = settings(**CHOSEN, **changes), taught(first_labels(tmp_path))
    run(tmp_path / "undisturbed", chosen, make=make, distilled=distilled)
    update = loop._Run._update

    def stopping(self, batches, stop, bar):
        if self.place.update == at - 1:
            stop.append(1)
        return update(self, batches, stop, bar)

    monkeypatch.setattr(loop._Run, "_update", stopping)
    with pytest.raises(Stopped, match=f"stopped after update {at} "):
        run(tmp_path / "disturbed", chosen, make=make, distilled=distilled)
    monkeypatch.undo()
    run(tmp_path / "disturbed", chosen, make=make, distilled=distilled, resume=True)
    assert_same_run(tmp_path / "disturbed", tmp_path / "undisturbed")
