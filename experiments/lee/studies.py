"""Every table and figure of Lee & Berg-Kirkpatrick (2025) as a list of runs.

Rows of tables are run from three seeds, points of sweeps from one. Runs of the same name are the same in every study.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, cast

from experiments.lee.budgets import (
    CHECKPOINT,
    LABELLED,
    RANDOM_TEACHER,
    RATES,
    SEEDS,
    SHAPES,
    TEACHER,
    TOKENS,
    WIDTH,
    distilled,
    language_model,
    learn,
    sizes,
    width_of,
)
from experiments.recipes import Budget, Recipe, Study
from trellis.models.budgets import within_budget
from trellis.models.hmm_config import HMMConfig

VOCABULARY = 32_000  # of Llama 2
ARCHITECTURES = {"mlp-psi": "MLP ψ", "mlp-iota": "MLP ι", "transformer-psi": "TRF ψ", "transformer-iota": "TRF ι"}
# a (transition), b (emission) and π (start) of Table 2: which of them are products of vectors.
FACTORED = {
    "False, False, False": "scalar",
    "True, False, False": "low-rank-a",
    "True, False, True": "low-rank-a-start",
    "False, True, False": "low-rank-b",
    "True, True, False": "low-rank-a-b",
    "True, True, True": "linear-split",
}
# Split H, monolithic, linear layers, skip connection, ReLU, LayerNorm of Table 3, in the paper's order.
VARIANTS = (
    (False, False, 1, False, True, False),
    (True, False, 1, False, True, False),
    (False, False, 2, True, True, False),
    (True, False, 2, False, False, True),
    (True, False, 2, True, True, False),
    (True, True, 2, True, True, False),
    (False, False, 1, False, False, False),
)
HALVED = ("MLP ι, 2^23", "MLP ι, 2^24", "TRF ι, 2^24")  # of Figure 2: did not learn at the rate that their width gives
# Tokens that our language models of Figures 3 and 7 have read.
STRENGTHS: dict[Budget, tuple[int, ...]] = {
    "smoke": (300, 600),
    "laptop": (300_000, 1_000_000, 3_000_000),
    "paper": (10**8, 10**9, 4 * 10**9),
}
DISTILLED = ("scalar", "linear-split", "mlp-psi", "transformer-iota")  # Figure 4


def _seeds(label: str, budget: Budget, shape: str, **changes: Any) -> list[Recipe]:
    return [learn(budget, label, shape, seed=seed, **changes) for seed in SEEDS]


def table1(budget: Budget) -> list[Recipe]:
    """Linear reparameterisations beside the neural one and none."""
    return [
        *_seeds("Ablation A (single H)", budget, "linear-single"),
        *_seeds("Ablation B (split H)", budget, "linear-split"),
        *_seeds("HMM", budget, "scalar"),
        *_seeds("Chiu and Rush", budget, "mlp-psi"),
    ]


def table2(budget: Budget) -> list[Recipe]:
    """Transition a, emission b and start π factored or not."""
    return [recipe for label, shape in FACTORED.items() for recipe in _seeds(label, budget, shape)]


def table3(budget: Budget) -> list[Recipe]:
    """Parts of Chiu & Rush's networks left out: those that beat ablation B in the paper."""
    return [recipe for variant in VARIANTS for recipe in _seeds(_said(variant), budget, "mlp-psi", **_parts(variant))]


def _said(variant: tuple[bool, bool, int, bool, bool, bool]) -> str:
    return ", ".join(map(str, variant))


def _parts(variant: tuple[bool, bool, int, bool, bool, bool]) -> dict[str, Any]:
    split, monolithic, layers, skip, relu, norm = variant
    return {
        "shared": not split,
        "monolithic": monolithic,
        "layers": layers,
        "skip": "input" if skip else "none",
        "relu": relu,
        "norm": norm,
    }


def table4(budget: Budget) -> list[Recipe]:
    """A transformer's weights to begin with, a teacher's labels, both or neither."""
    taught = distilled(budget, TEACHER, **({"tokens": 10_000_000} if budget == "paper" else {}))  # their Table 6
    rows = []
    for label, random in (("Random Init.", True), ("Pretrained Init.", False)):
        network = f"random:{CHECKPOINT}" if random else CHECKPOINT
        rows += _seeds(label, budget, "pretrained", network=network)
        rows += _seeds(f"{label} + LVD", budget, "pretrained", network=network, distill=taught)
    return rows


def figure1(budget: Budget) -> list[Recipe]:
    """States of the plain HMM and of the best recipe."""
    return [
        learn(budget, f"{label}, {states}", shape, states=states, teacher=teacher)
        for label, shape, teacher in (("HMM", "scalar", None), ("best", "linear-split", TEACHER))
        for states in sizes(budget)
    ]


def powers(budget: Budget, shape: str) -> tuple[int, ...]:
    """Parameters of Figure 2's networks, as exponents of two.

    A transformer's heads are 32 wide, so that with 32,000 words it has more than 2^20.
    """
    fewest = 21 if shape.startswith("transformer") else 20 if budget != "paper" else 18
    return tuple(range(fewest, 25 if budget != "paper" else 28))


def figure2(budget: Budget, states: int = 512) -> list[Recipe]:
    """Networks of all four kinds by their number of parameters."""
    networks = [
        learn(budget, f"{label}, 2^{exponent}", shape, states=states, parameters=f"2^{exponent}")
        for shape, label in ARCHITECTURES.items()
        for exponent in powers(budget, shape)
    ]
    return [
        *([] if states != 512 else [learn(budget, "HMM", "scalar")]),
        *(networks if budget != "laptop" else map(_by_width, networks)),
    ]


def _by_width(recipe: Recipe) -> Recipe:
    """Its rate in inverse proportion to its width, to the nearest power of two; the paper has one rate a kind."""
    model = cast(HMMConfig, recipe.config.model)
    width = within_budget(dataclasses.replace(model, vocab_size=VOCABULARY), blocks=1, block_size=model.states).width
    share = 2.0 ** round(math.log2(WIDTH / width))
    return dataclasses.replace(recipe, share=share / 2 if recipe.label in HALVED else share)


def figure3(budget: Budget) -> list[Recipe]:
    """Teachers of several strengths, and one that has learnt nothing, for the plain HMM."""
    if budget == "paper":
        return _figure3_of_the_paper()
    weaker = [language_model(budget, tokens) for tokens in STRENGTHS[budget]]
    return [
        learn(budget, "none", "scalar"),
        learn(budget, "random", "scalar", teacher=RANDOM_TEACHER),
        *(learn(budget, one.label, "scalar", teacher=f"{one.name}/best", needs=(one,)) for one in weaker),
        learn(budget, "stories15M", "scalar", teacher=TEACHER),
    ]


def _figure3_of_the_paper() -> list[Recipe]:
    """As their Table 6 has it, with the teachers' folders in the data folder; of TinyLlama the first and the last."""
    tiny = [f"TinyLlama-1.1B-{tokens}" for tokens in ("500B", "3T")]
    taught: list[tuple[str, dict[str, Any]]] = [
        ("random", {"teacher": f"random:teachers/{tiny[0]}", "tokens": 10_000_000}),
        *((name, {"teacher": f"teachers/{name}", "tokens": 10_000_000}) for name in tiny),
        *(
            (f"Llama-2-7B, PCA {pca}", {"teacher": "teachers/Llama-2-7B", "pca": pca, "tokens": 5_000_000})
            for pca in (512, 1024, 2048, 4096)
        ),
    ]
    return [
        *_seeds("none", "paper", "scalar", lr=0.4),
        *(
            recipe
            for label, told in taught
            for recipe in _seeds(label, "paper", "scalar", distill=distilled("paper", **told), lr=0.4)
        ),
    ]


def figure4(budget: Budget) -> list[Recipe]:
    """A teacher's labels for every kind of parameters."""
    return [
        recipe
        for shape in DISTILLED
        for label, teacher in ((f"{SHAPES[shape].label}", None), (f"{SHAPES[shape].label} + LVD", TEACHER))
        for recipe in _seeds(label, budget, shape, teacher=teacher)
    ]


def figure5(budget: Budget) -> list[Recipe]:
    """Cluster centres as the states' embeddings, the teacher's head as the words', frozen for a while or not."""
    pca = width_of(budget)  # centres are embeddings: as wide
    found = [learn(budget, "LVD", "mlp-psi", distill=distilled(budget, TEACHER, pca=pca))]
    for label, chosen in (
        ("centroids", {"centroids": True}),
        ("head", {"head": True}),
        ("centroids + head", {"centroids": True, "head": True}),
    ):
        for frozen in (0, 4 * LABELLED[budget]):  # the paper's 20 million
            said = f"{label}, frozen" if frozen else label
            own = distilled(budget, TEACHER, pca=pca, frozen=frozen, **chosen)
            found.append(learn(budget, said, "mlp-psi", distill=own))
    return found


def figure6(budget: Budget) -> list[Recipe]:
    """Pretrained and random weights of the network by learning rate."""
    return [
        learn(budget, f"{label}, {rate:g}", "pretrained", network=network, lr=rate)
        for label, network in (("pretrained", CHECKPOINT), ("random", f"random:{CHECKPOINT}"))
        for rate in RATES
    ]


def figure7(budget: Budget) -> list[Recipe]:
    """Language models that have read more and more as the network."""
    found = [learn(budget, "random", "pretrained", network=f"random:{CHECKPOINT}")]
    for tokens in STRENGTHS[budget]:
        one = language_model(budget, tokens)
        found.append(learn(budget, one.label, "pretrained", network=f"{one.name}/best", needs=(one,)))
    return [*found, learn(budget, "stories15M", "pretrained", network=CHECKPOINT)]


def figure8(budget: Budget) -> list[Recipe]:
    """Tokens learnt from with the teacher's labels, up to all of the run."""
    shares = (*((0.002,) if budget == "paper" else ()), 0.01, 0.05, 0.1, 0.25, 0.5, 1.0)
    return [
        learn(budget, "none", "scalar"),
        *(
            learn(
                budget,
                f"{100 * share:g}%",
                "scalar",
                distill=distilled(budget, TEACHER, tokens=round(share * TOKENS[budget])),
            )
            for share in shares
        ),
    ]


def figure11(budget: Budget) -> list[Recipe]:
    """Figure 2 with 256 states."""
    return figure2(budget, states=256)


def figure12(budget: Budget) -> list[Recipe]:
    """Figure 2's MLP ψ with 1,024 states."""
    return [recipe for recipe in figure2(budget, states=1024) if recipe.label.startswith("MLP ψ")]


def full(budget: Budget) -> list[Recipe]:
    """All of the text: the baseline at two rates and without weight decay, and the best recipe."""
    return [
        learn(budget, "HMM", "scalar", tokens=None),
        learn(budget, "HMM, rate 0.4", "scalar", tokens=None, lr=0.4),
        learn(budget, "HMM, no weight decay", "scalar-undecayed", tokens=None),
        learn(budget, "best", "linear-split", tokens=None, teacher=TEACHER),
    ]


def decay(budget: Budget) -> list[Recipe]:
    """Beyond the paper: the scalar HMM and its factored kin without weight decay, at rates of their own."""
    return [
        *_seeds("HMM", budget, "scalar"),
        *_seeds("HMM, no decay", budget, "scalar-undecayed"),
        learn(budget, "HMM + LVD", "scalar", teacher=TEACHER),
        learn(budget, "HMM + LVD, no decay", "scalar-undecayed", teacher=TEACHER),
        *(
            learn(budget, f"{SHAPES[shape].label}{said}", f"{shape}{kind}")
            for shape in ("low-rank-a", "low-rank-b", "linear-split")
            for said, kind in (("", ""), (", no decay", "-undecayed"))
        ),
    ]


def blocked(budget: Budget) -> list[Recipe]:
    """Beyond the paper: thousands of states in blocks of words, by encoder, distilled or not, with states dropped."""
    small, large = (2**12, 2**13) if budget != "paper" else (2**14, 2**15)
    found = [
        learn(budget, "dense, 512, split H", "linear-split"),
        learn(budget, "dense, 512, split H + LVD", "linear-split", teacher=TEACHER),
    ]
    for label, shape, states, changes in (
        (f"split H, {small}", "blocked-table", small, {}),
        (f"residual, {small}", "blocked", small, {}),
        (f"residual, {small}, dropout", "blocked", small, {"dropout": 0.5}),
        (f"split H, {large}", "blocked-table", large, {}),
        (f"residual, {large}", "blocked", large, {}),
    ):
        found.append(learn(budget, label, shape, states=states, **changes))
        found.append(learn(budget, f"{label} + LVD", shape, states=states, teacher=TEACHER, **changes))
    return found


STUDIES: tuple[Study, ...] = (
    table1, table2, table3, table4, figure1, figure2, figure3, figure4, figure5, figure6, figure7, figure8, figure11,
    figure12, full, decay, blocked,
)  # fmt: skip
