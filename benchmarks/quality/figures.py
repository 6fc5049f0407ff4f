"""The plots, as SVG; left out where there is nothing to draw or no matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.quality.labelfree import GOOD, points
from benchmarks.quality.methods import PAPER, STAY, UNADAPTED
from benchmarks.quality.results import METHOD_NAMES, Results

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
"""Told apart by most eyes (Okabe & Ito)."""

LINES = ("procrustes", "low_rank", "mlp", "spectral", "spectral · ranking", "mixture", "auto", "auto + query log")
COSTED = tuple(name for name in METHOD_NAMES if name not in ("procrustes uncentred", "auto", "auto + query log"))


def draw(results: Results, directory: Path) -> dict[str, str]:
    """File names by what is drawn."""
    try:
        import matplotlib as mpl
    except ImportError:
        return {}
    mpl.use("svg")
    style: dict[Any, Any] = {
        "svg.hashsalt": "drift-pg",
        "svg.fonttype": "none",
        "font.size": 9,
        "axes.grid": True,
        "grid.alpha": 0.3,
    }
    drawn = {}
    with mpl.rc_context({**style, "axes.spines.top": False, "axes.spines.right": False}):
        for name, plot in PLOTS.items():
            figure = plot(results)
            if figure is not None:
                drawn[name] = f"quality-{name}.svg"
                # Without its date the file changes only when the figures do.
                figure.savefig(directory / drawn[name], metadata={"Date": None}, bbox_inches="tight")
    return drawn


def _panels(count: int) -> tuple[Any, Sequence[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * count + 1.2, 3.4))
    axes = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    axes[0].set_ylabel("Recall@10 retention")
    return figure, axes


def _size(results: Results) -> Any:
    titles = [title for title in results.real if len(results.sizes([title])) > 1]
    if not titles:
        return None
    figure, axes = _panels(len(titles))
    for ax, title in zip(axes, titles, strict=True):
        for name, colour in zip(LINES, COLOURS, strict=True):
            cells = [(pairs, results.cell(title, name, pairs)) for pairs in results.sizes([title])]
            known = [(pairs, cell.recall) for pairs, cell in cells if cell]
            if known:
                x, estimates = zip(*known, strict=True)
                ax.plot(x, [each.value for each in estimates], "o-", color=colour, label=name, markersize=3)
                ax.fill_between(x, [e.low for e in estimates], [e.high for e in estimates], color=colour, alpha=0.1)
        stay = results.cell(title, STAY, 0)
        if stay:
            ax.axhline(stay.recall.value, color="#555555", linestyle=":", label=STAY)
        ax.set(title=title, xlabel="pairs", xscale="log")
        ax.set_xticks(results.sizes([title]), [f"{pairs:,}" for pairs in results.sizes([title])])
        ax.minorticks_off()
    _legend(figure, axes)
    return figure


def _drift(results: Results) -> Any:
    if not results.made:
        return None
    figure, (ax,) = _panels(1)
    names = [UNADAPTED, STAY, *(name for name in (*PAPER, "auto") if name not in ("procrustes uncentred", "ridge"))]
    for name, colour in zip(names, COLOURS, strict=False):
        known = [
            (results.noise[title], cell.recall.value)
            for title, method, _, cell in results.cells(results.made)
            if method == name
        ]
        if known:
            ax.plot(*zip(*sorted(known), strict=True), "o-", color=colour, label=name, markersize=3)
    ax.set(xlabel="noise, relative to each dimension's spread")
    _legend(figure, [ax])
    return figure


def _label_free(results: Results) -> Any:
    found = points(results)
    if not found:
        return None
    figure, (ax,) = _panels(1)
    made = [point for point in found if point.title in results.made]
    for title, colour in zip(results.real, COLOURS, strict=False):
        mine = [point for point in found if point.title == title]
        ax.scatter(*_coordinates(mine), s=12, color=colour, label=title, alpha=0.7)
    if made:
        ax.scatter(*_coordinates(made), s=12, color="#999999", marker="^", label="made drift", alpha=0.7)
    ax.axhline(GOOD, color="#555555", linestyle=":")
    ax.set(xlabel="score on held-out documents, without labels")
    _legend(figure, [ax])
    return figure


def _coordinates(mine: Sequence[Any]) -> tuple[list[float], list[float]]:
    return [point.held["score"] for point in mine], [point.retention for point in mine]


def _cost(results: Results) -> Any:
    titles = [title for title in results.real if results.sizes([title])]
    if not titles:
        return None
    figure, axes = _panels(len(titles))
    for ax, title in zip(axes, titles, strict=True):
        pairs = results.sizes([title])[-1]
        for number, name in enumerate(COSTED):
            cell = results.cell(title, name, pairs)
            size = cell.number("parameters") if cell else None
            if cell and size:
                mark = "o" if number < len(COLOURS) else "s"
                colour = COLOURS[number % len(COLOURS)]
                half = cell.recall.half
                ax.errorbar(size, cell.recall.value, yerr=half, fmt=mark, color=colour, label=name, markersize=5)
        ax.set(title=f"{title}\n{pairs:,} pairs", xlabel="parameters, in thousands", xscale="log")
        ax.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f}")
        ax.xaxis.set_minor_formatter(lambda value, _: f"{value / 1000:,.0f}")
        ax.tick_params(axis="x", which="both", labelrotation=45)
    _legend(figure, axes)
    return figure


def _legend(figure: Any, axes: Sequence[Any]) -> None:
    """One for all panels, on the right."""
    entries = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(entries.values(), entries.keys(), loc="center left", bbox_to_anchor=(0.92, 0.5), frameon=False)


PLOTS: dict[str, Callable[[Results], Any]] = {
    "size": _size,
    "drift": _drift,
    "label-free": _label_free,
    "cost": _cost,
}
