"""How alike the adapted search and the new model's answer, without any labels.

On held-out items self-retrieval and "the new model's first is kept" are what predicts retention best; each
saturates somewhere, so the score takes both (DESIGN.md, section 1). Mean cosine predicts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drift_pg.adapter import Float32
from drift_pg.evaluation.figures import Figure
from drift_pg.evaluation.items import Items
from drift_pg.evaluation.metrics import Float64, overlap_at
from drift_pg.neighbours import ROWS, Indices, nearest

TIE = 1e-6
"""Cosines closer than this are one value: products of the same two vectors differ by less."""


@dataclass(frozen=True, eq=False)
class ItemAgreement:
    """Per test pair, how the search with its adapted vector answers.

    Attributes:
        above: (t,) items nearer to it than its own legacy vector.
        tied: (t,) items as near as that, itself included.
        first_kept: (t,) whether the new model's nearest other item is among the adapted ten.
        overlap: (t,) share of the new model's ten nearest others among the adapted ten.
        overlap_old: (t,) share of the legacy model's ten nearest others among the adapted ten.
        models_overlap: (t,) share of the new model's ten nearest others among the legacy model's.
    """

    above: Indices
    tied: Indices
    first_kept: Float64
    overlap: Float64
    overlap_old: Float64
    models_overlap: Float64

    def self_retrieval(self, k: int) -> Float64:
        """(t,) the chance that the item itself is among the first k, where equal vectors come in any order.

        So a vector that many items share does not count as finding each of them.
        """
        return np.asarray(np.clip((k - self.above) / self.tied, 0, 1))

    @property
    def scores(self) -> Float64:
        """(t,) what the quality gate takes the mean of."""
        return np.asarray((self.self_retrieval(1) + self.first_kept) / 2)

    def figures(self, seed: int) -> dict[str, Figure]:
        """The means, with their intervals."""
        values = {
            "self_retrieval@1": self.self_retrieval(1),
            "self_retrieval@10": self.self_retrieval(10),
            "first_kept@10": self.first_kept,
            "overlap@10": self.overlap,
            "overlap_old@10": self.overlap_old,
            "models_overlap@10": self.models_overlap,
        }
        return {name: Figure.mean(value, seed) for name, value in values.items()}


def agreement(items: Items) -> ItemAgreement:
    """Search with each test pair's vectors among the other items: adapted, new, legacy."""
    k, rows = items.depth, items.rows
    wanted = nearest(items.new[rows], items.new, k, exclude=rows)
    old = nearest(items.legacy[rows], items.legacy, k, exclude=rows)
    found = nearest(items.adapted, items.legacy, k, exclude=rows)
    above, tied = ranks(items.adapted, items.legacy, rows)
    kept = first_kept(items.new[rows], items.new, wanted, found)
    return ItemAgreement(
        above, tied, kept, overlap_at(found, wanted, k), overlap_at(found, old, k), overlap_at(old, wanted, k)
    )


def log_agreement(queries: Float32, adapted: Float32, items: Items) -> dict[str, Float64]:
    """For logged queries, in unit length (q, m) and adapted (q, k): `first_kept@10` and `overlap@10`, (q,) each."""
    k = min(10, len(items))
    wanted, found = nearest(queries, items.new, k), nearest(adapted, items.legacy, k)
    return {
        "first_kept@10": first_kept(queries, items.new, wanted, found),
        "overlap@10": overlap_at(found, wanted, k),
    }


def first_kept(queries: Float32, items: Float32, wanted: Indices, found: Indices) -> Float64:
    """(q,) the chance that the first that is wanted is among what was found, where equal vectors come in any order.

    Args:
        queries: (q, m).
        items: (n, m).
        wanted: (q, k) the items nearest to each query, best first.
        found: (q, k) by another search.
    """
    _, tied = ranks(queries, items, wanted[:, 0])
    cosines = np.einsum("qd,qkd->qk", queries, items[wanted])
    first = cosines >= cosines[:, :1] - TIE
    kept = (wanted[:, :, None] == found[:, None, :]).any(axis=2)
    # More may be tied than were asked for: those were found by position, which says nothing.
    return np.asarray((first & kept).sum(axis=1) / np.maximum(tied, first.sum(axis=1)))


def ranks(queries: Float32, items: Float32, targets: Indices) -> tuple[Indices, Indices]:
    """For each query and its target: how many items are nearer, and how many, itself included, as near.

    Args:
        queries: (q, d).
        items: (n, d).
        targets: (q,) positions in `items`.
    """
    above, tied = [], []
    for start in range(0, len(queries), ROWS):
        scores = queries[start : start + ROWS] @ items.T
        own = scores[np.arange(len(scores)), targets[start : start + ROWS]][:, None]
        above.append((scores > own + TIE).sum(axis=1))
        tied.append((np.abs(scores - own) <= TIE).sum(axis=1))
    return np.concatenate(above), np.concatenate(tied)
