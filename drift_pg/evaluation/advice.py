"""What to do with an adapter, and the figures that say so. The lower end of an interval decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from typing import Any

from drift_pg.errors import InvalidInput
from drift_pg.evaluation.figures import Figure
from drift_pg.evaluation.labelled import BRIDGE, FULL, RETAINED, STAY, Scores, rerank_name

SWITCH, RERANK, REEMBED, NO_GAIN = "bridge", "bridge and rerank", "re-embed before switching", "no gain: stay"

NO_WORSE = -0.02
"""How much Recall@10 and MRR@10 may lose against the old model's own search."""

RETAINED_ENOUGH = 0.9
"""The share of a full re-embedding that a bridge alone has to keep."""

RERANKED_ENOUGH = 0.85
"""The same of a bridge whose candidates the new model orders; re-embedding the rest closes the gap."""

INDEX_BUILD_SECONDS = 6e-8
"""Seconds per row, log₂(rows) and dimension of a `CREATE INDEX … USING hnsw` with pgvector's defaults.

Measured by `python -m benchmarks.index_build`: 15,000 × 384 in 4.6 s, PostgreSQL 18.6, pgvector 0.8.6, two cores.
"""


@dataclass(frozen=True)
class Advice:
    """One of SWITCH, RERANK, REEMBED and NO_GAIN, and why.

    Attributes:
        kind: what to do.
        reasons: sentences that hold the figures, the deciding one first.
    """

    kind: str
    reasons: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"kind": self.kind, "reasons": list(self.reasons)}

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True)
class Evidence:
    """What advice is given by.

    Attributes:
        score: what the quality gate judges.
        minimum: what its lower end must reach.
        models_overlap: how alike the two models answer.
        chance: the overlap of two rankings drawn at random.
        overlap: of the bridge with the new model's search: by logged queries where there are any.
        measured: per search and metric, per query; empty without labels.
        searches: the same as figures.
        seed: of the intervals.
    """

    score: Figure
    minimum: float
    models_overlap: Figure
    chance: float
    overlap: Figure
    measured: Mapping[str, Scores]
    searches: Mapping[str, Mapping[str, Figure]]
    seed: int


def advise(evidence: Evidence) -> Advice:
    """Decide by the score first, then by labels where there are any, otherwise by the overlap."""
    if evidence.score.low < evidence.minimum:
        return Advice(REEMBED, _below_minimum(evidence))
    return _by_labels(evidence) if evidence.measured else _by_overlap(evidence)


def _below_minimum(evidence: Evidence) -> tuple[str, ...]:
    reasons = [
        f"The score is {evidence.score}; its lower end is below the minimum of {evidence.minimum:g}: "
        "the adapted queries do not find what they should."
    ]
    # Two models of the same items agree far more than chance, whatever the adapter is worth.
    if evidence.models_overlap.low <= 2 * evidence.chance:
        reasons.append(
            f"The two models agree on {evidence.models_overlap} of each item's nearest ten, as unrelated vectors would "
            f"({evidence.chance:.3f}): the two sides do not seem to be the same items. Check how the pairs were joined."
        )
    return tuple(reasons)


def _by_overlap(evidence: Evidence) -> Advice:
    if evidence.overlap.low >= RETAINED_ENOUGH:
        return Advice(SWITCH, (f"The bridge finds {evidence.overlap} of the new model's first ten.",))
    return Advice(
        RERANK,
        (
            f"The bridge finds {evidence.overlap} of the new model's first ten, short of {RETAINED_ENOUGH:g}: "
            "order its candidates by the new model's own vectors.",
            "Without labelled queries it is not known whether that is better or worse than staying; "
            f"the two models agree on {evidence.models_overlap}.",
        ),
    )


def _by_labels(evidence: Evidence) -> Advice:
    known = _against_stay(evidence)
    if known is not None:
        return known
    kept = _retention(evidence.searches[BRIDGE])
    if kept and _low(kept) >= RETAINED_ENOUGH:
        return Advice(SWITCH, (f"The bridge keeps {_told(kept)} of a full re-embedding.",))
    for name, n in _reranks(evidence.searches):
        reranked = _retention(evidence.searches[name])
        if reranked and _low(reranked) >= RERANKED_ENOUGH:
            return Advice(
                RERANK,
                (
                    f"With its first {n} ordered by the new model's vectors the bridge keeps {_told(reranked)} of a full re-embedding.",
                    f"Alone it keeps {_told(kept)}, short of {RETAINED_ENOUGH:g} at the lower end.",
                    *_lost(evidence),
                ),
            )
    return Advice(
        REEMBED,
        (
            f"The bridge keeps {_told(kept)} of a full re-embedding, and no rerank surely {RERANKED_ENOUGH:g}.",
            *_lost(evidence),
        ),
    )


def _against_stay(evidence: Evidence) -> Advice | None:
    """No gain, or a bridge that loses nothing; None if neither, or if the old model's search is not known."""
    if STAY not in evidence.measured:
        return None
    gain = _difference(evidence, FULL)
    if all(figure.low <= 0 for figure in gain.values()):
        some = "nothing" if any(figure.high > 0 for figure in gain.values()) else "a loss"
        return Advice(
            NO_GAIN,
            (
                f"Even a full re-embedding shows {some} that {_queries(gain)} labelled queries could tell from staying: {_told(gain)}.",
                "Stay as long as the old model can embed your queries.",
            ),
        )
    lost = _difference(evidence, BRIDGE)
    if _low(lost) >= NO_WORSE:
        return Advice(
            SWITCH,
            (
                f"Against the old model's own search the bridge changes {_told(lost)}: not worse than {NO_WORSE:g} at the lower end.",
                f"A full re-embedding would change {_told(gain)}.",
            ),
        )
    return None


def _lost(evidence: Evidence) -> tuple[str, ...]:
    if STAY not in evidence.measured:
        return ("What the old model's own search finds is not known: give the same queries by it (legacy_queries).",)
    return (f"Against the old model's own search the bridge changes {_told(_difference(evidence, BRIDGE))}.",)


def _difference(evidence: Evidence, search: str) -> dict[str, Figure]:
    ours, stay = evidence.measured[search], evidence.measured[STAY]
    return {metric: Figure.mean(ours[metric] - stay[metric], evidence.seed) for metric in RETAINED}


def _retention(figures: Mapping[str, Figure]) -> dict[str, Figure]:
    return {m: figures[f"retention_{m}"] for m in RETAINED if f"retention_{m}" in figures}


def _reranks(searches: Mapping[str, Any]) -> list[tuple[str, int]]:
    names = {name: int(name.rsplit(" ", 1)[1]) for name in searches if name.startswith(rerank_name(0)[:-1])}
    return sorted(names.items(), key=lambda pair: pair[1])


def _low(figures: Mapping[str, Figure]) -> float:
    return min(figure.low for figure in figures.values())


def _queries(figures: Mapping[str, Figure]) -> int:
    return next(iter(figures.values())).queries


def _told(figures: Mapping[str, Figure]) -> str:
    names = {"recall@10": "Recall@10", "mrr@10": "MRR@10"}
    return ", ".join(f"{names[metric]} {figure}" for metric, figure in figures.items()) or "an unknown share"


@dataclass(frozen=True)
class ReembeddingCost:
    """What a full re-embedding takes.

    Attributes:
        embedding_hours: of the new model.
        index_hours: an estimate, of the new index.
    """

    embedding_hours: float
    index_hours: float

    @property
    def hours(self) -> float:
        """Both, one after the other."""
        return self.embedding_hours + self.index_hours


def reembedding_cost(rows: int, rows_per_second: float, dimensions: int) -> ReembeddingCost:
    """Hours of embedding, rows / rows_per_second, and of building an HNSW index.

    The index: rows · log₂(rows) · dimensions · INDEX_BUILD_SECONDS, as each insertion is a search of a graph
    whose depth grows with the logarithm. It holds while the graph fits maintenance_work_mem; a build that
    does not takes many times as long.

    Args:
        rows: of the table, ≥ 1.
        rows_per_second: that the new model embeds, > 0, as measured on a sample.
        dimensions: of the new model.

    Raises:
        InvalidInput: a value outside these limits.
    """
    if rows < 1 or not rows_per_second > 0 or dimensions < 1:
        raise InvalidInput(
            f"rows is {rows}, rows_per_second {rows_per_second}, dimensions {dimensions}: all must be positive"
        )
    build = rows * log2(max(rows, 2)) * dimensions * INDEX_BUILD_SECONDS
    return ReembeddingCost(rows / rows_per_second / 3600, build / 3600)
