"""Upgrades to measure: documents, labelled queries and a query log, each embedded by a new and a legacy model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np

from drift_pg import Pairs
from drift_pg.adapter import Float32
from drift_pg.neighbours import Indices, directions

UPGRADES = (("minilm_l3", "minilm_l6"), ("wordllama", "minilm_l6"), ("minilm_l6", "minilm_l3"))
"""Legacy and new model, of those that data sets share; where none is there, every ordered pair of models."""

NOISE = (0.0, 0.25, 0.5, 1.0, 2.0)
"""Of the drift that is made: a standard deviation, relative to the documents' own in each dimension."""

HELD_OUT, LEAST_HELD_OUT = 1000, 100
"""Documents outside the pairs for the measures that need no labels: so many, or those that are left."""


@dataclass(frozen=True, eq=False)
class Upgrade:
    """One change of models on one data set.

    Attributes:
        data, digest: the data set's name and a hash of its content.
        legacy, new: the models' names.
        documents_legacy, documents_new: (n, k) and (n, m), unit length.
        queries_legacy, queries_new: (q, k) or None, and (q, m).
        labels: (q,) the document that each query should find.
        log: (l, m) further queries by the new model, or None.
        free: documents that answer neither a test query nor one of the log; pairs are drawn from these.
        noise: how much drift was made; None for two real models.
    """

    data: str
    digest: str
    legacy: str
    new: str
    documents_legacy: Float32
    documents_new: Float32
    queries_legacy: Float32 | None
    queries_new: Float32
    labels: Indices
    log: Float32 | None
    free: Indices
    noise: float | None = None

    @property
    def name(self) -> str:
        """Of the change, without the data set."""
        return f"{self.legacy} → {self.new}"

    @property
    def title(self) -> str:
        """Unique over all data sets."""
        return f"{self.data}: {self.name}"

    def most_pairs(self) -> int:
        """How many pairs can be drawn so that enough documents are left to hold out."""
        return len(self.free) - LEAST_HELD_OUT

    def rows(self, count: int, seed: int) -> Indices:
        """The documents of `count` pairs; those of a smaller count are among them."""
        return np.random.default_rng(seed).permutation(self.free)[:count]

    def held_out(self, count: int, seed: int) -> Indices:
        """Documents outside these pairs: the other end of the same permutation, so the same for all counts."""
        order = np.random.default_rng(seed).permutation(self.free)
        return order[max(count, len(order) - HELD_OUT) :]

    def pairs(self, count: int, seed: int) -> Pairs:
        """Both models' vectors of `rows`."""
        rows = self.rows(count, seed)
        return Pairs(self.documents_new[rows], self.documents_legacy[rows])


def read(path: Path) -> list[Upgrade]:
    """Every upgrade of a file, which has arrays documents_*, queries_*, labels, and perhaps log_*, log_labels."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    return [_upgrade(path.stem, digest, arrays, legacy, new) for legacy, new in _changes(arrays)]


def _changes(arrays: Mapping[str, np.ndarray]) -> list[tuple[str, str]]:
    models = [name.removeprefix("documents_") for name in arrays if name.startswith("documents_")]
    known = [(legacy, new) for legacy, new in UPGRADES if {legacy, new} <= set(models)]
    return [change for change in known or permutations(models, 2) if f"queries_{change[1]}" in arrays]


def _upgrade(data: str, digest: str, arrays: Mapping[str, np.ndarray], legacy: str, new: str) -> Upgrade:
    def vectors(name: str) -> Float32 | None:
        return directions(arrays[name].astype(np.float32)) if name in arrays else None

    documents = len(arrays[f"documents_{new}"])
    answers = np.union1d(arrays["labels"], arrays.get("log_labels", arrays["labels"]))
    return Upgrade(
        data=data,
        digest=digest,
        legacy=legacy,
        new=new,
        documents_legacy=directions(arrays[f"documents_{legacy}"].astype(np.float32)),
        documents_new=directions(arrays[f"documents_{new}"].astype(np.float32)),
        queries_legacy=vectors(f"queries_{legacy}"),
        queries_new=directions(arrays[f"queries_{new}"].astype(np.float32)),
        labels=arrays["labels"].astype(np.int64),
        log=vectors(f"log_{new}"),
        free=np.setdiff1d(np.arange(documents), answers),
    )


def made(real: Upgrade) -> Iterator[Upgrade]:
    """The new model's space turned by a random rotation, with noise that grows: a legacy model of known drift."""
    for noise in NOISE:
        yield _turned(real, noise)


def _turned(real: Upgrade, noise: float) -> Upgrade:
    rng = np.random.default_rng(0)
    rotation = _rotation(real.documents_new.shape[1], rng)
    spread = noise * real.documents_new.std(axis=0)

    def turn(vectors: Float32) -> Float32:
        moved = vectors + spread * rng.standard_normal(vectors.shape, dtype=np.float32)
        return directions((moved @ rotation).astype(np.float32))

    return Upgrade(
        data=real.data,
        digest=real.digest,
        legacy=f"{real.new} rotated, noise {noise:g}",
        new=real.new,
        documents_legacy=turn(real.documents_new),
        documents_new=real.documents_new,
        queries_legacy=turn(real.queries_new),
        queries_new=real.queries_new,
        labels=real.labels,
        log=real.log,
        free=real.free,
        noise=noise,
    )


def _rotation(dimensions: int, rng: np.random.Generator) -> Float32:
    """Uniform over the orthogonal matrices: QR with the signs of R's diagonal taken out."""
    q, r = np.linalg.qr(rng.standard_normal((dimensions, dimensions)))
    return np.asarray(q * np.sign(np.diag(r)), dtype=np.float32)
