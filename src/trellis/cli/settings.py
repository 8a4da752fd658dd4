"""`trellis settings`: what every setting means, and its default."""

from __future__ import annotations

from typing import Annotated

import typer

from trellis.cli.terminal import Json, console, print_json
from trellis.errors import TrellisError

EXAMPLE = "Examples:\n\ntrellis settings\n\ntrellis settings dropout\n\ntrellis settings training"


def run(
    word: Annotated[
        str | None, typer.Argument(help="Part of a setting's name or meaning. (default: all of them)")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a page of tables instead.")] = False,
    json: Json = False,
) -> None:
    """Explain the settings that `trellis train` and `trellis distill` take, as name=value or in a YAML file."""
    from rich.table import Table
    from rich.text import Text

    from trellis.meanings import every_setting
    from trellis.settings import nearest

    everything = every_setting()
    found = [one for one in everything if word is None or word in one.name or word in one.meaning]
    if not found:
        words = {one.name.rpartition(".")[2] for one in everything}
        raise TrellisError(f"no setting has '{word}' in it: {nearest(str(word), words)}")
    if json:
        print_json([one._asdict() for one in found])
        return
    if markdown:
        print("\n".join(page()))
        return
    table = Table("setting", "default", "may be", "meaning", box=None, pad_edge=False)
    for one in found:
        table.add_row(*(Text(cell) for cell in (one.name, one.default, one.kind, one.meaning)))
    console().print(table)


def page() -> list[str]:
    """docs/settings.md: every setting, a table a group."""
    from trellis.meanings import every_setting

    lines = [
        "# Settings\n",
        "Every setting of `trellis train` and `trellis distill`: as `name=value` on the command line, or in a YAML",
        "file whose groups are the words before the dot. This page is written by `trellis settings --markdown`.",
    ]
    group = ""
    for one in every_setting():
        where = one.name.rpartition(".")[0] or "run"
        if where != group:
            group = where
            lines += [f"\n## {group}\n", "| setting | default | may be | meaning |", "| --- | --- | --- | --- |"]
        cells = (f"`{one.name}`", f"`{one.default}`" if one.default else "", one.kind, one.meaning)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return lines
