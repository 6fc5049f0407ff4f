"""What was measured, against what, and whether the project's limits hold: as a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.timing import Timing

LIMITS = {
    ("bridge", 384): 1.3,
    ("bridge", 768): 1.5,
    ("apply", 384): 1.5,
    ("apply", 768): 1.5,
    ("apply", 1536): 1.5,
    ("fit", 768): 3.0,
    ("compile", 384): 1.3,
    ("orm", 384): 1.2,
    ("rerank", 384): 2.0,
}
"""The most that a cost may be of its baseline, by kind and dimensions."""

WIDTH = 100
"""Columns, where the output is no terminal."""


@dataclass(frozen=True)
class Row:
    """One line.

    Attributes:
        dimensions: of both models.
        group: rows of a group were timed side by side.
        what: what was timed.
        timing: how long it took.
        baseline: what it is compared with; None for the baselines themselves.
        kind: the key of its limit, None if it has none.
    """

    dimensions: int
    group: str
    what: str
    timing: Timing
    baseline: Timing | None = None
    kind: str | None = None

    @property
    def ratio(self) -> float | None:
        """Of the medians."""
        return self.timing.median_ms / self.baseline.median_ms if self.baseline else None

    @property
    def limit(self) -> float | None:
        """The most that the ratio may be."""
        return LIMITS.get((self.kind, self.dimensions)) if self.kind else None

    @property
    def met(self) -> bool | None:
        """Whether the limit holds; None where there is none."""
        return self.ratio <= self.limit if self.ratio and self.limit else None

    def as_json(self) -> dict[str, Any]:
        """Flat, for machines."""
        fields = {name: getattr(self, name) for name in ("dimensions", "group", "what", "ratio", "limit", "met")}
        return fields | asdict(self.timing)


def compare(
    dimensions: int, group: str, timed: Mapping[str, Timing], baseline: str, kinds: Mapping[str, str] | None = None
) -> list[Row]:
    """Rows of timings against one of them; `kinds` says which have a limit."""
    against = {what: None if what == baseline else timed[baseline] for what in timed}
    return [Row(dimensions, group, what, timed[what], against[what], (kinds or {}).get(what)) for what in timed]


def machine() -> dict[str, Any]:
    """What the figures depend on, the load at the time included."""
    threads = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    return {
        "processors": os.cpu_count(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas threads": {name: os.environ[name] for name in threads if name in os.environ} or "as found",
        "load average at the start": round(os.getloadavg()[0], 2),
    }


def show(rows: Sequence[Row], about: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the figures, for people or for a machine."""
    if as_json:
        print(json.dumps({"about": about, "measurements": [row.as_json() for row in rows]}, indent=2))
    else:
        print_table(rows, about)


def print_table(rows: Iterable[Row], about: Mapping[str, Any]) -> None:
    """A table for people, with a section for what was timed side by side."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    table = Table("", box=box.SIMPLE_HEAD, title="What each costs, beside its baseline in the same run")
    for heading in ("median ms", "p90 ms", "ratio", "limit", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for (dimensions, name), members in groupby(rows, lambda row: (row.dimensions, row.group)):
        table.add_section()
        table.add_row(f"[bold]{dimensions} dimensions, {name}")
        for row in members:
            table.add_row(*_cells(row))
    console.print(table)
    for name, value in about.items():
        console.print(f"{name}: {value}", highlight=False, soft_wrap=True)


def _cells(row: Row) -> tuple[str, ...]:
    mark = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}[row.met]
    ratio = f"{row.ratio:.2f}" if row.ratio else ""
    times = (_digits(row.timing.median_ms), _digits(row.timing.p90_ms))
    return f"  {row.what}", *times, ratio, str(row.limit or ""), mark


def _digits(milliseconds: float) -> str:
    return f"{milliseconds:.{4 if milliseconds < 0.1 else 3 if milliseconds < 10 else 0}f}"
