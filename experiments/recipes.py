"""What a study is made of: recipes, each a complete configuration with the row of a table it stands for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from trellis import TrellisError
from trellis.config import RunConfig, as_dict
from trellis.settings import nearest

Budget = Literal["smoke", "laptop", "paper"]
BUDGETS: tuple[Budget, ...] = get_args(Budget)
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Grid:
    """Learning rates of which the best on validation text, after a short run each, is used."""

    name: str  # in the file of rates; recipes may share one
    config: RunConfig  # the short run, complete but for its rate
    rates: tuple[float, ...]  # from the highest down
    around: Recipe | None = None  # then whole runs like this one, at halves and doubles around the best


@dataclass(frozen=True)
class Recipe:
    """One run of a study."""

    name: str  # of the run: the same name is the same configuration in every table
    label: str  # the row it stands for, as the table's published rows are labelled
    config: RunConfig
    grid: Grid | None = None  # where its learning rate comes from, if it was searched
    share: float = 1.0  # of that rate
    needs: tuple[Recipe, ...] = ()  # runs whose models this one reads: teachers and checkpoints


Study = Callable[[Budget], list[Recipe]]  # a table or a figure


def studies() -> dict[str, Study]:
    """Every table and figure by its name on the command line."""
    from experiments import chiu, lee, memory

    papers = (chiu, lee, memory)
    return {f"{paper.__name__.rpartition('.')[2]}.{one.__name__}": one for paper in papers for one in paper.STUDIES}


def study(name: str) -> Study:
    """A table or figure by name."""
    known = studies()
    if name not in known:
        raise TrellisError(f"there is no study '{name}': {nearest(name, known)}")
    return known[name]


def budget_of(name: str) -> Budget:
    """A budget by name."""
    for budget in BUDGETS:
        if name == budget:
            return budget
    raise TrellisError(f"there is no budget '{name}': {nearest(name, BUDGETS)}")


def run_name(budget: Budget, *parts: str) -> str:
    """The name of a run of these parts; one that only shows that everything works says so."""
    return "-".join([*(["smoke"] if budget == "smoke" else []), *parts])


def with_rate(config: RunConfig, rate: float) -> RunConfig:
    """The same run at another learning rate."""
    return dataclasses.replace(config, training=dataclasses.replace(config.training, lr=rate))


def settings_of(config: RunConfig) -> dict[str, Any]:
    """All that decides the run, without places on this machine."""
    settings = as_dict(config)
    del settings["data"]["data_dir"], settings["out"]
    return settings


def unlike(recorded: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Settings of a recorded run that are not as wanted; settings younger than the record do not count.

    Nor does the precision of products, which is chosen for the processor: it moves perplexities by 0.1 %.
    """
    found = []
    for name, value in recorded.items():
        if isinstance(value, Mapping):
            found += unlike(value, wanted.get(name, {}), f"{prefix}{name}.")
        elif value != wanted.get(name) and f"{prefix}{name}" != "training.precision":
            found.append(f"{prefix}{name}={value} and not {wanted.get(name)}")
    return found
