"""Intervals over queries, rank correlation, and how a gate decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float64 = NDArray[np.float64]

DRAWS, LEVEL = 1000, 0.95


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % bootstrap interval over queries."""

    value: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half the interval's width."""
        return (self.high - self.low) / 2


def ratio(values: Float64, reference: Float64) -> Estimate:
    """A ratio of means over the same queries (q,), which are drawn together."""
    drawn = _drawn(values.tobytes()) / np.maximum(_drawn(reference.tobytes()), 1e-12)
    return _estimate(values.mean() / max(reference.mean(), 1e-12), drawn)


def mean(values: Float64) -> Estimate:
    """A mean over queries (q,)."""
    return _estimate(values.mean(), _drawn(values.tobytes()))


def _estimate(value: float, drawn: Float64) -> Estimate:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Estimate(float(value), float(low), float(high))


@lru_cache(maxsize=256)
def _drawn(values: bytes) -> Float64:
    """(draws,): resampled means of float64 values; the same references come again and again."""
    array = np.frombuffer(values)
    return np.asarray(_weights(len(array)) @ array.astype(np.float32), dtype=np.float64)


@cache
def _weights(queries: int) -> NDArray[np.float32]:
    """(draws, q): how often each resample holds each query, as a share. The same for all methods: they are compared."""
    counts = np.random.default_rng(0).multinomial(queries, np.full(queries, 1 / queries), size=DRAWS)
    return np.asarray(counts / queries, dtype=np.float32)


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """The rank correlation of two samples, ties sharing their mean rank; NaN where one does not vary."""
    first, second = _ranks(np.asarray(a, float)), _ranks(np.asarray(b, float))
    if len(first) < 2 or not first.std() or not second.std():
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: Float64) -> Float64:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[inverse], dtype=np.float64)


@dataclass(frozen=True)
class Confusion:
    """A gate's decisions against the truth.

    Attributes:
        minimum: of the gate.
        let_good, let_bad, kept_good, kept_bad: adapters let through or kept out, good or bad by labels.
    """

    minimum: float
    let_good: int
    let_bad: int
    kept_good: int
    kept_bad: int

    @property
    def right(self) -> int:
        """Decisions that the labels agree with."""
        return self.let_good + self.kept_bad

    @property
    def all(self) -> int:
        """Decisions."""
        return self.right + self.let_bad + self.kept_good

    @property
    def accuracy(self) -> float:
        """The share that is right."""
        return self.right / max(self.all, 1)


def confusion(lower_ends: Sequence[float], good: Sequence[bool], minimum: float) -> Confusion:
    """Let through what has its interval's lower end at the minimum or above."""
    passed, truth = np.asarray(lower_ends) >= minimum, np.asarray(good, dtype=bool)
    counts = [int((a & b).sum()) for a in (passed, ~passed) for b in (truth, ~truth)]
    return Confusion(minimum, *counts)
