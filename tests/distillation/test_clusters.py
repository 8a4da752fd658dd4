"""k-means by either library: centres that are means, no cluster empty, the nearest centre as it should be."""

import numpy as np
import pytest

from trellis.distillation import clusters
from trellis.distillation.clusters import cluster, fill_empty, nearest
from trellis.distillation.settings import DistillSettings
from trellis.errors import TrellisError
from trellis.progress import Progress

SETTINGS = DistillSettings(iterations=15, restarts=3, seed=1)


@pytest.fixture(params=["faiss", "sklearn"])
def either(request, monkeypatch):
    pytest.importorskip(request.param)
    monkeypatch.setattr(clusters, "library", lambda: request.param)
    return request.param


def found(vectors, count, settings=SETTINGS):
    bar = Progress("clustering", quiet=True)
    centres = cluster(vectors, count, settings, bar)
    assert bar.done == settings.iterations * settings.restarts
    return centres


def slow_nearest(vectors, centres):
    distances = ((vectors[:, None].astype(np.float64) - centres[None]) ** 2).sum(2)
    return distances.argmin(1), distances.min(1)


def test_clusters_of_vectors_about_far_places_are_those_places(either, vectors):
    centres = found(vectors, 6, DistillSettings(iterations=15, restarts=20))
    means = vectors.reshape(20, 6, 8).mean(axis=0)
    assert slow_nearest(means, centres)[1].max() < (1e-6 if either == "faiss" else 0.5)
    assert centres.dtype == np.float32


def test_no_cluster_is_empty_and_a_seed_gives_the_same_again(either, vectors):
    centres = found(vectors, 50)
    assert len(set(slow_nearest(vectors, centres)[0].tolist())) == 50
    np.testing.assert_array_equal(centres, found(vectors, 50))


@pytest.mark.parametrize("kinds", [3, 5, 6])
def test_no_more_centres_than_distinct_vectors(either, vectors, kinds):
    repeated = np.repeat(vectors[:kinds], 30, axis=0)
    centres = found(repeated, 5)
    assert len(centres) == min(kinds, 5)
    assert len(set(slow_nearest(repeated, centres)[0].tolist())) == len(centres)


def test_rounds_one_by_one_are_rounds_all_at_once(vectors, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(clusters, "library", lambda: "faiss")
    at_once = found(vectors, 6)
    monkeypatch.setattr(clusters, "_LARGE", 1)
    np.testing.assert_allclose(found(vectors, 6), at_once, atol=1e-4)


def test_of_several_beginnings_the_best_counts(either, vectors):
    def cost(restarts):
        return slow_nearest(vectors, found(vectors, 6, DistillSettings(iterations=3, restarts=restarts, seed=2)))[1]

    assert cost(8).sum() <= cost(1).sum() + 1e-3


def test_empty_clusters_are_put_where_vectors_are_far(vectors):
    centres = np.concatenate([vectors[:3], np.full((4, 8), 1e3, np.float32)])
    filled = fill_empty(vectors, centres)
    assert len(set(slow_nearest(vectors, filled)[0].tolist())) == 7
    np.testing.assert_array_equal(filled[:3], centres[:3])


def test_a_cluster_that_stays_empty_is_named(vectors):
    with pytest.raises(TrellisError, match="cluster 2 stays empty, one of 1: set fewer states"):
        fill_empty(np.repeat(vectors[:2], 3, axis=0), np.concatenate([vectors[:2], vectors[:1] + 100]))


@pytest.mark.parametrize("shift", [0.0, 3000.0])
def test_the_nearest_centre_far_from_the_origin_too(vectors, shift, monkeypatch):
    monkeypatch.setattr(clusters, "_ROWS", 7)
    vectors = vectors + np.float32(shift)
    index, distance = nearest(vectors, vectors[:9])
    expected_index, expected_distance = slow_nearest(vectors, vectors[:9])
    np.testing.assert_array_equal(index, expected_index)
    np.testing.assert_allclose(distance, expected_distance, atol=1e-2, rtol=1e-3)


def test_without_either_library(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TrellisError, match=r"run pip install 'trellis-lm\[faiss\]'"):
        clusters.library()
