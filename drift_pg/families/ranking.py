"""The ranking loss: train an adapter until its searches order documents as the new model does. Needs torch.

For each item of a batch two lists are matched over the paired documents: the new model's own ranking of all
other documents (listwise Kullback–Leibler divergence; Cao et al., ListNet, ICML 2007), and the item itself,
which its adapted vector must find first (InfoNCE; van den Oord et al., 2018). The first brings the new model's
neighbourhoods; the second keeps what tells one document from its neighbours, without which a query finds
the right topic and the wrong document. Mean squared error or cosine do neither: they shrink the directions
of low variance that fine ranking needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drift_pg.adapter import Adapter, Float32, Layer
from drift_pg.errors import TooFewPairs
from drift_pg.families.torch import import_torch
from drift_pg.families.training import Training
from drift_pg.neighbours import HeldOut, Indices, directions
from drift_pg.pairs import Pairs

LEAST_PAIRS = 3000
"""Fewer pairs are learnt by heart: at 1,000 searches get worse, at 2,000 they hardly gain (benchmarks.quality --all-sizes)."""


ROUTE_TEMPERATURE = 0.05
"""Of the softmax over experts: distances between unit vectors and centres are small numbers."""


@dataclass(frozen=True)
class Schedule:
    """How long and how fast.

    Attributes:
        steps: Adam steps.
        batch: items per step, and as many query-log vectors.
        documents: how many documents a step ranks, drawn anew each time; all if there are fewer.
        temperature: of the new model's softmax: how much more its nearest documents count.
        own: weight of finding the item itself, against 1 for the new model's ranking.
        noise: how far items are moved, as a share of the vectors' own spread: a query is never quite its document.
        rate: Adam's step, as a share of a layer's mean absolute weight.
        departure_rate: the same for what an expert adds to what all share, as a share of `rate`.
        settled: after so many steps weights are averaged: one step's differ by points of recall from the next one's.
    """

    steps: int = 300
    batch: int = 192
    documents: int = 4096
    temperature: float = 0.05
    own: float = 2.0
    noise: float = 0.5
    rate: float = 1e-2
    departure_rate: float = 0.5
    settled: int = 150


@dataclass(frozen=True)
class Routing:
    """Expert choice: how a mixture's route layer is trained; without it the route stays as it starts.

    Attributes:
        budget: relative share of the items of each expert.
        slack: how far above its share an expert may go, so that chance in a batch forces nobody elsewhere.
        one_hot: weight of the auxiliary loss that brings the argmax to what the experts took.
    """

    budget: tuple[float, ...]
    slack: float = 1.25
    one_hot: float = 1.0

    def capacities(self, items: int) -> Indices:
        """How many items each expert may take; together at least all."""
        shares = np.asarray(self.budget) / sum(self.budget)
        return np.ceil(shares * items * self.slack).astype(np.int64)


def expert_choice(scores: Float32, capacities: Indices) -> Indices:
    """Each item's expert, by scores (n, experts): highest first, while the expert has room; none is left out.

    Zhou et al., Mixture-of-Experts with Expert Choice Routing (NeurIPS 2022), with mixSGA's rule that every item is
    taken exactly once. Σ capacities must be at least n.
    """
    taken, room = np.full(len(scores), -1), capacities.copy()
    for position in np.argsort(-scores, axis=None, kind="stable"):
        item, expert = divmod(int(position), scores.shape[1])
        if taken[item] < 0 and room[expert]:
            taken[item], room[expert] = expert, room[expert] - 1
    return taken


@dataclass(frozen=True, eq=False)
class Division:
    """Pairs, divided for training.

    Attributes:
        rest: what is trained on.
        held: positions that are neither queries nor documents while training; they say whether it helped.
        pairs: all.
    """

    pairs: Pairs
    rest: Pairs
    held: Indices

    @classmethod
    def of(cls, pairs: Pairs, seed: int, *, most: int = 300) -> Division:
        """Hold out a tenth, at most `most`."""
        order = np.random.default_rng(seed).permutation(len(pairs))
        count = min(most, max(1, len(pairs) // 10))
        return cls(pairs, pairs.take(order[count:]), order[:count])

    @property
    def held_sources(self) -> Float32:
        """(h, m) the held-out items' new-model vectors."""
        return self.pairs.source[self.held]

    def held_out(self) -> HeldOut:
        """What measures adapters on the held-out items, among all."""
        return HeldOut(self.pairs.source, self.pairs.target, self.held)


def require_pairs(pairs: Pairs, training: Training) -> None:
    """Refuse to train on so few pairs that it overfits, unless forced.

    Raises:
        TooFewPairs
    """
    if len(pairs) < LEAST_PAIRS and not training.force:
        raise TooFewPairs(
            f"{len(pairs):,} pairs; the ranking loss overfits below {LEAST_PAIRS:,}",
            hint="embed more items with both models (drift-pg fit --pairs 5000), or use --family spectral, which does not train",
        )


def refine(
    start: Adapter,
    division: Division,
    schedule: Schedule,
    training: Training,
    seed: int,
    routing: Routing | None = None,
) -> Adapter:
    """Train an adapter's weights; returns `start` itself if that does better on the held-out items.

    Any list of layers trains. Experts are written as what they share plus what each adds, so that every item
    trains the shared part.

    Args:
        start: fitted to `division.rest` alone: it must not know the held-out items either.
        division: the pairs.
        schedule: how long and how fast.
        training: query log, budget, progress.
        seed: of all draws.
        routing: how a mixture's route layer is trained, None to leave it as it is.
    """
    torch = import_torch()
    network = _Network(torch, start, schedule, routing)
    step = _Step(torch, network, division.rest, schedule, training.query_log, seed)
    done = 0
    while done < schedule.steps and not training.spent:
        step()
        done += 1
        if done > schedule.settled:
            network.average(done - schedule.settled)
        training.progress(done, schedule.steps)
    trained = _better(start, network.adapter(), division)
    details = {**start.details, "steps": 0 if trained is start else done}
    if routing:
        details["agreement"] = _agreement(trained, division.held_sources, routing)
    return replace(trained, details=details)


def _better(start: Adapter, trained: Adapter, division: Division) -> Adapter:
    """The one whose searches are more like the new model's, on items that neither has seen."""
    held_out = division.held_out()
    before, after = (held_out.measure(adapter.apply(division.held_sources)).score for adapter in (start, trained))
    return trained if after > before else start


def _agreement(adapter: Adapter, items: Float32, routing: Routing) -> float:
    """The share of held-out items that the argmax, which serves, sends where expert choice would."""
    x = directions(items) if adapter.normalize_input else items
    scores = np.asarray(adapter.layers[0].apply(x, x))
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    taken = expert_choice(scores / scores.sum(axis=1, keepdims=True), routing.capacities(len(x)))
    return round(float(np.mean(taken == scores.argmax(axis=1))), 4)


class _Network:
    """An adapter's layers as torch parameters."""

    def __init__(self, torch: ModuleType, start: Adapter, schedule: Schedule, routing: Routing | None) -> None:
        self.torch, self.start, self.routing = torch, start, routing
        self.route = torch.tensor(start.layers[0].weights, requires_grad=routing is not None) if start.experts else None
        #: of the last batch: how far the argmax is from what the experts took
        self.disagreement: Any = 0.0
        #: per step of a path: what all share (outputs, inputs + 1), and what each expert adds, if it has experts
        self.shared: list[Any] = []
        self.added: list[Any] = []
        for layers in zip(*(_layers(start, branch) for branch in start.branches), strict=True):
            weights = np.stack([layer.weights for layer in layers])
            several = layers[0].expert is not None
            shared = weights.mean(axis=0) if several else weights[0]
            self.shared.append(torch.tensor(shared, requires_grad=True))
            self.added.append(torch.tensor(weights - shared, requires_grad=True) if several else None)
        self.log_scale = torch.tensor(3.4, requires_grad=True)
        self.averages: list[Any] = []
        self.optimiser = torch.optim.Adam(self._groups(schedule))

    def _groups(self, schedule: Schedule) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = [{"params": [self.log_scale], "lr": 0.02}]
        if self.routing and self.route is not None:
            groups.append({"params": [self.route], "lr": schedule.rate * float(self.route.detach().abs().mean())})
        for shared, added in zip(self.shared, self.added, strict=True):
            rate = schedule.rate * float(shared.detach().abs().mean())
            groups.append({"params": [shared], "lr": rate})
            if added is not None:
                groups.append({"params": [added], "lr": rate * schedule.departure_rate})
        return groups

    def forward(self, x: Any) -> Any:
        """(n, m) -> (n, k) in unit length."""
        if self.route is None:
            return self._run(x, None)
        logits = x @ self.route[:, :-1].T + self.route[:, -1]
        return self._by_choice(x, logits, self.routing) if self.routing else self._by_argmax(x, logits.argmax(1))

    def _by_argmax(self, x: Any, expert: Any) -> Any:
        """As it serves: each item through its own expert alone."""
        order = expert.argsort(stable=True)
        counts = self.torch.bincount(expert, minlength=len(self.start.experts)).tolist()
        parts = [self._run(part, e) for e, part in enumerate(x[order].split(counts)) if len(part)]
        return self.torch.cat(parts)[order.argsort()]

    def _by_choice(self, x: Any, logits: Any, routing: Routing) -> Any:
        """As the experts choose; the scores learn as if their blend had been the output (straight-through)."""
        functional = self.torch.nn.functional
        scores = (logits / ROUTE_TEMPERATURE).softmax(1)
        taken = self.torch.tensor(expert_choice(scores.detach().numpy(), routing.capacities(len(x))))
        self.disagreement = routing.one_hot * functional.cross_entropy(logits / ROUTE_TEMPERATURE, taken)
        gates = functional.one_hot(taken, scores.shape[1]) + scores - scores.detach()
        outputs = self.torch.stack([self._run(x, e) for e in self.start.experts], dim=1)
        return functional.normalize((gates[:, :, None] * outputs).sum(1), dim=1)

    def _run(self, x: Any, expert: int | None) -> Any:
        h, functional = x, self.torch.nn.functional
        for layer, shared, added in zip(_layers(self.start, expert), self.shared, self.added, strict=True):
            weights = shared if added is None else shared + added[expert]
            if layer.takes_input:
                h = self.torch.cat([h, x], dim=1)
            h = h @ weights[:, :-1].T + weights[:, -1]
            h = functional.gelu(h, approximate="tanh") if layer.activation == "gelu" else h
        return functional.normalize(h, dim=1)

    def average(self, count: int) -> None:
        """Take the weights now into their average, as the `count`th (Polyak & Juditsky, 1992)."""
        now = [weights.detach().clone() for weights in self._weights()]
        known = self.averages or now
        self.averages = [mean + (weights - mean) / count for mean, weights in zip(known, now, strict=True)]

    def _weights(self) -> list[Any]:
        return [weights for weights in (*self.shared, *self.added, self.route) if weights is not None]

    def adapter(self) -> Adapter:
        """The average of the weights, or the weights now if none is taken, in canonical form."""
        with self.torch.no_grad():
            for weights, average in zip(self._weights(), self.averages, strict=False):  # none, or as many
                weights.copy_(average)
        layers: dict[int, Layer] = {}
        if self.route is not None:
            layers[0] = replace(self.start.layers[0], weights=self.route.detach().numpy())
        for branch in self.start.branches:
            for i, (position, layer) in enumerate(self.start.path(branch)):
                added = self.added[i]
                weights = self.shared[i] if added is None else self.shared[i] + added[branch]
                layers[position] = replace(layer, weights=weights.detach().numpy())
        return replace(self.start, layers=tuple(layers[i] for i in sorted(layers)))


def _layers(adapter: Adapter, branch: int | None) -> Sequence[Layer]:
    return [layer for _, layer in adapter.path(branch)]


class _Step:
    """One Adam step on a batch, every time it is called."""

    def __init__(
        self, torch: ModuleType, network: _Network, rest: Pairs, schedule: Schedule, log: Float32 | None, seed: int
    ) -> None:
        self.torch, self.network, self.schedule = torch, network, schedule
        self.new, self.legacy = torch.from_numpy(directions(rest.source)), torch.from_numpy(directions(rest.target))
        self.inputs = self.new if network.start.normalize_input else torch.tensor(rest.source)
        self.log = None if log is None else torch.tensor(log)
        self.spread = torch.tensor(_root(np.cov(self.inputs.numpy().T)))
        self.rng = np.random.default_rng(seed)

    def __call__(self) -> None:
        loss = self._loss()
        self.network.optimiser.zero_grad()
        loss.backward()
        self.network.optimiser.step()

    def _loss(self) -> Any:
        torch, schedule, functional = self.torch, self.schedule, self.torch.nn.functional
        documents = torch.tensor(self.rng.permutation(len(self.new))[: schedule.documents])
        # Items come from the documents of the step, so that each finds itself there.
        own = torch.tensor(self.rng.integers(0, len(documents), schedule.batch))
        queries = self._moved(self.inputs[documents[own]])
        if self.log is not None:
            queries = torch.cat([queries, self.log[torch.tensor(self.rng.integers(0, len(self.log), schedule.batch))]])
        wanted = functional.normalize(queries, dim=1) @ self.new[documents].T / schedule.temperature
        found = self.network.forward(queries) @ self.legacy[documents].T * self.network.log_scale.exp()
        finding_itself = functional.cross_entropy(found[: len(own)], own)
        itself = torch.zeros_like(wanted, dtype=torch.bool)
        itself[torch.arange(len(own)), own] = True
        wanted, found = wanted.masked_fill(itself, -1e9), found.masked_fill(itself, -1e9)
        ranking = -(wanted.softmax(1) * found.log_softmax(1)).sum(1).mean()
        return ranking + schedule.own * finding_itself + self.network.disagreement

    def _moved(self, items: Any) -> Any:
        """Items with noise of the vectors' own covariance, each by another amount; unit vectors stay such."""
        shape, amount = items.shape, self.schedule.noise * self.rng.random((len(items), 1), dtype=np.float32)
        noise = self.torch.tensor(self.rng.standard_normal(shape, dtype=np.float32)) @ self.spread
        moved = items + self.torch.tensor(amount) * noise
        return self.torch.nn.functional.normalize(moved, dim=1) if self.network.start.normalize_input else moved


def _root(covariance: NDArray[np.float64]) -> Float32:
    """The symmetric square root, so that white noise times it has this covariance."""
    values, vectors = np.linalg.eigh(np.atleast_2d(covariance))
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T, dtype=np.float32)
