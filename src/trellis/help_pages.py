"""Help pages of commands in which a flag is only a flag: the typer library writes its type, <bool>, beside it."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


def _plain(parameters: list[Any]) -> list[Any]:
    """The same parameters, of which flags show no type."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


class Command(TyperCommand):
    """A command whose help shows flags without a type."""

    def get_params(self, ctx: Any) -> list[Any]:
        """All parameters, that of --help included."""
        return _plain(super().get_params(ctx))


class Group(TyperGroup):
    """Commands, of which the help shows flags without a type."""

    def get_params(self, ctx: Any) -> list[Any]:
        """All parameters, that of --help included."""
        return _plain(super().get_params(ctx))
