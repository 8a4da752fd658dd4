"""Train two HMM language models on Python's own documentation, measure them, look inside, and let one write.

    make demo        or        python examples/demo.py [folder]

Needs no download: the text is the prose in the standard library of the Python that runs this. Stop it at any time and
run it again: it goes on where it was.
"""

import os
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import trellis
from trellis.inspection import explained, inspect_states
from trellis.models.ngram import Bigram, Unigram
from trellis.text import WordTokenizer

STATES = 256
LOW_RANK = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank", "width": 64}
SETTINGS = {"batching": "streams", "batch_size": 32, "length": 32, "weight_decay": 0.1, "epochs": 6, "validations": 2}
HMMS = {
    f"scalar HMM, {STATES} states": ({}, trellis.TrainingSettings(lr=0.3, **SETTINGS)),
    f"low-rank HMM, {STATES} states": (LOW_RANK, trellis.TrainingSettings(lr=0.03, **SETTINGS)),
}
console = Console()


def prepare():
    """The three splits as ids, and the vocabulary of the first: words seen at least twice."""
    corpora = {split: trellis.open_corpus("pydocs", split) for split in ("train", "valid", "test")}
    tokenizer = WordTokenizer.train(corpora["train"], min_count=2)
    return tokenizer, {split: trellis.prepare(corpus, tokenizer) for split, corpus in corpora.items()}


def train(name, tokenizer, ids, folder):
    """One HMM, trained into its folder: the best on validation, and the seconds it took."""
    parts, settings = HMMS[name]
    config = trellis.HMMConfig(vocab_size=tokenizer.vocab_size, states=STATES, **parts)
    console.print(f"\ntraining: {name}, {ids['train'].meta.tokens:,} tokens × {settings.epochs:g} epochs")
    trained = trellis.train(
        lambda seed: trellis.HMM(config, seed), tokenizer, ids["train"], ids["valid"], settings, folder, resume=True
    )
    return trellis.HMM.from_pretrained(trained.best), trained.seconds


def compare(tokenizer, ids, folder):
    """Every model with its training time, n-grams first."""
    for kind in (Unigram, Bigram):
        began = time.monotonic()
        yield kind.__name__.lower(), kind.fit(ids["train"], tokenizer.vocab_size), time.monotonic() - began
    for name in HMMS:
        yield name, *train(name, tokenizer, ids, folder / name.split()[0])


def show_perplexities(models, ids):
    """A row a model: perplexity on text it has not seen."""
    meta = ids["test"].meta
    table = Table(title="Perplexity on pydocs: lower is better", title_style="bold")
    for column in ("model", "validation", "test", "training"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, model, seconds in models:
        valid, test = (trellis.evaluate(model, ids[split]).perplexity for split in ("valid", "test"))
        table.add_row(name, f"{valid:.1f}", f"{test:.1f}", f"{seconds:.0f} s")
    console.print("\n", table)
    console.print(
        f"one stream, {meta.tokens:,} test tokens, <eos> and <unk> counted, {meta.unknown / meta.tokens:.1%} unknown",
        style="dim",
    )


def show_states(model, tokenizer, ids):
    """The words of ten states: those that explain most of the text, each with another first word."""
    table = Table(title="Ten states of the low-rank HMM", title_style="bold")
    for column in ("state", "usage", "words"):
        table.add_column(column)
    states = inspect_states(model.tables(), explained(model, ids["valid"])).states
    by_first_word = {}
    for state in states:
        by_first_word.setdefault(state.words[0].id, state)
    for state in list(by_first_word.values())[:10]:
        words = "  ".join(tokenizer.token(word.id) for word in state.words)
        table.add_row(str(state.state), f"{state.usage:.1%}", words)
    console.print("\n", table)


def show_sentences(model, tokenizer):
    """Three sentences that nobody wrote: what may follow the end of another."""
    _, state = model.score(torch.tensor([[tokenizer.eos_id]] * 3))
    samples = model.sample(3, 40, state, end=tokenizer.eos_id, generator=torch.Generator().manual_seed(1))
    console.print("\nThree sentences it wrote", style="bold")
    for tokens_T, length in zip(samples.tokens_BT, samples.lengths_B, strict=True):
        console.print(f"  • {tokenizer.decode(tokens_T[:length].tolist()).removesuffix(' <eos>')}")


def main():
    """Prepare, compare, show."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo")
    console.print("reading the documentation of this Python's standard library")
    tokenizer, ids = prepare()
    models = list(compare(tokenizer, ids, folder))
    show_perplexities(models, ids)
    low_rank = models[-1][1]
    show_states(low_rank, tokenizer, ids)
    show_sentences(low_rank, tokenizer)
    trellis_command = os.path.relpath(Path(sys.executable).with_name("trellis"))
    console.print(f"\nThe models lie in {folder}. Next:", style="dim")
    console.print(f"  {trellis_command} inspect {folder}/low-rank/best --states 5", style="dim", soft_wrap=True)


if __name__ == "__main__":
    try:
        main()
    except (trellis.TrellisError, trellis.training.Stopped) as error:
        sys.exit(f"{error}")
