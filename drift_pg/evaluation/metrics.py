"""What a search found against what it should have found, one value per query; intervals over queries.

Each metric gives (q,) values instead of their mean, so that two searches can be compared query by query.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from drift_pg.errors import InvalidInput

Float64 = NDArray[np.float64]


def recall_at(found: ArrayLike, relevant: ArrayLike, k: int) -> Float64:
    """Whether the relevant item is among the first k found: 1 or 0 per query.

    With one relevant item per query the mean is Recall@k, also called hit rate or success@k.

    Args:
        found: (q, n) keys of any type, nearest first; a search that found fewer pads with a key of no item.
        relevant: (q,) keys.
        k: how far down to look; columns beyond n count as not found.
    """
    return np.asarray(_hits(found, relevant, k).any(axis=1), dtype=np.float64)


def reciprocal_rank(found: ArrayLike, relevant: ArrayLike, k: int) -> Float64:
    """1 / rank of the relevant item, 0 if it is not among the first k; the mean is MRR@k.

    Voorhees, The TREC-8 Question Answering Track Report (1999). Shapes as in `recall_at`.
    """
    hits = _hits(found, relevant, k)
    return np.asarray(hits.any(axis=1) / (hits.argmax(axis=1) + 1))


def overlap_at(found: ArrayLike, reference: ArrayLike, k: int) -> Float64:
    """The share of a reference search's first k that is among the first k found, in any order.

    It needs no labels: how alike two searches answer. Webber, Moffat & Zobel, A Similarity Measure for
    Indefinite Rankings (2010), call it the agreement at depth k.

    Args:
        found: (q, n) keys.
        reference: (q, r) keys, r ≥ 1; where r < k the share is of these r.
        k: the depth.
    """
    first, wanted = _first("found", found, k), _first("reference", reference, k)
    if len(first) != len(wanted):
        raise InvalidInput(f"found has {len(first)} queries, reference {len(wanted)}")
    same = wanted[:, :, None] == first[:, None, :]
    return np.asarray(same.any(axis=2).mean(axis=1))


def bootstrap_interval(values: ArrayLike, seed: int = 0, level: float = 0.95, draws: int = 2000) -> tuple[float, float]:
    """The percentile bootstrap interval of a mean over queries (Efron & Tibshirani, 1993, chapter 13).

    Queries drawn with replacement hold each distinct value a multinomial number of times. Drawing those
    numbers is the same resampling, but costs the distinct values (two, for recall) and not the queries.

    Args:
        values: (q,) one per query, q ≥ 1; for two searches of the same queries, their differences.
        seed: makes it reproducible.
        level: of confidence, between 0 and 1.
        draws: how many resamples.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array) or not np.isfinite(array).all():
        raise InvalidInput(f"values have shape {array.shape}, expected (q,) finite numbers, q ≥ 1")
    if not 0 < level < 1 or draws < 1:
        raise InvalidInput(f"level is {level} and draws {draws}, expected 0 < level < 1 and draws ≥ 1")
    distinct, counts = np.unique(array, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(array), counts / len(array), size=draws)
    tail = (1 - level) / 2
    low, high = np.quantile(drawn @ distinct / len(array), [tail, 1 - tail])
    return float(low), float(high)


def _hits(found: ArrayLike, relevant: ArrayLike, k: int) -> NDArray[np.bool_]:
    """(q, min(n, k)): where the relevant item is."""
    first, wanted = _first("found", found, k), np.asarray(relevant)
    if wanted.shape != (len(first),):
        raise InvalidInput(f"relevant has shape {wanted.shape}, expected ({len(first)},): one key per query")
    return np.asarray(first == wanted[:, None])


def _first(name: str, keys: ArrayLike, k: int) -> NDArray[Any]:
    array = np.asarray(keys)
    if array.ndim != 2 or not array.shape[1]:
        raise InvalidInput(f"{name} has shape {array.shape}, expected (queries, keys)")
    if k < 1:
        raise InvalidInput(f"k is {k}, expected at least 1")
    return array[:, :k]
