"""`trellis.CategoricalHMM` beside hmmlearn's: the same data and the same start, in turns, in one process and thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.quiet import DISTURBED, Patience, busy_seconds, share

OURS, LOG, SCALING = "Trellis", "hmmlearn, log", "hmmlearn, scaling"
QUESTIONS = ("fit", "score", "decode")
NEAR = 1e-6  # how far tables may be apart after the same steps from the same start
LONG = 5.0  # seconds after which a contender has one turn only
TABLES = ("startprob_", "transmat_", "emissionprob_")


@dataclass(frozen=True)
class Task:
    """Sizes, from which everything is drawn."""

    states: int
    sequences: int
    length: int
    steps: int  # of EM in one call
    symbols: int = 50
    seed: int = 0

    def tables(self) -> list[NDArray[np.float64]]:
        """Start, transition and emission to begin with."""
        random = np.random.RandomState(self.seed)
        shapes = ((self.states, None), (self.states, self.states), (self.symbols, self.states))
        return [random.dirichlet(np.ones(size), rows) for size, rows in shapes]

    def symbols_N1(self) -> NDArray[np.int64]:
        """A column of symbols that follow one another in some order, so that there is something to learn."""
        random = np.random.RandomState(self.seed + 1)
        count = self.sequences * self.length
        jumps = np.where(random.rand(count) < 0.5, 1, random.randint(self.symbols, size=count))
        return (np.cumsum(jumps) % self.symbols).reshape(-1, 1)


def tasks() -> tuple[Task, ...]:
    """Many short sequences and one long one at each number of states; fewer steps where hmmlearn's take long."""
    sizes = ((16, 20_000, 5), (64, 10_000, 5), (256, 2_000, 3), (1024, 600, 2))
    return tuple(
        task
        for states, tokens, steps in sizes
        for task in (Task(states, tokens // 50, 50, steps), Task(states, 1, tokens, steps))
    )


def quick_tasks() -> tuple[Task, ...]:
    """The same in no time."""
    return Task(4, 6, 20, 2, symbols=5), Task(4, 1, 120, 2, symbols=5)


def _contenders(task: Task) -> dict[str, Any]:
    from hmmlearn.hmm import CategoricalHMM as Theirs

    from trellis import CategoricalHMM

    logging.getLogger("hmmlearn").setLevel(logging.ERROR)  # it warns of more parameters than data
    settings: dict[str, Any] = {"n_features": task.symbols, "init_params": "", "n_iter": task.steps, "tol": -np.inf}
    return {
        OURS: CategoricalHMM(task.states, **settings),
        SCALING: Theirs(task.states, implementation="scaling", **settings),
        LOG: Theirs(task.states, implementation="log", **settings),
    }


class Stopwatch:
    """Seconds of calls, and how many of them nobody disturbed."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.undisturbed = 0

    def time(self, call: Callable[[], Any]) -> Any:
        """Call, and note how long it took."""
        busy, own, began = busy_seconds(), time.process_time(), time.perf_counter()
        answer = call()
        taken = time.perf_counter() - began
        self.seconds.append(taken)
        self.undisturbed += share((busy_seconds() - busy) - (time.process_time() - own), taken) <= DISTURBED
        return answer

    def as_dict(self, per: int) -> dict[str, Any]:
        """The best, and all."""
        seconds = [one / per for one in self.seconds]
        return {
            "best_seconds": min(seconds),
            "seconds": seconds,
            "samples": len(seconds),
            "undisturbed": self.undisturbed,
        }


def measure(task: Task, rounds: int, wait: float) -> dict[str, Any]:
    """All questions to all contenders, in turns; and how far their answers are apart."""
    import torch

    torch.set_num_threads(1)  # hmmlearn has no more
    models, patience = _contenders(task), Patience(wait)
    X, lengths = task.symbols_N1(), [task.length] * task.sequences
    watches = {name: {question: Stopwatch() for question in QUESTIONS} for name in models}
    answers: dict[str, Any] = {}
    for turn in range(rounds + 1):
        for name, model in models.items():
            taken = sum(sum(watch.seconds) for watch in watches[name].values())
            if taken > LONG:
                continue
            patience.wait()
            if turn == 0 and name == OURS:  # first calls import and fault in memory
                _ask(model, task, X, lengths, {question: Stopwatch() for question in QUESTIONS})
            answers[name] = _ask(model, task, X, lengths, watches[name])
    timings = {
        name: {question: watch.as_dict(task.steps if question == "fit" else 1) for question, watch in found.items()}
        for name, found in watches.items()
    }
    return {"task": asdict(task), "contenders": timings, **_differences(answers)}


def _ask(model: Any, task: Task, X: Any, lengths: list[int], watches: dict[str, Stopwatch]) -> dict[str, Any]:
    for name, table in zip(TABLES, task.tables(), strict=True):
        setattr(model, name, table)
    watches["fit"].time(lambda: model.fit(X, lengths))
    log_prob = watches["score"].time(lambda: model.score(X, lengths))
    best, _ = watches["decode"].time(lambda: model.decode(X, lengths))
    return {"tables": [getattr(model, name) for name in TABLES], "score": log_prob, "decode": best}


def _differences(answers: dict[str, Any]) -> dict[str, Any]:
    """How far we are from either of hmmlearn's implementations, and the reason not to believe the times, if any."""
    ours = answers[OURS]
    theirs = [answers[name] for name in (LOG, SCALING)]
    tables = max(
        float(np.abs(a - b).max()) for other in theirs for a, b in zip(ours["tables"], other["tables"], strict=True)
    )
    scores = max(abs(ours[question] / other[question] - 1.0) for other in theirs for question in ("score", "decode"))
    failure = None if tables <= NEAR and scores <= NEAR else f"tables differ by {tables:.2g}, scores by {scores:.2g}"
    return {"table_difference": tables, "score_difference": scores, "failure": failure}


def compare(
    asked: tuple[Task, ...], rounds: int, wait: float, say: Callable[[str], None]
) -> list[dict[str, Any]] | None:
    """Measure every task, in a process of its own; None without hmmlearn and scikit-learn."""
    if find_spec("hmmlearn") is None or find_spec("sklearn") is None:
        return None
    return list(_each(asked, rounds, wait, say))


def _each(asked: tuple[Task, ...], rounds: int, wait: float, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    for task in asked:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as worker:
            yield worker.submit(measure, task, rounds, wait / len(asked)).result()
        say(f"{task.states} states, {task.sequences} × {task.length}")
