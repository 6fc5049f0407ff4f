"""Which part of a table a sample of queries touches: what has to be embedded before a rerank knows all of its candidates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from drift_pg.evaluation.figures import DIGITS


@dataclass(frozen=True)
class Touched:
    """The rows among the bridge's first for any of the queries. More queries touch more.

    Attributes:
        queries: how many were searched for.
        depth: how many of the bridge's first rows count for each.
        rows: how many different ones those are.
        among: the rows that were searched.
    """

    queries: int
    depth: int
    rows: int
    among: int

    @classmethod
    def of(cls, found: Iterable[Iterable[Any]], depth: int, among: int) -> Touched:
        """From what each query finds: keys or positions."""
        lists = list(found)
        rows = len({key for keys in lists for key in keys})
        return cls(len(lists), depth, rows, max(among, rows))  # a table's size is an estimate

    @property
    def share(self) -> float:
        """Of the rows; 0 of none."""
        return self.rows / max(self.among, 1)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "share": round(self.share, DIGITS)}

    def __str__(self) -> str:
        return (
            f"{self.queries:,} queries touch {self.rows:,} of {self.among:,} rows ({self.share:.1%}): "
            f"what the bridge finds first for any of them, {self.depth:,} each"
        )
