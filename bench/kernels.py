"""Native kernels against the PyTorch path: training steps, their share of what the processor can do, and the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from bench.blocked import BLOCKED
from bench.blocked_problem import BlockedProblem
from bench.contenders import DYNAMAX, HALF, LOW_RANK, SINGLE, TRELLIS, Entry, Precision
from bench.problem import Problem
from bench.quiet import Patience
from bench.race import Lap, RaceTask, Rules, race
from bench.worker import ContenderError, Worker

OFF = {"TRELLIS_KERNELS": "off"}
BARE = Entry("bare loop", "bare:Bare", ("torch",), "products that never leave the first cache")
# On processors whose hypervisor hides their tiles, oneDNN's bf16 products crash unless told of none.
WITHOUT_TILES = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}


@dataclass(frozen=True)
class Variant:
    """One model on one path in one precision."""

    model: str
    path: Literal["native", "PyTorch"]
    precision: Precision

    @property
    def name(self) -> str:
        """As tables and progress show it."""
        return f"{self.model}, {self.path}, {self.precision}"

    def entry(self) -> Entry:
        """How it enters a race."""
        bf16 = self.precision == "bf16"
        kind = {"low-rank": LOW_RANK, "scalar": TRELLIS, "blocked": BLOCKED}[self.model]
        return replace(
            kind,
            name=self.name,
            environment=OFF if self.path == "PyTorch" else {},
            options={"precision": self.precision},
            tolerance=HALF if bf16 else SINGLE,
        )


@dataclass(frozen=True)
class Match:
    """Variants on one problem, and whether dynamax takes part."""

    problem: RaceTask
    variants: tuple[Variant, ...]
    dynamax: bool = False

    def entries(self, without_tiles: bool = False) -> tuple[Entry, ...]:
        """All that take turns."""
        entries = [variant.entry() for variant in self.variants]
        if without_tiles:
            entries = [replace(entry, environment={**entry.environment, **WITHOUT_TILES}) for entry in entries]
        return (*entries, *([DYNAMAX] if self.dynamax else []))


def _all(model: str) -> tuple[Variant, ...]:
    return (
        Variant(model, "native", "float32"), Variant(model, "native", "bf16"),
        Variant(model, "PyTorch", "float32"), Variant(model, "PyTorch", "bf16"),
    )  # fmt: skip


def matches() -> tuple[Match, ...]:
    """Dense models at the size of the race, and 2^15 blocked states with the batch of our runs."""
    return (
        Match(Problem(words=32_000), (*_all("low-rank"), *_all("scalar")), dynamax=True),
        Match(BlockedProblem(batch=32, length=64), _all("blocked")),
    )


def quick_matches() -> tuple[Match, ...]:
    """The same in seconds."""
    dense = Problem(states=16, words=50, batch=4, length=8, rank=8)
    blocked = BlockedProblem(64, 8, words=100, batch=2, length=8, width=16)
    return (
        Match(dense, (Variant("low-rank", "native", "float32"), Variant("low-rank", "PyTorch", "float32"))),
        Match(blocked, (Variant("blocked", "native", "float32"), Variant("blocked", "PyTorch", "float32"))),
    )


@dataclass
class Bare:
    """The rate of the bare loop, before and after the races: the best counts, as it does of contenders."""

    limit: float
    best: dict[str, Any] = field(default_factory=dict)

    def measure(self, patience: Patience) -> None:
        """Once more, in a process of its own."""
        try:
            with Worker(BARE, Problem(), self.limit) as worker:
                patience.wait()
                found = worker.ask("rates")
        except ContenderError as error:
            found = {"level": None, "reason": str(error)}
        for name, value in found.items():
            self.best[name] = max(value, self.best.get(name, 0.0)) if isinstance(value, float) else value


def _ask(worker: Worker, lap: Lap) -> None:
    """Where the time goes, once the times are taken: the profiler costs some."""
    if worker.entry is DYNAMAX:
        return
    try:
        lap.facts |= worker.ask("facts")
    except ContenderError as error:
        lap.facts["unknown"] = str(error)


def _described(match: Match, laps: list[Lap]) -> dict[str, Any]:
    known = {variant.name: asdict(variant) for variant in match.variants}
    contenders = [{**known.get(lap.entry.name, {}), **lap.as_dict()} for lap in laps]
    return {"problem": match.problem.described(), "contenders": contenders}


def compare(
    wanted: tuple[Match, ...], rounds: int, limit: float, patience: Patience, say: Callable[[str], None]
) -> dict[str, Any]:
    """Race every match, the bare loop before and after."""
    from trellis.training.precision import bf16_works  # imports torch

    bare, without_tiles = Bare(limit), not bf16_works()
    rules = Rules(rounds, limit, patience, passes=("step",), say=say, after=_ask)
    bare.measure(patience)
    found = [_described(match, race(match.problem, rules, match.entries(without_tiles))) for match in wanted]
    bare.measure(patience)
    return {"bare": bare.best, "matches": found}
