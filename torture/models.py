"""Hostile calls of every kind of model from Python: one sentence or an answer, whatever is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, Any

from torture.batches import Call, SilentError, batch
from torture.hostile import described, hostile
from torture.trial import Trial
from torture.workshop import MODELS

if TYPE_CHECKING:
    from torch import Tensor

    from trellis.models.model import Model

CALLS = 120
MOST = 1000  # tokens, samples or paths to ask for: more than that is much work, not a fault
QUESTIONS = ("score", "filter", "smooth", "viterbi", "k_best", "sample_posterior", "entropy", "next_token", "fill",
             "sample", "expected_counts", "chain")  # fmt: skip


def fault(trial: Trial) -> dict[str, int]:
    """A batch of calls of one model."""
    name = trial.random.choice([name for name in MODELS if name != "transformer" or trial.random.random() < 0.2])
    trial.workshop.copy(trial.folder, f"runs/{name}")
    trial.what = f"the model {name}"
    return batch(trial, lambda: _draws(f"runs/{name}/best"), _is_sentence, CALLS)


def _is_sentence(error: Exception) -> bool:
    from trellis.errors import TrellisError

    return isinstance(error, TrellisError) and "\n" not in str(error)


def _draws(folder: str) -> Call:
    """In the child: load the model, and draw calls of it."""
    import trellis

    model = trellis.load_model(folder)
    names = [name for name in QUESTIONS if hasattr(model, name)]

    def draw(random: Random) -> tuple[str, Callable[[], Any]]:
        name = random.choice(names)
        given = _good(model, name, random)
        if random.random() < 0.9:
            for changed in random.sample([*given], min(len(given), random.choice((1, 1, 2)))):
                given[changed] = hostile(given[changed], random)
        given = {key: min(value, MOST) if type(value) is int else value for key, value in given.items()}
        said = f"{name}({', '.join(f'{key}={described(value)}' for key, value in given.items())})"
        return said, lambda: _checked(getattr(model, name)(**given), given)

    return draw


def _good(model: Model, question: str, random: Random) -> dict[str, Any]:
    """Arguments with nothing wrong."""
    import torch

    generator = torch.Generator().manual_seed(random.randrange(2**32))
    rows, time = random.choice((1, 2, 3)), random.choice((1, 2, 5))
    ids_BT = torch.randint(model.config.vocab_size, (rows, time), generator=generator)
    state = model.score(ids_BT)[1].detach() if random.random() < 0.5 else None
    lengths_B = torch.randint(time + 1, (rows,), generator=generator) if random.random() < 0.5 else None
    missing_BT = torch.rand(rows, time, generator=generator) < 0.3
    given: dict[str, Any] = {"ids_BT": ids_BT, "state": state, "lengths_B": lengths_B}
    if question in ("next_token", "sample"):
        given = (
            {"state": state}
            if question == "next_token"
            else {"batch": rows, "length": time, "state": state, "end": None}
        )
    elif question in ("k_best", "sample_posterior"):
        given["k" if question == "k_best" else "samples"] = random.choice((1, 2, 7))
    if question in ("fill", "filter", "smooth", "viterbi", "entropy", "k_best") or (
        question == "score" and hasattr(model, "fill")
    ):
        given["missing_BT"] = missing_BT
    return given


def _checked(answer: Any, given: dict[str, Any]) -> None:
    """Raise if there is NaN in the answers, though none was given."""
    if not any(_nan(tensor) for tensor in _tensors([*given.values()])):
        for tensor in _tensors(answer):
            if _nan(tensor):
                raise SilentError("nan", f"an answer of shape {tuple(tensor.shape)} holds NaN")


def _nan(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_floating_point() and bool(tensor.isnan().any())


def _tensors(value: Any) -> Iterator[Tensor]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _tensors(inner)
