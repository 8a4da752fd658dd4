"""Principal components against the singular vectors of the centred matrix."""

import numpy as np

from trellis.distillation.projection import principal_components


def test_axes_are_the_first_singular_vectors(vectors):
    projection = principal_components(vectors, 3)
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    right = np.linalg.svd(centred, full_matrices=False)[2][:3]
    np.testing.assert_allclose(np.abs((projection.axes_RP.T * right).sum(1)), 1.0, atol=1e-5)
    np.testing.assert_allclose(projection(vectors), centred @ projection.axes_RP, atol=1e-4)


def test_all_axes_keep_every_distance(vectors):
    turned = principal_components(vectors, 8)(vectors)
    before, after = (np.linalg.norm(these[:, None] - these[None], axis=2) for these in (vectors, turned))
    np.testing.assert_allclose(after, before, atol=1e-3)


def test_the_sign_of_an_axis_is_settled(vectors):
    one, two = principal_components(vectors, 4), principal_components(vectors[::-1].copy(), 4)
    np.testing.assert_allclose(one.axes_RP, two.axes_RP, atol=1e-4)
