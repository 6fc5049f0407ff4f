"""Python's side: what `Adapter.apply` adds to its matrix product, and a fit to its decomposition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import drift_pg
from benchmarks.timing import Action, Timing, interleaved
from benchmarks.vectors import Float32
from drift_pg import Adapter, Pairs
from drift_pg.errors import MissingExtra

FAMILIES: dict[str, dict[str, Any]] = {"procrustes": {}, "low_rank": {}, "mlp": {"epochs": 3}}
"""What is fitted, and its options: an MLP's cost does not depend on how well it is trained."""

PRODUCT = "numpy: W @ q"
DECOMPOSITION = "numpy: svd of d × d, and X.T @ Y"
FIT = "fit of procrustes"


def adapters(pairs: Pairs) -> tuple[dict[str, Adapter], dict[str, str]]:
    """An adapter of each family, the default first; and why a family is left out."""
    found = {family: _fit(pairs, family) for family in FAMILIES}
    fitted = {family: adapter for family, adapter in found.items() if isinstance(adapter, Adapter)}
    return fitted, {family: why for family, why in found.items() if isinstance(why, str)}


def _fit(pairs: Pairs, family: str) -> Adapter | str:
    try:
        return drift_pg.fit(pairs, family, **FAMILIES[family])
    except MissingExtra as error:
        return str(error)


def time_apply(fitted: Mapping[str, Adapter], queries: Float32, repeats: int) -> dict[str, Timing]:
    """One vector through each adapter, and through the first one's bare matrix; batches of 100 calls."""
    matrix = np.ascontiguousarray(next(iter(fitted.values())).layers[0].weights[:, :-1])
    timed: dict[str, Action] = {PRODUCT: lambda i: matrix @ queries[i]}
    timed |= {applied(family): _apply(adapter, queries) for family, adapter in fitted.items()}
    return interleaved(timed, repeats, calls=100)


def _apply(adapter: Adapter, queries: Float32) -> Action:
    return lambda i: adapter.apply(queries[i])


def applied(family: str) -> str:
    """What one vector through a family's adapter is called."""
    return f"Adapter.apply, {family}"


def time_fit(pairs: Pairs, repeats: int) -> dict[str, Timing]:
    """A procrustes fit, and the least that it must do: one product and one decomposition."""
    square = np.asarray(pairs.source.T @ pairs.target)

    def least(_: int) -> None:
        np.matmul(pairs.source.T, pairs.target)
        np.linalg.svd(square)

    return interleaved({DECOMPOSITION: least, FIT: lambda _: drift_pg.fit(pairs, "procrustes")}, repeats, warm_up=1)
