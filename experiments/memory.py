"""States that remember their word: our own study of pure HMMs with and without a memory, and its page."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

from experiments.budgets import SWEEP_EPOCHS, WIKITEXT_EPOCHS, shipped, tiny, very_large
from experiments.chiu import VL, point, power, table1
from experiments.lee.budgets import SEEDS, STATES, TEACHER, TOKENS, distilled, learn
from experiments.recipes import Budget, Recipe, Study, run_name
from experiments.results import Results
from experiments.rows import with_seeds

BLOCKED_STATES = 2**13
TEACHER_EPOCHS = 10.0  # of the LSTM on the Penn Treebank: a quarter of an hour of one core
ONCE = {"ptb": 930_000, "wikitext-2": 2_090_000}  # tokens with labels: each text once
DECAY = 0.1  # of weights, found by short runs at 2^12 states
BEST = {  # on validation text, of the rows of `ideas` without and with a cache
    "PTB": ("PTB, + 2^15 states, 10 epochs", "PTB, 2^15 states, 10 epochs, + a cache of 1,000 words"),
    "WikiText-2": (
        "WikiText-2, 2^14 states with a word and 5-grams, 8 epochs",
        "WikiText-2, + a cache of 2,000 words",
    ),
}
TAUGHT = {  # the same of the rows of `taught`
    "PTB": ("PTB, + 2^14 states", "PTB, + a cache of 1,000 words"),
    "WikiText-2": ("WikiText-2, 2^14 states begin as the LSTM's", "WikiText-2, 2^12 states, + a cache of 2,000 words"),
}
SHAPES = {"no memory": "linear-split", "a word": "memory-1", "two words": "memory-2"}
TITLES = {
    "memory.words": "Perplexity by what is remembered",
    "memory.states": "Perplexity by states",
    "memory.full": "All of the text",
    "memory.ptb": "Blocked models on the Penn Treebank, by states",
    "memory.ideas": "What each idea is worth on little text",
    "memory.taught": "States that begin as an LSTM's",
    "memory.best": "The best of each text",
}
ABOUT = {
    "memory.words": """LVD begins with labels of stories15M, and MLP ψ makes the vectors of states, as in Lee &
Berg-Kirkpatrick's study, whose best encoder it is. Counted 5-grams are those of the text that is learnt from, mixed
into the next word ([how](guide-mathematics.md#counted-n-grams)); alone they are better here than any row without them
([the notebook](notebook.md)).
""",
    "memory.ptb": """Models of 128 Brown blocks after four epochs, as in Figure 3 of [Chiu & Rush's study](results.md),
whose points are those without a memory. Perplexity is that of the text as one stream.
""",
    "memory.ideas": """Each row has what the rows above it have, and one thing more; those of WikiText-2 begin anew. All
are pure HMMs: with `model.ngrams` ([the mathematics](guide-mathematics.md)) an exact HMM over a state and the last four
words, with `model.cache` over a state and as many words as that says. Models with a cache read the text in its order.
They are HMMs as a transformer with a window is a Markov chain: beside what they have learnt, they know what they have
just read. A network would gain by a cache too, so their rows stand apart. Settings were chosen on validation text.
Perplexity is that of the text as one stream.
""",
    "memory.taught": """The same models with all states kept in every batch, and with states that begin as clusters
of what an LSTM of the same text remembers after each token, as many in a block as it has states: labels for the first
of four epochs (`training.init=distill`), from which the likelihood of words alone goes on. Each row has what those
above it have; those of WikiText-2 and the last begin anew. Minutes are the model's own; its teacher's come before. The
teacher of WikiText-2 is the LSTM of [Chiu & Rush's Table 1](results.md).
""",
    "memory.best": """The best rows of the last table on validation text, and the best without a memory, of
[Chiu & Rush's study](results.md). Test text was read by the rows that have a figure for it, once by each.
""",
}
HEAD = f"""# States that remember their word

How a state is left may depend on the word that it has just emitted, `model.memory=1`, or on the last two,
`model.memory=2` ([the mathematics](guide-mathematics.md)). Such a model is an exact HMM whose states are pairs of
words and states: {STATES} states and 32,000 words are 16 million. Rows without and with a memory are both pure HMMs;
they are told apart by what they remember. Every figure comes from a file in `experiments/results`; this page is
written by `python -m experiments report`, and `python -m experiments run memory.words --budget laptop` makes the runs
of a table.

Unless it says otherwise, perplexity is exp(nats / tokens) over independent windows of 64 tokens of openmix, in the
tokens of Llama 2, after {TOKENS["laptop"] // 10**6} million tokens, as in [the study of Lee &
Berg-Kirkpatrick](results-lee.md), whose best parameterisation without a network (split H) these have, and {STATES}
states without blocks. Learning rates were searched on validation text without a memory and with one.
"""


def words(budget: Budget) -> list[Recipe]:
    """The same model with more and more memory; distilled too, and with blocks."""
    return [
        *(learn(budget, label, shape, seed=seed) for label, shape in SHAPES.items() for seed in SEEDS),
        learn(budget, "a word, if it is one of the 2,048 most frequent", "memory-1-frequent"),
        learn(budget, "a word and counted 5-grams", "memory-1-ngrams-5"),
        learn(budget, "no memory + LVD", "linear-split", teacher=TEACHER),
        learn(budget, "a word + LVD", "memory-1", teacher=TEACHER),
        learn(budget, "a word, MLP ψ", "memory-1-mlp"),
        *(
            learn(budget, f"{label}, {BLOCKED_STATES:,} states in 128 blocks", shape, states=BLOCKED_STATES)
            for label, shape in (
                ("no memory", "blocked-table"),
                ("a word", "blocked-memory-1"),
                ("a word and counted 5-grams", "blocked-memory-1-ngrams-5"),
            )
        ),
    ]


def states(budget: Budget) -> list[Recipe]:
    """Both by their number of states."""
    sizes = [2**power for power in range(6, 12)]
    return [
        learn(budget, f"{label}, {size}", SHAPES[label], states=size)
        for label in ("no memory", "a word")
        for size in sizes
    ]


def full(budget: Budget) -> list[Recipe]:
    """Both on all of the text."""
    return [learn(budget, label, SHAPES[label], tokens=None) for label in ("no memory", "a word")]


def ptb(budget: Budget) -> list[Recipe]:
    """Blocked models on little text."""
    return [
        point(budget, f"{label}, {power(size)}", size, memory=memory)
        for label, memory in (("no memory", 0), ("a word", 1))
        for size in (2**12, 2**13, 2**14)
    ]


def ideas(budget: Budget) -> list[Recipe]:
    """One idea after the other on the Penn Treebank, and all of them on WikiText-2."""
    few, many = 2**12, 2**14
    rows = [
        ("PTB, no memory", "ptb", few, {}, {}),
        ("PTB, + a word", "ptb", few, {"memory": 1}, {}),
        ("PTB, + half of its part dropped", "ptb", few, {"memory_dropout": 0.5}, {}),
        ("PTB, + counted 5-grams", "ptb", few, {"ngrams": 5}, {}),
        ("PTB, + weight decay", "ptb", few, {}, {"weight_decay": DECAY}),
        ("PTB, + 2^14 states", "ptb", many, {}, {}),
        (BEST["PTB"][0], "ptb", 2 * many, {}, {"epochs": 10.0}),
        ("PTB, + more weight decay, 8 epochs", "ptb", 2 * many, {}, {"epochs": 8.0, "weight_decay": 2.5 * DECAY}),
        (
            BEST["WikiText-2"][0],
            "wikitext-2",
            many,
            {},
            {"epochs": WIKITEXT_EPOCHS, "weight_decay": DECAY},
        ),
        (BEST["WikiText-2"][1], "wikitext-2", many, {"cache": 2000}, {"shuffle": False}),
        ("PTB, 2^12 states, 4 epochs, + a cache of 1,000 words", "ptb", few, {"cache": 1000}, {"epochs": SWEEP_EPOCHS}),
        (BEST["PTB"][1], "ptb", 2 * many, {"cache": 1000}, {"epochs": 10.0}),
    ]
    found: list[Recipe] = []
    model: dict[str, Any] = {}
    training: dict[str, Any] = {"epochs": SWEEP_EPOCHS, "keep": 1}
    for number, (label, corpus, states, shape, learning) in enumerate(rows):
        model, training = model | shape, training | learning
        if number < 2:  # which are points of other studies too
            found.append(point(budget, label, states, **model))
        else:
            found.append(_mixed(budget, label, corpus, states, model, training))
    return found


def taught(budget: Budget) -> list[Recipe]:
    """States that begin as clusters of an LSTM's, and what more of them and a cache add; on both texts."""
    model = {"memory": 1, "memory_dropout": 0.5, "ngrams": 5, "dropout": 0.0}
    training = {"epochs": SWEEP_EPOCHS, "keep": 1, "weight_decay": DECAY}
    few, many = 2**12, 2**14
    teacher, other = _lstm(budget), _row(table1(budget), "WikiText-2, 2x256 LSTM")
    ptb, wikitext = (functools.partial(_mixed, budget, corpus=corpus, states=many) for corpus in ONCE)
    begun, remembering = {"model": model, "training": training}, {"training": training | {"shuffle": False}}
    return [
        teacher,
        ptb("PTB, all states kept in every batch", states=few, **begun),
        ptb("PTB, + states begin as the LSTM's", states=few, **begun, teacher=teacher),
        ptb(TAUGHT["PTB"][0], **begun, teacher=teacher),
        ptb(TAUGHT["PTB"][1], model=model | {"cache": 1000}, **remembering, teacher=teacher),
        wikitext(TAUGHT["WikiText-2"][0], **begun, teacher=other),
        wikitext(TAUGHT["WikiText-2"][1], states=few, model=model | {"cache": 2000}, **remembering, teacher=other),
        ptb("PTB, 2^14 states without a memory", model={"dropout": 0.0}, training=training, teacher=teacher),
    ]


def _row(recipes: list[Recipe], label: str) -> Recipe:
    """The one of this label."""
    return next(recipe for recipe in recipes if recipe.label == label)


def _lstm(budget: Budget) -> Recipe:
    """The LSTM of Chiu & Rush's Table 1 after fewer epochs: a teacher."""
    config = shipped("lstm", "ptb")
    config = dataclasses.replace(config, training=dataclasses.replace(config.training, epochs=TEACHER_EPOCHS))
    own = (
        [] if budget == "smoke" else [f"{TEACHER_EPOCHS:g}-epochs"]
    )  # where all runs have one epoch, it is the same run
    name = run_name(budget, "ptb-lstm", *own)
    return Recipe(name, f"PTB, the LSTM, {TEACHER_EPOCHS:g} epochs", tiny(config) if budget == "smoke" else config)


def _mixed(
    budget: Budget,
    label: str,
    corpus: str,
    states: int,
    model: dict[str, Any],
    training: dict[str, Any],
    teacher: Recipe | None = None,
) -> Recipe:
    """A blocked model with these settings of its own; its states may begin as clusters of a teacher's."""
    config = shipped("blocked", corpus)
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(very_large(budget, states, flat=False), **model),
        training=dataclasses.replace(config.training, **training),
    )
    said = [f"{name}-{value:g}" for name, value in model.items() if name != "dropout"]
    said += [*(["all-kept"] if model.get("dropout") == 0 else []), f"decay-{config.training.weight_decay:g}"]
    if teacher is not None:
        distill = distilled(budget, f"{teacher.name}/best")
        distill = distill if budget == "smoke" else dataclasses.replace(distill, tokens=ONCE[corpus])
        config = dataclasses.replace(
            config, distill=distill, training=dataclasses.replace(config.training, init="distill")
        )
        said.append(f"from-{teacher.name.removeprefix('smoke-').removeprefix(f'{corpus}-')}")
    name = run_name(budget, corpus, str(states), *said, f"{config.training.epochs:g}-epochs")
    return Recipe(
        name, label, tiny(config) if budget == "smoke" else config, needs=() if teacher is None else (teacher,)
    )


def best(budget: Budget) -> list[Recipe]:
    """On each text the best model without a memory, and of `taught` the best on validation text: the two to test."""
    rows = []
    for text, labels in TAUGHT.items():
        rows.append(dataclasses.replace(_row(table1(budget), f"{text}, {VL}"), label=f"{text}, no memory"))
        for label, what in zip(labels, ("a word and 5-grams", "a word, 5-grams and a cache"), strict=True):
            rows.append(dataclasses.replace(_row(taught(budget), label), label=f"{text}, {what}, from an LSTM"))
    return rows


STUDIES: tuple[Study, ...] = (words, states, full, ptb, ideas, taught, best)


def page(budgets: dict[Budget, Results], path: Path) -> Path:
    """Write the page, and its figures into a folder of its name beside it."""
    from experiments import costs  # draws, as the next does: runs need no matplotlib
    from experiments.lee.figures import draw

    lines = [HEAD]
    for study, title in TITLES.items():
        lines.append(f"## {title}\n")
        lines += [ABOUT[study]] if study in ABOUT else []
        for results in budgets.values():
            lines += [*with_seeds(study, results, []), ""]
            name = f"{study.partition('.')[2]}-{results.budget}.png"
            if draw(study, results, path.with_suffix("") / name):
                lines.append(f"![{title}]({path.stem}/{name})\n")
    lines.append("## What a perplexity costs\n")
    for results in budgets.values():
        lines += costs.section(results, path.with_suffix("") / f"costs-{results.budget}.png")
    path.write_text("\n".join(lines), encoding="utf-8")
    return path
