"""The training loop: one, for every model, method and number of processes."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trellis import torchrun
from trellis.distillation.settings import Distilled
from trellis.errors import TrellisError
from trellis.evaluation import evaluate, perplexity_of
from trellis.models import HMM, storage
from trellis.models.model import Model
from trellis.models.ngram import Unigram
from trellis.models.scorer import carry
from trellis.models.storage import Savable
from trellis.notebook import html_table
from trellis.progress import Progress, short_number, short_time
from trellis.text import BATCHINGS, Batch, IdFile
from trellis.training import checkpoints
from trellis.training.checkpoints import Place
from trellis.training.counting import Labelled
from trellis.training.defaults import batching_for, length_for, training_for
from trellis.training.device import choose_device
from trellis.training.distributed import World, world
from trellis.training.embeddings import taught_embeddings
from trellis.training.fingerprint import fingerprint
from trellis.training.initialisers import INITIALISERS, Beginning, Taught
from trellis.training.learners import BaumWelchLearner, GradientLearner, Learner
from trellis.training.metrics import Metrics
from trellis.training.objectives import check_labels
from trellis.training.phases import Phase, phase_at
from trellis.training.precision import check_precision
from trellis.training.run_folder import claimed, clear, refuse_links, restarted
from trellis.training.schedules import Schedule
from trellis.training.settings import RESTARTS, CompleteSettings, TrainingSettings

DIVERGED = 100.0  # nats a token, of which no model that learns has as many: such steps leave what float32 can hold
LEAP = 20.0  # nats a token: who doubles at one update and has as many then will not learn either


class Stopped(Exception):  # noqa: N818  # not an error: the run did as it was asked
    """Training was asked to stop and did, after writing a checkpoint."""


@dataclass(frozen=True)
class Trained:
    """What a run ended with."""

    best: Path  # folder of the best model
    perplexity: float | None  # its validation perplexity, if there was validation text
    unigram: float | None  # what a unigram of the training text has there
    protocol: str  # by which both were measured: a name in `trellis.evaluation.PROTOCOLS`
    tokens: int  # learnt from
    seconds: float  # spent making the model and learning
    validating: float  # seconds spent measuring it besides

    def __repr__(self) -> str:
        return f"Trained({', '.join(f'{name} {value}' for name, value in self._figures())})"

    def _repr_html_(self) -> str:
        return html_table(*self._figures())

    def _figures(self) -> list[tuple[str, str]]:
        measured = [("perplexity", self.perplexity), ("unigram", self.unigram)]
        figures = [(name, f"{value:,.2f}") for name, value in measured if value is not None]
        protocol = [("protocol", self.protocol)] if figures else []
        spent = [("tokens", short_number(self.tokens)), ("time", short_time(self.seconds + self.validating))]
        return [*figures, *protocol, *spent, ("best", str(self.best))]


def train(
    make_model: Callable[[int], Model],
    tokenizer: Savable,
    text: IdFile,
    valid: IdFile | None,
    settings: TrainingSettings,
    folder: str | PathLike[str],
    *,
    resume: bool = False,
    quiet: bool = False,
    labels: NDArray[Any] | None = None,
    distilled: Distilled | None = None,
) -> Trained:
    """Train a model into `folder`; `make_model` makes a fresh one from a seed.

    The folder gets `metrics.jsonl`, `tensorboard/`, `checkpoint-N/` and `best/`. With `resume`, the newest
    checkpoint there goes on and the final weights are those of a run never disturbed; a restart by torchrun needs
    no `resume`. `labels` gives the states of the text's tokens, −1 where they are unknown, to
    training.objective=joint. `distilled` gives what a teacher says of the text to training.init=distill: the run
    learns from tokens and the teacher's labels first, labelled windows before the others, and after
    `distilled.settings.tokens` tokens by the objective that was set.
    """
    device = choose_device(settings.device)
    check_precision(settings.precision, device)
    folder = Path(folder)
    if not (resume or restarted(folder)) and checkpoints.begun(folder):
        raise TrellisError(f"{folder} holds a run already: go on with resume=True, or choose another folder.")
    _check_given(settings, valid, labels, distilled)
    here = world(device)
    here.meet()
    trials: list[float] = []  # seconds of each

    def run(make: Callable[[], Model], folder: Path, restart_steps: int | None = None) -> Trained:
        began, earlier = time.monotonic(), len(trials)
        model = make().to(device)
        # Some kinds count or cluster the text here; trials are accounted for by themselves.
        made = time.monotonic() - began - sum(trials[earlier:])
        texts, complete = _Texts(text, valid, labels, distilled), training_for(settings, text, model.config)
        return _Run(model, tokenizer, texts, complete, folder, here, quiet, made, restart_steps).finish()

    def trial(seed: int) -> float | None:
        began = time.monotonic()
        found = run(lambda: make_model(seed), folder / f"restart-{seed}", settings.restart_steps).perplexity
        trials.append(time.monotonic() - began)
        return found

    length = settings.length or length_for(text)
    taught = None if distilled is None else Taught(distilled, text.ids, length, settings.smoothing)
    ends = text.documents if (settings.batching or batching_for(text)) == "sequences" else None
    labelled = None if labels is None else Labelled(text.ids, labels, length, ends)
    restarts = settings.restarts or RESTARTS
    beginning = Beginning(make_model, settings.seed, restarts, trial, taught, labelled, settings.smoothing)
    with claimed(folder) if here.chief else nullcontext():
        try:
            trained = run(lambda: INITIALISERS[settings.init](beginning), folder)
        except Stopped:
            here.part()
            raise
        here.part()
        return trained


class _Texts(NamedTuple):
    """What a run learns from, and is measured on."""

    train: IdFile
    valid: IdFile | None
    labels: NDArray[Any] | None
    distilled: Distilled | None


def _check_given(
    settings: TrainingSettings, valid: IdFile | None, labels: NDArray[Any] | None, distilled: Distilled | None
) -> None:
    """Refuse labels that nothing was set to use, and settings that want what is not there."""
    if settings.init == "restarts" and valid is None:
        raise TrellisError("training.init=restarts chooses by validation text: give some, or set training.init=random.")
    if (distilled is None) != (settings.init != "distill"):
        raise TrellisError("distilled=… and training.init=distill belong together: give both or neither.")
    if distilled is not None and settings.objective == "joint":
        raise TrellisError("training.init=distill learns from labels of its own: set training.objective=marginal.")
    if distilled is not None and distilled.settings.lr is not None and settings.method == "baum_welch":
        raise TrellisError("distill.lr is a learning rate, which Baum–Welch has none of: leave it out.")
    if settings.init == "counts" and labels is None:
        raise TrellisError("training.init=counts counts labels: give data.labels, with training.objective=joint.")
    if (labels is None) != (settings.objective != "joint"):
        raise TrellisError("labels and training.objective=joint belong together: give both or neither.")


class _Run:
    """One model on its way through the text."""

    def __init__(
        self,
        model: Model,
        tokenizer: Savable,
        texts: _Texts,
        settings: CompleteSettings,
        folder: Path,
        here: World,
        quiet: bool,
        made: float,
        restart_steps: int | None = None,
    ) -> None:
        text, self.valid, labels, self.distilled = texts
        if self.distilled is not None:
            labels = self.distilled.labels
        model.train()
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.folder, self.world, self.quiet = folder, here, quiet or not here.chief
        self.batching = BATCHINGS[settings.batching](
            text, batch_size=settings.batch_size, length=settings.length, shuffle=settings.shuffle,
            seed=settings.seed, rank=here.rank, world=here.size, labels=labels,
            labelled_first=self.distilled is not None,
        )  # fmt: skip
        if labels is not None:
            check_labels(model, labels)
        steps = self.batching.steps_per_epoch
        self.per_update = steps if settings.full_batch else settings.accumulate
        self.updates = max(1, round(settings.epochs * steps / self.per_update))
        self.text, self.trial = text, restart_steps is not None
        if restart_steps is not None:
            self.updates = min(restart_steps, self.updates)
        self.validate_every = max(1, round(steps / self.per_update / settings.validations))
        self.learner = _learner(model, settings, here)
        self.phase: Phase | None = None
        counted = type(self.learner) is Learner  # there is nothing to learn
        self.updates = 0 if counted else self.updates
        self.schedule = Schedule(settings, self.updates)
        self.state: Tensor | None = None
        tokens = len(text) if counted else 0
        run = fingerprint(settings, model, text, self.valid, self.updates, labels, self.distilled)
        self.place = Place(0, 0, tokens, made, None, self.schedule.state(), run)

    def finish(self) -> Trained:
        """Go on from the newest checkpoint, if any, to the end."""
        self._restore()
        if self.place.update < self.updates and not self.place.converged:
            self._learn()
        elif not checkpoints.found(self.folder):
            self._measure()
        place, protocol = self.place, self.settings.batching
        perplexity = None if place.best is None else perplexity_of(place.best)
        unigram = None if self.trial or perplexity is None else self._unigram()
        if unigram is not None and perplexity is not None and perplexity > unigram and not self.quiet:
            _warn(perplexity, unigram, self.settings)
        best = self.folder / "best"
        return Trained(best, perplexity, unigram, protocol, place.tokens, place.seconds, place.validating)

    def _unigram(self) -> float:
        """What counting words alone gives on the validation text."""
        assert self.valid is not None
        counted = Unigram.fit(self.text, self.text.meta.vocab_size)
        return evaluate(counted, self.valid, self.settings.batching, quiet=True).perplexity

    def _restore(self) -> None:
        if self.world.chief:
            self.folder.mkdir(parents=True, exist_ok=True)
            refuse_links(self.folder)
            clear(self.folder)
        self.world.sum(0.0)  # nobody looks before the chief has finished with an earlier run
        if found := checkpoints.found(self.folder):
            self._load(found[-1])
        (updates,) = self.world.sum(self.place.update)
        if updates != self.place.update * self.world.size:
            raise TrellisError(
                f"the processes do not see the same checkpoints: put {self.folder} on a disk that all machines share."
            )
        if (found or torchrun.restarts().made) and torchrun.job() and not (self.quiet or self.trial):
            place = f"update {self.place.update} of {self.updates}" if found else "the beginning, without a checkpoint"
            print(f"going on from {place}, in {self.folder}", file=sys.stderr, flush=True)

    def _load(self, checkpoint: Path) -> None:
        """Take up a checkpoint, or this process's share of it."""
        self.place, tensors, learner, state = checkpoints.load(checkpoint, self.place.run)
        self._check_state(state, checkpoint)
        storage.restore(self.model, tensors, checkpoint)
        self.learner.restore(learner)
        self.schedule.restore(self.place.schedule)
        self.state = None if state is None else state[self.world.share(len(state))].to(self.model.device)

    def _check_state(self, state: Tensor | None, where: Path) -> None:
        """Refuse a checkpoint whose carried state is not that of this run's rows: other weights would come of it."""
        carries = self.settings.batching == "streams" and self.updates > 0
        # At the end of an epoch only the longer streams have a row.
        whole = state is not None and state.dim() == 2 and 0 < len(state) <= self.settings.batch_size
        if carries != whole or (state is not None and not carries):
            raise TrellisError(
                f"the state that {where} carries on from is not that of this run: restore it or use an older "
                "checkpoint."
            )

    def _learn(self) -> None:
        batches = self.batching.batches(self.place.step)
        total = self._tokens_at(self.updates)
        with (
            _asked_to_stop() as stop,
            closing(Metrics(self.folder, self.place.update)) if self.world.chief else nullcontext() as metrics,
            Progress("training", total, unit="tokens", done=self.place.tokens, quiet=self.quiet) as bar,
        ):
            while self.place.update < self.updates:
                loss, tokens, seconds, stopping = self._update(batches, stop, bar)
                update = self.place.update
                if metrics:
                    rate, joint = self.learner.rate * self.schedule.at(update - 1), self._joint
                    phase = {} if joint is None else {"joint": float(joint)}
                    metrics.write(
                        update, loss=loss, rate=rate, tokens=self.place.tokens, tokens_per_second=tokens / seconds,
                        **phase,
                    )  # fmt: skip
                self._converge(loss)
                last = update == self.updates or self.place.converged
                if last or update % self.validate_every == 0:
                    self._validate(metrics, bar, last)
                # An update from all the text is too dear to make twice.
                if last or stopping or self.settings.full_batch or update % self.settings.checkpoint_every == 0:
                    self._checkpoint()
                if stopping and not last:
                    raise Stopped(f"stopped after update {update} of {self.updates}")
                if last:
                    return

    def _converge(self, loss: float) -> None:
        """Note whether passes over all of the text have stopped to gain enough."""
        before, tolerance = self.place.loss, self.settings.tolerance
        converged = bool(tolerance) and before is not None and before - loss < tolerance
        self.place = replace(self.place, loss=loss, converged=converged)

    def _measure(self) -> None:
        """Validate and save a model that there is nothing to teach."""
        with closing(Metrics(self.folder, 0)) if self.world.chief else nullcontext() as metrics:
            self._validate(metrics, Progress("validating", quiet=self.quiet), True)
            self._checkpoint()

    def _tokens_at(self, update: int) -> int:
        """Tokens seen after so many updates, for the progress bar."""
        return round(self.batching.tokens_per_epoch * update * self.per_update / self.batching.steps_per_epoch)

    def _update(self, batches: Iterator[Batch], stop: list[int], bar: Progress) -> tuple[float, int, float, bool]:
        """Learn from the batches of one update, and make it: its mean loss, tokens, seconds, and whether to stop."""
        began, processor, nats, tokens = time.monotonic(), time.process_time(), 0.0, 0
        self.model.train()
        self._enter_phase()
        before = self.place.loss
        self.learner.bearable = DIVERGED if before is None else min(DIVERGED, max(2 * before, LEAP))
        named = {None: "perplexity", True: "joint perplexity", False: "marginal perplexity"}[self._joint]
        for number in range(self.place.step, self.place.step + self.per_update):
            batch = next(batches)
            if len(batch.ids) == 0:
                continue
            state = carry(self.state, batch.carried, len(batch.ids))
            with _chance(self.settings.seed, number, self.model.device):
                learnt = self.learner.learn(batch.to(self.model.device), state)
            nats, tokens, self.state = nats + learnt.nats, tokens + learnt.tokens, learnt.state
            bar.advance(learnt.tokens * self.world.size, status=f"{named} {perplexity_of(nats / tokens):.1f}")
        nats, everyones, stopping = self.world.sum(nats, tokens, len(stop))
        self.learner.update(everyones, self.schedule.at(self.place.update))
        seconds = time.monotonic() - began
        self.place = replace(
            self.place,
            step=self.place.step + self.per_update,
            update=self.place.update + 1,
            tokens=self.place.tokens + int(everyones),
            seconds=self.place.seconds + seconds,
            processor=self.place.processor + time.process_time() - processor,
        )
        return nats / everyones, int(everyones), seconds, stopping > 0

    def _enter_phase(self) -> None:
        """Tell the learner if the next update begins another phase."""
        phase = phase_at(self.place.tokens, self.settings, self.distilled.settings if self.distilled else None)
        if phase != self.phase:
            self.phase = phase
            self.learner.enter(phase, self._frozen() if phase.frozen else ())

    def _frozen(self) -> list[nn.Parameter]:
        """Parameters that began as a teacher's vectors."""
        assert self.distilled is not None
        assert isinstance(self.model, HMM)
        states, words = taught_embeddings(self.model, self.distilled.settings)
        return [*states, *words]

    @property
    def _joint(self) -> bool | None:
        """Whether a distilled run learns from labels at present; None of a run that has one phase."""
        return None if self.distilled is None or self.phase is None else self.phase.objective == "joint"

    def _validate(self, metrics: Metrics | None, bar: Progress, last: bool) -> None:
        """Measure on validation text, and keep the model if it is the best so far; with none, keep the last."""
        if self.valid is None:
            if last:
                self._keep_best()
            return
        began = time.monotonic()
        found = evaluate(self.model, self.valid, self.settings.batching, within=bar) if self.world.chief else None
        self.place = replace(self.place, validating=self.place.validating + time.monotonic() - began)
        (loss,) = self.world.sum(found.nats / found.tokens if found else 0.0)
        self.schedule.validated(loss)
        if self.place.best is None or loss < self.place.best:
            self.place = replace(self.place, best=loss)
            self._keep_best()
        self.place = replace(self.place, schedule=self.schedule.state())
        if metrics:
            metrics.write(self.place.update, valid_loss=loss, valid_perplexity=perplexity_of(loss))

    def _keep_best(self) -> None:
        if self.world.chief:
            storage.save(self.model, self.folder / "best", self.tokenizer)

    def _checkpoint(self) -> None:
        state = self.state if self.settings.batching == "streams" else None  # the others carry nothing
        if state is not None and self.world.size > 1:
            state = self.world.gather_rows(state, self.settings.batch_size)
        if self.world.chief:
            learner, keep = self.learner.tensors(), self.settings.keep
            checkpoints.save(self.folder, self.model, self.tokenizer, self.place, learner, state, keep)


def _warn(perplexity: float, unigram: float, settings: CompleteSettings) -> None:
    """Say that learning was worth nothing, and what to do."""
    print(
        f"the model's validation perplexity, {perplexity:.1f}, is worse than a unigram's, {unigram:.1f}: train for "
        f"more epochs (training.epochs, here {settings.epochs:g}), with smaller batches (training.batch_size, here "
        f"{settings.batch_size}) or at another rate (training.lr, here {settings.lr:g}).",
        file=sys.stderr,
    )


def _learner(model: Model, settings: CompleteSettings, here: World) -> Learner:
    """What teaches this model in the way that was set."""
    if settings.method == "baum_welch":
        return BaumWelchLearner(model, settings, here)
    return GradientLearner(model, settings, here) if any(True for _ in model.parameters()) else Learner()


@contextmanager
def _chance(seed: int, step: int, device: torch.device) -> Iterator[None]:
    """What is drawn at random while learning from a batch depends on the run's seed and the batch's number alone.

    So a resumed run draws what it would have drawn undisturbed, and all processes draw the same.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int(np.random.SeedSequence((seed, step)).generate_state(1, np.uint64)[0]))
        yield


@contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """A list that SIGTERM or Ctrl-C puts something in; a second Ctrl-C stops at once."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # where Python lets nobody listen to signals
        yield asked
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
