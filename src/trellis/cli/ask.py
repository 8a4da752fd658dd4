"""`trellis ask`: exact answers about what may follow a text, or stand in its gaps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from trellis.cli import terminal
from trellis.cli.terminal import MANY
from trellis.errors import TrellisError

if TYPE_CHECKING:
    from trellis.ask import Text, Texts
    from trellis.models.pretrained import Pretrained

EXAMPLE = (
    "Examples:\n\ntrellis ask runs/pydocs 'return the'\n\ntrellis ask runs/pydocs 'return the' --next 3\n\n"
    "trellis ask runs/pydocs 'the ___ of the ___' --best 3\n\n"
    "trellis ask runs/pydocs 'return the' --then 'new list'\n\n"
    "trellis ask runs/pydocs 'return the' --within 10 --constraint 'contains(list)'\n\n"
    "trellis ask runs/pydocs 'return the list' --against runs/other"
)
QUESTIONS = "--then, --next, --within and --against"


def run(
    model: terminal.Model,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What was read so far; ___ is a gap of one word.")] = "",
    then: Annotated[str | None, typer.Option(metavar="TEXT", help="How probable it is to go on so.")] = None,
    next_: Annotated[
        int | None, typer.Option("--next", min=1, max=MANY, metavar="N", help="The best ways to go on for N words.")
    ] = None,
    within: Annotated[
        int | None,
        typer.Option(min=1, max=MANY, metavar="N", help="How probable it is that N words meet the --constraint."),
    ] = None,
    constraint: Annotated[
        str | None, typer.Option(metavar="WHAT", help="Such as contains(list) & ~contains(dict).")
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The text by this model too, token by token.")
    ] = None,
    best: Annotated[int, typer.Option(min=1, max=MANY, metavar="N", help="How many of the most probable answers.")] = 5,
    draw: Annotated[
        int | None,
        typer.Option(min=1, max=MANY, metavar="N", help="Draw so many answers by their probability instead."),
    ] = None,
    seed: terminal.Seed = 0,
    bos: terminal.Bos = None,
    eos: terminal.Eos = True,
    json: terminal.Json = False,
    threads: terminal.Threads = None,
    device: terminal.Device = "auto",
) -> None:
    """Print what may follow a text, with exact probabilities: by default, the most probable next words.

    A text with gaps is filled: all gaps together, each with one word. Columns are separated by tabs.
    """
    from trellis import ask

    if sum(option is not None for option in (then, next_, within, against)) > 1:
        raise TrellisError(f"{QUESTIONS} are different questions: ask one at a time.")
    if (within is None) != (constraint is None):
        raise TrellisError("--within and --constraint belong together: give how many words, and what they shall meet.")
    loaded = terminal.load(model, device)
    terminal.say_unknown_in(loaded, text, then or "")
    if against is not None:
        _side_by_side(loaded, terminal.load(against, device), text, bos, json)
    elif then is not None:
        _continuation(loaded, text, then, bos, json)
    elif within is not None and constraint is not None:
        _within(loaded, text, constraint, within, bos, json)
    elif next_ is not None and draw is not None:
        _print_texts(ask.draw_next(loaded, text, next_, draw, seed=seed, bos=bos), json)
    elif next_ is not None:
        print_best(ask.next_words(loaded, text, next_, best, bos=bos), json)
    elif "___" in text or "<mask>" in text:
        if draw is not None:
            _print_texts(ask.draw_fillings(loaded, text, draw, seed=seed, bos=bos, eos=eos), json)
        else:
            print_best(ask.fillings(loaded, text, best, bos=bos, eos=eos), json)
    else:
        for word in ask.next_word(loaded, text, best, bos=bos):
            _print_cells(json, p=word.probability, word=word.token)


def _print_cells(json: bool, **cells: float | str) -> None:
    """One row: probabilities with six digits, a JSON object if asked for."""
    if json:
        terminal.print_json(cells)
    else:
        terminal.print_row(*(f"{cell:.6g}" if isinstance(cell, float) else cell for cell in cells.values()))


def _print_texts(texts: list[Text], json: bool) -> None:
    for one in texts:
        _print_cells(json, p=one.probability, text=one.text.replace("\n", " "))


def print_best(found: Texts, json: bool) -> None:
    """The texts, and whether they are known to be the best."""
    _print_texts(found.texts, json)
    if not found.proven:
        terminal.say("these are good, but there was no time to prove that they are the best: ask for fewer words")


def _continuation(loaded: Pretrained, text: str, then: str, bos: bool | None, json: bool) -> None:
    from trellis import ask

    words = ask.continuation(loaded, text, then, bos=bos)
    for word in words:
        _print_cells(json, p=word.probability, word=word.token)
    _print_cells(json, p=math.prod(word.probability for word in words), text=then)


def _within(loaded: Pretrained, text: str, constraint: str, words: int, bos: bool | None, json: bool) -> None:
    from trellis import ask
    from trellis.constraints import parse

    _print_cells(json, p=ask.within(loaded, parse(constraint), words, text, bos=bos))


def _side_by_side(one: Pretrained, other: Pretrained, text: str, bos: bool | None, json: bool) -> None:
    from trellis import ask

    compared = ask.side_by_side(one, other, text, bos=bos)
    if not json:
        terminal.print_row("token", one.folder, other.folder, "ratio")
    for token, first, second in compared:
        _print_cells(json, token=token, first=first, second=second, ratio=first / second if second else math.inf)
