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

PLAIN, MEMORY, FREQUENT = "plain", "a word", "a frequent word"
DROPOUT = 0.3  # of the words' vectors, as in training
FREQUENT_WORDS = 2048  # that are remembered, of the last kind
HEAD = [
    "model", "remembers", "plain: tokens/s", "median", "memory: tokens/s", "median", "× plain", "median", "peak MB",
    "quiet",
]  # fmt: skip

Sizes = tuple[Problem | BlockedProblem, ...]


def sizes() -> Sizes:
    """Dense models of both vocabularies, and one with blocks."""
    return Problem(words=10_000), Problem(words=32_000), BlockedProblem(states=1 << 14, batch=32, length=64)


def quick_sizes() -> Sizes:
    """The same in seconds."""
    blocked = BlockedProblem(64, 8, words=32, batch=2, length=8, width=16)
    return Problem(states=16, words=32, batch=4, length=8, rank=8), blocked


def entries(problem: Problem | BlockedProblem) -> list[Entry]:
    """The model without a memory, with one of all words, and with one of the frequent words."""
    memory = {"memory": 1, "memory_dropout": DROPOUT}
    few = {**memory, "memory_words": FREQUENT_WORDS}
    told: tuple[dict[str, Any], ...] = ({}, memory, few)
    if isinstance(problem, Problem):
        where, settings = "trellis_encoders:Encoded", [{"settings": {"encoder": "table", **more}} for more in told]
    else:
        where, settings = "trellis_blocked:Blocked", [{"settings": more} for more in told]
    return [
        Entry(name, where, ("torch",), "low-rank parts", options=options)
        for name, options in zip((PLAIN, MEMORY, FREQUENT), settings, strict=True)
    ]


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
    """All models of every size, in turns."""
    rules, found = Rules(rounds, limit, patience, passes=("step",), say=say), []
    for problem in wanted:
        laps = [
            Lap(entry, problem.batch, problem.tokens, truth(problem, entry), passes=rules.passes)
            for entry in entries(problem)
        ]
        take_turns(laps, problem, rules)
        found.append({"problem": problem.described(), "models": [lap.as_dict() for lap in laps]})
    return found


def times_plain(plain: Results, memory: Results, which: str = "best_seconds") -> float | None:
    """How many times as long a step takes with a memory."""
    return quotient(memory["step"].get(which), plain["step"].get(which))


def memory_sheets(found: list[Results]) -> list[Sheet]:
    """A row a size and a memory."""
    rows = [_row(one["problem"], one["models"][0], memory) for one in found for memory in one["models"][1:]]
    return [Sheet("A memory of a word", HEAD, rows)]


def _row(problem: Results, plain: Results, memory: Results) -> Row:
    size = f"{problem['states']:,} states × {problem['words']:,} words"
    blocks = f", {problem['blocks']} blocks" if "blocks" in problem else ""
    models, steps = (plain, memory), [plain["step"], memory["step"]]
    begin = [size + blocks, memory["contender"]]
    if failed := [lap["failure"] or lap["step"]["failure"] for lap in models if "failure" in lap["step"]]:
        return [*begin, failed[0], *["–"] * (len(HEAD) - 4), quiet(steps)]
    rates = [number(step[name]) for step in steps for name in ("tokens_per_second", "median_tokens_per_second")]
    ratios = [number(times_plain(plain, memory, which)) for which in ("best_seconds", "median_seconds")]
    return [*begin, *rates, *ratios, megabytes(steps[1]["peak_bytes"]), quiet(steps)]
