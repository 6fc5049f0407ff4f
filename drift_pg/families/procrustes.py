"""Orthogonal Procrustes: the rotation that brings one space closest to the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drift_pg.adapter import Adapter, Float32
from drift_pg.families.base import Centred, Refinable, adapter_of, affine_layer
from drift_pg.pairs import Pairs


@dataclass(frozen=True)
class Procrustes(Refinable):
    """y = S Rᵀ(x − x̄) + ȳ with orthogonal R: U Vᵀ from the SVD of the cross-covariance.

    R minimises ‖X R − Y‖ over orthogonal matrices (Schönemann, 1966). Between spaces of different
    dimensions its rows or columns are orthonormal, and it maximises the trace of Rᵀ Xᵀ Y. S is the diagonal
    scaling matrix of Drift-Adapter (EMNLP 2025, section 3), here in closed form: per output dimension, the
    least-squares scale.

    Attributes:
        centre: fit around the means of both spaces, which lie far from zero for most text models.
        diagonal_scaling: whether S is fitted, or 1.
    """

    centre: bool = True
    diagonal_scaling: bool = False

    def start(self, pairs: Pairs, seed: int) -> Adapter:  # noqa: ARG002 (nothing is drawn)
        """Fit in closed form; one layer."""
        x, y = Centred.of(pairs.source, centre=self.centre), Centred.of(pairs.target, centre=self.centre)
        rotation = nearest_orthogonal(x.values.T @ y.values)
        if self.diagonal_scaling:
            rotation = rotation * diagonal_scale(x.values @ rotation, y.values)
        return adapter_of(pairs, affine_layer(rotation, y.mean - x.mean @ rotation))


def nearest_orthogonal(cross: Float32) -> Float32:
    """The (m, k) matrix R with orthonormal rows or columns of largest trace(Rᵀ C), for C = Xᵀ Y (m, k)."""
    u, _, vt = np.linalg.svd(cross, full_matrices=False)
    return np.asarray(u @ vt, dtype=np.float32)


def diagonal_scale(z: Float32, y: Float32) -> Float32:
    """(k,): the scale of each dimension of z that brings it closest to y in the least-squares sense."""
    energy = np.einsum("nd,nd->d", z, z)
    return np.asarray(np.einsum("nd,nd->d", z, y) / np.maximum(energy, np.finfo(np.float32).tiny), dtype=np.float32)
