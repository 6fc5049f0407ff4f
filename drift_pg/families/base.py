"""What every family promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from drift_pg.adapter import Adapter, Float32, Layer, lengths
from drift_pg.pairs import Pairs


@dataclass(frozen=True)
class Family(ABC):
    """A kind of adapter. Subclasses are dataclasses whose fields are its options."""

    @abstractmethod
    def fit(self, pairs: Pairs, *, seed: int = 0) -> Adapter:
        """Fit the pairs; change nothing on self."""


@dataclass(frozen=True)
class Centred:
    """Vectors without their mean."""

    values: Float32
    mean: Float32

    @classmethod
    def of(cls, vectors: Float32, *, centre: bool = True) -> Centred:
        """Take the mean off, or a mean of zero."""
        mean = vectors.mean(axis=0) if centre else np.zeros(vectors.shape[1], np.float32)
        return cls(vectors - mean if centre else vectors, mean)


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
