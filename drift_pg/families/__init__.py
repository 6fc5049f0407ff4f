"""Families of adapters: one file each; every one fits pairs and returns the canonical form.

A family is a dataclass whose fields are its options; `fit` checks them against the pairs and leaves
the family as it was. Only this package knows families: what it returns is evaluated, stored and
searched like any other list of layers.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import fields, replace
from typing import Any

from numpy.typing import ArrayLike

from drift_pg.adapter import Adapter, Float32
from drift_pg.errors import InvalidInput, WrongDimensions
from drift_pg.families.auto import Auto
from drift_pg.families.base import Family, Trained
from drift_pg.families.low_rank import LowRank
from drift_pg.families.mixture import Mixture
from drift_pg.families.mlp import ResidualMLP
from drift_pg.families.procrustes import Procrustes
from drift_pg.families.ridge import Ridge
from drift_pg.families.spectral import Spectral
from drift_pg.families.training import Progress, Training, silent
from drift_pg.pairs import RECOMMENDED_MINIMUM, Pairs, checked_vectors

__all__ = [
    "FAMILIES",
    "Auto",
    "Family",
    "LowRank",
    "Mixture",
    "Procrustes",
    "ResidualMLP",
    "Ridge",
    "SmallSample",
    "Spectral",
    "create",
    "fit",
]

FAMILIES: dict[str, type[Family]] = {
    "auto": Auto,
    "procrustes": Procrustes,
    "ridge": Ridge,
    "spectral": Spectral,
    "low_rank": LowRank,
    "mlp": ResidualMLP,
    "mixture": Mixture,
}


class SmallSample(UserWarning):
    """There are too few pairs for a good adapter; it is fitted all the same."""


def fit(
    pairs: Pairs,
    family: str = "auto",
    *,
    query_log: ArrayLike | None = None,
    seed: int = 0,
    seconds: float | None = None,
    force: bool = False,
    progress: Progress = silent,
    **options: Any,
) -> Adapter:
    """Fit an adapter from the source (new) to the target (legacy) model's space.

    Args:
        pairs: the same items embedded by both models.
        family: a key of `FAMILIES`; "auto" compares several and keeps the best.
        query_log: (q, m) real queries embedded by the new model, which training learns from as well.
        seed: makes the result reproducible (for training: unless a time budget cuts it short).
        seconds: a budget for training, after which the best so far is taken.
        force: train by the ranking loss although there are so few pairs that it overfits.
        progress: told after each training step.
        options: the family's own, e.g. `centre=False` for procrustes, `objective="ranking"` for spectral.

    Raises:
        InvalidInput: the family or an option is unknown, or the family makes no use of a query log.
        TooFewPairs: the ranking loss would overfit.
        WrongDimensions, InvalidVector: the query log's vectors are not the new model's.
        MissingExtra: the family trains with torch, which is not installed.

    Warns:
        SmallSample: fewer pairs than recommended, or than dimensions.
    """
    estimator = create(family, **options)
    training = Training(_checked_log(query_log, pairs, estimator, family), seconds, force, progress)
    _warn_if_small(pairs)
    started = time.perf_counter()
    if isinstance(estimator, Trained):
        adapter = estimator.train(pairs, training, seed=seed)
    else:
        adapter = estimator.fit(pairs, seed=seed)
    details = {
        "options": {field.name: getattr(estimator, field.name) for field in fields(estimator)},
        "pairs": len(pairs),
        "queries": 0 if training.query_log is None else len(training.query_log),
        "seconds": round(time.perf_counter() - started, 3),
        "seed": seed,
    }
    return replace(adapter, family=family, details=details | dict(adapter.details))


def _checked_log(query_log: ArrayLike | None, pairs: Pairs, estimator: Family, family: str) -> Float32 | None:
    if query_log is None:
        return None
    if not (isinstance(estimator, Trained) and estimator.trains):
        raise InvalidInput(
            f"family {family!r} with these options makes no use of a query log",
            hint='fit "auto" or "mixture", or set objective="ranking"',
        )
    vectors = checked_vectors("query log", query_log)
    if vectors.shape[1] != pairs.source_dimensions:
        raise WrongDimensions(
            f"the query log has {vectors.shape[1]} dimensions, the new model {pairs.source_dimensions}"
        )
    return vectors


def create(family: str, **options: Any) -> Family:
    """The family of that name with these options."""
    if family not in FAMILIES:
        raise InvalidInput(f"unknown family {family!r}; known: {', '.join(FAMILIES)}")
    known = {field.name for field in fields(FAMILIES[family])}
    if unknown := sorted(set(options) - known):
        raise InvalidInput(
            f"family {family!r} has no option {', '.join(unknown)}; its options: {', '.join(sorted(known)) or 'none'}"
        )
    return FAMILIES[family](**options)


def _warn_if_small(pairs: Pairs) -> None:
    dimensions = max(pairs.source_dimensions, pairs.target_dimensions)
    wanted = max(RECOMMENDED_MINIMUM, dimensions)
    if len(pairs) < wanted:
        warnings.warn(
            f"{len(pairs):,} pairs of {dimensions} dimensions: an adapter from fewer than {wanted:,} finds "
            "noticeably less; embed more items with both models (drift-pg fit --pairs 5000)",
            SmallSample,
            stacklevel=3,
        )
