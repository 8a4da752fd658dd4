"""The tables of guidance: steps of a language model with and without, and constraints made into automata."""

from __future__ import annotations

from bench.cells import Results, Row, Sheet, number, percent, quiet

STEP = ["batch", "tokens", "HMM", "alone: ms a step", "guided: ms a step", "overhead", "quiet"]
COMPILING = ["constraint", "tokens", "states", "ms", "quiet"]


def overhead(step: Results) -> float:
    """What guidance adds to a step, as a share of the language model's own, both at their best."""
    return float(step["guided"]["best_seconds"] / step["alone"]["best_seconds"] - 1)


def _step(found: Results) -> Row:
    task, step = found["task"], found["step"]
    times = [number(1e3 * step[name]["best_seconds"]) for name in ("alone", "guided")]
    sizes = [str(task["batch"]), f"{task['words']:,}", f"{task['states']:,} states"]
    return [*sizes, *times, percent(overhead(step)), quiet(list(step.values()))]


def _compiled(found: Results) -> list[Row]:
    tokens = f"{found['task']['words']:,}, {found['tokenizer']}"
    return [
        [
            name,
            tokens,
            f"{made['states']:,}" if made["states"] else "–",
            number(1e3 * made["best_seconds"]),
            quiet([made]),
        ]
        for name, made in found["compiling"].items()
    ]


def steering_sheets(found: Results) -> list[Sheet]:
    """Two tables."""
    return [
        Sheet("A guided step", STEP, [_step(found)]),
        Sheet("Constraints as automata", COMPILING, _compiled(found)),
    ]
