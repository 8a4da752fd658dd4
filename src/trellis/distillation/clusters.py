"""Clusters of vectors by k-means: with faiss where it is installed, otherwise with scikit-learn."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trellis.distillation.settings import DistillSettings
from trellis.errors import TrellisError
from trellis.progress import Progress

Vectors = NDArray[np.float32]
_LARGE = 1 << 14  # vectors: from here on a round takes long enough to show its progress
_ROWS = 1 << 14  # vectors at a time in a product with all centres
_RESEEDS = 20


def library() -> str:
    """The name of the library that clusters."""
    for name in ("faiss", "sklearn"):
        if importlib.util.find_spec(name) is not None:
            return name
    raise TrellisError("clusters need faiss or scikit-learn: run pip install 'trellis-lm[faiss]'.")


def cluster(values_NR: Vectors, clusters: int, settings: DistillSettings, bar: Progress) -> Vectors:
    """The centres of so many clusters; fewer if there are fewer distinct vectors, which are then the centres.

    Advances the bar by `restarts` × `iterations`.
    """
    rounds = settings.restarts * settings.iterations
    if _distinct(values_NR, clusters) <= clusters:
        bar.advance(rounds)
        return np.unique(values_NR, axis=0)
    found = (_faiss if library() == "faiss" else _sklearn)(values_NR, clusters, settings, bar)
    return fill_empty(values_NR, found)


def _distinct(values_NR: Vectors, at_most: int) -> int:
    """Count distinct vectors, no further than one past `at_most`."""
    seen: set[bytes] = set()
    for value_R in values_NR:
        seen.add(value_R.tobytes())
        if len(seen) > at_most:
            break
    return len(seen)


def _faiss(values_NR: Vectors, clusters: int, settings: DistillSettings, bar: Progress) -> Vectors:
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    rounds = 1 if len(values_NR) >= _LARGE else settings.iterations  # in one call to faiss
    best: Any = None
    for restart in range(settings.restarts):
        means: Any = faiss.Kmeans(
            values_NR.shape[1], clusters, niter=rounds, seed=settings.seed + restart, min_points_per_centroid=1,
            max_points_per_centroid=len(values_NR),  # all of them: they are a sample already
        )  # fmt: skip
        for _ in range(0, settings.iterations, rounds):
            means.train(values_NR, init_centroids=means.centroids)
            bar.advance(rounds, status="k-means by faiss")
        best = means if best is None or means.obj[-1] < best.obj[-1] else best
    return np.array(best.centroids)


def _sklearn(values_NR: Vectors, clusters: int, settings: DistillSettings, bar: Progress) -> Vectors:
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.exceptions import ConvergenceWarning

    best: Any = None
    for restart in range(settings.restarts):
        means = MiniBatchKMeans(
            clusters, n_init=1, max_iter=settings.iterations, batch_size=4096, random_state=settings.seed + restart
        )
        with warnings.catch_warnings():
            # It warns of clusters that stay empty, which `fill_empty` sees to.
            warnings.simplefilter("ignore", ConvergenceWarning)
            means.fit(values_NR)
        bar.advance(settings.iterations, status="k-means by scikit-learn")
        best = means if best is None or means.inertia_ < best.inertia_ else best
    return np.array(best.cluster_centers_, dtype=np.float32)


def fill_empty(values_NR: Vectors, centres_KR: Vectors) -> Vectors:
    """Put the centre of each empty cluster where a vector lies farthest from its own, until no cluster is empty."""
    centres_KR = centres_KR.copy()
    for _ in range(_RESEEDS):
        nearest_N, distance_N = nearest(values_NR, centres_KR)
        count_K = np.bincount(nearest_N, minlength=len(centres_KR))
        empty = np.flatnonzero(count_K == 0)
        if len(empty) == 0:
            return centres_KR
        far = np.argsort(-distance_N, kind="stable")
        far = far[count_K[nearest_N[far]] > 1][: 4 * len(empty)]  # several may be the same vector
        _, first = np.unique(values_NR[far], axis=0, return_index=True)
        chosen = far[np.sort(first)][: len(empty)]
        centres_KR[empty[: len(chosen)]] = values_NR[chosen]
    raise TrellisError(
        f"cluster {empty[0]} stays empty, one of {len(empty)}: set fewer states, another distill.seed, or more "
        "distill.points."
    )


def nearest(values_NR: Vectors, centres_KR: Vectors) -> tuple[NDArray[np.int64], Vectors]:
    """The nearest centre of each vector, and the squared distance to it."""
    middle_R = centres_KR.mean(axis=0)  # as origin, so that squares stay small and their differences exact
    centres_RK = torch.from_numpy((centres_KR - middle_R).T.copy())
    half_K = centres_RK.square().sum(0) / 2
    nearest_N, distance_N = np.empty(len(values_NR), np.int64), np.empty(len(values_NR), np.float32)
    for start in range(0, len(values_NR), _ROWS):
        part = slice(start, start + _ROWS)
        values = torch.from_numpy(values_NR[part] - middle_R)
        best, index = (values @ centres_RK - half_K).max(1)
        nearest_N[part] = index.numpy()
        distance_N[part] = (values.square().sum(1) - 2 * best).clamp_min(0).numpy()
    return nearest_N, distance_N
