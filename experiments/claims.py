"""What Chiu & Rush say of their models, and whether ours say the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from experiments.chiu import BLOCKS, subset_states
from experiments.results import Results, What

SAME = 1.03  # perplexities this close are alike: their 134 to 138, of which they say that it does not matter
SLIGHTLY = 1.06  # "slightly worse", and their 115 and 119 that are "similar"


@dataclass(frozen=True)
class Finding:
    """One comparison that a claim rests on."""

    text: str  # with the numbers
    holds: bool | None  # None: a run is missing
    close: bool = False  # by no more than seeds differ: it speaks neither for the claim nor against it


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and the comparisons it rests on."""

    text: str
    where: str  # in the paper
    test: Callable[[Results], list[Finding]]

    def verdict(self, results: Results) -> tuple[str, str]:
        """Whether ours agrees, and the numbers."""
        findings = self.test(results)
        known = [finding for finding in findings if finding.holds is not None]
        said = "; ".join(finding.text for finding in known)
        if not known:
            return "not measured yet", said
        told = [finding for finding in known if not finding.close]
        if not all(finding.holds for finding in told):
            return "**disagrees**", said
        if not told:
            return "too close to tell", said
        partly = "" if len(known) == len(findings) else f" so far, {len(known)} of {len(findings)} compared"
        close = "" if len(told) == len(known) else f", {len(known) - len(told)} too close to tell"
        return f"agrees{partly}{close}", said


Row = tuple[str, str]  # study and label


def below(results: Results, low: Row, high: Row, what: What = "valid", unit: str = "") -> Finding:
    """The first is less than the second."""
    a, b = results.value(*low, what), results.value(*high, what)
    if a is None or b is None:
        return Finding("", None)
    text = f"{low[1]} {_shown(a)}{unit} {'<' if a < b else '≥'} {high[1]} {_shown(b)}{unit}"
    return Finding(text, a < b)


def alike(results: Results, rows: list[Row], what: What = "valid", within: float = SAME) -> Finding:
    """The largest and the smallest are close."""
    found = [(results.value(*row, what), row[1]) for row in rows]
    numbers = [number for number, _ in found if number is not None]
    if len(numbers) < len(rows):
        return Finding("", None)
    spread = max(numbers) / min(numbers)
    name = {"valid": "", "train": "training text: "}.get(what, "")
    listed = ", ".join(f"{label} {_shown(number)}" for number, label in found if number is not None)
    return Finding(f"{name}{listed} (apart by {spread - 1:.1%})", spread <= within)


def _shown(number: float) -> str:
    return f"{number / 1e6:.1f}M" if number >= 1e5 else f"{number:.1f}"


def _more_states(results: Results) -> list[Finding]:
    kind = "flat" if results.budget == "paper" else "hierarchical"
    rows = [("chiu.figure3", f"{kind}, 2^{power}") for power in range(10, 17)]
    return [below(results, large, small) for small, large in pairwise(rows)]


def _neural(results: Results) -> list[Finding]:
    full, scalar = ("chiu.table2", "VL-HMM"), ("chiu.table2", "- neural param")
    return [below(results, full, scalar), below(results, full, scalar, "parameters")]


def _similar_training(results: Results) -> list[Finding]:
    return [
        alike(results, [("chiu.table2", "VL-HMM"), ("chiu.table2", "- neural param")], "train", SLIGHTLY),
    ]


def _dropout(results: Results) -> list[Finding]:
    """Of long runs, as the paper's are; until there are any, of short ones."""
    long = below(results, ("chiu.dropout", "VL-HMM"), ("chiu.dropout", "- state dropout"))
    study = "chiu.table2" if long.holds is None else "chiu.dropout"
    full, without = (study, "VL-HMM"), (study, "- state dropout")
    return [below(results, full, without), below(results, full, without, "milliseconds", " ms")]


def _brown(results: Results) -> list[Finding]:
    return [
        below(results, ("chiu.table3", f"Brown, {states}, k=128"), ("chiu.table3", f"Uniform, {states}, k=128"))
        for states in (f"2^{size.bit_length() - 1}" for size in subset_states(results.budget))
    ]


def _any_blocks(results: Results) -> list[Finding]:
    return [alike(results, [("chiu.table3", f"Brown, 2^14, M={blocks}") for blocks in BLOCKS])]


def _few_blocks(results: Results) -> list[Finding]:
    dense, four, eight = (("chiu.table3", label) for label in ("None, 2^10", "Brown, 2^10, M=4", "Brown, 2^10, M=8"))
    return [alike(results, [dense, four]), below(results, dense, eight)]


def _beats(*labels: str) -> Callable[[Results], list[Finding]]:
    def test(results: Results) -> list[Finding]:
        return [
            below(results, ("chiu.table1", f"{label.partition(',')[0]}, VL-HMM 2^15"), ("chiu.table1", label))
            for label in labels
        ]

    return test


def _loses(results: Results) -> list[Finding]:
    return [
        below(results, ("chiu.table1", f"{text}, 2x256 LSTM"), ("chiu.table1", f"{text}, VL-HMM 2^15"))
        for text in ("PTB", "WikiText-2")
    ]


def _factored(results: Results) -> list[Finding]:
    full, factored = ("chiu.table4", "VL-HMM"), ("chiu.table4", "+ block emb")
    return [
        below(results, full, factored),
        alike(results, [full, factored], within=SLIGHTLY),
        below(results, factored, full, "parameters"),
    ]


CLAIMS = (
    Claim("More states help, up to 2^16.", "Figure 3", _more_states),
    Claim("Neural parameters generalise better than scalar ones, with far fewer of them.", "Table 2", _neural),
    Claim("Neural and scalar parameters reach similar training perplexity.", "section 6", _similar_training),
    Claim("State dropout improves perplexity and time.", "Table 2", _dropout),
    Claim("Brown clusters beat uniform subsets.", "Table 3", _brown),
    Claim("At 2^14 states the number of blocks matters little.", "Table 3", _any_blocks),
    Claim("At 2^10 states four blocks match a model without blocks, and eight are worse.", "Table 3", _few_blocks),
    Claim(
        "The VL-HMM beats n-grams and the feed-forward model.",
        "Table 1",
        _beats(*(f"{text}, {model}" for text in ("PTB", "WikiText-2") for model in ("KN 5-gram", "256 FF 5-gram"))),
    ),
    Claim("The VL-HMM beats HMM+RNN and the 900-state HMM.", "Table 1", _beats("PTB, HMM+RNN", "PTB, HMM 900")),
    Claim("The VL-HMM loses to the LSTM.", "Table 1", _loses),
    Claim("Factored embeddings are slightly worse, with fewer parameters.", "Table 4", _factored),
)
