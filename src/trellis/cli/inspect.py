"""`trellis inspect`: what the states have learnt."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from trellis.cli.terminal import MANY, DataDir, Device, Json, Model, Split, Threads, console, load, print_json
from trellis.errors import TrellisError
from trellis.progress import counted, waiting

if TYPE_CHECKING:
    from torch import Tensor

    from trellis.inspection import Inspection, Likely
    from trellis.models import HMM
    from trellis.text import Tokenizer

EXAMPLE = "Example:\n\ntrellis inspect runs/ptb-512 --states 20 --corpus ptb --split valid"


def run(
    model: Model,
    states: Annotated[
        int, typer.Option(min=1, max=MANY, metavar="N", help="How many states to show, the most used first.")
    ] = 10,
    words: Annotated[int, typer.Option(min=1, max=MANY, metavar="N", help="How many words of each.")] = 8,
    distinct: Annotated[
        bool, typer.Option("--distinct", help="Words that set a state apart, instead of its most probable ones.")
    ] = False,
    corpus: Annotated[
        list[str] | None,
        typer.Option(help="Measure usage on this corpus or file. (default: the model's own long run)"),
    ] = None,
    split: Split = "test",
    json: Json = False,
    threads: Threads = None,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Show the states that matter most: their words, where they lead, and how many states are dead.

    Usage is the expected share of tokens a state emits. A dead one emits less than a hundredth of an equal share.
    """
    from trellis.inspection import explained, inspect_states
    from trellis.text.sources import evaluation_ids

    loaded = load(model, device)
    hmm = loaded.answering("tables", "smooth")
    if corpus:
        ids = evaluation_ids(loaded.tokenizer, corpus, split, data_dir)
        usage_S, source = explained(hmm, ids), f"posterior over {ids.meta.corpus}"
    else:
        usage_S, source = _long_run(hmm), "the model's long run"
    found = inspect_states(hmm, usage_S, words=words, distinct=distinct)
    if json:
        print_json(_as_dict(found, states, source, loaded.tokenizer))
    else:
        _print(found, states, source, loaded.tokenizer)


def _long_run(hmm: HMM) -> Tensor:
    """The share of time in each state, which needs all pairs of states at once."""
    from trellis.inspection import stationary

    try:
        with waiting("finding the long run"):
            return stationary(hmm.log_start().exp(), hmm.all_pairs())
    except TrellisError as error:
        reason = str(error).partition(":")[0]
        raise TrellisError(f"{reason}: measure usage on a text instead, with --corpus NAME or FILE.") from None


def _as_dict(found: Inspection, count: int, source: str, tokenizer: Tokenizer) -> dict[str, object]:
    shown = [
        {**asdict(state), "words": [[tokenizer.token(word.id), word.probability] for word in state.words],
         "successors": [[other.id, other.probability] for other in state.successors]}
        for state in found.states[:count]
    ]  # fmt: skip
    return {
        "total": len(found.states),
        "dead": found.dead,
        "threshold": found.threshold,
        "effective": found.effective,
        "usage_from": source,
        "states": shown,
    }


def _print(found: Inspection, count: int, source: str, tokenizer: Tokenizer) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, options in (("state", "right"), ("usage", "right"), ("words", "left"), ("next states", "left")):
        table.add_column(name, justify=options, no_wrap=name != "words")  # type: ignore[arg-type]  # a literal type
    for state in found.states[:count]:
        words = Text("  ").join(_likely(tokenizer.token(word.id), word) for word in state.words)
        others = Text("  ").join(_likely(str(other.id), other) for other in state.successors)
        table.add_row(str(state.state), f"{state.usage:.1%}", words, others)
    out = console()
    out.print(table)
    total = len(found.states)
    out.print(
        f"{counted(total, 'state')}, as varied as {found.effective:,.1f} equally used ones; {found.dead:,} dead "
        f"(usage under {found.threshold:.2g}, a hundredth of an equal share)."
    )
    out.print(f"Usage: expected share of tokens, from {source}.")


def _likely(name: str, one: Likely) -> Text:
    return Text.assemble(name, (f"·{one.probability:.2f}".replace("·0.", "·."), "dim"))
