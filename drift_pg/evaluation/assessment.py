"""Evaluates an adapter on pairs that it has never seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from drift_pg.adapter import Adapter, Float32
from drift_pg.errors import InvalidInput
from drift_pg.evaluation.advice import Advice, Evidence, advise
from drift_pg.evaluation.agreement import agreement, log_agreement
from drift_pg.evaluation.calibration import Calibration, calibrations
from drift_pg.evaluation.figures import DIGITS, Figure, nested_dict
from drift_pg.evaluation.findings import findings
from drift_pg.evaluation.items import Items, query_vectors
from drift_pg.evaluation.labelled import Label, Scores, checked_labels, measure, search, summarise
from drift_pg.evaluation.metrics import Float64
from drift_pg.evaluation.touched import Touched
from drift_pg.gate import DEFAULT_MINIMUM
from drift_pg.neighbours import directions, nearest
from drift_pg.pairs import Pairs

RERANK = (50, 100, 200)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What an adapter is worth on held-out data, with 95 % intervals.

    Attributes:
        score: what the quality gate judges: per test pair the mean of self-retrieval@1 and first_kept@10.
        agreement: label-free figures over the test pairs.
        log: the same for logged queries: `first_kept@10`, `overlap@10`; empty without queries.
        searches: per search (stay, unadapted, bridge, bridge + rerank N, full) figures per metric; empty
            without labels. `stay` is absent where it is unknown: no legacy_queries.
        through_index: figures per search through a real index over a whole table; empty without a database.
        pairs: how many test pairs.
        documents: how many items were searched, the corpus included.
        minimum: that the advice and the gate were asked for.
        advice: what to do, and why.
        findings: what is odd about the test pairs, in sentences.
        per_item: (pairs,) overlap@10 of each test pair.
        calibration: per metric, what the bridge's score says of the new model's, for mixed search; a metric without
            a line is absent, and the findings say why.
        touched: the share of the searched items that the queries touch; None without queries.
        touched_through_index: the same of a whole table through a real index; None without a database.
    """

    score: Figure
    agreement: dict[str, Figure]
    log: dict[str, Figure]
    searches: dict[str, dict[str, Figure]]
    pairs: int
    documents: int
    minimum: float
    advice: Advice
    findings: list[str]
    per_item: Float64 = field(repr=False)
    through_index: dict[str, dict[str, Figure]] = field(default_factory=dict)
    calibration: dict[str, Calibration] = field(default_factory=dict)
    touched: Touched | None = None
    touched_through_index: Touched | None = None

    @property
    def passes(self) -> bool:
        """Whether the quality gate lets the adapter serve."""
        return self.score.low >= self.minimum

    def as_dict(self) -> dict[str, Any]:
        """For JSON and for the database, rounded; of `per_item` how many items have each tenth of overlap."""
        tenths = np.bincount(np.rint(10 * self.per_item).astype(int), minlength=11)
        return {
            "score": self.score.as_dict(),
            "minimum": round(self.minimum, DIGITS),
            "passes": self.passes,
            "advice": self.advice.as_dict(),
            "findings": self.findings,
            "pairs": self.pairs,
            "documents": self.documents,
            "agreement": nested_dict(self.agreement),
            "log": nested_dict(self.log),
            "searches": nested_dict(self.searches),
            "through_index": nested_dict(self.through_index),
            "overlap_histogram": tenths.tolist(),
            "calibration": {metric: line.as_dict() for metric, line in self.calibration.items()},
            "touched": self.touched and self.touched.as_dict(),
            "touched_through_index": self.touched_through_index and self.touched_through_index.as_dict(),
        }


def evaluate(
    adapter: Adapter,
    test_pairs: Pairs,
    *,
    queries: ArrayLike | None = None,
    labels: Sequence[Label] | None = None,
    legacy_queries: ArrayLike | None = None,
    corpus: Pairs | None = None,
    rerank: Sequence[int] = RERANK,
    minimum: float = DEFAULT_MINIMUM,
    seed: int = 0,
) -> Evaluation:
    """Measure what searches with adapted vectors find, by exact search, and say what to do.

    The test pairs must be ones that neither fitting nor choosing has seen: neither the pairs given to `fit`
    nor those by which a family or an option was chosen. On pairs it was fitted on any adapter looks good.

    Figures are of a search among the test pairs and the corpus. Among more items, every search finds less.

    Args:
        adapter: maps (m,) to (k,).
        test_pairs: at least two; with 1,000 the score is known to about ± .02.
        queries: (q, m) real queries by the new model.
        labels: q of: grades by key, or relevant keys, or None where unknown. Keys are those of the pairs as
            text; positions in test_pairs, then corpus, where they have none. Needs the extra `evaluate`.
        legacy_queries: (q, k) the same queries by the legacy model. Without them nobody knows what staying
            with the old model is worth.
        corpus: more items by both models, to search among; may be pairs the adapter was fitted on. Those
            whose keys are keys of test pairs are left out.
        rerank: how many of the bridge's first to order by the new model's vectors.
        minimum: what the lower end of the score must reach.
        seed: of the intervals.

    Raises:
        WrongDimensions: vectors do not fit the adapter or each other.
        InvalidInput: labels without queries, of unknown keys, or without a relevant one; limits out of range.
        InvalidVector: NaN, infinity or zero length.
        MissingExtra: labels are given and pytrec_eval is not installed.
    """
    _check(queries, labels, legacy_queries, rerank, minimum)
    items = Items.of(adapter, test_pairs, corpus)
    agreed = agreement(items)
    log: dict[str, Figure] = {}
    measured: dict[str, Scores] = {}
    touched = None
    if queries is not None:
        asked = _Queries.of(adapter, items, queries, labels, legacy_queries)
        log = {k: Figure.mean(v, seed) for k, v in log_agreement(asked.new, asked.adapted, items).items()}
        measured = asked.measure(items, rerank)
        touched = asked.touched(items, max(rerank, default=RERANK[-1]))
    figures, searches = agreed.figures(seed), summarise(measured, seed)
    score = Figure.mean(agreed.scores, seed)
    evidence = Evidence(
        score, minimum, figures["models_overlap@10"], items.depth / (len(items) - 1),
        (log or figures)["overlap@10"], measured, searches, seed,
    )  # fmt: skip
    labelled = len(next(iter(measured.values()))["recall@10"]) if measured else None
    lines, uncalibrated = calibrations(adapter, test_pairs, seed=seed)
    return Evaluation(
        score, figures, log, searches, len(test_pairs), len(items), minimum, advise(evidence),
        findings(test_pairs, items, labelled) + uncalibrated, agreed.overlap, calibration=lines, touched=touched,
    )  # fmt: skip


def _check(queries: object, labels: object, legacy: object, rerank: Sequence[int], minimum: float) -> None:
    if queries is None and (labels is not None or legacy is not None):
        raise InvalidInput("labels or legacy_queries were given without queries", hint="give queries, by the new model")
    if not 0 <= minimum <= 1:
        raise InvalidInput(f"the minimum is {minimum}, expected 0 to 1")
    if bad := [n for n in rerank if n < 1]:
        raise InvalidInput(f"rerank {bad[0]} is no number of candidates, expected at least 1")


@dataclass(frozen=True, eq=False)
class _Queries:
    """Queries in unit length (q, m), adapted (q, k), by the legacy model (q, k) or None, and their labels."""

    new: Float32
    adapted: Float32
    legacy: Float32 | None
    labels: list[dict[str, int] | None]

    @classmethod
    def of(
        cls,
        adapter: Adapter,
        items: Items,
        queries: ArrayLike,
        labels: Sequence[Label] | None,
        legacy: ArrayLike | None,
    ) -> _Queries:
        new = query_vectors("query", queries, adapter.source_dimensions)
        old = None if legacy is None else query_vectors("legacy query", legacy, adapter.target_dimensions, len(new))
        if labels is not None:
            items.check_keys()
        grades = [None] * len(new) if labels is None else checked_labels(labels, len(new), items)
        adapted = directions(adapter.apply(new))
        return cls(directions(new), adapted, None if old is None else directions(old), list(grades))

    def measure(self, items: Items, rerank: Sequence[int]) -> dict[str, Scores]:
        """Per search and metric the values of the labelled queries; empty if there are none."""
        rows = np.array([i for i, label in enumerate(self.labels) if label is not None], dtype=np.int64)
        if not len(rows):
            return {}
        legacy = None if self.legacy is None else self.legacy[rows]
        found = search(items, self.new[rows], self.adapted[rows], legacy, rerank)
        return measure(items, found, [label for label in self.labels if label is not None])

    def touched(self, items: Items, depth: int) -> Touched:
        """What the queries, with labels or without, touch of the items."""
        depth = min(depth, len(items))
        return Touched.of(nearest(self.adapted, items.legacy, depth).tolist(), depth, len(items))
