"""Which runs there are, under which keys, and in what order: what is quick comes first, then seed by seed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import drift_pg
from benchmarks.quality.data import Upgrade, made
from benchmarks.quality.methods import BASELINES, METHODS, PAPER, PEERS, Contender, Method

PARTS = ("sizes", "peers", "drift", "cost")
"""Every method at every number of pairs; the peers; drift that is made; a switch against re-indexing."""

SMALL = 3000
"""From so many pairs on `auto` trains; below, it costs a tenth."""

SEARCH = 2.0
"""Rough seconds of a run besides its fit."""

DRIFT_ONCE = ("mlp", "auto")
"""Measured with one seed where drift is made: slow, and nothing hangs on a third decimal."""

Key = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Run:
    """One method, fitted to so many pairs of an upgrade, drawn by a seed."""

    upgrade: Upgrade
    method: Contender
    pairs: int
    seed: int

    @property
    def key(self) -> Key:
        """What the result is filed under."""
        up = self.upgrade
        about = {"part": "run", "data": up.data, "digest": up.digest, "upgrade": up.name, "noise": up.noise}
        return about | {"method": self.method.name, "pairs": self.pairs, "seed": self.seed, **self.method.key}

    @property
    def work(self) -> float:
        """Rough seconds on two cores."""
        auto = isinstance(self.method, Method) and self.method.family == "auto"
        trained = self.method.least > 0 or auto  # as many steps of as many documents for any number of pairs
        work = self.method.work * (1 if trained else self.pairs / 5000)
        if auto and self.pairs < SMALL:
            work /= 20
        return SEARCH + work

    def __str__(self) -> str:
        return f"{self.upgrade.title}, {self.method.name}, {self.pairs:,} pairs, seed {self.seed}"


@dataclass(frozen=True)
class Choice:
    """What was asked for on the command line.

    Attributes:
        parts: of `PARTS`.
        pairs, seeds: of the sizes; peers and drift take from these what is theirs.
        peer_pairs: of the peers.
        drift_pairs: of drift that is made.
        cost_methods: fitted and stored where costs are measured.
        methods, upgrades: parts of names, to leave the others out; empty for all.
        all_sizes: whether trained methods are fitted to few pairs too.
    """

    parts: Sequence[str]
    pairs: Sequence[int]
    seeds: int
    peer_pairs: Sequence[int]
    drift_pairs: int
    cost_methods: Sequence[str]
    methods: Sequence[str] = ()
    upgrades: Sequence[str] = ()
    all_sizes: bool = False

    def runs(self, upgrades: Sequence[Upgrade]) -> list[Run]:
        """All that are asked for, in order."""
        found = [run for part in self.parts if part != "cost" for run in self._part(part, upgrades)]
        wanted = [run for run in found if self._wanted(run)]
        unique = {str(run): run for run in wanted}  # a method may be part of two comparisons
        return sorted(unique.values(), key=lambda run: (run.work > 15, run.seed))

    def _part(self, part: str, upgrades: Sequence[Upgrade]) -> Iterator[Run]:
        if part == "sizes":
            yield from (Run(up, method, 0, 0) for up in upgrades for method in BASELINES)
            yield from self._sizes(upgrades)
        if part == "peers":
            yield from _runs(upgrades, PEERS, self.peer_pairs, 1)
        if part == "drift" and upgrades:
            yield from self._drift(upgrades[0])

    def _sizes(self, upgrades: Sequence[Upgrade]) -> Iterator[Run]:
        for run in _runs(upgrades, METHODS, self.pairs, self.seeds):
            if self.all_sizes or run.pairs >= run.method.least:
                yield run

    def _drift(self, real: Upgrade) -> Iterator[Run]:
        methods = [method for method in METHODS if method.name in (*PAPER, "auto")]
        turned = list(made(real))
        yield from (Run(up, method, 0, 0) for up in turned for method in BASELINES)
        for run in _runs(turned, methods, [self.drift_pairs], self.seeds):
            if run.seed == 0 or run.method.name not in DRIFT_ONCE:
                yield run

    def _wanted(self, run: Run) -> bool:
        return _named(self.methods, run.method.name) and _named(self.upgrades, run.upgrade.title)


def _runs(upgrades: Iterable[Upgrade], methods: Sequence[Contender], pairs: Sequence[int], seeds: int) -> Iterator[Run]:
    for upgrade in upgrades:
        fitting = [count for count in pairs if count <= upgrade.most_pairs()]
        for seed in range(seeds):
            yield from (Run(upgrade, method, count, seed) for count in fitting for method in methods)


def _named(parts: Sequence[str], name: str) -> bool:
    return not parts or any(part in name for part in parts)


@cache
def code() -> str:
    """A hash of what fits and evaluates: results of other code are told apart, though not thrown away."""
    package = Path(drift_pg.__file__).parent
    files = sorted([package / "adapter.py", package / "neighbours.py", *(package / "families").glob("*.py")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
