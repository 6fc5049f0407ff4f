"""Tables and figures in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from benchmarks.quality.statistics import Estimate

NONE = "–"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    marks = [":--", *["--:"] * (len(headings) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (headings, marks, *rows))


def share(value: float | None, digits: int = 2) -> str:
    """.62, or – where there is none."""
    if value is None or math.isnan(value):
        return NONE
    text = f"{abs(value):.{digits}f}"
    sign = "−" if value < 0 and float(text) else ""
    return sign + (text[1:] if text.startswith("0.") else text)


def interval(estimate: Estimate | None) -> str:
    """.62 ± .03, half the width of the interval."""
    return f"{share(estimate.value)} ± {share(estimate.half)}" if estimate else NONE


def bold(text: str, condition: bool) -> str:
    """In bold where a condition holds."""
    return f"**{text}**" if condition else text


def count(value: float | None) -> str:
    """147,840, or –."""
    return NONE if value is None else f"{value:,.0f}"


def seconds(value: float | None) -> str:
    """In the unit that reads best."""
    if value is None:
        return NONE
    for unit, length in (("years", 365.25 * 86400), ("days", 86400), ("hours", 3600), ("min", 60)):
        if value >= 2 * length:
            return f"{value / length:,.0f} {unit}" if value >= 20 * length else f"{value / length:.1f} {unit}"
    return f"{value:.1f} s" if value < 20 else f"{value:.0f} s"


def size(value: float) -> str:
    """Bytes, in decimal units."""
    for unit, length in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= length:
            return f"{value / length:.1f} {unit}" if value < 100 * length else f"{value / length:,.0f} {unit}"
    return f"{value:.0f} B"


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def folded(summary: str, body: str) -> str:
    """Hidden until opened."""
    return f"<details>\n<summary>{summary}</summary>\n\n{body}\n\n</details>"
