"""What all commands share: their common options, and how they speak."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trellis.beginnings import beginning as beginning
from trellis.errors import TrellisError
from trellis.progress import waiting

if TYPE_CHECKING:
    from trellis.models.pretrained import Pretrained
    from trellis.text.unknown import UnknownWords

LARGEST_SEED = 2**63 - 1
MANY = 1_000_000  # of anything that is asked for by number: more would never end, or never fit in memory


def import_torch() -> None:
    """Import PyTorch, which takes seconds, and say so meanwhile."""
    if "torch" not in sys.modules and chief():
        with waiting("loading PyTorch"):
            import torch  # noqa: F401  # for the commands, which ask for it themselves


def with_torch(command: Callable[..., None]) -> Callable[..., None]:
    """The command, but PyTorch is imported first. Help, and what is wrong with the options, need not wait for it."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        import_torch()
        command(*arguments, **options)

    return run


def _use_threads(threads: int | None) -> None:
    if threads is not None:
        import_torch()
        import torch

        os.environ["RAYON_NUM_THREADS"] = str(threads)  # the tokenizers' own
        torch.set_num_threads(threads)


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead, for machines.")]
Threads = Annotated[
    int | None,
    typer.Option(min=1, max=4096, callback=_use_threads, metavar="N", help="Processor threads. (default: all)"),
]
DataDir = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="Where named corpora and models lie. (default: TRELLIS_DATA)"),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Where to compute: cpu, cuda or mps. (default: auto, a GPU if there is one)",
        show_default=False,
    ),
]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A run's folder, a checkpoint, or a saved model.")]
Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE", help="Text, one sentence a line. (default: standard input, or -)"),
]
Split = Annotated[str, typer.Option(help="train, valid or test, of a named corpus.")]
Bos = Annotated[
    bool | None,
    typer.Option(
        "--bos/--no-bos",
        help="A line begins as one does after `<eos>` in running text, or from the model's start distribution. "
        "(default: as the model learnt: --no-bos if by training.batching=sequences, --bos otherwise)",
        show_default=False,
    ),
]
Eos = Annotated[bool, typer.Option("--eos/--no-eos", help="Count the end of a line as a token.")]


def _check_seed(seed: int) -> int:
    if not 0 <= seed <= LARGEST_SEED:
        raise TrellisError(f"a seed of {seed} is none: give --seed 0 or more, and less than 2^63.")
    return seed


Seed = Annotated[
    int, typer.Option(metavar="N", callback=_check_seed, help="The same seed draws the same; another draws anew.")
]


def load(model: str, device: str) -> Pretrained:
    """The model of this name with its tokenizer, on the device of that."""
    from trellis.models.pretrained import load_pretrained
    from trellis.training.device import choose_device

    with waiting(f"reading {model}"):
        return load_pretrained(model, choose_device(device))


def say_unknown(unknown: UnknownWords) -> None:
    """Name the unknown words that were read, if there are any."""
    if sentence := unknown.sentence():
        say(sentence)


def say_unknown_in(loaded: Pretrained, *texts: str) -> None:
    """Name the unknown words of some texts, if there are any; gaps are none."""
    from trellis.text.unknown import UnknownWords

    unknown = UnknownWords(loaded.tokenizer)
    for text in texts:
        unknown.read(re.sub("<mask>|_{3,}", " ", text))
    say_unknown(unknown)


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
