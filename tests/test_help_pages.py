from typing import Annotated

import typer
from typer.testing import CliRunner

from trellis.help_pages import Command, Group

app = typer.Typer(cls=Group, add_completion=False)


@app.callback()
def _all(loud: Annotated[bool, typer.Option("--loud", help="Shout.")] = False) -> None:
    pass


@app.command("go", cls=Command)
def _go(fast: bool = False, far: Annotated[bool, typer.Option("--far")] = False, steps: int = 3) -> None:
    print(fast, far, steps)


def test_flags_have_no_type_and_numbers_have():
    shown = CliRunner().invoke(app, ["go", "--help"]).output
    assert all(flag in shown for flag in ("--fast", "--no-fast", "--far", "--steps", "--help"))
    assert "bool" not in shown
    assert "int" in shown
    assert "bool" not in CliRunner().invoke(app, ["--help"]).output


def test_flags_work_as_ever():
    assert CliRunner().invoke(app, ["--loud", "go", "--fast", "--far", "--steps", "5"]).output == "True True 5\n"
    assert CliRunner().invoke(app, ["go", "--no-fast"]).output == "False False 3\n"
