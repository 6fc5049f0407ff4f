"""A mixture of tied experts: one map per region of the new model's space, each a departure from what all share."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from drift_pg.adapter import Adapter, Float32, Layer
from drift_pg.errors import InvalidInput
from drift_pg.families.base import Trained, adapter_of, affine_layer
from drift_pg.families.ranking import Division, Routing, Schedule, refine, require_pairs
from drift_pg.families.spectral import START, Decomposition
from drift_pg.families.training import Training
from drift_pg.neighbours import directions
from drift_pg.pairs import Pairs

RESTARTS, ROUNDS = 3, 30
"""Of k-means: attempts from other first centres, and passes of each."""

MOST_EXPERTS = 64


@dataclass(frozen=True)
class Mixture(Trained):
    """y = Wₑᵀx + bₑ with e = argmax R x + r: the route layer picks the expert, whose map is W₀ + Dₑ.

    Every expert starts as a spectral map of all pairs, those of other experts counted at `tie`. The
    ranking loss then trains W₀ on every item and Dₑ, at half the rate, on the expert's own: a departure from
    what all share is paid for by the pairs that need it. A query costs one map and `experts` dot products.

    Routing "kmeans" keeps the regions that k-means finds among the new model's vectors. "expert_choice"
    learns them (mixSGA, EMNLP 2025): in each batch every expert takes the items of highest importance score up to its
    capacity, in proportion to its `budget`, and no item is left out; the score learns through the items' loss,
    and an auxiliary cross-entropy brings its argmax, which serves, to what the experts took. How often the two agree on
    held-out items is kept as details["agreement"].

    Attributes:
        experts: how many.
        tie: weight of the other experts' pairs in an expert's first map, 0 to 1.
        routing: "kmeans" or "expert_choice".
        budget: relative share of the items for each expert in expert choice; None for equal shares.
    """

    experts: int = 8
    tie: float = 0.2
    routing: str = "kmeans"
    budget: tuple[float, ...] | None = None

    def train(self, pairs: Pairs, training: Training, *, seed: int) -> Adapter:
        """Divide the space, fit each expert's map, then train all together."""
        self._check(pairs)
        require_pairs(pairs, training)
        division = Division.of(pairs, seed)
        start = self._start(division.rest, seed)
        routing = Routing(tuple(self.budget or (1.0,) * self.experts)) if self.routing == "expert_choice" else None
        return refine(start, division, Schedule(), training, seed, routing)

    def _check(self, pairs: Pairs) -> None:
        if not 1 <= self.experts <= min(MOST_EXPERTS, len(pairs) // 10):
            most = min(MOST_EXPERTS, len(pairs) // 10)
            raise InvalidInput(f"experts is {self.experts}, it must be 1 to {most} for {len(pairs):,} pairs")
        if not 0 <= self.tie <= 1:
            raise InvalidInput(f"tie is {self.tie}, it must be 0 to 1")
        if self.routing not in ("kmeans", "expert_choice"):
            raise InvalidInput(f"routing is {self.routing!r}; known: kmeans, expert_choice")
        if self.budget is not None and (len(self.budget) != self.experts or min(self.budget) <= 0):
            raise InvalidInput(f"budget is {self.budget}, expected {self.experts} positive shares, one per expert")

    def _start(self, pairs: Pairs, seed: int) -> Adapter:
        items = directions(pairs.source)
        centres = k_means(items, self.experts, seed)
        # The nearest centre is the largest c·x − |c|²/2, which is affine: a route layer.
        route = affine_layer(centres.T, -0.5 * np.square(centres).sum(axis=1))
        mine = route.apply(items, items).argmax(axis=1)
        maps = []
        for expert in range(self.experts):
            weights = np.where(mine == expert, 1, self.tie).astype(np.float32)
            matrix, bias = START.map(Decomposition.of(pairs.source, pairs.target, weights))
            maps.append(affine_layer(matrix, bias))
        adapter = adapter_of(pairs, maps[0], details={"start": str(START)})
        normalize = adapter.layers[-1].normalize
        layers = [replace(layer, normalize=normalize, expert=e) for e, layer in enumerate(maps)]
        return replace(adapter, layers=(Layer(route.weights, is_route=True), *layers))


def k_means(items: Float32, count: int, seed: int) -> Float32:
    """(count, d) centres of rows (n, d): Lloyd's algorithm from k-means++ starts, the best of a few."""
    found = [_lloyd(items, count, np.random.default_rng([seed, attempt])) for attempt in range(RESTARTS)]
    _, centres = min(found, key=lambda pair: pair[0])
    return centres


def _lloyd(items: Float32, count: int, rng: np.random.Generator) -> tuple[float, Float32]:
    centres = _spread_out(items, count, rng)
    for _ in range(ROUNDS):
        nearest = _distances(items, centres).argmin(axis=1)
        sizes = np.bincount(nearest, minlength=count)
        for centre in np.flatnonzero(sizes):  # one that lost all its items stays where it is
            centres[centre] = items[nearest == centre].mean(axis=0)
    return float(_distances(items, centres).min(axis=1).sum()), centres


def _spread_out(items: Float32, count: int, rng: np.random.Generator) -> Float32:
    """First centres drawn by squared distance from those drawn before (Arthur & Vassilvitskii, 2007)."""
    centres = items[rng.integers(len(items))][None]
    while len(centres) < count:
        away = np.maximum(_distances(items, centres).min(axis=1).astype(np.float64), 0) + 1e-12
        centres = np.vstack([centres, items[rng.choice(len(items), p=away / away.sum())]])
    return np.array(centres, dtype=np.float32)


def _distances(items: Float32, centres: Float32) -> Float32:
    """(n, c) squared distances."""
    squares = np.square(items).sum(axis=1)[:, None] + np.square(centres).sum(axis=1)
    return np.asarray(squares - 2 * items @ centres.T, dtype=np.float32)
