"""Principal components: the dimensions in which a teacher's states differ most."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_ROWS = 1 << 16  # at a time, so that vectors on disk stay there


class Projection(NamedTuple):
    """x ↦ (x − mean) · axes."""

    mean_R: NDArray[np.float32]
    axes_RP: NDArray[np.float32]

    def __call__(self, values_NR: NDArray[np.float32]) -> NDArray[np.float32]:
        """The vectors in the smaller space."""
        parts = [(part - self.mean_R) @ self.axes_RP for part in _parts(values_NR)]
        return np.concatenate(parts) if parts else np.empty((0, self.axes_RP.shape[1]), np.float32)


def principal_components(values_NR: NDArray[np.float32], dimensions: int) -> Projection:
    """The orthonormal axes of greatest variance, each pointing to where its largest entry is positive."""
    mean_R: NDArray[np.float64] = np.asarray(values_NR.mean(axis=0, dtype=np.float64))
    covariance_RR = sum(
        (centred.T @ centred for centred in (part - mean_R for part in _parts(values_NR))),
        start=np.zeros((len(mean_R), len(mean_R))),
    )
    axes_RP = np.linalg.eigh(covariance_RR).eigenvectors[:, ::-1][:, :dimensions]
    largest_P = axes_RP[np.abs(axes_RP).argmax(axis=0), np.arange(dimensions)]
    return Projection(mean_R.astype(np.float32), (axes_RP * np.sign(largest_P)).astype(np.float32))


def _parts(values_NR: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    return [values_NR[start : start + _ROWS] for start in range(0, len(values_NR), _ROWS)]
