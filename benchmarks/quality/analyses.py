"""The analyses of Drift-Adapter's paper: severity of the drift, number of pairs, diagonal scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.quality.data import NOISE
from benchmarks.quality.markdown import NONE, interval, listed, share, table
from benchmarks.quality.methods import PAPER, STAY, UNADAPTED
from benchmarks.quality.records import unpacked
from benchmarks.quality.results import METHOD_NAMES, Cell, Results, recall
from benchmarks.quality.statistics import Estimate, ratio

PLAIN, SCALED = "procrustes", "procrustes + DSM"
NEARLY = 0.95
"""What the paper reports of adapters: the least of its range."""

HALF, WHOLE = 5000, 10000


def section(results: Results, drawn: Mapping[str, str]) -> str:
    """The three."""
    parts = [_severity(results, drawn), _sizes(results, drawn), _scaling(results)]
    found = [part for part in parts if part]
    return "\n\n".join(["## The paper's analyses", *found]) if found else ""


def _figure(drawn: Mapping[str, str], name: str, alt: str) -> str:
    return f"![{alt}]({drawn[name]})" if name in drawn else ""


def _severity(results: Results, drawn: Mapping[str, str]) -> str:
    if not results.made:
        return ""
    pairs = _common(results, results.made)
    names = [name for name in (*PAPER, "auto") if any(results.cell(title, name, pairs) for title in results.made)]
    titles = results.made + results.real
    rows = [
        [title, *_drift(results, title), *(_recall(results, title, name, pairs) for name in names)] for title in titles
    ]
    headings = [f"Recall@10 retention, {pairs:,} pairs", "stay", "stay, overlap", "unadapted", *names]
    text = (
        f"A random rotation of one model, with noise of {listed([f'{noise:g}' for noise in NOISE])} times each dimension's own "
        "spread added before it, drifts by a known amount; below are the upgrades between real models. How far two models "
        "are apart is seen in *stay, overlap*: what the legacy model finds of the new one's first ten."
    )
    parts = ["### Severity of the drift", text, table(headings, rows), _severe(results, names, pairs)]
    return "\n\n".join(part for part in (*parts, _figure(drawn, "drift", "Retention by noise")) if part)


def _drift(results: Results, title: str) -> list[str]:
    stay, unadapted = (results.cell(title, name, 0) for name in (STAY, UNADAPTED))
    known = [interval(stay.recall), share(stay.overlap.value)] if stay else [NONE, NONE]
    return [*known, interval(unadapted.recall) if unadapted else NONE]


def _recall(results: Results, title: str, name: str, pairs: int) -> str:
    cell = results.cell(title, name, pairs)
    return interval(cell.recall) if cell else NONE


def _severe(results: Results, names: Sequence[str], pairs: int) -> str:
    """Up to which noise a method keeps the paper's share."""
    kept: dict[float | None, list[str]] = {}
    for name in names:
        cells = [(title, results.cell(title, name, pairs)) for title in results.made]
        good = [results.noise[title] or 0.0 for title, cell in cells if cell and cell.recall.value >= NEARLY]
        kept.setdefault(max(good, default=None), []).append(name)
    lines = []
    for noise, methods in kept.items():
        which = listed(methods)
        lines.append(f"up to noise {noise:g}: {which}" if noise is not None else f"at no noise, not even 0: {which}")
    return f"What keeps {share(NEARLY)} or more of the recall, " + "; ".join(lines) + "."


def _common(results: Results, titles: Sequence[str]) -> int:
    """The number of pairs that most runs of these upgrades have."""
    counts = [pairs for _, _, pairs, _ in results.cells(titles) if pairs]
    return max(set(counts), key=counts.count) if counts else 0


def _sizes(results: Results, drawn: Mapping[str, str]) -> str:
    parts = []
    for title in results.real:
        sizes = results.sizes([title])
        rows = [[name, *(_recall(results, title, name, pairs) for pairs in sizes)] for name in METHOD_NAMES]
        measured = [row for row in rows if any(cell != NONE for cell in row[1:])]
        if len(sizes) > 1 and measured:
            parts.append(table([f"{title}, by pairs", *(f"{pairs:,}" for pairs in sizes)], measured))
    if not parts:
        return ""
    figure = _figure(drawn, "size", "Retention by number of pairs")
    return "\n\n".join(part for part in ("### Number of pairs", _enough(results), figure, *parts) if part)


def _enough(results: Results) -> str:
    """What half the pairs give of the whole."""
    lines = []
    for name in ("procrustes", "spectral", "mixture", "auto"):
        shares = []
        for title in results.real:
            half, whole = results.cell(title, name, HALF), results.cell(title, name, WHOLE)
            if half and whole:
                shares.append(half.recall.value / whole.recall.value)
        if shares:
            lines.append(f"{name} {share(min(shares))} to {share(max(shares))}")
    if not lines:
        return ""
    return f"Of the retention at {WHOLE:,} pairs, {HALF:,} give, over the upgrades: {'; '.join(lines)}."


def _scaling(results: Results) -> str:
    """On and off, on the same pairs."""
    rows, changes = [], []
    for title in (*results.real, *results.made):
        for pairs in results.sizes([title]):
            off, on = results.cell(title, PLAIN, pairs), results.cell(title, SCALED, pairs)
            if off and on and off.seeds == on.seeds:
                changes.append(change(on, off))
                rows.append([title, f"{pairs:,}", interval(off.recall), interval(on.recall), signed(changes[-1])])
    if not rows:
        return ""
    better, worse = sum(each.low > 0 for each in changes), sum(each.high < 0 for each in changes)
    text = (
        f"Procrustes with and without the diagonal scaling matrix, on the same pairs. It changes retention by "
        f"{_plus(float(np.mean([each.value for each in changes])))} on average; beyond chance it helps in {better} of {len(rows)} cases "
        f"and hurts in {worse}."
    )
    headings = ["Recall@10 retention", "pairs", "without", "with", "change"]
    return "\n\n".join(("### Diagonal scaling", text, table(headings, rows)))


def change(on: Cell, off: Cell) -> Estimate:
    """The difference of two retentions over the same queries."""
    first, second = (
        np.mean([recall(unpacked(record["ranks"]["bridge"])) for record in cell.records], axis=0) for cell in (on, off)
    )
    return ratio(first - second, recall(on.full))


def signed(estimate: Estimate) -> str:
    """+.012 ± .008."""
    return f"{_plus(estimate.value)} ± {share(estimate.half, 3)}"


def _plus(value: float) -> str:
    text = share(value, 3)
    return text if text.startswith("−") else f"+{text}"
