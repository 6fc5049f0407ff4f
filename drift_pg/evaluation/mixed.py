"""Mixed search as `drift.nearest(…, rerank => N)` merges it, by exact search: for figures, and to choose what it merges by."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from drift_pg.adapter import Float32
from drift_pg.errors import InvalidInput
from drift_pg.evaluation.metrics import Float64
from drift_pg.neighbours import METRICS, Indices, directions, largest


def scores(metric: str, queries: Float32, items: Float32) -> Float32:
    """(q, n) of queries (q, d) and items (n, d), more is nearer, as drift.score_sql defines them.

    Cosine similarity, inner product, or the negative distance; of vectors as they are, not brought to unit length.

    Raises:
        InvalidInput: an unknown metric.
    """
    if metric == "cosine":
        return np.asarray(directions(queries) @ directions(items).T)
    if metric == "inner_product":
        return np.asarray(queries @ items.T)
    if metric == "l2":
        squares = (queries**2).sum(1)[:, None] + (items**2).sum(1) - 2 * (queries @ items.T)
        return np.asarray(-np.sqrt(np.maximum(squares, 0)))
    if metric == "l1":
        return np.stack([-np.abs(items - query).sum(1) for query in queries])
    raise InvalidInput(f"the metric is {metric!r}, expected one of {', '.join(METRICS)}")


def merged(exact: Float32, candidates: Indices, expected: Float64, known: NDArray[np.bool_], k: int) -> Indices:
    """(q, k) positions: the rows with new vectors nearest by them, and the bridge's candidates without, in one order.

    A candidate with a new vector that is not among the k nearest of those comes after k rows, so it is not looked at.

    Args:
        exact: (q, n) the new model's scores.
        candidates: (q, N) positions that the bridge finds, best first, N ≥ k.
        expected: (q, N) their bridge scores, calibrated, margin included.
        known: (n,) which rows have new vectors.
        k: how many.
    """
    nearest = largest(np.where(known, exact, -np.inf), k)
    scored = np.hstack(
        [
            np.where(known[nearest], np.take_along_axis(exact, nearest, 1), -np.inf),
            np.where(known[candidates], -np.inf, expected),
        ]
    )
    order = np.argsort(-scored, axis=1, kind="stable")[:, :k]
    return np.asarray(np.take_along_axis(np.hstack([nearest, candidates]), order, 1))
