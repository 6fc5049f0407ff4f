"""The learning curve: what adapters of ever more of the pairs are worth."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import ArrayLike

from drift_pg.adapter import Adapter, Float32
from drift_pg.embedding import Progress
from drift_pg.evaluation import Evaluation, Figure
from drift_pg.evaluation.items import Items, query_vectors
from drift_pg.evaluation.labelled import BRIDGE, FULL, Label, checked_labels, measure, summarise
from drift_pg.evaluation.metrics import overlap_at
from drift_pg.families import SmallSample, fit
from drift_pg.neighbours import Indices, directions, nearest
from drift_pg.pairs import MINIMUM, Pairs

FAMILY = "spectral"
"""In closed form: seconds for the whole curve. A trained family lies a little above it, in the same shape."""

FIRST = 500

METRICS = {
    "overlap@10": "shared with the new model's first ten",
    "retention_recall@10": "of a full re-embedding's Recall@10",
}
"""What is drawn, where it is known, and in words."""


@dataclass(frozen=True)
class Point:
    """An adapter's figures.

    Attributes:
        pairs: that it was fitted on.
        figures: by the keys of `METRICS`.
    """

    pairs: int
    figures: dict[str, Figure]

    @classmethod
    def of(cls, pairs: int, evaluation: Evaluation) -> Point:
        """What of an evaluation is drawn."""
        known = {**evaluation.searches.get(BRIDGE, {}), "overlap@10": evaluation.agreement["overlap@10"]}
        return cls(pairs, {name: known[name] for name in METRICS if name in known})


@dataclass(frozen=True, eq=False)
class Yardstick:
    """What `evaluate` finds of an adapter as far as it is drawn: what the new model finds is searched for once.

    Attributes:
        items: searched; what is adapted in them is of no account.
        test: the test pairs.
        wanted: (t, 10) what the new model finds for each test pair.
        queries: (q, m) the labelled ones, in unit length; q may be 0.
        labels: q.
        full: (q, 10) what the new model finds for them.
        seed: of the intervals.
    """

    items: Items
    test: Pairs
    wanted: Indices
    queries: Float32
    labels: list[dict[str, int]]
    full: Indices
    seed: int

    @classmethod
    def of(
        cls,
        adapter: Adapter,
        test: Pairs,
        *,
        corpus: Pairs | None = None,
        queries: ArrayLike | None = None,
        labels: Sequence[Label] | None = None,
        seed: int = 0,
    ) -> Yardstick:
        """Arguments as for `evaluate`."""
        items = Items.of(adapter, test, corpus)
        wanted = nearest(items.new[items.rows], items.new, items.depth, exclude=items.rows)
        vectors = np.empty((0, test.source_dimensions), np.float32)
        known: list[dict[str, int]] = []
        if queries is not None and labels is not None:
            vectors = query_vectors("query", queries, test.source_dimensions)
            grades = checked_labels(labels, len(vectors), items)
            vectors = directions(vectors[[grade is not None for grade in grades]])
            known = [grade for grade in grades if grade is not None]
        full = nearest(vectors, items.new, min(10, len(items))) if known else np.empty((0, 1), np.int64)
        return cls(items, test, wanted, vectors, known, full, seed)

    def measure(self, pairs: int, adapter: Adapter) -> Point:
        """An adapter's point on the curve."""
        items = self.items
        found = nearest(directions(adapter.apply(self.test.source)), items.legacy, items.depth, exclude=items.rows)
        figures = {"overlap@10": Figure.mean(overlap_at(found, self.wanted, items.depth), self.seed)}
        if self.labels:
            bridge = nearest(directions(adapter.apply(self.queries)), items.legacy, self.full.shape[1])
            measured = summarise(measure(items, {BRIDGE: bridge, FULL: self.full}, self.labels), self.seed)[BRIDGE]
            figures |= {name: measured[name] for name in METRICS if name != "overlap@10" and name in measured}
        return Point(pairs, figures)


def sizes(pairs: int) -> list[int]:
    """500, 1,000, 2,000, 5,000, … and all of them; of fewer than 1,000 their half and quarter."""
    if pairs < 2 * FIRST:
        return sorted({max(MINIMUM, pairs // 4), max(MINIMUM, pairs // 2), pairs})
    steps: list[int] = []
    for power in count():
        for step in (500, 1000, 2000):
            size = step * 10**power
            if size > 0.8 * pairs:  # hardly fewer than all
                return [*steps, pairs]
            steps.append(size)
    raise AssertionError


def learning_curve(pairs: Pairs, yardstick: Yardstick, progress: Progress, seed: int = 0) -> list[Point]:
    """Fit ever larger parts of the pairs, each part within the next, and measure.

    Args:
        pairs: none of them a test pair.
        yardstick: made of the test pairs.
        progress: told after each fit.
        seed: draws the parts.
    """
    order = np.random.default_rng(seed).permutation(len(pairs))
    points = []
    for done, size in enumerate(tried := sizes(len(pairs)), 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SmallSample)  # it is what the curve is to show
            adapter = fit(pairs.take(order[:size]), FAMILY, seed=seed)
        points.append(yardstick.measure(size, adapter))
        progress(done, len(tried))
    return points


def gain_of_doubling(points: Sequence[Point], metric: str) -> float | None:
    """What the metric gained at the last doubling of the pairs; None if the curve is too short to tell."""
    known = [p for p in points if metric in p.figures]
    if not known or known[0].pairs > known[-1].pairs / 2:
        return None
    values = [p.figures[metric].value for p in known]
    half = np.interp(np.log(known[-1].pairs / 2), np.log([p.pairs for p in known]), values)
    return values[-1] - float(half)
