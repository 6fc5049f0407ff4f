"""What was measured, ready to be read: runs of the same method over seeds, with intervals over queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from benchmarks.quality.methods import BASELINES, METHODS, PEERS
from benchmarks.quality.records import Record, unpacked
from benchmarks.quality.statistics import Estimate, Float64, mean, ratio

K = 10
BASELINE_NAMES = tuple(method.name for method in BASELINES)
METHOD_NAMES = tuple(method.name for method in METHODS)
PEER_NAMES = tuple(method.name for method in PEERS)


def recall(ranks: Float64) -> Float64:
    """(q,): 1 where the label is among the first ten."""
    return np.asarray((ranks > 0) & (ranks <= K), dtype=np.float64)


def reciprocal(ranks: Float64) -> Float64:
    """(q,): 1 / rank within the first ten."""
    return np.asarray(recall(ranks) / np.maximum(ranks, 1), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Cell:
    """One method on one upgrade with one number of pairs: its runs, and what full re-embedding finds.

    Attributes:
        records: one per seed.
        full: (q,) ranks in a full re-embedding.
    """

    records: Sequence[Record]
    full: Float64

    @property
    def seeds(self) -> int:
        """How many draws of pairs."""
        return len(self.records)

    def retention(self, measure: Callable[[Float64], Float64] = recall, search: str = "bridge") -> Estimate:
        """Relative to a full re-embedding; the mean over seeds, the interval over queries."""
        values = np.mean([measure(unpacked(record["ranks"][search])) for record in self.records], axis=0)
        return ratio(values, measure(self.full))

    @cached_property
    def recall(self) -> Estimate:
        """Recall@10 retention of the bridge."""
        return self.retention()

    @cached_property
    def rank(self) -> Estimate:
        """MRR retention of the bridge."""
        return self.retention(reciprocal)

    @cached_property
    def overlap(self) -> Estimate:
        """The share of the full re-embedding's ten that the bridge finds."""
        return mean(np.mean([unpacked(record["overlap"]) / K for record in self.records], axis=0))

    def rerank(self, depth: int) -> Estimate:
        """Recall@10 retention when the bridge's first rows are ordered by the new model."""
        return self.retention(search=str(depth))

    def rerank_rank(self, depth: int) -> Estimate:
        """The same for MRR."""
        return self.retention(reciprocal, str(depth))

    def held(self, name: str) -> float | None:
        """A measure without labels: self, first or overlap; None where there is none."""
        found = [unpacked(record["held"][name]).mean() for record in self.records if "held" in record]
        return float(np.mean(found)) / (K if name == "overlap" else 1) if found else None

    def number(self, name: str) -> float | None:
        """A cost: seconds, multiply_adds, parameters; None for what is not known."""
        found = [record[name] for record in self.records if name in record]
        return float(np.mean(found)) if found else None

    def details(self, name: str) -> list[Any]:
        """What the fits say of themselves."""
        return [record["details"][name] for record in self.records if name in record.get("details", {})]


class Results:
    """All records, by upgrade, method and number of pairs.

    Where a run was measured under several keys (another version, other options), the last counts.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self.full: dict[str, Float64] = {}
        self.noise: dict[str, float | None] = {}
        self.refused: dict[tuple[str, str], str] = {}
        self.costs: list[Record] = []
        self.records: list[Record] = []
        runs: dict[tuple[str, str, int], dict[int, Record]] = defaultdict(dict)
        for record in records:
            self._take(record, runs)
        self._cells = {
            key: Cell([found[seed] for seed in sorted(found)], self.full[key[0]]) for key, found in runs.items()
        }

    def _take(self, record: Record, runs: dict[tuple[str, str, int], dict[int, Record]]) -> None:
        key = record["key"]
        self.records.append(record)
        if key["part"] == "cost":
            self.costs.append(record)
            return
        title = f"{key['data']}: {key['upgrade']}"
        self.noise.setdefault(title, key["noise"])
        if key["method"] == "full":
            self.full[title] = unpacked(record["ranks"]["bridge"])
        elif "refused" in record:
            self.refused[title, key["method"]] = record["refused"]
        else:
            runs[title, key["method"], key["pairs"]][key["seed"]] = record

    @cached_property
    def real(self) -> list[str]:
        """Upgrades between two models."""
        return [title for title, noise in self.noise.items() if noise is None]

    @cached_property
    def made(self) -> list[str]:
        """Upgrades from a rotation, by growing noise."""
        return sorted((title for title, noise in self.noise.items() if noise is not None), key=self._noise_of)

    def _noise_of(self, title: str) -> float:
        return self.noise[title] or 0.0

    def cell(self, title: str, method: str, pairs: int) -> Cell | None:
        """None where it was not measured, or refused. Baselines have no pairs."""
        return self._cells.get((title, method, 0 if method in BASELINE_NAMES else pairs))

    def cells(self, titles: Sequence[str]) -> list[tuple[str, str, int, Cell]]:
        """All of these upgrades."""
        return [(*key, cell) for key, cell in self._cells.items() if key[0] in titles]

    def sizes(self, titles: Sequence[str]) -> list[int]:
        """Numbers of pairs that drift_pg's own methods were fitted to."""
        found = {pairs for title, method, pairs in self._cells if title in titles and method in METHOD_NAMES}
        return sorted(found)

    def peer_sizes(self) -> list[int]:
        """Numbers of pairs that peers were fitted to."""
        return sorted({pairs for _, method, pairs in self._cells if method in PEER_NAMES})

    def seed(self, title: str, method: str, pairs: int, seed: int) -> Cell | None:
        """One seed's run alone."""
        cell = self.cell(title, method, pairs)
        records = [record for record in cell.records if record["key"]["seed"] == seed] if cell else []
        return Cell(records, self.full[title]) if records else None
