"""The peers: other packages that map a new model's queries into a legacy space, each by its own documented calls.

Every entry of `PEERS` fits as the package's README, examples or constructor defaults say, without tuning.
Each package may be missing, and torch, which only isotrieve's MLP needs; `versions` says which are here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from drift_pg.adapter import Float32
from drift_pg.pairs import Pairs

Fitted = Callable[[Float32], Float32]
"""(n, m) new-model queries -> (n, k) in the legacy space; not every peer's are of unit length."""

Fit = Callable[[Pairs, int], Fitted]
"""Fits to pairs, with a seed. ImportError: a package is not installed. Unsupported: the peer refuses these pairs."""

PACKAGES = ("embspec", "drift-spark", "isotrieve", "vectormigrate")
"""As the package index names them."""

_LOW_RANK = 256


class Unsupported(Exception):
    """The peer cannot be fitted to these pairs, such as those of unequal dimensions; the message is the peer's."""


def versions() -> dict[str, str]:
    """The installed peers' versions."""
    found = {package: _version(package) for package in PACKAGES}
    return {package: number for package, number in found.items() if number is not None}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _embspec(**options: float) -> Fit:
    def fit(pairs: Pairs, _: int) -> Fitted:
        from embspec import AdapterShapeError, DriftAdapter

        with _refusals("embspec", AdapterShapeError):
            adapter = DriftAdapter.fit(new_embeddings=pairs.source, old_embeddings=pairs.target, **options)
        return _in_single_precision(adapter.transform)

    return fit


def _drift_spark(pairs: Pairs, _: int) -> Fitted:
    # Its migrate() would also refuse an adapter whose recall of the legacy neighbours is below .97; a fit does not.
    from drift.adapter import DriftAdapter

    with _refusals("drift-spark"):
        adapter = DriftAdapter().fit(old_vecs=pairs.target, new_vecs=pairs.source)
    return _in_single_precision(adapter.predict)


def _isotrieve(mapping: str, **options: Any) -> Fit:
    def fit(pairs: Pairs, seed: int) -> Fitted:
        from isotrieve.serve import QueryAdapter

        unfitted = getattr(import_module("isotrieve.mapping"), mapping)(seed=seed, **options)
        # Its mappings go from legacy to new: queries take the inverse, which every fit brings and "serve mode" applies.
        with _refusals("isotrieve"):
            fitted = unfitted.fit(pairs.target, pairs.source)
        return _in_single_precision(QueryAdapter(fitted).map_queries)

    return fit


def _isotrieve_forward(mapping: str) -> Fit:
    # For the one mapping whose own inverse is wrong: it scales the columns of the inverse rotation, not its rows, so a
    # dimension in which the new model is all but constant drowns the others. Roles swapped, `transform` needs none.
    def fit(pairs: Pairs, seed: int) -> Fitted:
        unfitted = getattr(import_module("isotrieve.mapping"), mapping)(seed=seed)
        with _refusals("isotrieve"):
            fitted = unfitted.fit(pairs.source, pairs.target)
        return _in_single_precision(fitted.transform)

    return fit


def _isotrieve_low_rank(pairs: Pairs, seed: int) -> Fitted:
    # The rank of its own benchmarks: without one, low rank is ridge.
    rank = min(_LOW_RANK, pairs.source_dimensions, pairs.target_dimensions)
    return _isotrieve("LowRankAffineMapping", rank=rank)(pairs, seed)


def _isotrieve_mlp(pairs: Pairs, seed: int) -> Fitted:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # the mapping's own seed draws its holdout, but not its weights
        return _isotrieve("ResidualMLPMapping")(pairs, seed)


def _vectormigrate(adapter: str, *, seeded: bool = False) -> Fit:
    def fit(pairs: Pairs, seed: int) -> Fitted:
        options = {"seed": seed} if seeded else {}
        unfitted = getattr(import_module("vectormigrate"), adapter)(**options)
        with _refusals("vectormigrate"):
            fitted = unfitted.fit(pairs.source, pairs.target)  # new to legacy, as in its demo
        return _in_single_precision(fitted.transform)

    return fit


@contextmanager
def _refusals(package: str, refusal: type[Exception] = ValueError) -> Iterator[None]:
    """Pairs are already known to be sound, so a fit that rejects them does so for their dimensions or their number."""
    try:
        yield
    except refusal as error:
        raise Unsupported(f"{package}: {error}") from error


def _in_single_precision(apply: Callable[[Float32], Any]) -> Fitted:
    return lambda queries: np.asarray(apply(queries), dtype=np.float32)


PEERS: dict[str, Fit] = {
    "embspec": _embspec(regularization=0.01),  # its README's call
    "embspec · least squares": _embspec(),
    "drift-spark": _drift_spark,
    "isotrieve · ridge": _isotrieve("RidgeMapping"),  # its default
    "isotrieve · procrustes": _isotrieve("OrthogonalProcrustesMapping"),
    "isotrieve · procrustes + diagonal": _isotrieve("ProcrustesDiagMapping"),
    "isotrieve · procrustes + diagonal, forward": _isotrieve_forward("ProcrustesDiagMapping"),
    "isotrieve · low-rank": _isotrieve_low_rank,
    "isotrieve · mlp": _isotrieve_mlp,
    "vectormigrate · procrustes": _vectormigrate("OrthogonalProcrustesAdapter"),  # its demo's
    "vectormigrate · affine": _vectormigrate("LowRankAffineAdapter"),  # of full rank, unless told otherwise
    "vectormigrate · mlp": _vectormigrate("ResidualMLPAdapter", seeded=True),
}
"""What is fitted, by the package and, where it documents several, the method."""
