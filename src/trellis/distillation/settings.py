"""How to distil a teacher, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from numpy.typing import NDArray

from trellis.errors import TrellisError


@dataclass(frozen=True)
class DistillSettings:
    """Latent variable distillation (Liu et al. 2022): used by training.init=distill and by `trellis distill`."""

    teacher: str | None = None  # folder of a Hugging Face causal model or of a model of ours; random:<folder> its shape
    any_text: bool = False  # take a teacher of ours that has learnt another text than the run's
    layer: int = -1  # whose states are clustered: −1 the last, 0 the token embeddings
    pca: int | None = None  # dimensions to keep of the teacher's; by default all
    points: int = 256  # k-means: vectors a cluster it is learnt from
    iterations: int = 20  # k-means: rounds
    restarts: int = 3  # k-means: beginnings, of which the best counts
    seed: int = 0  # of the clusters, and of a random teacher
    tokens: int = 5_000_000  # learnt from by the joint likelihood of tokens and labels before the marginal one
    lr: float | None = None  # highest learning rate meanwhile; by default training.lr
    counts: bool = False  # begin with the labels' counts in closed form; free logits alone
    centroids: bool = False  # begin with the clusters' centres as the states' embeddings
    head: bool = False  # begin with the teacher's output head as the words' embeddings
    frozen: int = 0  # tokens for which embeddings begun with centres or head stay as they are

    def __post_init__(self) -> None:
        for name in ("points", "iterations", "restarts", "tokens"):
            if getattr(self, name) < 1:
                raise TrellisError(f"distill.{name} must be at least 1, not {getattr(self, name)}.")
        for name in ("seed", "frozen"):
            if getattr(self, name) < 0:
                raise TrellisError(f"distill.{name} cannot be negative, as {getattr(self, name)} is.")
        if self.pca is not None and self.pca < 1:
            raise TrellisError(f"distill.pca must be at least 1, not {self.pca}.")
        if self.lr is not None and not self.lr > 0:
            raise TrellisError(f"distill.lr must be above 0, not {self.lr}.")
        if self.frozen and not (self.centroids or self.head):
            raise TrellisError("distill.frozen needs embeddings from a teacher: set distill.centroids or distill.head.")


@dataclass(frozen=True)
class SampledSettings:
    """Text of a teacher to learn from beside the run's own: what it knows, without labels."""

    teacher: str | None = None  # folder of a model of ours that has learnt the run's text, or of a causal transformer
    tokens: int = 10_000_000  # sampled from it
    copies: int = 1  # how often the run's own text stands among it in one pass
    seed: int = 0  # of the sample
    precision: Literal["float32", "bf16"] = "float32"  # of the teacher's products; bf16 where the processor has it
    any_text: bool = False  # take a teacher of ours that has learnt another text than the run's

    def __post_init__(self) -> None:
        for name in ("tokens", "copies"):
            if getattr(self, name) < 1:
                raise TrellisError(f"sampled.{name} must be at least 1, not {getattr(self, name)}.")
        if self.seed < 0:
            raise TrellisError(f"sampled.seed cannot be negative, as {self.seed} is.")


class Distilled(NamedTuple):
    """What a teacher says of a text.

    labels        a state for each token of the text, −1 where none was asked for; on disk
    centroids_SR  the centre of each state's cluster, in the teacher's space or that of its PCA
    head_VR       the teacher's output vector of each word, in the same space; None if it has none for these words
    about         how they were made: the teacher's hash, the library and points of k-means, use of labels, speed
    """

    settings: DistillSettings
    labels: NDArray[Any]
    centroids_SR: NDArray[Any]
    head_VR: NDArray[Any] | None
    about: Mapping[str, Any] = MappingProxyType({})
