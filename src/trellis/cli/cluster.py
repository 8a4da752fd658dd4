"""`trellis cluster`: Brown clusters of a corpus's words."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from trellis.cli.terminal import DataDir, Json, Threads, report
from trellis.errors import TrellisError
from trellis.progress import short_time

EXAMPLE = "Example:\n\ntrellis cluster ptb --clusters 128 --out ptb.paths --data-dir data"


def run(
    corpus: Annotated[
        list[str], typer.Argument(metavar="CORPUS", help="A corpus by name, files, or - for standard input.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write path, word and count, a word a line.")],
    clusters: Annotated[int, typer.Option(help="How many clusters.")] = 128,
    tokenizer: Annotated[str, typer.Option(help="words, bpe, or the folder of a tokenizer or model.")] = "words",
    vocab_size: Annotated[int | None, typer.Option(help="Types to learn. (default: all words; 8,192 for bpe)")] = None,
    min_count: Annotated[int, typer.Option(help="Words seen less often are `<unk>`.")] = 1,
    json: Json = False,
    threads: Threads = None,
    data_dir: DataDir = None,
) -> None:
    """Group words by the company they keep: Brown clustering, every type of the vocabulary in one cluster."""
    import numpy as np

    from trellis.text import brown, prepare, write_paths
    from trellis.text.sources import DataSettings, find_tokenizer, open_sources

    if not out.parent.is_dir():  # before minutes of work, not after
        raise TrellisError(f"there is no folder {out.parent} to write {out.name} into: make it.")
    data = DataSettings(corpus[0] if len(corpus) == 1 else corpus, data_dir=data_dir, tokenizer=tokenizer,
                        vocab_size=vocab_size, min_count=min_count)  # fmt: skip
    text = open_sources(corpus, "train", data_dir)
    found = find_tokenizer(text, data, quiet=False)
    ids = prepare(text, found)
    began = time.monotonic()
    tree = brown(ids.ids, found.vocab_size, clusters)
    seconds = time.monotonic() - began
    write_paths(out, tree, found, np.bincount(ids.ids, minlength=found.vocab_size))
    report(
        json,
        {"file": str(out), "clusters": clusters, "types": found.vocab_size, "seconds": seconds},
        ("clusters", f"{clusters:,} of {found.vocab_size:,} types, in {short_time(seconds)}"),
        ("file", str(out)),
    )
