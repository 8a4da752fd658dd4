"""`trellis write`: texts that meet a constraint, drawn exactly or the most probable ones."""

from __future__ import annotations

from typing import Annotated

import typer

from trellis.cli import terminal
from trellis.cli.ask import print_best
from trellis.cli.terminal import MANY

EXAMPLE = (
    "Examples:\n\ntrellis write runs/pydocs 'contains(list)' --count 5\n\n"
    "trellis write runs/pydocs 'contains(list, dict) & ~contains(set)' --prompt 'return a' --length 15 --best 3"
)


def run(
    model: terminal.Model,
    constraint: Annotated[str, typer.Argument(metavar="CONSTRAINT", help="Such as contains(list) & length(5, 12).")],
    count: Annotated[int, typer.Option(min=1, max=MANY, metavar="N", help="How many texts to draw.")] = 3,
    best: Annotated[
        int | None, typer.Option(min=1, max=MANY, metavar="N", help="The N most probable texts instead of drawn ones.")
    ] = None,
    length: Annotated[int, typer.Option(min=1, max=MANY, metavar="N", help="Most tokens of a text.")] = 30,
    prompt: Annotated[str, typer.Option(help="Go on from these words, which the constraint is not about.")] = "",
    ended: Annotated[
        bool, typer.Option("--ended/--cut", help="Texts that end by themselves, or also ones cut at their length.")
    ] = True,
    bos: terminal.Bos = None,
    seed: terminal.Seed = 0,
    json: terminal.Json = False,
    threads: terminal.Threads = None,
    device: terminal.Device = "auto",
) -> None:
    """Print texts that meet a constraint, by the model's own probability given that they do.

    Every text meets it. A constraint is made of contains(word, …) for all of some words or phrases, contains_any(…),
    without(…), starts_with(…), ends_with(…), times(word, least, most), length(least, most), matches('regex') and
    matches_words('the (big|small)* dog'), joined by & (and), | (or), ~ (not) and brackets.
    """
    from trellis import ask
    from trellis.constraints import parse

    wanted = parse(constraint)
    loaded = terminal.load(model, device)
    terminal.say_unknown_in(loaded, prompt)
    if best is not None:
        print_best(ask.write_best(loaded, wanted, length, best, prompt, ended=ended, bos=bos), json)
        return
    for one in ask.write(loaded, wanted, length, count, prompt, ended=ended, seed=seed, bos=bos):
        if json:
            terminal.print_json(one._asdict())
        else:
            print(one.text.replace("\n", " "))
