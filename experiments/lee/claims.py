"""What Lee & Berg-Kirkpatrick say of their HMMs, and whether ours say the same."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from itertools import pairwise

from experiments.claims import SAME, Claim, Finding
from experiments.lee.budgets import LABELLED, SHAPES, TOKENS, sizes
from experiments.lee.studies import ARCHITECTURES, DISTILLED, powers
from experiments.results import Results

CHANCE = 1.06  # single runs this close may differ by their seeds: those of a network are up to 5.5 % apart
BASELINE, LINEAR = ("lee.table1", "HMM"), ("lee.table1", "Ablation B (split H)")
Row = tuple[str, str]  # study and label


def seeds(results: Results, row: Row) -> list[float] | None:
    """Validation perplexities of all seeds of a row; None until all are there."""
    found = results.values(*row, "valid")
    return None if None in found else [number for number in found if number is not None]


def mean(results: Results, row: Row) -> float | None:
    """Their mean."""
    found = seeds(results, row)
    return None if found is None else statistics.fmean(found)


def below(results: Results, low: Row, high: Row) -> Finding:
    """The first is less than the second, by more than seeds differ: their ranges, or of single ones some per cent."""
    first, second = seeds(results, low), seeds(results, high)
    if first is None or second is None:
        return Finding("", None)
    a, b = statistics.fmean(first), statistics.fmean(second)
    if len(first) > 1 and len(second) > 1:
        close = max(min(first), min(second)) <= min(max(first), max(second))
    else:
        close = max(a, b) <= CHANCE * min(a, b)
    return Finding(f"{low[1]} {a:.1f} {'<' if a < b else '≥'} {high[1]} {b:.1f}", a < b, close)


def alike(results: Results, rows: Iterable[Row]) -> Finding:
    """The largest and the smallest are close; two that are not are enough to say so."""
    found = {row[1]: mean(results, row) for row in rows}
    known = {label: number for label, number in found.items() if number is not None}
    spread = max(known.values()) / min(known.values()) if known else 1.0
    if len(known) < len(found) and spread <= SAME:
        return Finding("", None)
    listed = ", ".join(f"{label} {number:.1f}" for label, number in known.items())
    return Finding(f"{listed} (apart by {spread - 1:.1%})", spread <= SAME)


def gains_little(results: Results, small: Row, large: Row) -> Finding:
    """The second is no lower than the first, or by no more than what counts as alike."""
    here, there = mean(results, small), mean(results, large)
    if here is None or there is None:
        return Finding("", None)
    return Finding(f"{small[1]} {here:.1f}, {large[1]} {there:.1f} ({there / here - 1:+.1%})", there * SAME > here)


def together(*findings: Finding) -> Finding:
    """One comparison of several, none of which says anything alone."""
    if any(finding.holds is None for finding in findings):
        return Finding("", None)
    text, holds = ", ".join(finding.text for finding in findings), all(finding.holds for finding in findings)
    return Finding(text, holds, close=any(finding.close for finding in findings))


def _any_beats(results: Results) -> list[Finding]:
    """At every size: the paper says so even of networks much smaller than the table they replace."""
    networks = [
        ("lee.figure2", f"{one}, 2^{power}")
        for shape, one in ARCHITECTURES.items()
        for power in powers(results.budget, shape)
    ]
    return [below(results, row, BASELINE) for row in [LINEAR, *networks]]


def _linear(results: Results) -> list[Finding]:
    linear, neural = mean(results, LINEAR), mean(results, ("lee.table1", "Chiu and Rush"))
    if linear is None or neural is None:
        return [Finding("", None)]
    return [Finding(f"split H {linear:.1f}, Chiu and Rush {neural:.1f}", linear <= neural * SAME)]


def _single(results: Results) -> list[Finding]:
    return [below(results, BASELINE, ("lee.table1", "Ablation A (single H)"))]


def _emissions(results: Results) -> list[Finding]:
    labels = ("False, False, False", "False, True, False", "True, True, True")
    none, emission, everything = (mean(results, ("lee.table2", label)) for label in labels)
    if none is None or emission is None or everything is None:
        return [Finding("", None)]
    gain, whole = none - emission, none - everything
    return [
        Finding(f"b alone {none:.1f} → {emission:.1f}, all {everything:.1f}", whole > 0 and gain > whole / 2),
        below(results, ("lee.table2", "False, True, False"), ("lee.table2", "True, False, False")),
    ]


def _returns(results: Results) -> list[Finding]:
    """More than 2^22 parameters gain nothing, fewer lose."""
    found = []
    for shape, one in ARCHITECTURES.items():
        row, (fewest, *_, most) = ("lee.figure2", f"{one}, 2^22"), powers(results.budget, shape)
        loses = below(results, row, ("lee.figure2", f"{one}, 2^{fewest}"))
        found.append(together(loses, gains_little(results, row, ("lee.figure2", f"{one}, 2^{most}"))))
    return found


def _best(results: Results) -> list[Finding]:
    best, *others = (("lee.figure2", f"{one}, 2^22") for one in ("MLP ψ", "MLP ι", "TRF ι"))
    return [below(results, best, other) for other in others]


def _worst(results: Results) -> list[Finding]:
    worst, *others = (("lee.figure2", f"{one}, 2^22") for one in ("TRF ψ", "TRF ι", "MLP ι", "MLP ψ"))
    return [below(results, other, worst) for other in others]


def _distilled(results: Results) -> list[Finding]:
    rows = [SHAPES[shape].label for shape in DISTILLED]
    return [below(results, ("lee.figure4", f"{row} + LVD"), ("lee.figure4", row)) for row in rows]


def _variance(results: Results) -> list[Finding]:
    found = []
    for shape in DISTILLED:
        label = SHAPES[shape].label
        without, taught = (seeds(results, ("lee.figure4", row)) for row in (label, f"{label} + LVD"))
        if without is None or taught is None:
            found.append(Finding("", None))
            continue
        wide, narrow = (max(numbers) - min(numbers) for numbers in (without, taught))
        close = max(wide, narrow) < 1.5 * min(wide, narrow)  # of three seeds each, that says nothing
        text = f"{label}: highest − lowest {wide:.1f}, with LVD {narrow:.1f}"
        found.append(Finding(text, narrow < wide, close))
    return found


def _adds(results: Results) -> list[Finding]:
    best = "lee.figure4", f"{SHAPES['linear-split'].label} + LVD"
    alone = [("lee.figure4", "HMM + LVD"), ("lee.figure4", SHAPES["linear-split"].label)]
    return [below(results, best, row) for row in alone]


def _teachers(results: Results) -> list[Finding]:
    return [alike(results, [("lee.figure3", label) for label in results.labels("lee.figure3")[2:]])]


def _random_teacher(results: Results) -> list[Finding]:
    return [below(results, ("lee.figure3", "random"), ("lee.figure3", "none"))]


def _labelled(results: Results) -> list[Finding]:
    """As many as other runs have do better than the fewest and as well as more, and all of them worse than none."""
    none, *rows = (("lee.figure8", label) for label in results.labels("lee.figure8"))
    enough = rows.index(("lee.figure8", f"{100 * LABELLED[results.budget] / TOKENS[results.budget]:g}%"))
    return [
        below(results, rows[enough], rows[0]),
        alike(results, rows[enough:-1]),
        below(results, none, rows[-1]),
    ]


def _centroids(results: Results) -> list[Finding]:
    labels = [label for label in results.labels("lee.figure5") if label != "LVD"]
    return [gains_little(results, ("lee.figure5", "LVD"), ("lee.figure5", label)) for label in labels]


def _pretrained(results: Results) -> list[Finding]:
    return [
        below(results, ("lee.table4", "Pretrained Init."), ("lee.table4", "Random Init.")),
        below(results, ("lee.figure6", "pretrained, 0.0004"), ("lee.figure6", "random, 0.0004")),
        gains_little(results, ("lee.figure6", "random, 0.004"), ("lee.figure6", "pretrained, 0.004")),
    ]


def _not_both(results: Results) -> list[Finding]:
    return [alike(results, [("lee.table4", f"{one} Init. + LVD") for one in ("Pretrained", "Random")])]


def _states(results: Results) -> list[Finding]:
    points = [f"best, {states}" for states in sizes(results.budget)]
    found = [below(results, ("lee.figure1", more), ("lee.figure1", fewer)) for fewer, more in pairwise(points)]
    fewest, most = (f"HMM, {states}" for states in (sizes(results.budget)[0], sizes(results.budget)[-1]))
    return [*found, gains_little(results, ("lee.figure1", fewest), ("lee.figure1", most))]


CLAIMS = (
    Claim("Any reparameterisation beats the scalar HMM.", "Figure 2", _any_beats),
    Claim("Split-H linear parameters match or beat Chiu & Rush's networks.", "Table 1", _linear),
    Claim("Single-H linear parameters are worse than scalar ones.", "Table 1", _single),
    Claim("Factoring emissions gives most of the gain.", "Table 2", _emissions),
    Claim("Returns stop near 2^22 parameters.", "Figure 2", _returns),
    Claim("The non-monolithic MLP is best.", "Figure 2", _best),
    Claim("The non-monolithic transformer is worst.", "Figure 2", _worst),
    Claim("Distillation helps, whatever the parameters.", "Figure 4", _distilled),
    Claim("Distillation lowers the variance of runs.", "Figure 4", _variance),
    Claim("Distillation adds to reparameterisation.", "Figure 4", _adds),
    Claim("The teacher's strength matters little.", "Figure 3", _teachers),
    Claim("A random teacher helps.", "Figure 3", _random_teacher),
    Claim("5 million labelled tokens saturate, and a whole run of them hurts.", "Figure 8", _labelled),
    Claim("Centroids and the teacher's head as initial embeddings do not help.", "Figure 5", _centroids),
    Claim("Pretrained weights beat random ones if the rate is low, not otherwise.", "Table 4, Figure 6", _pretrained),
    Claim("With distillation, pretrained weights add little.", "Table 4", _not_both),
    Claim("More states help the best recipe, and not the baseline.", "Figure 1", _states),
)
