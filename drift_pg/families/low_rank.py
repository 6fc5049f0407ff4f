"""Low-rank affine maps: two thin layers in place of a full matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drift_pg.adapter import Adapter
from drift_pg.errors import InvalidInput
from drift_pg.families.base import Centred, Refinable, adapter_of, affine_layer
from drift_pg.families.procrustes import diagonal_scale
from drift_pg.families.ridge import ridge_map
from drift_pg.pairs import Pairs


@dataclass(frozen=True)
class LowRank(Refinable):
    """y = S U Vᵀ(x − x̄) + ȳ with U and V of few columns (Drift-Adapter, EMNLP 2025, section 3).

    The paper minimises the squared error by gradient descent; the same minimum has a closed form,
    reduced-rank regression (Izenman, 1975): the ridge solution, projected on the leading right
    singular vectors of its fitted values. So it needs no torch and has no learning rate.

    Attributes:
        rank: how many columns; at most the smaller of both dimensions.
        penalty: as in `Ridge`.
        diagonal_scaling: whether S is fitted, or 1.
    """

    rank: int = 64
    penalty: float = 0.01
    diagonal_scaling: bool = False

    def start(self, pairs: Pairs, seed: int) -> Adapter:  # noqa: ARG002 (nothing is drawn)
        """Fit in closed form; two layers."""
        limit = min(pairs.source_dimensions, pairs.target_dimensions)
        if not self.rank >= 1:
            raise InvalidInput(f"rank is {self.rank}, it must be at least 1")
        x, y = Centred.of(pairs.source), Centred.of(pairs.target)
        full = ridge_map(x.values, y.values, self.penalty)
        fitted = x.values @ full
        _, vectors = np.linalg.eigh(fitted.T @ fitted)
        leading = vectors[:, ::-1][:, : min(self.rank, limit)]
        narrow, widen = full @ leading, leading.T
        if self.diagonal_scaling:
            widen = widen * diagonal_scale(x.values @ narrow @ widen, y.values)
        bias = y.mean - x.mean @ narrow @ widen
        return adapter_of(pairs, affine_layer(narrow), affine_layer(widen, bias))
