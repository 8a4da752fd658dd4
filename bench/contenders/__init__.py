"""The contenders. Each is a class in a module of its own, named here so that only its own process imports it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, Protocol

THREADS = 2
# Without huge pages, this kernel's page faults cost more than the arithmetic. Trellis asks torch for them itself;
# the peers are given the same: the first is read by torch's allocator, the second by malloc, which JAX uses.
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
LEARNING_RATE, LARGEST_GRADIENT = 1e-3, 5.0  # the update of every contender that learns by gradients
# Single precision keeps seven digits, and errors of thousands of tokens largely cancel in the total.
SINGLE = 1e-5
Precision = Literal["float32", "bf16"]  # of the matrix products
HALF = 1e-4  # of about ten nats a token: a thousandth of one, which is what products in bf16 may cost


class Task(Protocol):
    """What a contender is given: a frozen dataclass of sizes, from which it draws everything."""

    @property
    def batch(self) -> int:
        """How many sequences there are."""

    @property
    def words(self) -> int:
        """How many words the vocabulary has."""

    def toy(self) -> Task:
        """The smallest of its kind."""

    def described(self) -> dict[str, Any]:
        """The sizes for results."""


class Contender(Protocol):
    """What a contender does with the first `rows` sequences of a task; it is given its entry's options too."""

    def __init__(self, task: Any, rows: int, **options: Any) -> None: ...

    def evaluate(self) -> float:
        """One pass for the log-likelihood alone; its total."""

    def step(self) -> None:
        """One training step: forward, backward, update."""


@dataclass(frozen=True)
class Entry:
    """How a contender enters the race."""

    name: str  # as the tables show it
    where: str  # "module:class" within this package
    needs: tuple[str, ...]  # distributions that must be installed
    note: str  # what it does, and on how much
    rows: int | None = None  # sequences it takes at once, for those that cannot take the batch
    repeats: int | None = None  # timed calls, for the slow; the others have as many as there are rounds
    most_words: int | None = None  # vocabulary above which it is left out, as one step would take minutes
    warm_up: bool = True  # an uncounted step first: left out where a step takes minutes and compiles nothing
    environment: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)  # what its class takes beside the task
    tolerance: float = SINGLE  # of its log-likelihood, relative
    sources: str | None = None  # folder of another Trellis than this one

    def rows_of(self, task: Task) -> int:
        """How many sequences of this task it is given."""
        return min(self.rows or task.batch, task.batch)

    def excuse(self, task: Task) -> str | None:
        """Why it does not take part, if it does not."""
        missing = [name for name in self.needs if find_spec(name) is None]
        if missing:
            return f"not installed: {', '.join(missing)}"
        if self.most_words is not None and task.words > self.most_words:
            return "left out: minutes a step"
        return None

    def load(self) -> type[Contender]:
        """Import the class, and with it the library it stands for."""
        module, name = self.where.split(":")
        found: type[Contender] = getattr(import_module(f"bench.contenders.{module}"), name)
        return found

    def build(self, task: Task) -> Contender:
        """Make the contender ready for a task."""
        return self.load()(task, self.rows_of(task), **self.options)


TRELLIS = Entry("Trellis", "trellis_hmm:Scalar", ("torch",), "one parameter an entry; clipped AdamW")
LOW_RANK = Entry(
    "Trellis low-rank", "trellis_hmm:LowRank", ("torch",), "start, transition and emission of rank 128; clipped AdamW"
)
BAUM_WELCH = Entry(
    "Trellis Baum–Welch", "trellis_hmm:BaumWelch", ("torch",), "one parameter an entry; a step is one EM iteration"
)
DYNAMAX = Entry(
    "dynamax",
    "dynamax_filter:Dynamax",
    ("dynamax", "optax"),
    "`hmm_filter`, vmapped and jitted with its gradient and a clipped optax AdamW; huge pages",
    environment=HUGE_PAGES,
)
DYNAMAX_PLAIN = Entry(
    "dynamax as installed", DYNAMAX.where, DYNAMAX.needs, "the same without the setting for huge pages"
)
HMMLEARN = Entry(
    "hmmlearn",
    "hmmlearn_em:Hmmlearn",
    ("hmmlearn",),
    "`CategoricalHMM(implementation='scaling')`; a step is one EM iteration; one thread is all it uses",
    rows=8,
    repeats=2,
    environment=HUGE_PAGES,
)
POMEGRANATE = Entry(
    "pomegranate",
    "pomegranate_em:Pomegranate",
    ("pomegranate",),
    "`DenseHMM` of `Categorical`; a step is `summarize` and `from_summaries`",
    rows=16,
    repeats=1,
    most_words=10_000,
    warm_up=False,
    environment=HUGE_PAGES,
)
AUTOGRAD = Entry(
    "PyTorch autograd",
    "autograd_logspace:Autograd",
    ("torch",),
    "autograd through a recursion in log space; clipped AdamW",
    rows=8,
    repeats=2,
    environment=HUGE_PAGES,
)

# Fast ones take turns, so that a drift of the machine's speed meets all of them; slow ones run alone afterwards.
FAST = (TRELLIS, LOW_RANK, BAUM_WELCH, DYNAMAX, DYNAMAX_PLAIN)
SLOW = (AUTOGRAD, HMMLEARN, POMEGRANATE)
