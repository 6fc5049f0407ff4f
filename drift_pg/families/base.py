"""What every family promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from drift_pg.adapter import Adapter, Float32, Layer, lengths
from drift_pg.errors import InvalidInput
from drift_pg.families.ranking import Division, Schedule, refine, require_pairs
from drift_pg.families.training import Training
from drift_pg.pairs import Pairs


@dataclass(frozen=True)
class Family(ABC):
    """A kind of adapter. Subclasses are dataclasses whose fields are its options."""

    @abstractmethod
    def fit(self, pairs: Pairs, *, seed: int = 0) -> Adapter:
        """Fit the pairs; change nothing on self."""


class Trained(Family):
    """A family that is given more than the pairs: a query log, a time budget, somebody to tell of progress."""

    @property
    def trains(self) -> bool:
        """Whether these options train with torch, and so make use of what `Training` holds."""
        return True

    def fit(self, pairs: Pairs, *, seed: int = 0) -> Adapter:
        """Train on the pairs alone, without a limit of time."""
        return self.train(pairs, Training(), seed=seed)

    @abstractmethod
    def train(self, pairs: Pairs, training: Training, *, seed: int) -> Adapter:
        """Train on the pairs and what `training` gives beside them; change nothing on self."""


@dataclass(frozen=True)
class Refinable(Trained):
    """A family whose adapter the ranking loss can train further.

    Attributes:
        objective: "regression" ends with the family's own fit; "ranking" trains its weights on from there, by the
            order in which searches find documents (`drift_pg.families.ranking`).
    """

    objective: str = "regression"

    @property
    def trains(self) -> bool:
        """Only for the ranking objective."""
        return self.objective == "ranking"

    @abstractmethod
    def start(self, pairs: Pairs, seed: int) -> Adapter:
        """The family's own fit."""

    def train(self, pairs: Pairs, training: Training, *, seed: int) -> Adapter:
        """The family's own fit, refined by the ranking loss if that is the objective."""
        if self.objective not in ("regression", "ranking"):
            raise InvalidInput(f"objective is {self.objective!r}; known: regression, ranking")
        if not self.trains:
            return self.start(pairs, seed)
        require_pairs(pairs, training)
        division = Division.of(pairs, seed)
        return refine(self.start(division.rest, seed), division, Schedule(), training, seed)


@dataclass(frozen=True)
class Centred:
    """Vectors without their mean."""

    values: Float32
    mean: Float32

    @classmethod
    def of(cls, vectors: Float32, shares: Float32 | None = None, *, centre: bool = True) -> Centred:
        """Take the mean off, or a mean of zero; `shares` (n,), which sum to 1, say how much each row counts."""
        if not centre:
            return cls(vectors, np.zeros(vectors.shape[1], np.float32))
        mean = vectors.mean(axis=0) if shares is None else shares @ vectors
        return cls(vectors - mean, mean)


def affine_layer(matrix: Float32, bias: Float32 | None = None) -> Layer:
    """The layer y = x @ matrix + bias, for a matrix (inputs, outputs)."""
    column = np.zeros(matrix.shape[1]) if bias is None else bias
    return Layer(np.column_stack([matrix.T, column]))


def unit_length(vectors: Float32) -> bool:
    """Whether all vectors have unit length, to the precision of half floats."""
    return bool(np.allclose(lengths(vectors), 1, atol=2e-3))


def adapter_of(pairs: Pairs, *layers: Layer, details: Mapping[str, Any] | None = None) -> Adapter:
    """An adapter of these layers that takes and gives unit vectors where the pairs are such."""
    last = replace(layers[-1], normalize=unit_length(pairs.target))
    sides = pairs.source_dimensions, pairs.target_dimensions
    return Adapter((*layers[:-1], last), *sides, normalize_input=unit_length(pairs.source), details=details or {})
