"""Nearest neighbours by exact search, and how alike two searches answer without any labels.

These choose among adapters (on validation pairs) and evaluate them (on test pairs). Mean cosine does neither:
within a pair of models it is negatively related to what a search finds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from drift_pg.adapter import Float32, lengths

ROWS = 1024
"""Queries scored at a time, so that memory stays flat."""

Indices = NDArray[np.int64]

METRICS = ("cosine", "inner_product", "l2", "l1")
"""What pgvector's indexes order by, and an embedding column may be searched by."""


def nearest(queries: Float32, items: Float32, k: int, *, exclude: Indices | None = None) -> Indices:
    """The k items of largest inner product for each query, best first, ties by position.

    Args:
        queries: (q, d).
        items: (n, d), n ≥ k.
        k: how many.
        exclude: (q,) an item that each query may not find: itself.

    Returns:
        (q, k) positions in `items`.
    """
    found = []
    for start in range(0, len(queries), ROWS):
        scores = queries[start : start + ROWS] @ items.T
        if exclude is not None:
            scores[np.arange(len(scores)), exclude[start : start + ROWS]] = -np.inf
        found.append(largest(scores, k))
    return np.concatenate(found)


def largest(scores: Float32, k: int) -> Indices:
    """(q, k) positions of the largest of scores (q, n), best first, k ≤ n."""
    part = np.argpartition(-scores, k - 1, axis=1)[:, :k] if k < scores.shape[1] else np.argsort(-scores, axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(scores, part, 1), axis=1, kind="stable")
    return np.asarray(np.take_along_axis(part, order, 1), dtype=np.int64)


def directions(vectors: Float32) -> Float32:
    """Rows in unit length; a zero row, as a useless map gives, stays zero and is near to nothing."""
    scale = np.maximum(lengths(vectors), 1e-30).astype(
        np.float32
    )  # in double precision the quotient takes thrice the memory
    return np.asarray(vectors / scale[:, None], dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Agreement:
    """How a search with adapted vectors answers, against the new model's own, per held-out item.

    Attributes:
        self_retrieval: (q,) whether an item's adapted vector is nearest to its own legacy vector.
        first_kept: (q,) whether the new model's nearest other item is among the adapted first ten.
        overlap: (q,) share of the new model's ten nearest others among the adapted ten.
    """

    self_retrieval: NDArray[np.float64]
    first_kept: NDArray[np.float64]
    overlap: NDArray[np.float64]

    @property
    def scores(self) -> NDArray[np.float64]:
        """(q,) per item, the mean of all three, since each saturates somewhere."""
        return np.asarray(np.mean([self.self_retrieval, self.first_kept, self.overlap], axis=0))

    @property
    def score(self) -> float:
        """One number to choose by."""
        return float(self.scores.mean())


class HeldOut:
    """Held-out items among a corpus embedded by both models; measures one adapter after another.

    Args:
        new: (n, m) the corpus by the new model.
        legacy: (n, k) the same items by the legacy model.
        rows: (q,) which of them are held out: the others serve only as what may be found.
    """

    def __init__(self, new: Float32, legacy: Float32, rows: Indices) -> None:
        self.rows = rows
        self.legacy = directions(legacy)
        corpus = directions(new)
        self.wanted = nearest(corpus[rows], corpus, min(10, len(new) - 1), exclude=rows)

    def measure(self, adapted: Float32) -> Agreement:
        """Compare the adapted vectors (q, k) of the held-out items with what the new model finds."""
        # An item's own vector may come first or not; with one neighbour more than wanted both questions are answered.
        found = nearest(directions(adapted), self.legacy, min(self.wanted.shape[1] + 1, len(self.legacy)))
        own = found == self.rows[:, None]
        others = _without(found, own, self.wanted.shape[1])
        same = self.wanted[:, :, None] == others[:, None, :]
        first_kept, overlap = same[:, 0].any(axis=1), same.any(axis=2).mean(axis=1)
        return Agreement(own[:, 0].astype(np.float64), first_kept.astype(np.float64), np.asarray(overlap))


def _without(found: Indices, own: NDArray[np.bool_], k: int) -> Indices:
    """(q, k): the first k found that are not the item itself."""
    order = np.argsort(own, axis=1, kind="stable")
    return np.asarray(np.take_along_axis(found, order, 1)[:, :k])
