"""auto: fit what the pairs allow, compare on pairs that none has seen, keep the best."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drift_pg.adapter import Adapter
from drift_pg.families.base import Family, Trained
from drift_pg.families.mixture import Mixture
from drift_pg.families.procrustes import Procrustes
from drift_pg.families.ranking import LEAST_PAIRS, Division
from drift_pg.families.spectral import Spectral
from drift_pg.families.training import Training
from drift_pg.neighbours import Agreement, HeldOut
from drift_pg.pairs import Pairs

CLOSED_FORM: Mapping[str, Family] = {"procrustes": Procrustes(), "spectral": Spectral()}

MOST_WEIGHTS = 10_000_000
"""Of a mixture's experts together: training keeps them five times over, and PostgreSQL stores them."""

LEAST_COMPARED = 20
"""Of fewer pairs none can be spared for a comparison; procrustes asks least of them."""

VALIDATION = 500
"""Most pairs that the comparison holds out."""

SAME_COST = 1.05
"""Up to this ratio of multiply–adds two adapters cost the same."""


@dataclass(frozen=True)
class Auto(Trained):
    """The best of the families for these pairs, by the neighbours that searches find on a validation part.

    Candidates: procrustes and spectral; with torch and pairs enough also spectral refined by the ranking loss,
    and a mixture. Each is fitted without the validation part (a tenth of the pairs, at most 500) and measured on it:
    self-retrieval, the new model's first neighbour kept, overlap of the first ten; not cosine, which does not
    go with recall. Of equal cost, the best; a costlier one must be better beyond chance (the 95 % interval of
    the paired difference). The winner is fitted again to all pairs. details["candidates"] holds the comparison,
    details["not_trained"] why nothing was trained, if so.
    """

    def train(self, pairs: Pairs, training: Training, *, seed: int) -> Adapter:
        """Compare, choose, fit again."""
        if len(pairs) < LEAST_COMPARED:
            return replace(Procrustes().fit(pairs), details={"candidates": [], "chosen": "procrustes"})
        obstacle = _obstacle(pairs, training)
        families: Mapping[str, Family] = CLOSED_FORM if obstacle else {**CLOSED_FORM, **_trained(pairs)}
        division = Division.of(pairs, seed, most=VALIDATION)
        share = _share(families, training)
        held_out = division.held_out()
        measured = {name: _measured(family, division, held_out, share, seed) for name, family in families.items()}
        chosen = _choose(measured)
        adapter = _fit(families[chosen], pairs, share, seed)
        table = [{"name": name, "chosen": name == chosen, **each.as_dict()} for name, each in measured.items()]
        compared = {"candidates": table, "chosen": chosen, "not_trained": obstacle}
        return replace(adapter, details={**adapter.details, **compared})


def _trained(pairs: Pairs) -> dict[str, Family]:
    """The ranking loss for one map, and for as many experts as the dimensions allow."""
    experts = min(Mixture().experts, MOST_WEIGHTS // (pairs.source_dimensions * pairs.target_dimensions))
    mixture = {"mixture": Mixture(experts=experts)} if experts > 1 else {}
    return {"spectral · ranking": Spectral(objective="ranking"), **mixture}


def _obstacle(pairs: Pairs, training: Training) -> str | None:
    """Why nothing is trained, None if it is."""
    if len(pairs) < LEAST_PAIRS and not training.force:
        return f"{len(pairs):,} pairs; training overfits below {LEAST_PAIRS:,}"
    return None if find_spec("torch") else "torch is not installed (pip install 'drift-pg[train]')"


@dataclass(frozen=True, eq=False)
class Measured:
    """A candidate on the validation part."""

    agreement: Agreement
    multiply_adds: int
    parameters: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """For `details`."""
        means = {name: round(float(values.mean()), 4) for name, values in vars(self.agreement).items()}
        costs = {"multiply_adds": self.multiply_adds, "parameters": self.parameters, "seconds": round(self.seconds, 2)}
        return {**means, "score": round(self.agreement.score, 4), **costs}


def _share(families: Mapping[str, Family], training: Training) -> Training:
    """What one training may take: each trained candidate once, and the winner again."""
    if training.seconds is None:
        return training
    count = 1 + sum(isinstance(family, Trained) and family.trains for family in families.values())
    return replace(training, seconds=training.seconds / count)


def _fit(family: Family, pairs: Pairs, training: Training, seed: int) -> Adapter:
    if isinstance(family, Trained):
        return family.train(pairs, replace(training, started=time.perf_counter(), force=True), seed=seed)
    return family.fit(pairs, seed=seed)


def _measured(family: Family, division: Division, held_out: HeldOut, training: Training, seed: int) -> Measured:
    started = time.perf_counter()
    adapter = _fit(family, division.rest, training, seed)
    agreement = held_out.measure(adapter.apply(division.held_sources))
    return Measured(agreement, adapter.multiply_adds, adapter.parameters, time.perf_counter() - started)


def _choose(measured: Mapping[str, Measured]) -> str:
    """From cheap to dear: a costlier candidate must be better beyond chance, one of the same cost just better."""
    names = sorted(measured, key=lambda name: measured[name].multiply_adds)
    best = names[0]
    for name in names[1:]:
        this, other = measured[name], measured[best]
        difference = this.agreement.scores - other.agreement.scores
        needed = 0.0 if this.multiply_adds <= SAME_COST * other.multiply_adds else _chance(difference)
        if difference.mean() > needed:
            best = name
    return best


def _chance(difference: NDArray[np.float64]) -> float:
    """How large a mean difference is by chance in one of forty cases."""
    return float(1.96 * difference.std(ddof=1) / np.sqrt(len(difference))) if len(difference) > 1 else np.inf
