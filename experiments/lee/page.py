"""docs/results-lee.md from the committed results: ours beside theirs, and a verdict on every claim."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.lee.budgets import LABELLED, SEARCHED, TOKENS
from experiments.lee.claims import CLAIMS
from experiments.lee.figures import draw
from experiments.recipes import Budget
from experiments.results import Results
from experiments.rows import with_seeds
from experiments.tables import table

TITLES = {
    "lee.table1": "Table 1: linear and neural reparameterisation",
    "lee.table2": "Table 2: which matrices are factored (transition a, emission b, start π)",
    "lee.table3": "Table 3: split H, monolithic, linear layers, skip connection, ReLU, LayerNorm",
    "lee.table4": "Table 4: a language model's weights, a teacher's labels",
    "lee.figure1": "Figure 1: states",
    "lee.figure2": "Figure 2: networks by parameters",
    "lee.figure3": "Figure 3: teachers",
    "lee.figure4": "Figure 4: distillation with and without reparameterisation",
    "lee.figure5": "Figure 5: centroids and head as initial embeddings",
    "lee.figure6": "Figure 6: pretrained and random weights by learning rate",
    "lee.figure7": "Figure 7: checkpoints of the network",
    "lee.figure8": "Figure 8: tokens learnt from with labels",
    "lee.figure11": "Figure 11: Figure 2 with 256 states",
    "lee.figure12": "Figure 12: MLP ψ with 1,024 states",
    "lee.full": "All of the text",
    "lee.decay": "Beyond the paper: without weight decay",
    "lee.blocked": "Beyond the paper: distillation and encoders on blocked models",
}
ABOUT = {
    "lee.table4": """Rates were searched without labels. Both rows with labels (LVD) have the rate of random weights. It
is too high for pretrained weights without labels, but with labels they do better at it than at their own
([the notebook](notebook.md)).
""",
    "lee.figure1": """The plain HMM, whose rate was searched at 512 states, is no better at half or twice that rate with
64 ([the notebook](notebook.md)); so it does gain from states, but less than the best recipe does.
""",
    "lee.figure2": """Rates were searched at a width of 128, with about 2^22 parameters. At other widths they are
higher or lower in inverse proportion, to the nearest power of two, and half of that for MLPs ι of 2^23 and 2^24
parameters and TRF ι of 2^24: at one rate for all, the widest networks stay at a unigram's perplexity and the narrowest
learn too slowly ([the notebook](notebook.md)). TRF ι of 2^24 learns only at rates for which 10 million tokens are too
few. A transformer's width is a multiple of 32, so that it may have little more than half of the parameters that its row
allows: 2^22 is the most that it may have, and the figure has what there are.
""",
    "lee.figure3": """Our language models are small and have read 0.3, 1 and 3 million tokens of the same text; the
weakest teacher of the paper, a TinyLlama, has read 500 billion. Ours that has read 0.3 million teaches less well than
the others, which differ little. All teachers of the paper have read enough to be like these.
""",
    "lee.figure5": """Frozen vectors stay as they are for four times as many tokens as there are labels for, as in the
paper.
""",
    "lee.figure6": """At 0.4 and 0.04 these networks diverge within a few updates, and there is nothing to show. The
point of pretrained weights at 0.004 is not measured yet.
""",
    "lee.figure7": """The networks differ in shape too: *random* and *stories15M* have six layers 288 wide, our own
language models four layers 128 wide.
""",
    "lee.full": """All of openmix is 92 million tokens, read once. In the paper's settings the order is that of 10
million tokens, and further apart, so there are no longer runs. With the paper's weight decay the scalar HMM ends worse
than after its first 10 million tokens; without it, it is as good as the best recipe, which has a quarter of its
parameters: see the next section, and [the notebook](notebook.md).
""",
    "lee.decay": """AdamW takes away the rate times the weight decay of every number at every update, whether or not a
batch says anything about it. With the paper's decay, 0.1, and its rate for the scalar HMM, 0.4, that is 4 % an update:
a logit is halved every 17. Rates without decay were searched anew; a is the factored transition, b the factored
emission.
""",
    "lee.blocked": """Words lie in 128 Brown clusters, each of which has its own states: 32 of 4,096, 64 of 8,192. A
step goes from the states of one block to those of another, so that a model of 4,096 states learns in less time than a
dense one of 512. *Dropout* leaves half of the states of each block out of a batch. Rates are those found without
labels.
""",
}
HEAD = f"""# Reparameterisation and initialisation

Lee & Berg-Kirkpatrick (2025), run again. Every figure of ours comes from a file in `experiments/results`, which holds
the whole configuration, the seed, the hash of the text, the commit and the validation curve. This page is written by
`python -m experiments report`; [the paper in an hour](guide-lee.md) shows how to run its studies.

Perplexity is exp(nats / tokens) over independent windows of 64 tokens, as theirs. Theirs is of SlimPajama after 500
million tokens; ours, at the budget *laptop*, of openmix after {TOKENS["laptop"] // 10**6} million: compare the order
and the ratios. Rows of tables have three seeds (42, 52, 62), points of figures one unless bars show a spread. Where two
rows differ by no more than their seeds do, or two single runs by less than 6 %, it is too close to tell which is
better: seeds of one network differ by up to 5.5 %. Where the paper says that something matters little or does not
help, ours agrees if it changes perplexity by less than 3 %.

Learning rates were searched on validation text for each kind of parameters: over 0.4, 0.04, … in runs of
{SEARCHED["laptop"] / 1e6:g} million tokens, down to the first that is worse, then over halves and doubles around the
best in whole runs from seed 42 (`experiments/rates.yaml`), of which the best is that row's own. In Table 2 a and π
have the rate of a, and a and b that of all three; rows of Table 3 have the rate of MLP ψ, and those with a skip
connection one of their own.

Distilled runs learn from {LABELLED["laptop"] / 1e6:g} million tokens with the labels of stories15M, unless it says
otherwise. All else is as in their Tables 5 and 6, with the gradient clipped at 1 as in their code; vectors begin at a
spread that suits their width, where theirs are N(0, 1). Minutes are of one processor, of the quickest seed; of runs
whose record has no `processor_seconds` they are the clock's, on a machine that did other things too. [The
bench](bench.md) compares speeds.
"""


def page(budgets: dict[Budget, Results], published: dict[str, Any], path: Path) -> Path:
    """Write the page, and its figures into a folder of its name beside it."""
    lines = [HEAD, "## What the paper says, and whether ours agrees\n"]
    for results in budgets.values():
        if results.budget == "paper":
            lines.append("\nBudget *paper*: the published settings.\n")
        rows = ([claim.text, claim.where, *claim.verdict(results)] for claim in CLAIMS)
        lines += table(["claim", "in", "ours", "figures of ours, on validation text"], rows)
    for study, title in TITLES.items():
        lines += [f"\n## {title}\n"]
        if study in published:
            lines.append(f"Published: {published[study]['cite']}.\n")
        lines += [ABOUT[study]] if study in ABOUT else []
        for results in budgets.values():
            lines += _study(study, results, published.get(study, {}).get("rows", []), path.with_suffix(""))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _study(study: str, results: Results, rows: list[dict[str, Any]], folder: Path) -> Iterator[str]:
    yield from with_seeds(study, results, rows)
    name = f"{study.partition('.')[2]}-{results.budget}.png"
    if draw(study, results, folder / name):
        yield f"\n![{TITLES[study]}]({folder.name}/{name})"
