"""What all commands share: their common options, and how they speak."""

from __future__ import annotations

import json
import math
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from trellis.models.pretrained import Pretrained


def _use_threads(threads: int | None) -> None:
    if threads is not None:
        import torch

        os.environ["RAYON_NUM_THREADS"] = str(threads)  # the tokenizers' own
        torch.set_num_threads(threads)


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead, for machines.")]
Threads = Annotated[
    int | None,
    typer.Option(min=1, callback=_use_threads, metavar="N", help="Processor threads. (default: all)"),
]
DataDir = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="Where named corpora and models lie. (default: TRELLIS_DATA)"),
]
Device = Annotated[
    str, typer.Option(metavar="NAME", help="Where to compute: cpu, cuda or mps. (default: a GPU if there is one)")
]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A run's folder, a checkpoint, or a saved model.")]
Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE", help="Text, one sentence a line. (default: standard input, or -)"),
]
Split = Annotated[str, typer.Option(help="train, valid or test, of a named corpus.")]
Bos = Annotated[
    bool,
    typer.Option(
        "--bos/--no-bos",
        help="A line begins as one after `<eos>` does in running text, not from the model's start distribution.",
    ),
]
Eos = Annotated[bool, typer.Option("--eos/--no-eos", help="Count the end of a line as a token.")]


def load(model: str, device: str) -> Pretrained:
    """The model of this name with its tokenizer, on the device of that."""
    from trellis.models.pretrained import load_pretrained
    from trellis.training.device import choose_device

    return load_pretrained(model, choose_device(device))


def chief() -> bool:
    """Whether this process speaks; under torchrun only the first does."""
    return os.environ.get("RANK", "0") == "0"


def say(message: str) -> None:
    """A message for people, on standard error."""
    print(message, file=sys.stderr, flush=True)


def console() -> Console:
    """Standard output for tables."""
    return Console(highlight=False, soft_wrap=False)


def print_json(value: Any) -> None:
    """One JSON object on one line; infinities, which JSON lacks, become null."""
    print(json.dumps(_finite(value), ensure_ascii=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


def report(as_json: bool, values: dict[str, Any], *figures: tuple[str, str]) -> None:
    """The values as JSON, or the figures that people read: names and values in two columns."""
    if as_json:
        print_json(values)
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in figures:
        table.add_row(name, Text(value))  # brackets in a path are not markup
    console().print(table)


def print_row(*cells: object) -> None:
    """Tab-separated cells; tabs in the text become spaces so that columns stay columns."""
    print("\t".join(str(cell).replace("\t", " ") for cell in cells))


def figure(number: float) -> str:
    """A perplexity or the like, with the digits people compare."""
    if not math.isfinite(number):
        return "infinite"
    return f"{number:,.2f}" if abs(number) < 1e6 else f"{number:.4g}"
