"""The residual MLP: a linear map and one hidden layer beside it. Trains with torch."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from drift_pg.adapter import Adapter, Float32, Layer
from drift_pg.errors import InvalidInput
from drift_pg.families.base import Refinable, adapter_of
from drift_pg.families.procrustes import Procrustes, diagonal_scale
from drift_pg.families.torch import import_torch
from drift_pg.pairs import Pairs


@dataclass(frozen=True)
class ResidualMLP(Refinable):
    """y = S (P x + B gelu(A x + a) + b): Drift-Adapter's residual MLP (EMNLP 2025, section 3).

    The skip P is the centred Procrustes map, which stands in for the paper's identity between spaces
    that share no axes and for spaces of different dimensions. A, B, a, b minimise the mean squared
    error by Adam, with early stopping on held-out pairs.

    Attributes:
        hidden: hidden units.
        epochs: at most so many passes.
        patience: passes without a better validation error before stopping.
        learning_rate, batch: of Adam.
        diagonal_scaling: whether S is fitted (closed form, after training), or 1.
    """

    hidden: int = 256
    epochs: int = 60
    patience: int = 5
    learning_rate: float = 1e-3
    batch: int = 256
    diagonal_scaling: bool = False

    def start(self, pairs: Pairs, seed: int) -> Adapter:
        """Train; two layers, the second taking [hidden ; x]."""
        if self.learning_rate <= 0:
            raise InvalidInput(f"learning_rate is {self.learning_rate}, it must be above 0")
        if self.hidden < 1 or self.epochs < 1 or self.batch < 1:
            raise InvalidInput(f"hidden {self.hidden}, epochs {self.epochs} and batch {self.batch} must be at least 1")
        skip = Procrustes().fit(pairs).layers[0].weights
        residual = pairs.target - pairs.source @ skip[:, :-1].T - skip[:, -1]
        first, second = self._train(pairs.source, residual, seed)
        wide = np.column_stack([second[:, :-1], skip[:, :-1], second[:, -1] + skip[:, -1]])
        if self.diagonal_scaling:
            wide = wide * _scale(pairs, Layer(first, "gelu"), Layer(wide, takes_input=True))[:, None]
        return adapter_of(pairs, Layer(first, "gelu"), Layer(wide, takes_input=True))

    def _train(self, x: Float32, residual: Float32, seed: int) -> tuple[Float32, Float32]:
        """Weights (hidden, m + 1) and (k, hidden + 1) that predict the residual."""
        torch = import_torch()
        with torch.random.fork_rng(devices=[]):  # the caller's own draws are left alone
            torch.manual_seed(seed)
            network = torch.nn.Sequential(
                torch.nn.Linear(x.shape[1], self.hidden),
                torch.nn.GELU(approximate="tanh"),
                torch.nn.Linear(self.hidden, residual.shape[1]),
            )
        self._descend(torch, network, torch.tensor(x), torch.tensor(residual), seed)
        return _weights(network[0]), _weights(network[2])

    def _descend(self, torch: ModuleType, network: Any, x: Any, y: Any, seed: int) -> None:
        """Adam with early stopping; leaves the best weights in the network."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(x), generator=generator)
        held_out, rest = order[: max(1, len(x) // 10)], order[max(1, len(x) // 10) :]
        optimiser = torch.optim.Adam(network.parameters(), lr=self.learning_rate)
        best, best_weights, waited = float("inf"), copy.deepcopy(network.state_dict()), 0
        for _ in range(self.epochs):
            for rows in rest[torch.randperm(len(rest), generator=generator)].split(self.batch):
                optimiser.zero_grad()
                (network(x[rows]) - y[rows]).square().mean().backward()
                optimiser.step()
            with torch.no_grad():
                error = float((network(x[held_out]) - y[held_out]).square().mean())
            waited = 0 if error < best else waited + 1
            if error < best:
                best, best_weights = error, copy.deepcopy(network.state_dict())
            if waited >= self.patience:
                break
        network.load_state_dict(best_weights)


def _scale(pairs: Pairs, first: Layer, second: Layer) -> Float32:
    hidden = first.apply(pairs.source, pairs.source)
    return diagonal_scale(second.apply(hidden, pairs.source), pairs.target)


def _weights(linear: Any) -> Float32:
    weight, bias = linear.weight.detach().numpy(), linear.bias.detach().numpy()
    return np.column_stack([weight, bias]).astype(np.float32)
