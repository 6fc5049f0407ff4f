"""Searches whose right answers are known: each against a full re-embedding, and against not switching at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from drift_pg.adapter import Float32
from drift_pg.errors import InvalidInput, MissingExtra
from drift_pg.evaluation.figures import Figure
from drift_pg.evaluation.items import Items
from drift_pg.evaluation.metrics import Float64, overlap_at
from drift_pg.neighbours import Indices, nearest

Label: TypeAlias = "Mapping[Any, int] | Sequence[Any] | None"
"""What is relevant to a query: grades by key, or keys; None where that is not known."""

Grades: TypeAlias = dict[str, int]
Scores: TypeAlias = dict[str, Float64]
"""(q,) per metric."""

STAY, UNADAPTED, BRIDGE, FULL = "stay", "unadapted", "bridge", "full"
RETAINED = ("recall@10", "mrr@10")
"""The metrics that retention is told of."""

_MEASURES = {"recall@1": "recall_1", "recall@10": "recall_10", "mrr@10": "recip_rank", "ndcg@10": "ndcg_cut_10"}


def rerank_name(n: int) -> str:
    """What the search that orders the bridge's top n by the new model's vectors is called."""
    return f"{BRIDGE} + rerank {n}"


def checked_labels(labels: Sequence[Label], queries: int, known: Items | None) -> list[Grades | None]:
    """Labels as grades by key, each of a searched item.

    Args:
        labels: one per query.
        queries: how many there are.
        known: the searched items; None accepts any key.

    Raises:
        InvalidInput: not one per query, nothing relevant, a grade that is no integer ≥ 0, or keys of no item.
    """
    if len(labels) != queries:
        raise InvalidInput(f"{len(labels)} labels for {queries} queries", hint="give one per query, None where unknown")
    grades = [None if label is None else _grades(i, label) for i, label in enumerate(labels)]
    if known is not None:
        _refuse_unknown(grades, set(known.keys.tolist()))
    return grades


def _grades(query: int, label: Mapping[Any, int] | Sequence[Any]) -> Grades:
    if isinstance(label, (str, bytes)):
        raise InvalidInput(f"the label of query {query} is the text {label!r}, expected keys or grades by key")
    grades = {
        str(key): grade for key, grade in (label.items() if isinstance(label, Mapping) else ((k, 1) for k in label))
    }
    for key, grade in grades.items():
        if not isinstance(grade, (int, np.integer)) or grade < 0:
            raise InvalidInput(f"query {query} grades {key!r} {grade!r}, expected a whole number ≥ 0")
    if not any(grades.values()):
        raise InvalidInput(f"query {query} has a label without a relevant key", hint="use None if it is not known")
    return {key: int(grade) for key, grade in grades.items()}


def _refuse_unknown(grades: Sequence[Grades | None], known: set[str]) -> None:
    unknown = list(dict.fromkeys(key for label in grades if label for key in label if key not in known))
    if unknown:
        raise InvalidInput(
            f"{len(unknown)} labelled keys are not among the {len(known):,} searched items; the first is {unknown[0]!r}",
            hint="embed those items by both models too and search them: corpus=…, or --corpus FILE",
        )


def score_rankings(found: Sequence[Sequence[str]], labels: Sequence[Grades]) -> Scores:
    """Recall@1, Recall@10, MRR@10 and nDCG@10 (gain = grade) per query, by trec_eval.

    Args:
        found: q rankings of keys, best first; what comes after the tenth does not count.
        labels: q grades by key, each with a relevant one.

    Raises:
        MissingExtra: pytrec_eval is not installed.
    """
    try:
        import pytrec_eval
    except ImportError as error:
        raise MissingExtra("labels need pytrec_eval", hint="pip install 'drift-pg[evaluate]'") from error
    judge = pytrec_eval.RelevanceEvaluator(
        {str(i): label for i, label in enumerate(labels)}, {"recall.1,10", "recip_rank", "ndcg_cut.10"}
    )
    # trec_eval orders by score: the rank itself, so that it keeps the order in which they were found.
    runs = {str(i): {key: float(-rank) for rank, key in enumerate(keys[:10])} for i, keys in enumerate(found)}
    results = judge.evaluate(runs)
    # A query whose search found nothing has no result.
    return {
        ours: np.array([results.get(str(i), {}).get(theirs, 0.0) for i in range(len(labels))])
        for ours, theirs in _MEASURES.items()
    }


def search(
    items: Items, queries: Float32, adapted: Float32, legacy: Float32 | None, rerank: Sequence[int]
) -> dict[str, Indices]:
    """(q, 10) positions that each search finds, best first.

    Args:
        items: what is searched.
        queries: (q, m) in unit length.
        adapted: (q, k) in unit length.
        legacy: (q, k) the same queries by the legacy model, in unit length, if there are any.
        rerank: how many candidates; those that would be all items are left out, since they are the full search.
    """
    k = min(10, len(items))
    depths = [n for n in sorted(set(rerank)) if k <= n < len(items)]
    candidates = nearest(adapted, items.legacy, max([k, *depths]))
    found = {} if legacy is None else {STAY: nearest(legacy, items.legacy, k)}
    if queries.shape[1] == items.legacy.shape[1]:
        found[UNADAPTED] = nearest(queries, items.legacy, k)
    found[BRIDGE] = candidates[:, :k]
    for n in depths:
        found[rerank_name(n)] = reranked(queries, items.new, candidates[:, :n])[:, :k]
    return {**found, FULL: nearest(queries, items.new, k)}


def reranked(queries: Float32, items: Float32, candidates: Indices) -> Indices:
    """(q, n) candidates ordered anew by the new model's vectors, best first."""
    ordered = [
        row[np.argsort(-(items[row] @ query), kind="stable")] for query, row in zip(queries, candidates, strict=True)
    ]
    return np.asarray(ordered)


def measure(items: Items, found: Mapping[str, Indices], labels: Sequence[Grades]) -> dict[str, Scores]:
    """Per search and metric, (q,) values; `overlap@10` with the full search beside what labels say."""
    measured = {}
    for name, positions in found.items():
        measured[name] = score_rankings(items.keys[positions].tolist(), labels)
        if name != FULL:
            measured[name]["overlap@10"] = overlap_at(positions, found[FULL], 10)
    return measured


def summarise(measured: Mapping[str, Scores], seed: int) -> dict[str, dict[str, Figure]]:
    """Per search and metric the mean, and as `retention_…` its ratio to the full search."""
    summary = {}
    for name, scores in measured.items():
        summary[name] = {metric: Figure.mean(values, seed) for metric, values in scores.items()}
        if name != FULL and FULL in measured:
            ratios = {f"retention_{m}": Figure.ratio(scores[m], measured[FULL][m], seed) for m in RETAINED}
            summary[name].update({metric: figure for metric, figure in ratios.items() if figure is not None})
    return summary
