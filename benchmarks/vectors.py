"""Vectors to time with: real embeddings where there are some, clustered draws otherwise.

Only timings come of them, never a figure of quality: rows and columns beyond the real ones are repeats.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from drift_pg import Pairs

Float32 = NDArray[np.float32]

DATA = Path(os.environ.get("DRIFT_PG_QUALITY_DATA", Path(__file__).parents[2] / "shared/data/pydocs.npz"))
LEGACY = ("minilm_l3", "minilm_l6", "wordllama")
NEW = ("minilm_l6", "wordllama", "minilm_l3")
NOISE = 0.1
"""Length of the noise on repeats, beside unit vectors."""


@dataclass(frozen=True)
class Corpus:
    """One table's worth.

    Attributes:
        documents: (rows, d), the legacy model's vectors, for the table.
        pairs: the same items by both models, to fit.
        queries: (queries, d), by the new model.
        origin: how all of it was made, in a sentence.
    """

    documents: Float32
    pairs: Pairs
    queries: Float32
    origin: str

    @property
    def dimensions(self) -> int:
        """Of both models."""
        return int(self.queries.shape[1])


def corpus(rows: int, dimensions: int, queries: int, pairs: int = 5000) -> Corpus:
    """Vectors of so many dimensions; the same at every call."""
    arrays, origin = _read(DATA) if DATA.is_file() else _draw()
    legacy = _side(arrays, "documents", LEGACY, rows, dimensions)
    new = _side(arrays, "documents", NEW, pairs, dimensions)
    asked = _side(arrays, "queries", NEW, queries, dimensions)
    return Corpus(legacy, Pairs(new, legacy[:pairs]), asked, origin)


def _side(arrays: Mapping[str, Float32], kind: str, models: tuple[str, ...], rows: int, dimensions: int) -> Float32:
    """Models' vectors side by side, repeated along both axes as often as it takes, at unit length."""
    rng = np.random.default_rng(rows + dimensions)
    wide = np.hstack([arrays[f"{kind}_{model}"] for model in models])
    filled = _repeat(_repeat(wide, rows, 0, rng), dimensions, 1, rng)
    return np.asarray(filled / np.linalg.norm(filled, axis=1, keepdims=True), dtype=np.float32)


def _repeat(vectors: Float32, size: int, axis: int, rng: np.random.Generator) -> Float32:
    """Cut an axis, or go round it again with noise, to `size`."""
    whole = vectors.shape[axis]
    taken = vectors.take(np.arange(size) % whole, axis=axis)
    repeats = taken[whole:] if axis == 0 else taken[:, whole:]
    repeats += NOISE / np.sqrt(taken.shape[1]) * rng.standard_normal(repeats.shape, dtype=np.float32)
    return np.asarray(taken)


def _read(path: Path) -> tuple[dict[str, Float32], str]:
    with np.load(path) as file:
        arrays = {name: file[name].astype(np.float32) for name in file.files if file[name].ndim == 2}
    origin = (
        f"embeddings of real documents ({path.name}): legacy {' + '.join(LEGACY)}, new {' + '.join(NEW)}, joined and "
        f"cut to the dimensions; rows and columns beyond these are repeats with noise of length {NOISE}"
    )
    return arrays, origin


def _draw() -> tuple[dict[str, Float32], str]:
    """Clusters whose members differ along few directions, as embeddings do; one latent item, three models."""
    rng = np.random.default_rng(0)
    maps = {model: rng.standard_normal((64, 384), dtype=np.float32) for model in LEGACY}
    centres = rng.standard_normal((200, 64), dtype=np.float32)
    arrays = {}
    for kind, count in (("documents", 15000), ("queries", 1500)):
        latent = centres[rng.integers(200, size=count)] + 0.7 * rng.standard_normal((count, 64), dtype=np.float32)
        for model, matrix in maps.items():
            arrays[f"{kind}_{model}"] = np.tanh(latent @ matrix / 8)
    return arrays, f"clustered random vectors, seeded: no real embeddings at {DATA} (set DRIFT_PG_QUALITY_DATA)"
