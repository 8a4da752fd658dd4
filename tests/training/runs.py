"""Small runs: a text, a model for it, settings, and what a run leaves behind."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from trellis.distillation.settings import Distilled, DistillSettings
from trellis.models import HMM, HMMConfig
from trellis.models.model import Model
from trellis.models.supports import partition
from trellis.text import IdFile, MemoryCorpus, WordTokenizer, prepare
from trellis.training import Trained, TrainingSettings, train

WORDS = WordTokenizer(["<unk>", "<eos>", "a", "b", "c", "d", "e"])
STATES = 4
METHODS = ("adamw", "sgd", "baum_welch")
# Five rows for two processes; the windows' last batch has a single row, and the streams' last only the longer ones.
SHARED: dict[str, dict[str, Any]] = {
    "windows": {"batch_size": 5},
    "streams": {"batch_size": 5, "batching": "streams"},
    "accumulated": {"batch_size": 5, "batching": "streams", "accumulate": 3, "epochs": 4.0},
    "baum_welch": {"batch_size": 5, "batching": "streams", "method": "baum_welch"},
    "baum_welch windows": {"batch_size": 5, "method": "baum_welch"},
    "full batch": {"batch_size": 5, "method": "baum_welch", "full_batch": True, "epochs": 5.0},
    "blocked streams": {"batch_size": 5, "batching": "streams"},
    "sequences": {"batch_size": 5, "batching": "sequences"},
    "joint windows": {"batch_size": 5, "objective": "joint"},
    "joint streams": {"batch_size": 5, "batching": "streams", "objective": "joint"},
    "joint full batch": {"batch_size": 5, "method": "baum_welch", "full_batch": True, "objective": "joint"},
    "distilled windows": {"batch_size": 5, "init": "distill"},
    "distilled streams": {"batch_size": 5, "batching": "streams", "init": "distill"},
    "one window": {"batch_size": 2, "length": 1000},  # one process never has anything to do
}
STOPPED: dict[str, Any] = {"batch_size": 5, "batching": "streams", "epochs": 3.0}


def text(cache: Path, documents: int = 30, seed: int = 0) -> IdFile:
    """Documents of up to nine words in which each word likes to be followed by the next letter."""
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(documents):
        word, words = int(rng.integers(5)), []
        for _ in range(int(rng.integers(1, 10))):
            words.append("abcde"[word])
            word = (word + 1) % 5 if rng.random() < 0.8 else int(rng.integers(5))
        texts.append(" ".join(words))
    return prepare(MemoryCorpus(f"text-{seed}", tuple(texts)), WORDS, cache, quiet=True)


def some_labels(ids: IdFile, states: int = STATES, block_V: torch.Tensor | None = None) -> np.ndarray:
    """States for two tokens in three, drawn at random: of any block, or of the word's."""
    rng = np.random.default_rng(5)
    blocks = 1 if block_V is None else int(block_V.max()) + 1
    label_N = rng.integers(states // blocks, size=len(ids))
    if block_V is not None:
        label_N += block_V.numpy()[np.asarray(ids.ids, dtype=np.int64)] * (states // blocks)
    return np.where(rng.random(len(ids)) < 2 / 3, label_N, -1)


def taught(labels: np.ndarray, states: int = STATES, **changes: Any) -> Distilled:
    """What a teacher of three dimensions might say of a text, with these labels; the joint phase is about 5 updates."""
    rng = np.random.default_rng(6)
    centroids_SR, head_VR = rng.normal(size=(states, 3)), rng.normal(size=(WORDS.vocab_size, 3))
    settings = DistillSettings(teacher="a teacher", **({"tokens": 110} | changes))
    return Distilled(settings, labels, centroids_SR.astype(np.float32), head_VR.astype(np.float32))


def make_model(seed: int) -> HMM:
    return HMM(HMMConfig(WORDS.vocab_size, STATES), seed=seed)


NEURAL: dict[str, Any] = {
    "start": "low_rank", "transition": "hierarchical", "emission": "low_rank", "encoder": "residual", "bias": True,
}  # fmt: skip
SCALAR: dict[str, Any] = {"start": "scalar", "transition": "hierarchical_scalar", "emission": "scalar"}
BLOCK_V = torch.arange(WORDS.vocab_size) % 2


def blocked(seed: int, **changes: Any) -> HMM:
    """One that draws which states take part, and carries a belief from one choice to the next."""
    shape = {"support": "brown", "blocks": 2, "width": 6, "dropout": 0.5} | NEURAL | changes
    return HMM(HMMConfig(WORDS.vocab_size, 16, **shape), seed, partition(BLOCK_V, 16, 2))


def shared_model(case: str) -> Callable[[int], Model]:
    """The model of a case of SHARED."""
    # Of scalars: a network has numbers that do not matter, which rounding moves.
    return partial(blocked, **SCALAR) if case.startswith("blocked") else make_model


def settings(**changes: Any) -> TrainingSettings:
    """About 22 updates of 4 × 6 tokens, with a checkpoint now and then."""
    small: dict[str, Any] = {"batching": "windows", "batch_size": 4, "length": 6, "epochs": 2.0, "lr": 0.1}
    return TrainingSettings(**(small | {"weight_decay": 0.0, "validations": 4.0, "checkpoint_every": 3} | changes))


def run(
    folder: Path,
    chosen: TrainingSettings,
    *,
    resume: bool = False,
    valid: bool = True,
    make: Callable[[int], Model] = make_model,
    labels: np.ndarray | None = None,
    distilled: Distilled | None = None,
    quiet: bool = True,
) -> Trained:
    """Train in `folder/run` on texts cached beside it; where labels are wanted, on some if none are given."""
    learnt, held_out = text(folder / "cache"), text(folder / "cache", 8, seed=1) if valid else None
    if labels is None and chosen.objective == "joint":
        labels = some_labels(learnt)
    if distilled is None and chosen.init == "distill":
        distilled = taught(some_labels(learnt))
    return train(
        make, WORDS, learnt, held_out, chosen, folder / "run", resume=resume, quiet=quiet, labels=labels,
        distilled=distilled,
    )  # fmt: skip


def diary(folder: Path) -> list[dict[str, float]]:
    """The lines of metrics.jsonl without what a clock decides."""
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "tokens_per_second"} for line in lines]


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "run").iterdir() if not path.name.startswith("."))


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Everything that the newest checkpoint and the best model remember."""
    newest = max((folder / "run").glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    found = {"update": torch.tensor(int(newest.name.partition("-")[2]))}
    for path in (newest / "model", newest / "training", folder / "run" / "best" / "model"):
        loaded = load_file(path.with_suffix(".safetensors"))
        found |= {f"{path.parent.name}/{path.name}/{name}": tensor for name, tensor in loaded.items()}
    return found


def assert_same_run(a: Path, b: Path) -> None:
    """Weights, learner, carried state and best model to the bit, and the diary's every number."""
    ours, theirs = tensors(a), tensors(b)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    assert diary(a) == diary(b)
