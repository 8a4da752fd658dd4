"""A codebook: a centre for each state of an HMM, to which a teacher's states of tokens are rounded."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trellis.distillation.clusters import cluster, library
from trellis.distillation.projection import Projection, principal_components
from trellis.distillation.reading import Reader
from trellis.distillation.settings import DistillSettings
from trellis.distillation.vectors import Vectors, collect
from trellis.errors import TrellisError
from trellis.json_files import read_object, write_json
from trellis.manifests import check_listed
from trellis.progress import Progress

if TYPE_CHECKING:
    from trellis.models.supports import Support

_VECTORS, _ABOUT = "vectors.f32", "about.json"
_ARRAYS = ("centroids_SR", "used_S", "mean_R", "axes_RP", "head_VR")


class Blocks(NamedTuple):
    """The block of each word, V, and the states of each block, M×K; a dense model is one block."""

    block_V: NDArray[np.int64]
    states_MK: NDArray[np.int64]

    @classmethod
    def of(cls, support: Support | None, vocab_size: int, states: int) -> Blocks:
        """Those of a support, which may not overlap."""
        if support is None:
            return cls(np.zeros(vocab_size, np.int64), np.arange(states)[None])
        block_V, states_MK = support.block_V.cpu().numpy(), support.states_MK.cpu().numpy()
        if len(np.unique(states_MK)) != states_MK.size:
            raise TrellisError(
                "words of overlapping subsets have no clusters of their own: distil with another model.support than "
                "uniform."
            )
        return cls(block_V, states_MK)


class Codebook(NamedTuple):
    """The centres of states, where they came from, and what else the teacher gave.

    centroids_SR  of the states, in the teacher's space or that of its principal components
    used_S        which states have a cluster; of a block with fewer distinct vectors than states, not all
    projection    to the principal components, if any were asked for
    head_VR       the teacher's output vectors of the words in the same space, if it has them for these words
    about         how it was made
    """

    centroids_SR: NDArray[np.float32]
    used_S: NDArray[np.bool_]
    projection: Projection | None
    head_VR: NDArray[np.float32] | None
    about: dict[str, Any]

    def save(self, folder: Path) -> None:
        """Write its files into a folder that somebody else makes whole."""
        mean_R, axes_RP = self.projection or (None, None)
        arrays = (self.centroids_SR, self.used_S, mean_R, axes_RP, self.head_VR)
        for name, array in zip(_ARRAYS, arrays, strict=True):
            if array is not None:
                np.save(folder / f"{name}.npy", array)
        write_json(folder / _ABOUT, self.about)

    @classmethod
    def load(cls, folder: Path) -> Codebook | None:
        """Read what `save` wrote; None if it is absent or damaged, for both are mended by making it anew."""
        try:
            paths = [folder / f"{name}.npy" for name in _ARRAYS]
            for path in (folder / _ABOUT, *paths):
                check_listed(path)
            about = read_object(folder / _ABOUT)
            arrays = [np.load(path, allow_pickle=False) if path.exists() else None for path in paths]
        except (TrellisError, OSError, ValueError, EOFError):
            return None
        centroids_SR, used_S, mean_R, axes_RP, head_VR = arrays
        if centroids_SR is None or used_S is None:
            return None
        projection = None if mean_R is None or axes_RP is None else Projection(mean_R, axes_RP)
        return cls(centroids_SR, used_S, projection, head_VR, about)


def make(reader: Reader, blocks: Blocks, settings: DistillSettings, folder: Path, quiet: bool) -> Codebook:
    """Read a sample of the text, cluster its vectors within each block; `folder` holds them meanwhile."""
    began = time.monotonic()
    states = blocks.states_MK.size
    file = folder / _VECTORS
    dimensions = _check_dimensions(settings, reader.teacher.width)
    vectors = collect(
        reader, blocks.block_V, len(blocks.states_MK), settings.points * states, settings.seed, file, quiet
    )
    projection = None if settings.pca is None else principal_components(vectors.values_NR, settings.pca)
    centroids_SR, used_S = _centres(vectors, projection, blocks, settings, dimensions, quiet)
    about = {
        "layer": settings.layer,
        "teacher_width": reader.teacher.width,
        "dimensions": dimensions,
        "library": library(),
        "vectors": len(vectors.values_NR),
        "points_per_centroid": len(vectors.values_NR) / states,
        "states": states,
        "states_without_cluster": int(states - used_S.sum()),
        "cluster_seconds": time.monotonic() - began,
    }
    file.unlink()
    return Codebook(centroids_SR, used_S, projection, _head(reader, len(blocks.block_V), projection), about)


def _check_dimensions(settings: DistillSettings, width: int) -> int:
    if settings.pca is not None and settings.pca > width:
        raise TrellisError(f"distill.pca={settings.pca} is more than the {width} dimensions of the teacher: lower it.")
    return settings.pca or width


def _centres(
    vectors: Vectors, projection: Projection | None, blocks: Blocks, settings: DistillSettings, dimensions: int,
    quiet: bool,
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:  # fmt: skip
    """A centre for each state, of its block's vectors; the block's mean, or that of all, where it has no cluster."""
    count, size = blocks.states_MK.shape
    rounds = count * settings.restarts * settings.iterations
    centroids_SR = np.zeros((count * size, dimensions), np.float32)
    used_S = np.zeros(count * size, bool)
    everywhere_R = np.zeros(dimensions)  # the mean of all vectors, which are centred if they are projected
    if projection is None:
        everywhere_R = vectors.values_NR.mean(axis=0, dtype=np.float64)
    with Progress("clustering", rounds, unit="rounds", quiet=quiet) as bar:
        for block, states_K in enumerate(blocks.states_MK):
            values_NR = vectors.of(block)
            values_NR = values_NR if projection is None else projection(values_NR)
            centres_JR = cluster(values_NR, size, settings, bar)
            if len(centres_JR) < size and count == 1:
                raise TrellisError(
                    f"{len(centres_JR):,} different vectors are too few for {size:,} clusters: give more text, or set "
                    "fewer states or more distill.points."
                )
            centroids_SR[states_K] = values_NR.mean(axis=0) if len(values_NR) else everywhere_R
            centroids_SR[states_K[: len(centres_JR)]] = centres_JR
            used_S[states_K[: len(centres_JR)]] = True
    return centroids_SR, used_S


def _head(reader: Reader, vocab_size: int, projection: Projection | None) -> NDArray[np.float32] | None:
    """The words' output vectors, turned as the states are; they are not moved, as logits are products."""
    if not reader.same or reader.teacher.head_VR is None:
        return None
    head_VR: NDArray[np.float32] = reader.teacher.head_VR[:vocab_size].float().numpy()
    return head_VR if projection is None else head_VR @ projection.axes_RP


class Labeller:
    """Rounds vectors to the nearest centre of their word's block: argmax x·c − |c|²/2, a product."""

    def __init__(self, codebook: Codebook, blocks: Blocks) -> None:
        projection, centroids_SR = codebook.projection, codebook.centroids_SR
        # The origin is moved to the middle, so that squares stay small and their differences exact.
        middle_R = centroids_SR.mean(axis=0) if projection is None else projection.mean_R
        self._middle_R = torch.from_numpy(middle_R)
        self._axes_RP = None if projection is None else torch.from_numpy(projection.axes_RP)
        centres_SR = torch.from_numpy(centroids_SR - middle_R if projection is None else centroids_SR)
        bias_S = (-centres_SR.square().sum(1) / 2).masked_fill(~torch.from_numpy(codebook.used_S), -torch.inf)
        self._states_MK = torch.from_numpy(blocks.states_MK)
        self._centres_MRK, self._bias_MK = centres_SR[self._states_MK].mT, bias_S[self._states_MK]
        self._block_V = torch.from_numpy(blocks.block_V)

    def __call__(self, states_NR: Tensor, words_N: Tensor) -> Tensor:
        """The label of each of a teacher's states; −1 where the word's block has no cluster at all."""
        values_NR = states_NR.float() - self._middle_R
        values_NR = values_NR if self._axes_RP is None else values_NR @ self._axes_RP
        if len(self._states_MK) == 1:
            return self._within(0, values_NR)
        order_N = self._block_V[words_N].argsort(stable=True)
        found, counts = self._block_V[words_N[order_N]].unique_consecutive(return_counts=True)
        parts = zip(found.tolist(), values_NR[order_N].split(counts.tolist()), strict=True)
        labels_N = torch.empty_like(words_N)
        labels_N[order_N] = torch.cat([self._within(block, part_NR) for block, part_NR in parts])
        return labels_N

    def _within(self, block: int, values_NR: Tensor) -> Tensor:
        best_N, index_N = torch.addmm(self._bias_MK[block], values_NR, self._centres_MRK[block]).max(1)
        return torch.where(best_N > -torch.inf, self._states_MK[block][index_N], -1)
