"""Spectral maps: Procrustes re-weighted by how well each direction is shared. Closed form."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from drift_pg.adapter import Adapter, Float32
from drift_pg.families.base import Centred, Refinable, adapter_of, affine_layer
from drift_pg.families.procrustes import nearest_orthogonal
from drift_pg.neighbours import HeldOut
from drift_pg.pairs import Pairs

FLOOR = 1e-3
"""Least eigenvalue of a covariance, relative to the mean: directions below are noise."""

HELD_OUT = 500
"""Most items that choosing exponents holds out."""


@dataclass(frozen=True)
class Exponents:
    """Which member of the family: W = Gₓ^p U Sˢ Vᵀ Gᵧ^r."""

    p: float
    s: float
    r: float


GRID = tuple(Exponents(p, s, r) for p, s, r in product((0.0, -0.25), (0.5, 0.75), (0.0, -0.25, -0.5)))


@dataclass(frozen=True)
class Spectral(Refinable):
    """y = Wᵀx (+ bias) with W = Gₓ^p U Sˢ Vᵀ Gᵧ^r, scaled to least squares; one layer.

    Gₓ and Gᵧ are the covariances of the centred pairs, scaled to mean eigenvalue 1 and floored; U S Vᵀ is the
    singular value decomposition of the whitened cross-covariance Gₓ^(-½) C Gᵧ^(-½), whose singular values
    are the canonical correlations: how well a direction of one space is known from the other. p = s = r = 0
    is Procrustes between whitened spaces, p = -½, s = 1, r = ½ least squares. Least squares shrinks
    the directions of low variance that fine ranking needs, Procrustes trusts all directions alike; half-way
    exponents do neither. Held-out pairs choose among a grid of exponents, with and without a bias, and plain
    and centred Procrustes (the neighbours that a search finds decide, not the cosine).

    Sources: orthogonal Procrustes (Schönemann, 1966); whitening, re-weighting and de-whitening of
    cross-lingual maps (Artetxe, Labaka & Agirre, AAAI 2018); Drift-Adapter (EMNLP 2025).

    Attributes:
        exponents: p, s, r, to fix them; None chooses among the grid.
    """

    exponents: tuple[float, float, float] | None = None

    def start(self, pairs: Pairs, seed: int) -> Adapter:
        """Choose the exponents on held-out pairs, then fit all pairs."""
        chosen = self._choice(pairs, seed)
        matrix, bias = chosen.map(Decomposition.of(pairs.source, pairs.target))
        return adapter_of(pairs, affine_layer(matrix, bias), details={"chosen": str(chosen)})

    def _choice(self, pairs: Pairs, seed: int) -> Choice:
        if self.exponents is not None:
            return Choice(Exponents(*self.exponents))
        return START if self.trains else choose(pairs, seed)


Map = tuple[Float32, Float32 | None]


@dataclass(frozen=True)
class Choice:
    """One of the maps that are tried: exponents, or None for Procrustes; around the means or not."""

    exponents: Exponents | None
    centre: bool = False

    def __str__(self) -> str:
        e = self.exponents
        name = "procrustes" if e is None else f"p={e.p:g} s={e.s:g} r={e.r:g}"
        return f"{name} centred" if self.centre else name

    def map(self, parts: Decomposition) -> Map:
        """The matrix (m, k), and the bias (k,) if centred."""
        exponents = self.exponents
        matrix = parts.rotation(centre=self.centre) if exponents is None else parts.matrix(exponents)
        return matrix, parts.y_mean - parts.x_mean @ matrix if self.centre else None


START = Choice(Exponents(0, 0.5, -0.25))
"""Where training begins: not the best map before it, but the one that training takes farthest (docs/quality.md)."""

CHOICES = tuple(Choice(e, centre) for e, centre in product((None, *GRID), (False, True)))


@dataclass(frozen=True, eq=False)
class Decomposition:
    """Means, covariances and canonical correlations of pairs, from which every map that is tried follows."""

    x_mean: Float32
    y_mean: Float32
    gx: Spectrum
    gy: Spectrum
    cross: Float32
    _matrices: dict[Exponents, Float32] = field(default_factory=dict)

    @classmethod
    def of(cls, x: Float32, y: Float32, weights: Float32 | None = None) -> Decomposition:
        """Decompose x (n, m) and y (n, k), each pair counted by its weight (n,), or all alike."""
        shares = np.full(len(x), 1 / len(x), np.float32) if weights is None else weights / weights.sum()
        a, b = Centred.of(x, shares), Centred.of(y, shares)
        gx, gy, cross = ((p.values.T * shares) @ q.values for p, q in ((a, a), (b, b), (a, b)))
        return cls(a.mean, b.mean, Spectrum.of(gx), Spectrum.of(gy), cross)

    def rotation(self, *, centre: bool) -> Float32:
        """The Procrustes map; uncentred, the means are part of what is rotated."""
        return nearest_orthogonal(self.cross if centre else self.cross + np.outer(self.x_mean, self.y_mean))

    @cached_property
    def correlations(self) -> tuple[Float32, Float32, Float32]:
        """U, S / max S, Vᵀ of the whitened cross-covariance."""
        whitened = self.gx.power(-0.5) @ self.cross @ self.gy.power(-0.5)
        u, s, vt = np.linalg.svd(whitened, full_matrices=False)
        return u, s / max(s[0], np.finfo(np.float32).tiny), vt

    def matrix(self, exponents: Exponents) -> Float32:
        """W (m, k) of these exponents, scaled to least squares."""
        if exponents not in self._matrices:
            u, s, vt = self.correlations
            inner = (u * s**exponents.s) @ vt
            matrix = self.gx.power(exponents.p) @ inner @ self.gy.power(exponents.r)
            explained = np.einsum("mk,mk->", matrix, self.cross)
            energy = np.einsum("mk,mk->", matrix, self.gx.matrix @ matrix)
            self._matrices[exponents] = matrix * (explained / max(energy, np.finfo(np.float32).tiny))
        return self._matrices[exponents]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """A covariance by its eigenvalues, for powers of it."""

    matrix: Float32
    values: NDArray[np.float64]
    vectors: Float32
    _powers: dict[float, Float32] = field(default_factory=dict)

    @classmethod
    def of(cls, covariance: Float32) -> Spectrum:
        """Decompose in double precision; eigenvalues are scaled to mean 1 and floored."""
        values, vectors = np.linalg.eigh(covariance.astype(np.float64))
        mean = max(values.mean(), np.finfo(np.float64).tiny)
        return cls(covariance, np.maximum(values / mean, FLOOR), vectors.astype(np.float32))

    def power(self, exponent: float) -> Float32:
        """The scaled covariance to a power."""
        if exponent not in self._powers:
            scaled = self.vectors * (self.values**exponent).astype(np.float32)
            self._powers[exponent] = scaled @ self.vectors.T if exponent else np.eye(len(self.values), dtype=np.float32)
        return self._powers[exponent]


def choose(pairs: Pairs, seed: int) -> Choice:
    """The choice whose searches are most like the new model's, on held-out pairs."""
    order = np.random.default_rng(seed).permutation(len(pairs))
    count = min(HELD_OUT, max(1, len(pairs) // 5))
    held, rest = order[:count], order[count:]
    held_out = HeldOut(pairs.source, pairs.target, held)
    parts = Decomposition.of(pairs.source[rest], pairs.target[rest])

    def score(choice: Choice) -> float:
        matrix, bias = choice.map(parts)
        return held_out.measure(pairs.source[held] @ matrix + (0 if bias is None else bias)).score

    return max(CHOICES, key=score)
