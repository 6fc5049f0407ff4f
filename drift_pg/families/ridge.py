"""Ridge regression: the affine map of least squared error, with a penalty on its size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from drift_pg.adapter import Adapter, Float32
from drift_pg.errors import InvalidInput
from drift_pg.families.base import Centred, Refinable, adapter_of, affine_layer
from drift_pg.pairs import Pairs


@dataclass(frozen=True)
class Ridge(Refinable):
    """y = Wᵀ(x − x̄) + ȳ, minimising ‖X W − Y‖² + λ‖W‖².

    Attributes:
        penalty: λ as a multiple of the mean eigenvalue of the source covariance, so that it means the
            same for every model.
    """

    penalty: float = 0.1

    def start(self, pairs: Pairs, seed: int) -> Adapter:  # noqa: ARG002 (nothing is drawn)
        """Fit in closed form; one layer."""
        x, y = Centred.of(pairs.source), Centred.of(pairs.target)
        matrix = ridge_map(x.values, y.values, self.penalty)
        return adapter_of(pairs, affine_layer(matrix, y.mean - x.mean @ matrix))


def ridge_map(x: Float32, y: Float32, penalty: float) -> Float32:
    """The (m, k) ridge solution for centred x (n, m) and y (n, k)."""
    if penalty <= 0:
        raise InvalidInput(f"penalty is {penalty}, it must be above 0")
    gram: NDArray[np.float64] = (x.T @ x).astype(np.float64)
    gram[np.diag_indices_from(gram)] += penalty * max(np.trace(gram) / len(gram), np.finfo(np.float32).tiny)
    return np.linalg.solve(gram, x.T @ y).astype(np.float32)
