"""What is compared: drift_pg's families and options, the peers, and two ways to have no adapter at all."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import drift_pg
from benchmarks import peers
from benchmarks.quality.data import Upgrade
from drift_pg import Adapter, DriftError
from drift_pg.adapter import Float32

STAY, UNADAPTED = "stay", "unadapted"
"""Old queries on the old index; new queries on the old index as they are."""

TRAINED_FROM = 5000

LOG = 800
"""Vectors of the query log that are given to a fit."""


class Refused(Exception):
    """The method does not do this: the message says why."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """A method fitted to pairs.

    Attributes:
        apply: (q, m) new-model vectors -> (q, k).
        seconds: of the fit.
        adapter: in canonical form, None for a peer's.
    """

    apply: Callable[[Float32], Float32]
    seconds: float
    adapter: Adapter | None = None


@dataclass(frozen=True)
class Method:
    """One of drift_pg's.

    Attributes:
        name: in the tables.
        family, options: what `drift_pg.fit` is given.
        with_log: whether it is given the query log too.
        work: rough seconds at 5,000 pairs on two cores, for the time that is left.
        least: fewer pairs are left to --all-sizes, because of the time.
    """

    name: str
    family: str
    options: Mapping[str, Any] = field(default_factory=dict)
    with_log: bool = False
    work: float = 1.0
    least: int = 0

    @property
    def key(self) -> dict[str, Any]:
        """What a result depends on, besides the data and the code."""
        log = {"query_log": LOG} if self.with_log else {}
        return {"version": version("drift-pg"), "family": self.family, "options": dict(self.options) | log}

    def fit(self, upgrade: Upgrade, pairs: int, seed: int) -> Fitted:
        """Fit so many pairs of an upgrade."""
        log = self._log(upgrade)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few pairs are part of the plan
            sample, started = upgrade.pairs(pairs, seed), time.perf_counter()
            try:
                adapter = drift_pg.fit(sample, self.family, seed=seed, query_log=log, **self.options)
            except DriftError as error:
                raise Refused(str(error).splitlines()[0]) from error
        return Fitted(adapter.apply, time.perf_counter() - started, adapter)

    def _log(self, upgrade: Upgrade) -> Float32 | None:
        if not self.with_log:
            return None
        if upgrade.log is None:
            raise Refused("the data set has no query log")
        return upgrade.log[:LOG]


@dataclass(frozen=True)
class Peer:
    """One of the other packages'."""

    name: str
    work: float = 3.0
    least: int = 0

    @property
    def key(self) -> dict[str, Any]:
        """The package and its version."""
        package = next(package for package in peers.PACKAGES if self.name.startswith(package))
        return {"version": peers.versions().get(package), "package": package}

    def fit(self, upgrade: Upgrade, pairs: int, seed: int) -> Fitted:
        """Fit as the package's documentation says."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sample, started = upgrade.pairs(pairs, seed), time.perf_counter()
            try:
                apply = peers.PEERS[self.name](sample, seed)
            except peers.Unsupported as error:
                raise Refused(str(error).splitlines()[0].partition(": ")[2]) from error
        return Fitted(apply, time.perf_counter() - started)


@dataclass(frozen=True)
class Baseline:
    """No adapter: depends on neither pairs nor seed."""

    name: str
    work: float = 0.0
    least: int = 0

    @property
    def key(self) -> dict[str, Any]:
        """Nothing beyond the name."""
        return {}


Contender = Method | Peer | Baseline

_RANKING = {"objective": "ranking"}

METHODS = (
    Method("procrustes", "procrustes", work=0.2),
    Method("procrustes uncentred", "procrustes", {"centre": False}, work=0.2),
    Method("procrustes + DSM", "procrustes", {"diagonal_scaling": True}, work=0.2),
    Method("ridge", "ridge", work=0.2),
    Method("low_rank", "low_rank", work=0.2),
    Method("mlp", "mlp", work=20, least=TRAINED_FROM),
    Method("spectral", "spectral", work=3),
    Method("spectral · ranking", "spectral", _RANKING, work=30, least=TRAINED_FROM),
    Method("mlp · ranking", "mlp", _RANKING, work=60, least=TRAINED_FROM),
    Method("mixture", "mixture", work=50, least=TRAINED_FROM),
    Method("mixture, 4 experts", "mixture", {"experts": 4}, work=45, least=TRAINED_FROM),
    Method("mixture, expert choice", "mixture", {"routing": "expert_choice"}, work=60, least=TRAINED_FROM),
    Method("auto", "auto", work=120),  # of few pairs it trains nothing
    Method("auto + query log", "auto", with_log=True, work=150, least=TRAINED_FROM),
)

BASELINES = (Baseline(STAY), Baseline(UNADAPTED))

SLOW_PEERS = {"isotrieve · mlp": 120.0, "vectormigrate · mlp": 30.0, "isotrieve · ridge": 15.0}

PEERS = tuple(Peer(name, work=SLOW_PEERS.get(name, 3.0)) for name in peers.PEERS)

BROKEN_PEER, MENDED_PEER = "isotrieve · procrustes + diagonal", "isotrieve · procrustes + diagonal, forward"
"""Whose own inverse is wrong, so that the tables list the other (see benchmarks/peers.py)."""

PAPER = ("procrustes", "procrustes uncentred", "procrustes + DSM", "ridge", "low_rank", "mlp", "spectral")
"""Fitted to drift that is made, besides auto."""
