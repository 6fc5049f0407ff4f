"""Charts as inline SVG whose colours are the page's own, light or dark; the same input gives the same bytes."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from drift_pg.errors import MissingExtra

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
except ImportError as error:
    raise MissingExtra("the report's charts need matplotlib", hint="pip install 'drift-pg[report]'") from error

WIDTH = 360
"""Of every chart in CSS pixels: text is legible in a narrow window, and grows with the chart in a wide one."""

DPI = 72  # matplotlib's SVG unit is the point; at 72 dpi one point is one pixel
SIZE = 11

# matplotlib knows no CSS, so it draws in colours that occur nowhere else and each is replaced by a variable.
INK, MUTED, GRID = "#0a0b00", "#0a0b01", "#0a0b02"
SERIES = ("#0a0b03", "#0a0b04", "#0a0b05", "#0a0b06")
_CSS = {INK: "currentColor", MUTED: "var(--muted)", GRID: "var(--grid)"} | {
    colour: f"var(--series-{i})" for i, colour in enumerate(SERIES, 1)
}

_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "drift_pg",
    "font.size": SIZE,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 1,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 2,
}


@dataclass(frozen=True)
class Dot:
    """One row of a dot-and-interval chart.

    Attributes:
        label: what it is.
        value, low, high: shares between 0 and 1; None if it is unknown.
        strong: whether it is what the report is about.
    """

    label: str
    value: float | None
    low: float | None = None
    high: float | None = None
    strong: bool = False


@dataclass(frozen=True)
class Line:
    """One curve of figures with their intervals.

    Attributes:
        label: what it is.
        x, value, low, high: (n,) each.
    """

    label: str
    x: Sequence[int]
    value: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def percent(value: float) -> str:
    """A share for people: no digit that the interval would not bear out."""
    return f"{value:.0%}".replace("%", "\N{NO-BREAK SPACE}%")


def dots(name: str, title: str, rows: Sequence[Dot]) -> str:
    """Shares as dots on a line with their intervals, one under the other, in the order given."""
    with _style():
        canvas, axes = _canvas(46 * len(rows) + 30)
        canvas.subplots_adjust(left=0.01, right=0.99, top=1, bottom=26 / canvas.get_figheight() / DPI)
        axes.set(xlim=(-0.01, 1.01), ylim=(len(rows) - 0.35, -0.75), yticks=[])
        axes.spines[["left", "bottom"]].set_visible(False)
        _percent_axis(axes.xaxis, [0, 0.25, 0.5, 0.75, 1])
        axes.get_xticklabels()[0].set_horizontalalignment("left")
        axes.get_xticklabels()[-1].set_horizontalalignment("right")
        axes.grid(axis="x")
        for position, row in enumerate(rows):
            _dot(axes, position, row)
        return _svg(canvas, name, title)


def _dot(axes: Axes, y: int, row: Dot) -> None:
    weight = "bold" if row.strong else "normal"
    axes.text(0, y - 0.34, row.label, va="center", weight=weight)
    if row.value is None:
        axes.text(1, y - 0.34, "unknown", va="center", ha="right", color=MUTED)
        axes.plot([0, 1], [y, y], color=GRID, linewidth=2, linestyle=(0, (2, 3)))
        return
    colour = SERIES[0] if row.strong else MUTED
    axes.text(1, y - 0.34, percent(row.value), va="center", ha="right", weight=weight)
    axes.plot([0, 1], [y, y], color=GRID, linewidth=2)
    if row.low is not None and row.high is not None:
        axes.plot([row.low, row.high], [y, y], color=colour, linewidth=4, solid_capstyle="round")
    axes.plot([row.value], [y], color=colour, marker="o", markersize=9, clip_on=False)


def curves(name: str, title: str, lines: Sequence[Line], mark: Sequence[tuple[int, float]] = ()) -> str:
    """Figures against the number of pairs, with bands for their intervals; the adapter's own points marked."""
    with _style():
        canvas, axes = _canvas(260)
        canvas.subplots_adjust(left=0.125, right=0.97, top=0.94, bottom=0.17)
        axes.grid(axis="y")
        axes.spines[["left", "bottom"]].set_visible(False)
        for colour, line in zip(SERIES, lines, strict=False):
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.18, linewidth=0)
            axes.plot(line.x, line.value, color=colour, marker="o", markersize=5)
        for (x, y), colour in zip(mark, SERIES, strict=False):
            axes.plot([x], [y], color=colour, marker="D", markersize=10, markeredgecolor=INK, markeredgewidth=1.5)
        _pairs_axis(axes, [x for line in lines for x in line.x] + [x for x, _ in mark])
        heights = [v for line in lines for v in (*line.low, *line.high)] + [y for _, y in mark]
        bottom, top = np.floor(min(heights) * 10 - 0.3) / 10, np.ceil(max(heights) * 10 + 0.3) / 10
        _percent_axis(axes.yaxis, list(np.linspace(0, 1, 11 if top - bottom <= 0.5 else 6)))
        axes.set_ylim(max(0, bottom), min(1, top) if max(heights) < 0.99 else 1.02)
        axes.set_xlabel("pairs fitted")
        return _svg(canvas, name, title)


def _pairs_axis(axes: Axes, counts: Sequence[int]) -> None:
    """Logarithmic, with the numbers that were tried, as many as fit."""
    least, most = min(counts), max(counts)
    axes.set_xscale("log")
    axes.set_xlim(least / 1.15, most * 1.15)
    shown: list[int] = []
    for count in sorted(set(counts), reverse=True):
        if not shown or np.log(shown[-1] / count) > 0.14 * np.log(most / least) + 0.15:
            shown.append(count)
    axes.set_xticks(shown, [f"{count:,}" for count in shown])
    axes.set_xticks([], minor=True)


def histogram(name: str, title: str, values: ArrayLike, *, steps: int = 10) -> str:
    """How many queries keep 0, 1, … `steps` of the first `steps`, with the mean as a line."""
    array = np.asarray(values, dtype=np.float64)
    counts = np.bincount(np.clip(np.rint(array * steps), 0, steps).astype(int), minlength=steps + 1)
    shares = counts / max(1, counts.sum())
    with _style():
        canvas, axes = _canvas(220)
        canvas.subplots_adjust(left=0.02, right=0.98, top=0.86, bottom=0.19)
        axes.spines[["left"]].set_visible(False)
        axes.bar(range(steps + 1), shares, color=SERIES[0], width=0.82)
        for x, share in enumerate(shares):
            axes.text(x, share, f"{share * 100:.0f}", ha="center", va="bottom", size=SIZE - 1, color=MUTED)
        axes.axvline(array.mean() * steps, color=INK, linewidth=1.5, ymin=0.9, ymax=1.03, clip_on=False)
        right = array.mean() < 0.6
        axes.text(
            array.mean() * steps, 1.04, f"mean {array.mean() * steps:.1f}", ha="left" if right else "right",
            va="bottom", transform=axes.get_xaxis_transform(),
        )  # fmt: skip
        axes.set(xticks=range(steps + 1), yticks=[], ylim=(0, shares.max() * 1.25), xlim=(-0.6, steps + 0.6))
        axes.set_xlabel(f"of the first {steps} found")
        return _svg(canvas, name, title)


def scatter(name: str, title: str, points: NDArray[Any], groups: NDArray[Any], limit: float) -> str:
    """Points (n, 2) in the colours of their groups (n,), on a square that reaches ±limit."""
    with _style():
        canvas, axes = _canvas(WIDTH)
        canvas.subplots_adjust(left=0.01, right=0.99, top=0.99, bottom=0.01)
        axes.set(xlim=(-limit, limit), ylim=(-limit, limit), xticks=[], yticks=[], aspect="equal")
        axes.spines[:].set_visible(True)
        axes.axhline(0, color=GRID, linewidth=1)
        axes.axvline(0, color=GRID, linewidth=1)
        for group, colour in enumerate(SERIES):
            x, y = points[groups == group].T
            axes.plot(x, y, color=colour, marker="o", markersize=4, linestyle="", alpha=0.65, markeredgewidth=0)
        return _svg(canvas, name, title)


def _style() -> Any:
    return matplotlib.rc_context(_STYLE)


def _canvas(height: float) -> tuple[Canvas, Axes]:
    canvas = Canvas(figsize=(WIDTH / DPI, height / DPI), dpi=DPI)
    canvas.patch.set_visible(False)
    axes = canvas.add_subplot()
    axes.patch.set_visible(False)
    return canvas, axes


def _percent_axis(axis: Any, ticks: Sequence[float]) -> None:
    axis.set_ticks(ticks, [percent(tick) for tick in ticks])


_ID = re.compile(r'(\bid="|href="#|url\(#)')
_TAG = re.compile(r"<svg .*?>", re.DOTALL)


def _svg(canvas: Canvas, name: str, title: str) -> str:
    """The SVG element alone, named for screen readers, its ids not those of another chart on the page."""
    buffer = io.StringIO()
    canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<(defs>\s*<style.*?</style>\s*</defs|metadata>.*?</metadata)>", "", text, count=2, flags=re.DOTALL)
    text = re.sub(r"\b(font|font-family): [^;\"]*;?", _font, text)
    text = _ID.sub(lambda found: f"{found[1]}{name}-", text)
    for colour, css in _CSS.items():
        text = text.replace(colour, css)
    box = f"0 0 {WIDTH} {canvas.get_figheight() * DPI:g}"
    head = f'<svg viewBox="{box}" role="img" aria-label="{_escaped(title)}" xmlns="http://www.w3.org/2000/svg">'
    return _TAG.sub(lambda _: head, text, count=1).strip()


def _font(found: re.Match[str]) -> str:
    """The page's own font in matplotlib's size and weight."""
    size = re.search(r"[\d.]+px", found[0])
    bold = " font-weight: 600;" if re.search(r"\b(bold|700)\b", found[0]) else ""
    return (f"font-size: {size[0]};" if size else "") + bold


def _escaped(text: str) -> str:
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(character, entity)
    return text
