"""A training step with each encoder beside the scalar one, and labelling by a teacher beside its plain forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bench.contenders import TRELLIS, Entry
from bench.problem import Problem
from bench.quiet import Patience
from bench.race import Lap, Rules, take_turns
from bench.worker import ContenderError, Worker

LIBRARIES = ("torch", "transformers")
SCALAR = replace(TRELLIS, name="scalar")
# Lee's ψ has a network for each role of a state, and ι one for all.
SETTINGS: dict[str, dict[str, Any]] = {
    "table": {"encoder": "table"},
    "residual": {"encoder": "residual"},
    "mlp ψ": {"encoder": "mlp"},
    "mlp ι": {"encoder": "mlp", "monolithic": True},
    "transformer ψ": {"encoder": "transformer"},
    "transformer ι": {"encoder": "transformer", "monolithic": True},
    "pretrained": {"encoder": "pretrained"},
}
FORWARD = Entry("forward pass", "trellis_teacher:Forward", LIBRARIES, "the teacher's layers alone, on the same windows")
LABELLING = Entry("labelling", "trellis_teacher:Labelling", LIBRARIES, "its states rounded to centres, on disk")


def encoder_entries() -> tuple[Entry, ...]:
    """All encoders, after the scalar model that they are compared with."""
    encoded = [
        Entry(name, "trellis_encoders:Encoded", LIBRARIES if name == "pretrained" else ("torch",), "low-rank parts",
              options={"settings": settings})
        for name, settings in SETTINGS.items()
    ]  # fmt: skip
    return (SCALAR, *encoded)


CONTENDERS = len(encoder_entries()) + len((FORWARD, LABELLING))


def _truth(entry: Entry, problem: Problem) -> float:
    """The log-likelihood that a model must find; each has parameters of its own."""
    if entry is SCALAR:
        return float(problem.log_likelihoods().sum())
    from bench.contenders.trellis_encoders import exact_log_likelihood  # imports torch

    return exact_log_likelihood(problem, **entry.options)


def _race(entries: tuple[Entry, ...], problem: Problem, truth: Callable[[Entry], float], rules: Rules) -> list[Lap]:
    laps = []
    for entry in entries:
        excuse = entry.excuse(problem)
        wanted = truth(entry) if excuse is None else 0.0
        laps.append(Lap(entry, problem.batch, problem.tokens, wanted, failure=excuse, passes=rules.passes))
    take_turns([lap for lap in laps if lap.failure is None], problem, rules)
    return laps


def _ask(worker: Worker, lap: Lap) -> None:
    try:
        lap.facts |= worker.ask("facts")
    except ContenderError as error:
        lap.facts["unknown"] = str(error)


def compare(
    problem: Problem, rounds: int, limit: float, patience: Patience, say: Callable[[str], None]
) -> dict[str, Any]:
    """Race the encoders, then labelling with the forward pass."""
    rules = Rules(rounds, limit, patience, passes=("step",), say=say)
    models = _race(encoder_entries(), problem, lambda entry: _truth(entry, problem), replace(rules, after=_ask))
    teachers = _race((FORWARD, LABELLING), problem, lambda _: float(problem.tokens), rules)
    return {
        "problem": problem.described(),
        "models": [lap.as_dict() for lap in models],
        "teachers": [lap.as_dict() for lap in teachers],
    }
