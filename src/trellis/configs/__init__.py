"""The configurations that come with Trellis, by name: `trellis train ptb-low-rank` reads ptb-low-rank.yaml here."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent


def names() -> list[str]:
    """Every shipped configuration's name, in alphabetical order."""
    return sorted(path.stem for path in HERE.glob("*.yaml"))


def shipped(name: str) -> Path | None:
    """The file of a shipped configuration; None if there is none of that name."""
    return HERE / f"{name}.yaml" if name in names() else None
