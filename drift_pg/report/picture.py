"""Both models' spaces in two dimensions, before and after the adapter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drift_pg.adapter import Adapter, Float32
from drift_pg.neighbours import directions
from drift_pg.pairs import Pairs

MOST = 400
"""Items drawn: more would hide each other, and fill the file."""


@dataclass(frozen=True, eq=False)
class Picture:
    """The same items by two principal components of the legacy vectors, each cloud around its mean, in one size.

    Attributes:
        legacy: (n, 2).
        unadapted: (n, 2) the new model's vectors as they are; None if they have other dimensions.
        adapted: (n, 2).
        quarters: (n,) 0 to 3: in which quarter of `legacy` an item lies.
        explained: the share of the legacy vectors' variance in these two dimensions.
    """

    legacy: NDArray[Any]
    unadapted: NDArray[Any] | None
    adapted: NDArray[Any]
    quarters: NDArray[np.int64]
    explained: float

    @property
    def limit(self) -> float:
        """Half the side of a square around the origin that holds nearly all points."""
        drawn = [p for p in (self.legacy, self.unadapted, self.adapted) if p is not None]
        return float(np.quantile(np.abs(np.concatenate(drawn)), 0.995) * 1.1) or 1.0

    @classmethod
    def of(cls, adapter: Adapter, test: Pairs, seed: int = 0) -> Picture:
        """Draw up to `MOST` of the test pairs."""
        rows = np.sort(np.random.default_rng(seed).permutation(len(test))[:MOST])
        legacy = directions(test.target)
        _, spread, axes = np.linalg.svd(legacy - legacy.mean(axis=0), full_matrices=False)
        plane = _upright(axes[:2])

        def flat(vectors: Float32) -> NDArray[Any]:
            # A shift or a scale that all queries share hardly changes what they find: each cloud is drawn around
            # its own mean and to the same size.
            cloud = (vectors - vectors.mean(axis=0)) @ plane.T
            return np.asarray(cloud / max(float(np.sqrt((cloud**2).sum(axis=1).mean())), 1e-30))[rows]

        same = adapter.source_dimensions == adapter.target_dimensions
        points = flat(legacy)
        total = float((spread**2).sum())
        return cls(
            points, flat(directions(test.source)) if same else None, flat(directions(adapter.apply(test.source))),
            (points[:, 0] > 0) + 2 * (points[:, 1] > 0), float((spread[:2] ** 2).sum()) / total if total else 0.0,
        )  # fmt: skip

    def kept(self, points: NDArray[Any]) -> float:
        """The share of items that lie in the quarter where their legacy vectors lie."""
        return float((((points[:, 0] > 0) + 2 * (points[:, 1] > 0)) == self.quarters).mean())


def _upright(axes: Float32) -> Float32:
    """(2, k) with the sign of each fixed, which a decomposition leaves open; of one dimension a second of zeros."""
    padded = np.zeros((2, axes.shape[1]), dtype=np.float32)
    padded[: len(axes)] = axes
    largest = np.take_along_axis(padded, np.abs(padded).argmax(axis=1)[:, None], 1)
    return np.asarray(padded * np.where(largest < 0, -1, 1), dtype=np.float32)
