"""Puts the report together: one HTML file that needs no network and no script."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from drift_pg.adapter import Adapter
from drift_pg.errors import InvalidInput, MissingExtra
from drift_pg.evaluation import Evaluation, Figure, ReembeddingCost, reembedding_cost
from drift_pg.evaluation.agreement import log_agreement
from drift_pg.evaluation.items import Items, query_vectors
from drift_pg.evaluation.labelled import BRIDGE, STAY
from drift_pg.evaluation.metrics import Float64
from drift_pg.neighbours import directions
from drift_pg.pairs import Pairs
from drift_pg.report import charts, words
from drift_pg.report.curve import METRICS, Point, gain_of_doubling
from drift_pg.report.picture import Picture

try:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
except ImportError as error:
    raise MissingExtra("the report needs jinja2", hint="pip install 'drift-pg[report]'") from error

WORST = 10
LONGEST = 240
"""Characters of a query's text that are shown."""


@dataclass(frozen=True, eq=False)
class Queries:
    """Queries by the new model.

    Attributes:
        vectors: (q, m).
        texts: q texts, None if they are not known.
    """

    vectors: ArrayLike
    texts: Sequence[str] | None = None


@dataclass(frozen=True)
class Plan:
    """What a re-embedding is calculated from: the table's rows, and how many the new model embeds in a second."""

    rows: int
    rate: float


@dataclass(frozen=True, eq=False)
class Subject:
    """What the report is about.

    Attributes:
        name: what people call the adapter, e.g. "Adapter 3: old → new".
        adapter: itself.
        evaluation: of it, on the test pairs, corpus and queries that follow.
        test: pairs that fitting never saw.
        corpus: more items searched among.
        queries: logged or labelled ones; without them single test pairs are shown.
        curve: adapters of ever more pairs; empty if no fit pairs were at hand.
        plan: None leaves the cost out.
        day: of the measurement.
    """

    name: str
    adapter: Adapter
    evaluation: Evaluation
    test: Pairs
    corpus: Pairs | None = None
    queries: Queries | None = None
    curve: Sequence[Point] = ()
    plan: Plan | None = None
    day: date | None = None


def render(subject: Subject) -> str:
    """The whole page; the same subject gives the same text."""
    here = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(here), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"percent": charts.percent, "interval": _interval, "search_name": words.search_name}
    css = Markup((here / "page.css").read_text(encoding="utf-8"))  # noqa: S704 (the package's own file)
    return environment.get_template("page.html.j2").render(css=css, words=words, **_context(subject))


def _context(subject: Subject) -> dict[str, Any]:
    evaluation = subject.evaluation
    return {
        "subject": subject,
        "evaluation": evaluation,
        "verdict": words.verdict(evaluation),
        "reasons": _reasons(evaluation),
        "figures": _figures(evaluation),
        "searches": _table(evaluation.searches),
        "through_index": _table(evaluation.through_index),
        "curve": _curve(subject),
        "single": _single(subject),
        "picture": _picture(subject),
        "cost": _cost(subject),
        "adapter": _adapter(subject.adapter),
    }


def _reasons(evaluation: Evaluation) -> list[str]:
    verb = "reaches" if evaluation.passes else "does not reach"
    gate = (
        f"On {evaluation.pairs:,} items kept apart for testing the quality score is {evaluation.score}, "
        f"which {verb} the minimum of {evaluation.minimum:g}."
    )
    said = any("score" in reason for reason in evaluation.advice.reasons)
    reasons = [*evaluation.advice.reasons, *([] if said else [gate])]
    return [re.sub(r"(?<![\w.–])-(?=[\d.])", "−", reason) for reason in reasons]


def _figures(evaluation: Evaluation) -> Markup:
    if evaluation.searches:
        rows = [_search_dot(name, evaluation.searches.get(name)) for name in _with_stay(evaluation.searches)]
        return _chart(
            charts.dots, "figures", _told("Share of queries whose right answer is among the first ten", rows), rows
        )
    rows = [
        charts.Dot(words.AGREEMENT[name], f.value, f.low, f.high, strong=name == "overlap@10")
        for name, f in evaluation.agreement.items()
    ]
    return _chart(charts.dots, "figures", _told("Agreement of the adapted search with the new model’s", rows), rows)


def _with_stay(searches: Iterable[str]) -> list[str]:
    """The searches in order; staying comes first although nobody may know what it is worth."""
    return [STAY, *(name for name in searches if name != STAY)]


def _search_dot(name: str, figures: Mapping[str, Figure] | None) -> charts.Dot:
    label = words.search_name(name)
    if figures is None:
        return charts.Dot(label, None)
    f = figures["recall@10"]
    return charts.Dot(label, f.value, f.low, f.high, strong=name == BRIDGE)


def _told(what: str, rows: Sequence[charts.Dot]) -> str:
    """A chart in words, for those who hear it."""
    return f"{what}. " + "; ".join(
        f"{r.label}: {'unknown' if r.value is None else charts.percent(r.value)}" for r in rows
    )


def _table(searches: Mapping[str, Mapping[str, Figure]]) -> dict[str, Any] | None:
    """Columns that any search has a figure for, and rows."""
    if not searches:
        return None
    columns = {key: title for key, title in words.METRICS.items() if any(key in f for f in searches.values())}
    return {"columns": columns, "rows": {name: searches.get(name) for name in _with_stay(searches)}}


def _curve(subject: Subject) -> dict[str, Any] | None:
    points = subject.curve
    if not points:
        return None
    own = subject.adapter.details.get("pairs")
    mark = Point.of(own, subject.evaluation) if isinstance(own, int) and own > 0 else None
    metrics = [m for m in METRICS if all(m in p.figures for p in points)]
    lines = [
        charts.Line(METRICS[m], [p.pairs for p in points], *zip(*(_ends(p.figures[m]) for p in points), strict=True))
        for m in metrics
    ]
    marks = [(mark.pairs, mark.figures[m].value) for m in metrics if m in mark.figures] if mark else []
    first, last = points[0], points[-1]
    title = "; ".join(
        f"{METRICS[m]}: {charts.percent(first.figures[m].value)} with {first.pairs:,} pairs, "
        f"{charts.percent(last.figures[m].value)} with {last.pairs:,}"
        for m in metrics
    )
    return {
        "chart": _chart(charts.curves, "curve", title, lines, marks),
        "legend": [METRICS[m] for m in metrics],
        "metrics": metrics,
        "points": points,
        "mark": mark,
        "gain": gain_of_doubling(points, metrics[0]),
    }


def _ends(figure: Figure) -> tuple[float, float, float]:
    return figure.value, figure.low, figure.high


@dataclass(frozen=True, eq=False)
class _Asked:
    """What was searched for, one by one: its name, and the share of the new model's ten that was found."""

    what: str
    names: Sequence[str]
    overlap: Float64


def _single(subject: Subject) -> dict[str, Any]:
    asked = _asked(subject)
    worst = np.argsort(asked.overlap, kind="stable")[:WORST]
    mean = asked.overlap.mean()
    title = f"How many of the new model’s first ten each search finds: {mean * 10:.1f} on average"
    return {
        "chart": _chart(charts.histogram, "overlap", title, asked.overlap),
        "what": asked.what,
        "count": len(asked.overlap),
        "mean": float(mean),
        "most": int((asked.overlap >= 0.5).sum()),
        "none": int((asked.overlap == 0).sum()),
        "worst": [(_short(asked.names[i]), round(float(asked.overlap[i]) * 10)) for i in worst],
    }


def _asked(subject: Subject) -> _Asked:
    queries, adapter = subject.queries, subject.adapter
    if queries is None:
        overlap = subject.evaluation.per_item
        keys = np.arange(len(overlap)) if subject.test.keys is None else subject.test.keys
        return _Asked("item", [str(key) for key in keys], overlap)
    vectors = query_vectors("query", queries.vectors, adapter.source_dimensions)
    names = queries.texts or [f"query {i}" for i in range(1, len(vectors) + 1)]
    if len(names) != len(vectors):
        raise InvalidInput(f"{len(names)} texts for {len(vectors)} queries")
    items = Items.of(adapter, subject.test, subject.corpus)
    found = log_agreement(directions(vectors), directions(adapter.apply(vectors)), items)
    return _Asked("query", names, found["overlap@10"])


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST].rstrip() + " …"


def _picture(subject: Subject) -> dict[str, Any]:
    picture = Picture.of(subject.adapter, subject.test)
    panels = [("Old model", "What the index holds.", picture.legacy)]
    if picture.unadapted is not None:
        panels.append(
            ("New model, unadapted", f"{_kept(picture, picture.unadapted)} in their quarter.", picture.unadapted)
        )
    panels.append(("New model, adapted", f"{_kept(picture, picture.adapted)} in their quarter.", picture.adapted))
    return {
        "panels": [
            (name, caption, _chart(charts.scatter, f"space-{i}", f"{name}: {caption}", points, picture.quarters, picture.limit))
            for i, (name, caption, points) in enumerate(panels, 1)
        ],
        "items": len(picture.legacy),
        "explained": picture.explained,
        "unadapted": picture.unadapted is not None,
    }  # fmt: skip


def _kept(picture: Picture, points: Any) -> str:
    return f"{charts.percent(picture.kept(points))} of the items lie"


@dataclass(frozen=True)
class _Cost:
    embedding: str
    index: str
    total: str
    storage: str


def _cost(subject: Subject) -> _Cost | None:
    if subject.plan is None:
        return None
    dimensions = subject.adapter.source_dimensions
    cost: ReembeddingCost = reembedding_cost(subject.plan.rows, subject.plan.rate, dimensions)
    return _Cost(
        words.duration(cost.embedding_hours), words.duration(cost.index_hours), words.duration(cost.hours),
        words.size(subject.plan.rows * (4 * dimensions + 8)),
    )  # fmt: skip


def _adapter(adapter: Adapter) -> dict[str, str]:
    """What identifies it; of the details only numbers that are known to be harmless."""
    pairs, queries = (adapter.details.get(name) for name in ("pairs", "queries"))
    known = {
        "Family": adapter.family,
        "Dimensions": f"{adapter.source_dimensions:,} → {adapter.target_dimensions:,}",
        "Fitted on": f"{pairs:,} pairs" if isinstance(pairs, int) else "unknown",
        "Logged queries fitted on": f"{queries:,}" if isinstance(queries, int) and queries else "",
        "Weights": f"{adapter.parameters:,}",
        "Checksum (SHA-256)": adapter.checksum,
    }
    return {name: value for name, value in known.items() if value}


def _chart(draw: Any, name: str, title: str, *arguments: Any) -> Markup:
    return Markup(draw(name, title, *arguments))  # noqa: S704 (matplotlib escapes the texts it draws)


def _interval(figure: Figure) -> str:
    return f"{figure.low * 100:.0f}–{figure.high * 100:.0f}\N{NO-BREAK SPACE}%"
