"""`trellis evaluate`: perplexity, with everything it was divided by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trellis.cli.terminal import DataDir, Device, Json, Model, Threads, figure, load, report, say

if TYPE_CHECKING:
    from trellis.evaluation import Evaluation
    from trellis.text import IdFile, Tokenizer

EXAMPLE = "Examples:\n\ntrellis evaluate runs/ptb-512 ptb --split test\n\ntrellis evaluate runs/ptb-512 my.txt --json"


def run(
    model: Model,
    corpus: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CORPUS",
            help="A corpus by name, files, -, or a folder of trellis prepare. (default: the run's own)",
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    protocol: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="How the text is read. stream: as one text, exact, the figure to quote. streams: as 16 texts side by "
            "side. windows: every 64 tokens by themselves, from the start distribution. sequences: every document by "
            "itself, from the start distribution.",
        ),
    ] = "stream",
    json: Json = False,
    threads: Threads = None,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Measure a model on a text, tokenised with the model's own tokenizer."""
    from trellis import evaluate
    from trellis.config import run_of
    from trellis.evaluation import check_protocol
    from trellis.text.sources import evaluation_ids

    check_protocol(protocol)
    loaded = load(model, device)
    ids = evaluation_ids(loaded.tokenizer, corpus or run_of(loaded.folder).data, split, data_dir)
    found = evaluate(loaded.model, ids, protocol)
    divisors = {"unknown": found.unknown, "words": found.words, "bytes": found.bytes}
    report(
        json,
        {"corpus": ids.meta.corpus, **found.as_dict(), **divisors},
        ("text", f"{ids.meta.corpus}, as {found.protocol}"),
        ("perplexity", f"{figure(found.perplexity)} a token{_included(loaded.tokenizer)}"),
        ("tokens", f"{found.tokens:,}"),
        ("unknown", f"{found.unknown:,} ({found.unknown_rate:.2%})"),
        *(_by_words_and_bytes(found) if loaded.tokenizer.eos_id is not None else []),
        ("−log p", f"{found.nats:,.2f} nats"),
    )
    if found.impossible_at is not None:
        say(_impossible(found.impossible_at, ids, loaded.tokenizer))


def _included(tokenizer: Tokenizer) -> str:
    """The marks that count as tokens, if the vocabulary has any."""
    marks = [mark for mark, id in (("<eos>", tokenizer.eos_id), ("<unk>", tokenizer.unk_id)) if id is not None]
    return f", {' and '.join(marks)} included" if marks else ""


def _by_words_and_bytes(found: Evaluation) -> list[tuple[str, str]]:
    """Figures that count the ends of documents, and so mean something only where the model predicts those."""
    return [
        ("word perplexity", f"{figure(found.word_perplexity)} over {found.words:,} words and document ends"),
        ("bits per byte", f"{found.bits_per_byte:.4f} over {found.bytes:,} bytes and document ends"),
    ]


def _impossible(position: int, ids: IdFile, tokenizer: Tokenizer) -> str:
    """Say where the first impossible token stands, counting as people do."""
    document = int(ids.documents.searchsorted(position, side="right"))
    within = position - (int(ids.documents[document - 1]) if document else 0)
    token = tokenizer.token(int(ids.ids[position]))
    return (
        f"the model gives '{token}', token {within + 1} of document {document + 1} (token {position + 1} of the text), "
        "no probability: train with training.smoothing above 0."
    )
