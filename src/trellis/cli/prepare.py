"""`trellis prepare`: tokenise a corpus once, and say what came of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from trellis.cli.terminal import DataDir, Json, Threads, report

EXAMPLE = "Examples:\n\ntrellis prepare ptb --data-dir data\n\ntrellis prepare a.txt b.txt.gz --tokenizer bpe"


def run(
    corpus: Annotated[
        list[str], typer.Argument(metavar="CORPUS", help="A corpus by name, files, or - for standard input.")
    ],
    split: Annotated[str, typer.Option(help="train, valid or test, of a named corpus.")] = "train",
    tokenizer: Annotated[str, typer.Option(help="words, bpe, or the folder of a tokenizer or model.")] = "words",
    vocab_size: Annotated[int | None, typer.Option(help="Types to learn. (default: all words; 8,192 for bpe)")] = None,
    min_count: Annotated[int, typer.Option(help="Words seen less often are `<unk>`.")] = 1,
    max_tokens: Annotated[int | None, typer.Option(help="Stop after so many tokens. (default: all)")] = None,
    json: Json = False,
    threads: Threads = None,
    data_dir: DataDir = None,
) -> None:
    """Tokenise a corpus once; training and evaluation find it again by itself.

    A vocabulary is learnt from a named corpus's train split, whichever split is prepared, so that all splits agree.
    """
    from trellis.text import prepare
    from trellis.text.corpora import NAMES
    from trellis.text.sources import DataSettings, find_tokenizer, open_sources

    named = len(corpus) == 1 and corpus[0] in NAMES
    data = DataSettings(corpus[0] if len(corpus) == 1 else corpus, data_dir=data_dir, tokenizer=tokenizer,
                        vocab_size=vocab_size, min_count=min_count, max_tokens=max_tokens)  # fmt: skip
    text = open_sources(corpus, split, data_dir)
    found = find_tokenizer(open_sources(corpus, "train", data_dir) if named else text, data, quiet=False)
    ids = prepare(text, found, max_tokens=max_tokens)
    meta = ids.meta
    report(
        json,
        {"folder": str(ids.folder), **asdict(meta), "unknown_rate": meta.unknown / meta.tokens},
        ("corpus", meta.corpus + (f", {split}" if named else "")),
        ("tokens", f"{meta.tokens:,}, ends of documents included"),
        ("documents", f"{meta.documents:,}"),
        ("unknown", f"{meta.unknown:,} ({meta.unknown / meta.tokens:.2%})"),
        ("types", f"{meta.vocab_size:,}"),
        ("ids", str(ids.folder)),
    )
