"""One fitted method on one upgrade: where each query finds its document, by the bridge and by rerank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.quality.data import LEAST_HELD_OUT, Upgrade
from benchmarks.quality.methods import STAY, Baseline, Contender, Fitted, Refused
from benchmarks.quality.records import packed
from drift_pg import Adapter
from drift_pg.adapter import Float32, unit
from drift_pg.neighbours import HeldOut, Indices, directions, nearest

DEPTHS = (50, 100, 200)
"""How many of the bridge's rows are ordered anew."""

K = 10


@dataclass(frozen=True, eq=False)
class Bench:
    """An upgrade with its full re-embedding searched once.

    Attributes:
        upgrade: what is measured.
    """

    upgrade: Upgrade

    @cached_property
    def full(self) -> Indices:
        """(q, 10): what the new model finds in a full re-embedding."""
        return nearest(self.upgrade.queries_new, self.upgrade.documents_new, K)

    def full_ranks(self) -> dict[str, Any]:
        """The figures that retention is relative to."""
        return {"ranks": {"bridge": packed(self._ranks(self.full))}}

    def baseline(self, name: str) -> dict[str, Any]:
        """`stay` or `unadapted`."""
        up = self.upgrade
        if name == STAY:
            if up.queries_legacy is None:
                raise Refused("the data set has no queries by the legacy model")
            return self._searched(up.queries_legacy)
        if up.queries_new.shape[1] != up.documents_legacy.shape[1]:
            raise Refused(f"{up.queries_new.shape[1]} dimensions on an index of {up.documents_legacy.shape[1]}")
        return self._searched(up.queries_new) | self._agreement(lambda vectors: vectors, 0, 0)

    def run(self, method: Contender, pairs: int, seed: int) -> dict[str, Any]:
        """Fit, search, and measure without labels as well."""
        if isinstance(method, Baseline):
            return self.baseline(method.name)
        fitted = method.fit(self.upgrade, pairs, seed)
        found = self._searched(fitted.apply(self.upgrade.queries_new))
        return found | self._agreement(fitted.apply, pairs, seed) | self._cost(fitted)

    def _searched(self, queries: Float32) -> dict[str, Any]:
        up = self.upgrade
        found = nearest(directions(queries), up.documents_legacy, max(DEPTHS))
        exact = np.einsum("qd,qnd->qn", up.queries_new, up.documents_new[found])
        ranks = {"bridge": self._ranks(found)} | {str(n): self._ranks(reranked(found, exact, n)) for n in DEPTHS}
        same = found[:, :K, None] == self.full[:, None, :]
        overlap = same.any(axis=2).sum(axis=1)
        return {"ranks": {name: packed(each) for name, each in ranks.items()}, "overlap": packed(overlap)}

    def _ranks(self, found: Indices) -> NDArray[np.int64]:
        """(q,): where the label is, from 1; 0 where it was not found."""
        hit = found == self.upgrade.labels[:, None]
        return np.where(hit.any(axis=1), hit.argmax(axis=1) + 1, 0)

    def _agreement(self, apply: Callable[[Float32], Float32], pairs: int, seed: int) -> dict[str, Any]:
        """The measures that need no labels, on documents that are no pairs."""
        rows = self.upgrade.held_out(pairs, seed)
        if len(rows) < LEAST_HELD_OUT:
            raise Refused(f"{pairs:,} pairs leave {len(rows)} documents to hold out")
        new, legacy = self.upgrade.documents_new[rows], self.upgrade.documents_legacy[rows]
        measured = HeldOut(new, legacy, np.arange(len(rows))).measure(apply(new))
        shares = {"self": measured.self_retrieval, "first": measured.first_kept, "overlap": K * measured.overlap}
        return {"held": {name: packed(np.rint(each)) for name, each in shares.items()}}

    def _cost(self, fitted: Fitted) -> dict[str, Any]:
        if fitted.adapter is None:
            return {"seconds": fitted.seconds}
        adapter = fitted.adapter
        per_query = mean_multiply_adds(adapter, self.upgrade.queries_new)
        details = {name: adapter.details[name] for name in ("chosen", "agreement", "steps") if name in adapter.details}
        return {
            "seconds": fitted.seconds,
            "multiply_adds": per_query,
            "parameters": adapter.parameters,
            "details": details,
        }


def reranked(found: Indices, exact: Float32, depth: int) -> Indices:
    """The first `depth` in the order of the new model's own scores."""
    order = np.argsort(-exact[:, :depth], axis=1, kind="stable")
    return np.asarray(np.take_along_axis(found[:, :depth], order, axis=1))


def mean_multiply_adds(adapter: Adapter, queries: Float32) -> float:
    """Per query, over the experts that the queries are routed to."""
    if not adapter.experts:
        return float(adapter.multiply_adds)
    costs = np.array([sum(layer.weights.size for _, layer in adapter.path(e)) for e in adapter.experts])
    routed = adapter.route(unit(queries) if adapter.normalize_input else queries)
    return float(adapter.layers[0].weights.size + costs[routed].mean())
