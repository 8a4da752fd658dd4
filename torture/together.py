"""Two processes at once in one folder: both end well or one is refused, and nothing is lost."""

from __future__ import annotations

import time

from torture.kills import WORKS, made, prepare, undisturbed
from torture.outcomes import REFUSED, UNHARMED, HarmError, refuse_others, refuse_partials
from torture.server import finish, start
from torture.trial import Trial
from torture.workshop import READING, train_arguments


def fault(trial: Trial) -> str:
    """Start a command, and a moment later itself once more, or another that wants the same things."""
    name = trial.random.choice([*WORKS])
    work, peace = WORKS[name], undisturbed(trial.workshop, name)
    prepare(trial.workshop, work, trial.folder)
    first, second = work.arguments, _other(trial, name)
    share = trial.random.choice((0.0, trial.random.random(), 0.5 + trial.random.random() / 2))
    trial.what = f"{name}, and after {share:.0%} of its time {' '.join(second[:2])}"
    one = start(trial.command(*first))
    time.sleep(share * peace.seconds)
    two = start(trial.command(*second))
    ended = [trial.judged(finish(running)) for running in (one, two)]
    if not any(ended):
        raise HarmError("lost", "both were refused")
    trial.must(*first, *work.again)
    refuse_others(made(trial.folder, work), peace.made)
    refuse_partials(trial.folder)
    return UNHARMED if all(ended) else REFUSED


def _other(trial: Trial, name: str) -> tuple[str, ...]:
    """What the second process does."""
    work = WORKS[name]
    choices = [work.arguments, (*work.arguments, *work.again)]
    if work.model == "run/best":
        choices += [("export", "run", "plain"), ("evaluate", "run", "valid.txt"), ("train", "run", "--resume")]
    if work.model == "plain":
        choices += [tuple(word.replace("MODEL", "plain") for word in READING["score"])]
    if work.makes[-1] == "cache":
        choices += [("prepare", "train.txt"), train_arguments("dense", "other")]
    return trial.random.choice(choices)
