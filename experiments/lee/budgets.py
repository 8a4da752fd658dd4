"""What a run of Lee & Berg-Kirkpatrick's study is at each budget: their Tables 5 and 6, or the same with less text.

paper    500 million tokens of SlimPajama once, N(0, 1) embeddings, a teacher's labels for the first 5 million
laptop   10 million tokens of openmix; everything else alike, but for vectors that begin at a spread that suits them
smoke    seconds: laptop's runs with tiny models, for the tests
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Any

from experiments.budgets import CONFIGS
from experiments.recipes import Budget, Grid, Recipe, run_name
from trellis.config import ANY_VOCABULARY, RunConfig, load
from trellis.distillation import DistillSettings
from trellis.models.hmm_config import HMMConfig

SEEDS = (42, 52, 62)
STATES = 512
WIDTH = 128  # about 2^22 parameters
TOKENS: dict[Budget, int] = {"smoke": 2_000, "laptop": 10_000_000, "paper": 500_000_000}  # learnt from in a run
SEARCHED: dict[Budget, int] = {"smoke": 500, "laptop": 2_500_000, "paper": 25_000_000}  # in a run of a search
LABELLED: dict[Budget, int] = {
    "smoke": 500,
    "laptop": 1_000_000,
    "paper": 5_000_000,
}  # of a run, by the joint likelihood
LANGUAGE_MODEL_RATE = 3e-3  # as `trellis train openmix-transformer`
RATES = (4e-1, 4e-2, 4e-3, 4e-4)
# On a laptop whole runs around the best follow; the paper's are too long, so that halves and doubles are tried at once.
TRIED: dict[Budget, tuple[float, ...]] = {
    "smoke": RATES[:2],
    "laptop": RATES,
    "paper": tuple(rate * by for rate in RATES for by in (2, 1, 0.5)),
}
TEACHER = "teachers/stories15M"
RANDOM_TEACHER = f"random:{TEACHER}"
CHECKPOINT = TEACHER  # as the network too
LINEAR: dict[str, Any] = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank", "width": WIDTH}
BLOCKED: dict[str, Any] = {**LINEAR, "transition": "hierarchical", "support": "brown", "blocks": 128, "bias": True}
NETWORK: dict[str, Any] = {**LINEAR, "layers": 2}
# The rows of Table 3 that have a skip connection have no LayerNorm, without which a rate may be too high for them.
RESIDUAL: dict[str, Any] = {
    "shared": False,
    "monolithic": False,
    "layers": 2,
    "skip": "input",
    "relu": True,
    "norm": False,
}


@dataclass(frozen=True)
class Shape:
    """A parameterisation: its name in figures, its settings, and the shape whose learning rate it has."""

    label: str
    parts: dict[str, Any] = field(default_factory=dict)
    searched: str | None = None  # by default its own
    states: int = STATES  # at which the rate is searched
    decay: float | None = None  # of weights; by default the paper's


SHAPES = {
    "scalar": Shape("HMM"),
    "low-rank-a": Shape("a", {"transition": "low_rank", "width": WIDTH}),
    "low-rank-a-start": Shape("a, π", {"start": "low_rank", "transition": "low_rank", "width": WIDTH}, "low-rank-a"),
    "low-rank-b": Shape("b", {"emission": "low_rank", "width": WIDTH}),
    "low-rank-a-b": Shape("a, b", {"transition": "low_rank", "emission": "low_rank", "width": WIDTH}, "linear-split"),
    "linear-split": Shape("split H", LINEAR),
    "linear-single": Shape("single H", {**LINEAR, "shared": True}),
    "memory-1": Shape("split H, memory of a word", {**LINEAR, "memory": 1}),
    "memory-1-frequent": Shape(
        "split H, memory of a frequent word", {**LINEAR, "memory": 1, "memory_words": 2048}, "memory-1"
    ),
    "memory-1-ngrams-5": Shape("split H, memory of a word, 5-grams", {**LINEAR, "memory": 1, "ngrams": 5}, "memory-1"),
    "memory-1-mlp": Shape("MLP ψ, memory of a word", {**NETWORK, "encoder": "mlp", "memory": 1}, "mlp-psi"),
    "memory-2": Shape("split H, memory of two words", {**LINEAR, "memory": 2}, "memory-1"),
    "mlp-psi": Shape("MLP ψ", {**NETWORK, "encoder": "mlp"}),
    "mlp-iota": Shape("MLP ι", {**NETWORK, "encoder": "mlp", "monolithic": True}),
    "transformer-psi": Shape("TRF ψ", {**NETWORK, "encoder": "transformer"}),
    "transformer-iota": Shape("TRF ι", {**NETWORK, "encoder": "transformer", "monolithic": True}),
    "blocked": Shape("blocked", {**BLOCKED, "encoder": "residual"}, states=2**12),
    "blocked-table": Shape("blocked, split H", {**BLOCKED, "encoder": "table"}, states=2**12),
    "blocked-memory-1": Shape(
        "blocked, split H, memory of a word", {**BLOCKED, "encoder": "table", "memory": 1}, "blocked-table"
    ),
    "blocked-memory-1-ngrams-5": Shape(
        "blocked, split H, memory of a word, 5-grams",
        {**BLOCKED, "encoder": "table", "memory": 1, "ngrams": 5},
        "blocked-table",
    ),
    "pretrained": Shape("TRF ι of a language model", {**LINEAR, "encoder": "pretrained"}),
}
SHAPES |= {
    f"{name}-undecayed": dataclasses.replace(SHAPES[name], decay=0.0)
    for name in ("scalar", "low-rank-a", "low-rank-b", "linear-split")
}


def sizes(budget: Budget) -> tuple[int, ...]:
    """States of Figure 1."""
    return tuple(2**exponent for exponent in range(6, 11 if budget != "paper" else 13))


def width_of(budget: Budget) -> int:
    """Of the vectors of states and words, unless a number of parameters decides it."""
    return WIDTH if budget != "smoke" else 9


def language_model(budget: Budget, tokens: int) -> Recipe:
    """A transformer language model after some of the same text: a teacher, and a network to begin with."""
    from trellis.models.transformer import TransformerLMConfig

    config = _config(budget, "scalar", STATES, tokens, {})
    shape = {"width": 8, "layers": 1, "heads": 1, "context": 8} if budget == "smoke" else {}
    training = dataclasses.replace(config.training, lr=LANGUAGE_MODEL_RATE, seed=SEEDS[0])
    config = dataclasses.replace(config, model=TransformerLMConfig(ANY_VOCABULARY, **shape), training=training)
    name = run_name(budget, "openmix-language-model", _short(tokens))
    return Recipe(name, f"language model, {tokens / 1e6:g}M tokens", config)


def distilled(budget: Budget, teacher: str, **changes: Any) -> DistillSettings:
    """A teacher's labels for the beginning of a run."""
    tiny = {"points": 4, "iterations": 2, "restarts": 1} if budget == "smoke" else {}
    return DistillSettings(**({"teacher": teacher, "tokens": LABELLED[budget]} | tiny | changes))


def learn(
    budget: Budget,
    label: str,
    shape: str,
    *,
    seed: int = SEEDS[0],
    states: int = STATES,
    tokens: int | None = -1,
    teacher: str | None = None,
    distill: DistillSettings | None = None,
    lr: float | None = None,
    needs: tuple[Recipe, ...] = (),
    **model: Any,
) -> Recipe:
    """A run of an HMM of some shape, by a name that says what is particular about it.

    It begins with the labels of a `teacher`, or as `distill` says in full. `tokens` to learn from are the budget's
    unless given; None is all of the text. `lr` is searched unless given.
    """
    config = _config(budget, shape, states, TOKENS[budget] if tokens == -1 else tokens, model)
    distill = distilled(budget, teacher) if teacher else distill
    training = dataclasses.replace(config.training, seed=seed, init="random" if distill is None else "distill")
    said = [f"openmix-{shape}", *_said(model), *_taught(budget, distill), *([] if tokens == -1 else ["all"])]
    name = run_name(budget, *said, *([] if lr is None else [f"lr{lr:g}"]), str(states), f"s{seed}")
    config = dataclasses.replace(config, training=training, distill=distill or DistillSettings())
    if lr is not None:
        training = dataclasses.replace(training, lr=lr)
        return Recipe(name, label, dataclasses.replace(config, training=training), needs=needs)
    return Recipe(name, label, config, _grid(budget, shape, model, distill is not None), needs=needs)


@functools.cache
def _shipped() -> RunConfig:
    return load(CONFIGS / "lee.yaml")


def _config(budget: Budget, shape: str, states: int, tokens: int | None, changes: dict[str, Any]) -> RunConfig:
    config = _shipped()
    parts = {**SHAPES[shape].parts, **changes}
    if "parameters" in changes:
        del parts["width"]
    if budget == "smoke":
        power = parts.get("parameters")
        width = int(power.removeprefix("2^")) - 16 if power else width_of(budget)
        parts |= {"width": width, "parameters": None} if parts else {}
        parts |= {name: 8 for name in ("blocks", "memory_words") if name in parts}
        states //= 8
    if "width" in parts and "encoder" not in parts:
        parts["width"] = min(states, parts["width"])  # of a table, more would gain nothing
    if budget == "paper" and SHAPES[shape].parts:
        parts["init_scale"] = 1.0
    corpus = "slimpajama" if budget == "paper" else "openmix"
    data = dataclasses.replace(config.data, corpus=corpus, max_tokens=tokens)
    training = dataclasses.replace(config.training, clip=1.0, validations=1, keep=1, precision="bf16")
    if SHAPES[shape].decay is not None:
        training = dataclasses.replace(training, weight_decay=SHAPES[shape].decay)
    if budget == "smoke":
        training = dataclasses.replace(training, batch_size=8, length=8, precision="float32", checkpoint_every=20)
    return RunConfig(data, HMMConfig(ANY_VOCABULARY, states, **parts), training)


def _grid(budget: Budget, shape: str, changes: dict[str, Any], labels: bool) -> Grid:
    """Rates are searched once for a kind of parameters, on less text and without labels.

    A pretrained network learns at low rates only, but with labels at that of random weights too, which it then has.
    """
    searched = SHAPES[shape].searched or shape
    own: dict[str, Any] = {}
    if "network" in changes:
        random = labels or changes["network"].startswith("random:")
        own["network"] = f"random:{CHECKPOINT}" if random else CHECKPOINT
    if changes.get("skip") == "input":
        own |= RESIDUAL
    config = _config(budget, searched, SHAPES[searched].states, SEARCHED[budget], own)
    training = dataclasses.replace(config.training, seed=SEEDS[0])
    name = run_name(budget, f"openmix-{searched}", *_said(own))
    whole = _config(budget, searched, SHAPES[searched].states, TOKENS[budget], own)
    around = Recipe(f"{name}-{SHAPES[searched].states}-s{SEEDS[0]}", "", dataclasses.replace(whole, training=training))
    config = dataclasses.replace(config, training=training)
    return Grid(name, config, TRIED[budget], around if budget == "laptop" else None)


def _said(model: dict[str, Any]) -> list[str]:
    """What is particular about a model, in the name of its run."""
    words = {"shared": "merged", "monolithic": "mono", "relu": "relu", "norm": "norm"}
    found = []
    for name, value in model.items():
        if name == "parameters":
            found.append(str(value).replace("^", "-"))
        elif name == "network":
            found.append(_folder(str(value)))
        elif name in ("layers", "skip", "dropout"):
            found.append(f"{name}-{value}")
        elif value:
            found.append(words[name])
    return found


def _folder(said: str) -> str:
    """A language model's folder, or that shape with random weights, in the name of a run."""
    return said.replace("random:", "random-").replace("teachers/", "").removesuffix("/best")


def _short(tokens: int) -> str:
    return f"{tokens // 1000}k" if tokens % 1000 == 0 else str(tokens)


def _taught(budget: Budget, distill: DistillSettings | None) -> list[str]:
    """How a run was distilled, in its name."""
    if distill is None:
        return []
    teacher = _folder(str(distill.teacher))
    own = [] if distill.tokens == LABELLED[budget] else [_short(distill.tokens)]
    chosen = [name for name in ("counts", "centroids", "head", "frozen") if getattr(distill, name)]
    return [f"from-{teacher}", *own, *([] if distill.pca is None else [f"pca{distill.pca}"]), *chosen]
