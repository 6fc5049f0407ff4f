"""The same searches through a real index over a whole table: what approximate search loses is in the figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from drift_pg.adapter import Adapter, Float32
from drift_pg.errors import InvalidInput
from drift_pg.evaluation.figures import Figure
from drift_pg.evaluation.items import check_dimensions, query_vectors
from drift_pg.evaluation.labelled import BRIDGE, STAY, UNADAPTED, Label, checked_labels, score_rankings
from drift_pg.evaluation.touched import Touched
from drift_pg.pairs import Pairs

Search = Callable[[str, Float32, int], Sequence[Sequence[str]]]
"""Of what is searched for, (q, k) vectors in the legacy space and a number of rows: the keys found, nearest first."""

ITEMS = 1000
"""How many test pairs are searched: the interval of a share is then ± .03 at most."""


def through_index(
    search: Search,
    adapter: Adapter,
    test_pairs: Pairs,
    *,
    queries: ArrayLike | None = None,
    labels: Sequence[Label] | None = None,
    legacy_queries: ArrayLike | None = None,
    seed: int = 0,
) -> dict[str, dict[str, Figure]]:
    """Per search (bridge, unadapted, stay) figures over a whole table.

    Bridge has `self_retrieval@10`: whether a test pair's adapted vector finds its own row. With labels, whose
    keys are of any rows of the table, each has Recall, MRR and nDCG.

    Raises:
        InvalidInput: the test pairs have no keys, or as `evaluate`.
        WrongDimensions, InvalidVector, MissingExtra: as `evaluate`.
    """
    check_dimensions("test pairs", test_pairs, adapter)
    if test_pairs.keys is None:
        raise InvalidInput(
            "the test pairs have no keys, so their rows cannot be looked for in a table",
            hint="drift-pg fit --save-pairs keeps keys; or evaluate without --column",
        )
    chosen = np.sort(np.random.default_rng(seed).permutation(len(test_pairs))[:ITEMS])
    found = search("test pairs", adapter.apply(test_pairs.source[chosen]), 10)
    own = [float(key in keys) for key, keys in zip(test_pairs.keys[chosen].tolist(), found, strict=True)]
    figures = {BRIDGE: {"self_retrieval@10": Figure.mean(own, seed)}}
    if queries is None or labels is None:
        return figures
    new = query_vectors("query", queries, adapter.source_dimensions)
    grades = checked_labels(labels, len(new), None)
    rows = [i for i, label in enumerate(grades) if label is not None]
    if not rows:
        return figures
    vectors = {BRIDGE: adapter.apply(new[rows])}
    if adapter.source_dimensions == adapter.target_dimensions:
        vectors[UNADAPTED] = new[rows]
    if legacy_queries is not None:
        vectors[STAY] = query_vectors("legacy query", legacy_queries, adapter.target_dimensions, len(new))[rows]
    wanted = [label for label in grades if label is not None]
    for name, asked in vectors.items():
        scores = score_rankings(search(name, asked, 10), wanted)
        figures.setdefault(name, {}).update({m: Figure.mean(v, seed) for m, v in scores.items()})
    return figures


def touched_through_index(search: Search, adapter: Adapter, queries: ArrayLike, rows: int, depth: int = 200) -> Touched:
    """Which part of a whole table queries (q, m) touch, whether their answers are known or not.

    Args:
        search: through the index.
        adapter: maps (m,) to (k,).
        queries: logged ones.
        rows: of the table.
        depth: how many of the bridge's first count for each query.

    Raises:
        WrongDimensions, InvalidVector: as `evaluate`.
    """
    vectors = adapter.apply(query_vectors("query", queries, adapter.source_dimensions))
    return Touched.of(search("what the queries touch", vectors, depth), depth, rows)
