"""`trellis untag`: a tagged file as text and labels, from which `trellis train` learns."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trellis.cli.tag import Column, WordColumn
from trellis.cli.terminal import Json, Seed, report
from trellis.errors import TrellisError

EXAMPLE = "Example:\n\ntrellis untag train.tsv tagged --labelled 100"


def run(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A word and its tag a line, tabs between.")],
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write text, labels and names of tags.")],
    column: Column = 2,
    word_column: WordColumn = 1,
    labelled: Annotated[
        str, typer.Option(metavar="N", help="Sentences whose tags are to be known: as 100, or a share, as 10%.")
    ] = "100%",
    only: Annotated[bool, typer.Option("--only", help="Leave the sentences out whose tags are not known.")] = False,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Write the words of a tagged file as text, and the tags of some sentences as labels for training.

    words.txt has a sentence a line; labels.npy the state of each token, −1 where it is unknown; tags.txt the tag of
    each state, the last of which is that of the end of a sentence.
    """
    from trellis.text.tagged import (
        LABELS_FILE,
        WORDS_FILE,
        Columns,
        labels_of,
        read_tagged,
        some_sentences,
        tag_names,
        write_untagged,
    )

    sentences = read_tagged(file, Columns(column, word_column))
    chosen = some_sentences("0" if column == 0 else labelled, len(sentences), seed)
    names = tag_names(sentences)  # also of sentences that are left out, so that states stay the same
    if only:
        sentences = [sentence for sentence, known in zip(sentences, chosen, strict=True) if known]
        chosen = chosen[chosen]
    if not sentences:
        raise TrellisError("--only leaves no sentence: ask for more --labelled, or leave it out.")
    labels = labels_of(sentences, names, chosen)
    write_untagged(out, sentences, names, labels)
    shown = {"sentences": len(sentences), "labelled": int(chosen.sum()), "tokens": len(labels), "states": len(names)}
    told = f"data.labels={out / LABELS_FILE} training.objective=joint training.init=counts model.states={len(names)}"
    report(
        json,
        {"folder": str(out), **shown},
        *((name, f"{value:,}") for name, value in shown.items()),
        ("next", f"trellis train {out / WORDS_FILE} {told}"),
        ("", f"trellis train {out / WORDS_FILE} model.states=64"),
    )
