"""The house is what its page says: every file with its reason, and no room that knows what it should not."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "trellis"
FILES = sorted(SOURCE.rglob("*.py"))
# What a room must not import: rooms to the right of it, so to say.
UNKNOWN = {
    "text": ("ops", "inference", "models", "distillation", "training", "cli", "estimator", "fitting", "config"),
    "automata": ("text", "ops", "inference", "models", "steering", "training", "cli", "estimator", "fitting", "config"),
    "constraints": ("ops", "inference", "models", "steering", "training", "cli", "estimator", "fitting", "config"),
    "steering": ("training", "cli", "estimator", "fitting", "config", "evaluation", "inspection"),
    "ops": ("text", "inference", "models", "distillation", "training", "cli", "estimator", "fitting", "config"),
    "inference": ("text", "models", "distillation", "training", "cli", "estimator", "fitting", "config"),
    "models": (
        "steering",
        "distillation",
        "training",
        "cli",
        "estimator",
        "fitting",
        "config",
        "evaluation",
        "inspection",
    ),
    "distillation": ("training", "cli", "estimator", "fitting", "config", "evaluation", "inspection"),
    "training": ("cli", "estimator", "fitting", "config"),
    "config.py": ("cli", "estimator", "fitting"),
    "evaluation.py": ("cli", "estimator", "fitting"),
    "inspection.py": ("cli", "estimator", "fitting"),
    "mixtures.py": ("cli", "estimator", "fitting"),
    "synthesis.py": ("cli", "estimator", "fitting"),
    "tagging.py": ("cli", "estimator", "fitting"),
    "cli": ("estimator", "fitting"),
    "estimator": ("cli", "config", "training", "distillation", "fitting"),
    "fitting": ("cli", "config", "estimator", "distillation"),
    "hf": ("cli", "estimator", "fitting", "distillation"),
}


def reason(file: Path) -> str:
    """The first line of a file's docstring, as a cell of a table."""
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))).splitlines()[0].replace("|", "\\|")


def row(file: Path) -> str:
    return f"| `{file.relative_to(SOURCE)}` | {reason(file)} |"


def test_the_page_says_of_every_file_why_it_exists():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `") and ".py` |" in line]
    assert rows == [row(file) for file in FILES], "write: \n" + "\n".join(row(file) for file in FILES)


def imports(file: Path) -> set[str]:
    """The modules of Trellis that a file imports when it is imported itself, and later."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "trellis":
            found |= {f"trellis.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.removeprefix("trellis.").split(".")[0] for name in found if name.startswith("trellis.")}


@pytest.mark.parametrize("room", UNKNOWN)
def test_a_room_knows_nothing_of_the_rooms_that_use_it(room):
    place = SOURCE / room
    for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
        assert not imports(file) & set(UNKNOWN[room]), file


def test_transformers_is_a_door_that_nobody_else_goes_through():
    inside = [file for file in FILES if SOURCE / "hf" in file.parents]
    assert [file.name for file in FILES if "hf" in imports(file) and file not in inside] == ["__init__.py"]


@pytest.mark.parametrize("folder", ["bench", "experiments", "examples"])
def test_what_stands_outside_uses_no_front_door(folder):
    for file in (ROOT / folder).rglob("*.py"):
        assert not imports(file) & {"cli", "estimator", "fitting", "hf"}, file
