"""Chiu & Rush (2020), "Scaling hidden Markov language models": every table and figure as a list of runs."""

from __future__ import annotations

import dataclasses
from typing import Any

from experiments.budgets import LONG_EPOCHS, SWEEP_EPOCHS, WIKITEXT_EPOCHS, published, shipped, sweep, tiny, very_large
from experiments.recipes import Budget, Grid, Recipe, Study, run_name
from trellis.config import ANY_VOCABULARY, RunConfig
from trellis.models.feed_forward import FeedForwardConfig
from trellis.models.hmm_config import HMMConfig
from trellis.models.hmm_rnn import HMMRNNConfig
from trellis.models.kneser_ney import KneserNeyConfig
from trellis.models.lstm import AWDLSTMConfig, LSTMConfig

CORPORA = {"PTB": "ptb", "WikiText-2": "wikitext-2"}
VL = "VL-HMM 2^15"
ABLATED = {"smoke": 2**13, "laptop": 2**13, "paper": 2**14}  # states of Tables 2 and 4
BLOCKS = (32, 64, 128, 256)  # of Table 3 and Figure 4, at 2^14 states
SAID = {None: "scalar", "factored": "factored", "uniform": "uniform", 0.0: "no-dropout"}  # in the names of runs
WIKITEXT_BASELINES = {"awd-lstm": 2.0, "feed-forward": 3.0, "lstm": 4.0}  # epochs that take half an hour of a core
SCALAR_RATES = (0.03, 0.1, 0.3)  # free logits like rates ten times those of networks, and more


def table1(budget: Budget) -> list[Recipe]:
    """Every model on both texts; the HMMs of Buys et al. on the Penn Treebank alone, as published."""
    rows = []
    for text, corpus in CORPORA.items():
        runs = _published_models(corpus) if budget == "paper" else _laptop_models(corpus)
        for (label, name), config in runs.items():
            config = tiny(config) if budget == "smoke" else config
            found = Recipe(run_name(budget, corpus, name), f"{text}, {label}", config)
            rows.append(found if name != "vl-hmm" else _very_large(budget, corpus, found))
    return rows


def _very_large(budget: Budget, corpus: str, recipe: Recipe) -> Recipe:
    """At the published settings it is a point of Figure 3 too; a rate for WikiText-2 is searched at fewer states."""
    if budget == "paper":
        return dataclasses.replace(recipe, name=f"{corpus}-flat-32768-m128")
    if corpus == "ptb":
        return recipe
    training = dataclasses.replace(recipe.config.training, epochs=1)
    short = dataclasses.replace(recipe.config, model=very_large(budget, 2**13, flat=False), training=training)
    if budget == "smoke":
        short = tiny(short)
    return dataclasses.replace(recipe, grid=Grid(run_name(budget, "wikitext-2-vl-hmm"), short, (0.003, 0.01)))


def _laptop_models(corpus: str) -> dict[tuple[str, str], RunConfig]:
    large = shipped("blocked", corpus)
    if corpus != "ptb":
        large = dataclasses.replace(large, training=dataclasses.replace(large.training, epochs=WIKITEXT_EPOCHS))
    found = {
        ("KN 5-gram", "kneser-ney"): shipped("kneser-ney", corpus),
        ("AWD-LSTM", "awd-lstm"): _baseline("awd-lstm", corpus),
        ("256 FF 5-gram", "feed-forward"): _baseline("feed-forward", corpus),
        ("2x256 LSTM", "lstm"): _baseline("lstm", corpus),
        (VL, "vl-hmm"): large,
    }
    if corpus == "ptb":
        found |= {
            ("HMM+RNN", "hmm-rnn"): shipped("hmm-rnn", corpus),
            ("HMM 900", "hmm-900"): shipped("hmm-900", corpus),
        }
    return found


def _baseline(name: str, corpus: str) -> RunConfig:
    """A network as shipped; on WikiText-2, whose softmax is three times as large, for fewer epochs."""
    config = shipped(name, corpus)
    epochs = config.training.epochs if corpus == "ptb" else WIKITEXT_BASELINES[name]
    return dataclasses.replace(config, training=dataclasses.replace(config.training, epochs=epochs))


def _published_models(corpus: str) -> dict[tuple[str, str], RunConfig]:
    """The appendix's settings, with sentences shuffled as their code does; Merity et al.'s where they are theirs,
    but for the averaging, varying lengths and penalties.
    """
    awd: dict[str, Any] = {
        "method": "sgd",
        "schedule": "constant",
        "lr": 30.0,
        "batch_size": 20,
        "length": 70,
        "epochs": 500,
        "clip": 0.25,
        "weight_decay": 1.2e-6,
        "shuffle": False,
    }
    drops: dict[str, Any] = {}
    if corpus != "ptb":
        awd, drops = awd | {"batch_size": 80, "epochs": 750}, {"input_dropout": 0.65, "dropout": 0.2}
    found = {
        ("KN 5-gram", "kneser-ney"): published(corpus, KneserNeyConfig(ANY_VOCABULARY, order=5)),
        ("AWD-LSTM", "awd-lstm"): published(corpus, AWDLSTMConfig(ANY_VOCABULARY, **drops), **awd),
        ("256 FF 5-gram", "feed-forward"): published(
            corpus,
            FeedForwardConfig(ANY_VOCABULARY, order=5, width=256, dropout=0.3),
            batch_size=128,
            length=64,
            epochs=100,
            lr=0.001,
        ),
        ("2x256 LSTM", "lstm"): published(
            corpus, LSTMConfig(ANY_VOCABULARY, width=256, layers=2, dropout=0.3), lr=0.001
        ),
        (VL, "vl-hmm"): published(corpus, very_large("paper", 2**15, flat=True), lr=0.01 if corpus == "ptb" else 0.001),
    }
    if corpus == "ptb":
        found |= {
            ("HMM+RNN", "hmm-rnn"): published(corpus, HMMRNNConfig(ANY_VOCABULARY, states=900), lr=0.001),
            ("HMM 900", "hmm-900"): published(corpus, HMMConfig(ANY_VOCABULARY, states=900)),
        }
    return found


def figure3(budget: Budget) -> list[Recipe]:
    """Perplexity by states, and our transitions beside the published ones as far as a laptop goes."""
    sizes = [2**exponent for exponent in range(10, 17)]
    if budget == "paper":
        return [point(budget, f"flat, {power(states)}", states) for states in sizes]
    return [
        *(point(budget, f"hierarchical, {power(states)}", states) for states in sizes),
        *(point(budget, f"flat, {power(states)}", states, flat=True) for states in sizes[:5]),
    ]


def table2(budget: Budget) -> list[Recipe]:
    """What neural parameters and state dropout are good for."""
    states = ABLATED[budget]
    scalar = point(budget, "- neural param", states, encoder=None)
    if budget != "paper":
        short = dataclasses.replace(scalar.config, training=dataclasses.replace(scalar.config.training, epochs=1))
        rates = SCALAR_RATES if budget == "laptop" else SCALAR_RATES[1:]
        scalar = dataclasses.replace(scalar, grid=Grid(run_name(budget, "ptb-scalar-blocks"), short, rates))
    return [
        point(budget, "VL-HMM", states),
        scalar,
        point(budget, "- state dropout", states, dropout=0.0),
    ]


def dropout(budget: Budget) -> list[Recipe]:
    """State dropout in runs so long that a model without it has learnt the text by heart."""
    return [
        point(budget, "VL-HMM", 2**14, epochs=LONG_EPOCHS),
        point(budget, "- state dropout", 2**14, epochs=LONG_EPOCHS, dropout=0.0),
    ]


def table3(budget: Budget) -> list[Recipe]:
    """Which words share states: Brown clusters in more or fewer blocks, all words, or subsets at random.

    Subsets are no blocks, so they and what stands beside them have flat transitions at every budget.
    """
    return [
        *(point(budget, f"Brown, {power(2**14)}, M={blocks}", 2**14, blocks) for blocks in BLOCKS),
        point(budget, f"None, {power(2**10)}", 2**10, 1),
        *(point(budget, f"Brown, {power(2**10)}, M={blocks}", 2**10, blocks) for blocks in (4, 8)),
        *(_subsets(budget, states, kind) for states in subset_states(budget) for kind in ("uniform", "brown")),
    ]


def subset_states(budget: Budget) -> tuple[int, ...]:
    """States at which Table 3 has subsets at random: at 2^14 a laptop takes the better part of a day."""
    return (2**13, 2**14) if budget == "paper" else (2**13,)


def _subsets(budget: Budget, states: int, support: str) -> Recipe:
    """128 states a word: some at random, or those of its Brown cluster."""
    label = f"{support.capitalize()}, {power(states)}, k=128"
    return point(budget, label, states, states // 128, flat=True, support=support)


def table4(budget: Budget) -> list[Recipe]:
    """Table 2 again, and embeddings of which blocks share a half."""
    return [*table2(budget), point(budget, "+ block emb", ABLATED[budget], encoder="factored")]


def figure4(budget: Budget) -> list[Recipe]:
    """Both kinds of embeddings by the number of blocks."""
    return [
        *(point(budget, f"independent, M={blocks}", 2**14, blocks) for blocks in BLOCKS),
        *(point(budget, f"factored, M={blocks}", 2**14, blocks, encoder="factored") for blocks in BLOCKS),
    ]


STUDIES: tuple[Study, ...] = (table1, figure3, table2, dropout, table3, table4, figure4)


def point(
    budget: Budget,
    label: str,
    states: int,
    blocks: int = 128,
    *,
    flat: bool = False,
    epochs: float = SWEEP_EPOCHS,
    memory: int = 0,
    **particular: Any,
) -> Recipe:
    """A very large HMM of some shape, by a name that says what is particular about it."""
    flat = flat or budget == "paper"
    model = dataclasses.replace(very_large(budget, states, blocks, flat=flat, **particular), memory=memory)
    config = published("ptb", model) if budget == "paper" else sweep(model, epochs)
    said = [SAID[value] for value in particular.values() if value in SAID]
    said += [f"memory-{memory}"] if memory else []
    said += [f"{epochs:g}-epochs"] if epochs != SWEEP_EPOCHS and budget == "laptop" else []  # others have their own
    name = run_name(budget, "ptb", "flat" if flat else "hierarchical", str(states), f"m{blocks}", *said)
    return Recipe(name, label, tiny(config) if budget == "smoke" else config)


def power(states: int) -> str:
    """A number of states as a power of two."""
    return f"2^{states.bit_length() - 1}"
