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

from drift_pg.adapter import Adapter
from drift_pg.errors import InvalidInput
from drift_pg.families.base import Family
from drift_pg.families.low_rank import LowRank
from drift_pg.families.mlp import ResidualMLP
from drift_pg.families.procrustes import Procrustes
from drift_pg.families.ridge import Ridge
from drift_pg.families.spectral import Spectral
from drift_pg.pairs import RECOMMENDED_MINIMUM, Pairs

__all__ = ["FAMILIES", "Family", "LowRank", "Procrustes", "ResidualMLP", "Ridge", "SmallSample", "Spectral", "fit"]

FAMILIES: dict[str, type[Family]] = {
    "procrustes": Procrustes,
    "ridge": Ridge,
    "spectral": Spectral,
    "low_rank": LowRank,
    "mlp": ResidualMLP,
}


class SmallSample(UserWarning):
    """There are too few pairs for a good adapter; it is fitted all the same."""


def fit(pairs: Pairs, family: str = "spectral", *, seed: int = 0, **options: Any) -> Adapter:
    """Fit an adapter from the source (new) to the target (legacy) model's space.

    Args:
        pairs: the same items embedded by both models.
        family: a key of `FAMILIES`.
        seed: makes the result reproducible, where the family draws at random.
        options: the family's own, e.g. `centre=False` for procrustes.

    Raises:
        InvalidInput: the family or an option is unknown.
        MissingExtra: the family trains with torch, which is not installed.

    Warns:
        SmallSample: fewer pairs than recommended, or than dimensions.
    """
    estimator = create(family, **options)
    _warn_if_small(pairs)
    started = time.perf_counter()
    adapter = estimator.fit(pairs, seed=seed)
    details = {
        "options": {field.name: getattr(estimator, field.name) for field in fields(estimator)},
        "pairs": len(pairs),
        "seconds": round(time.perf_counter() - started, 3),
        "seed": seed,
    }
    return replace(adapter, family=family, details=details | dict(adapter.details))


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
