"""`trellis tag`: a model's states beside the tags of a tagged file, and how well they agree."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trellis.cli import terminal
from trellis.errors import TrellisError

if TYPE_CHECKING:
    from trellis.text.tagged import TaggedSentence

EXAMPLE = (
    "Examples:\n\ntrellis tag runs/words-64 dev.tsv --column 2\n\n"
    "trellis tag runs/tagger dev.tsv --names tagged/tags.txt\n\n"
    "trellis tag runs/tagger words.tsv --column 0 --names tagged/tags.txt --tokens"
)
Column = Annotated[int, typer.Option(min=0, metavar="N", help="Which column holds tags, from 1; 0: none does.")]
WordColumn = Annotated[int, typer.Option(min=1, metavar="N", help="Which column holds words, from 1.")]


def run(
    model: terminal.Model,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A word and its tag a line, tabs between.")],
    column: Column = 2,
    word_column: WordColumn = 1,
    names: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The tag of each state, one a line, as `trellis untag` writes.")
    ] = None,
    posterior: Annotated[
        bool, typer.Option("--posterior", help="The most probable state at each word, not the most probable path.")
    ] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="Print a row for every word instead of the scores.")] = False,
    bos: terminal.Bos = None,
    json: terminal.Json = False,
    threads: terminal.Threads = None,
    device: terminal.Device = "auto",
) -> None:
    """Decode the states of a tagged file's words, and print one-to-one and many-to-one accuracy and V-measure.

    As is the custom, mappings of states to tags are chosen on the same words that are scored, so more states score
    higher. With --names the tag of each state is known, and its accuracy is printed too.
    """
    from trellis.tagging import decode_sentences
    from trellis.text.tagged import Columns, read_tag_names, read_tagged

    if column == 0 and not tokens:
        raise TrellisError("without tags there is nothing to score: name their --column, or ask for --tokens.")
    sentences = read_tagged(file, Columns(column, word_column))
    tag_of = None if names is None else read_tag_names(names)
    loaded = terminal.load(model, device)
    hmm = loaded.answering("viterbi", "smooth")
    if tag_of is not None and len(tag_of) != hmm.config.states:
        raise TrellisError(f"{names} names {len(tag_of)} states, but the model has {hmm.config.states}: give its own.")
    begin = terminal.beginning(loaded, bos)
    states = decode_sentences(hmm, loaded.tokenizer, sentences, posterior=posterior, begin=begin)
    if tokens:
        _print_words(sentences, states, _tags_of_states(sentences, states, tag_of, column > 0), json)
    else:
        _print_scores(sentences, states, tag_of, json)


def _print_scores(
    sentences: list[TaggedSentence], states: list[list[int]], tag_of: list[str] | None, json: bool
) -> None:
    from trellis.tagging import accuracy, tagging_scores

    state_N, tag_N = list(chain(*states)), list(chain(*(sentence.tags for sentence in sentences)))
    scores = tagging_scores(state_N, tag_N)
    known: dict[str, Any] = {} if tag_of is None else {"accuracy": accuracy(state_N, tag_N, tag_of)}
    terminal.report(
        json,
        {**known, **vars(scores)},
        *((name, f"{value:.4f}") for name, value in known.items()),
        ("one-to-one accuracy", f"{scores.one_to_one:.4f}, by the best mapping for these words"),
        ("many-to-one accuracy", f"{scores.many_to_one:.4f}, by each state's most frequent tag here"),
        ("V-measure", f"{scores.v_measure:.4f}: {scores.homogeneity:.4f} and {scores.completeness:.4f}"),
        ("words", f"{scores.words:,}, {scores.states} states, {scores.tags} tags"),
    )


def _tags_of_states(
    sentences: list[TaggedSentence], states: list[list[int]], tag_of: list[str] | None, tagged: bool
) -> dict[int, str]:
    """What each state stands for: as named, or the tag that it most often has here."""
    from trellis.tagging import majority_tags

    if tag_of is not None:
        return dict(enumerate(tag_of))
    if not tagged:
        return {}
    return majority_tags(list(chain(*states)), list(chain(*(sentence.tags for sentence in sentences))))


def _print_words(sentences: list[TaggedSentence], states: list[list[int]], tag_of: dict[int, str], json: bool) -> None:
    if not json:
        terminal.print_row("sentence", "word", "state", "stands for", "tag")
    for number, (sentence, path) in enumerate(zip(sentences, states, strict=True), start=1):
        guesses = [tag_of.get(state, "") for state in path]
        if json:
            told = {"words": sentence.words, "states": path, "stands_for": guesses, "tags": sentence.tags}
            terminal.print_json({"sentence": number, **told})
            continue
        for row in zip(sentence.words, path, guesses, sentence.tags, strict=True):
            terminal.print_row(number, *row)
