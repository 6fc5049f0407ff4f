"""A measured value with its interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from drift_pg.errors import InvalidInput
from drift_pg.evaluation.metrics import bootstrap_interval

DIGITS = 4
DRAWS = 2000


@dataclass(frozen=True)
class Figure:
    """A mean over queries, or a ratio of two, with its 95 % bootstrap interval.

    Attributes:
        value: of the sample.
        low, high: the interval, `low ≤ value ≤ high`.
        queries: how many the value is of; an interval of few says less than it seems to.
    """

    value: float
    low: float
    high: float
    queries: int

    @classmethod
    def mean(cls, values: ArrayLike, seed: int = 0) -> Figure:
        """The mean of (q,) values; for two searches of the same queries, of their differences."""
        array = np.asarray(values, dtype=np.float64)
        return cls._around(float(array.mean()), bootstrap_interval(array, seed), len(array))

    @classmethod
    def ratio(cls, values: ArrayLike, whole: ArrayLike, seed: int = 0) -> Figure | None:
        """The ratio of two means over the same queries, resampled together; None if the second is 0.

        Args:
            values: (q,) of one search.
            whole: (q,) of the search it is compared with.
            seed: makes it reproducible.

        Raises:
            InvalidInput: the shapes differ.
        """
        pairs = np.column_stack([np.asarray(values, dtype=np.float64), np.asarray(whole, dtype=np.float64)])
        if pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs):
            raise InvalidInput(f"values and whole give shape {pairs.shape}, expected (q,) each, q ≥ 1")
        sums = pairs.sum(axis=0)
        if sums[1] <= 0:
            return None
        # As in bootstrap_interval: distinct pairs of values are few, queries many.
        distinct, counts = np.unique(pairs, axis=0, return_counts=True)
        drawn = np.random.default_rng(seed).multinomial(len(pairs), counts / len(pairs), size=DRAWS) @ distinct
        drawn = drawn[drawn[:, 1] > 0]
        low, high = np.quantile(drawn[:, 0] / drawn[:, 1], [0.025, 0.975])
        return cls._around(float(sums[0] / sums[1]), (float(low), float(high)), len(pairs))

    @classmethod
    def _around(cls, value: float, interval: tuple[float, float], queries: int) -> Figure:
        # Equal values sum to slightly more or less than they should: the interval never excludes its own value.
        return cls(value, min(interval[0], value), max(interval[1], value), queries)

    def as_dict(self) -> dict[str, float | int]:
        """For JSON, rounded."""
        ends = {name: round(getattr(self, name), DIGITS) for name in ("value", "low", "high")}
        return {**ends, "queries": self.queries}

    def __str__(self) -> str:
        to = " to " if self.low < 0 else "–"
        return f"{self.value:.3f} ({self.low:.2f}{to}{self.high:.2f})"


def nested_dict(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Figures, or mappings of them, for JSON."""
    return {name: f.as_dict() if isinstance(f, Figure) else nested_dict(f) for name, f in figures.items()}
