"""What held-out pairs tell without labels, against what labels tell; and how a gate on it decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from benchmarks.quality.markdown import count, listed, share, table
from benchmarks.quality.records import Record, unpacked
from benchmarks.quality.results import K, Results, recall
from benchmarks.quality.statistics import Confusion, confusion, mean, spearman
from drift_pg.gate import DEFAULT_MINIMUM

MINIMUMS = (0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
GOOD = 0.5
"""Recall@10 retention from which an adapter is worth activating."""

MEASURES = {
    "self": "self-retrieval@1",
    "first": "first kept@10",
    "overlap": "overlap@10",
    "score": "score: mean of the first two",
}


@dataclass(frozen=True)
class Point:
    """One run.

    Attributes:
        title: the upgrade.
        held: each measure without labels.
        low: the lower end of the score's interval over held-out items.
        retention: of Recall@10, by labels.
    """

    title: str
    held: Mapping[str, float]
    low: float
    retention: float


@cache
def points(results: Results) -> list[Point]:
    """Every run that has both, a seed each."""
    found = [record for record in results.records if "held" in record]
    return [_point(record, results) for record in found]


def _point(record: Record, results: Results) -> Point:
    title = f"{record['key']['data']}: {record['key']['upgrade']}"
    items = {name: unpacked(text) / (K if name == "overlap" else 1) for name, text in record["held"].items()}
    score = mean((items["self"] + items["first"]) / 2)
    kept = recall(unpacked(record["ranks"]["bridge"])).mean() / recall(results.full[title]).mean()
    held = {name: float(values.mean()) for name, values in items.items()} | {"score": score.value}
    return Point(title, held, score.low, float(kept))


def section(results: Results, drawn: Mapping[str, str]) -> str:
    """The plot, the correlations, the gate."""
    found = points(results)
    real = [point for point in found if point.title in results.real]
    if not real:
        return ""
    figure = f"![Retention by the score without labels]({drawn['label-free']})" if "label-free" in drawn else ""
    text = (
        f"Over all {count(len(found))} runs, peers' and unadapted queries' included ({count(len(real))} of them between real models): measures on "
        "documents outside the pairs, searched among themselves, that need no labels, against Recall@10 retention, which needs them."
    )
    parts = [
        "## Quality without labels",
        text,
        figure,
        _correlations(results, found, real),
        _gate(results, found, real),
    ]
    return "\n\n".join(part for part in parts if part)


def _correlations(results: Results, found: Sequence[Point], real: Sequence[Point]) -> str:
    groups = {"real upgrades": real} | {title: [p for p in real if p.title == title] for title in results.real}
    if len(found) > len(real):
        groups["with made drift"] = list(found)
    rows = []
    for name, heading in MEASURES.items():
        rows.append([heading, *(share(_correlation(group, name)) for group in groups.values())])
    headings = [
        "Spearman's rank correlation with retention",
        *(f"{name} ({len(group)})" for name, group in groups.items()),
    ]
    best = max(MEASURES, key=lambda name: np.nan_to_num(_correlation(real, name), nan=-1))
    return f"{table(headings, rows)}\n\nOver the real upgrades {MEASURES[best]} goes best with retention."


def _correlation(group: Sequence[Point], name: str) -> float:
    return spearman([point.held[name] for point in group], [point.retention for point in group])


def _gate(results: Results, found: Sequence[Point], real: Sequence[Point]) -> str:
    decisions = [_decide(real, minimum) for minimum in MINIMUMS]
    text = (
        "### The gate\n\nA gate lets an adapter through if the lower end of its score's 95 % bootstrap interval over held-out items reaches a minimum. "
        f"An adapter is *good* if it keeps {share(GOOD)} of the recall by labels; of the {len(real)} runs between real models "
        f"{sum(point.retention >= GOOD for point in real)} are."
    )
    headings = ["minimum", "let through, good", "let through, bad", "kept out, good", "kept out, bad", "right"]
    parts = [text, table(headings, [_row(decision) for decision in decisions]), _reading(decisions, real)]
    default = [[title, *_row(_decide([p for p in found if p.title == title], DEFAULT_MINIMUM))[1:]] for title in
               (*results.real, *results.made) if any(p.title == title for p in found)]  # fmt: skip
    parts.append(f"By upgrade, at the default of {share(DEFAULT_MINIMUM)}:\n\n" + table(["", *headings[1:]], default))
    return "\n\n".join(parts)


def _decide(group: Sequence[Point], minimum: float) -> Confusion:
    return confusion([point.low for point in group], [point.retention >= GOOD for point in group], minimum)


def _row(decision: Confusion) -> list[str]:
    mark = " (default)" if np.isclose(decision.minimum, DEFAULT_MINIMUM) else ""
    counts = (decision.let_good, decision.let_bad, decision.kept_good, decision.kept_bad)
    return [share(decision.minimum) + mark, *(count(each) for each in counts), share(decision.accuracy)]


def _reading(decisions: Sequence[Confusion], real: Sequence[Point]) -> str:
    most = max(decision.accuracy for decision in decisions)
    best = [share(decision.minimum) for decision in decisions if decision.accuracy == most]
    at = _decide(real, DEFAULT_MINIMUM)
    bad = [point.retention for point in real if point.low >= DEFAULT_MINIMUM and point.retention < GOOD]
    text = (
        f"Most decisions are right ({share(most)}) at {listed(best)}. The default, {share(DEFAULT_MINIMUM)}, is right in {share(at.accuracy)}: "
        f"it keeps out {count(at.kept_good)} good adapters and lets {count(at.let_bad)} bad ones through"
    )
    return f"{text}, of which the worst keeps {share(min(bad))}." if bad else f"{text}."
