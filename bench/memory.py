"""Training steps of states that remember their word, beside those of the same models without a memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.blocked_problem import BlockedProblem
from bench.cells import Results, Row, Sheet, megabytes, number, quiet, quotient
from bench.contenders import Entry
from bench.problem import Problem
from bench.quiet import Patience
from bench.race import Lap, Rules, take_turns

PLAIN, MEMORY = "plain", "memory of a word"
DROPOUT = 0.3  # of the words' vectors, as in training
HEAD = ["model", "plain: tokens/s", "median", "memory: tokens/s", "median", "× plain", "median", "peak MB", "quiet"]

Sizes = tuple[Problem | BlockedProblem, ...]


def sizes() -> Sizes:
    """Dense models of both vocabularies, and one with blocks."""
    return Problem(words=10_000), Problem(words=32_000), BlockedProblem(states=1 << 14, batch=32, length=64)


def quick_sizes() -> Sizes:
    """The same in seconds."""
    blocked = BlockedProblem(64, 8, words=100, batch=2, length=8, width=16)
    return Problem(states=16, words=50, batch=4, length=8, rank=8), blocked


def entries(problem: Problem | BlockedProblem) -> tuple[Entry, Entry]:
    """The model without a memory, and with one."""
    told: tuple[dict[str, Any], ...] = ({}, {"memory": 1, "memory_dropout": DROPOUT})
    if isinstance(problem, Problem):
        where, settings = "trellis_encoders:Encoded", [{"settings": {"encoder": "table", **more}} for more in told]
    else:
        where, settings = "trellis_blocked:Blocked", [{"settings": more} for more in told]
    plain, memory = (
        Entry(name, where, ("torch",), "low-rank parts", options=options)
        for name, options in zip((PLAIN, MEMORY), settings, strict=True)
    )
    return plain, memory


def truth(problem: Problem | BlockedProblem, entry: Entry) -> float:
    """The log-likelihood that a fresh model must find, in double precision."""
    if isinstance(problem, Problem):
        from bench.contenders.trellis_encoders import exact_log_likelihood  # imports torch

        return exact_log_likelihood(problem, **entry.options)
    from bench.contenders.trellis_blocked import exact_log_likelihoods  # imports torch

    return float(exact_log_likelihoods(problem, **entry.options).sum())


def compare(
    wanted: Sizes, rounds: int, limit: float, patience: Patience, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Both models of every size, in turns."""
    rules, found = Rules(rounds, limit, patience, passes=("step",), say=say), []
    for problem in wanted:
        laps = [
            Lap(entry, problem.batch, problem.tokens, truth(problem, entry), passes=rules.passes)
            for entry in entries(problem)
        ]
        take_turns(laps, problem, rules)
        found.append({"problem": problem.described(), "models": [lap.as_dict() for lap in laps]})
    return found


def times_plain(models: list[Results], which: str = "best_seconds") -> float | None:
    """How many times as long a step takes with a memory."""
    plain, memory = (lap["step"].get(which) for lap in models)
    return quotient(memory, plain)


def memory_sheets(found: list[Results]) -> list[Sheet]:
    """A row a size."""
    return [Sheet("A memory of a word", HEAD, [_row(**one) for one in found])]


def _row(problem: Results, models: list[Results]) -> Row:
    size = f"{problem['states']:,} states × {problem['words']:,} words"
    blocks = f", {problem['blocks']} blocks" if "blocks" in problem else ""
    steps = [lap["step"] for lap in models]
    if failed := [lap["failure"] or lap["step"]["failure"] for lap in models if "failure" in lap["step"]]:
        return [size + blocks, failed[0], *["–"] * (len(HEAD) - 3), quiet(steps)]
    rates = [number(step[name]) for step in steps for name in ("tokens_per_second", "median_tokens_per_second")]
    ratios = [number(times_plain(models, which)) for which in ("best_seconds", "median_seconds")]
    return [size + blocks, *rates, *ratios, megabytes(steps[1]["peak_bytes"]), quiet(steps)]
