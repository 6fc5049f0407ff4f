"""Embedding texts by a function of them, with a cache on disk so that no text is paid for twice."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import ArrayLike

from drift_pg.adapter import Float32, lengths, unit
from drift_pg.errors import EmbedderFailed, InvalidInput, WrongDimensions

Embedder = Callable[[list[str]], ArrayLike]
"""Maps n texts to (n, d) vectors."""

Progress = Callable[[int, int], None]
"""Told how many of how many are done."""

BATCH = 64

AGAIN = "what was embedded before is kept; run the same command again"
"""The hint where an embedder's failure may be over soon."""


def embed(embedder: Embedder, texts: Sequence[str], *, dimensions: int | None = None) -> Float32:
    """Call an embedder and check what it returns: (n, d) float32, finite, no zero vector.

    Raises:
        EmbedderFailed: it raised, or returned anything else.
        WrongDimensions: d is not `dimensions`.
    """
    try:
        vectors = np.asarray(embedder(list(texts)), dtype=np.float32)
    except (EmbedderFailed, WrongDimensions):
        raise
    except Exception as error:
        raise EmbedderFailed(f"the embedder raised {type(error).__name__}: {error}", hint=AGAIN) from error
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise EmbedderFailed(f"the embedder returned an array of shape {vectors.shape} for {len(texts)} texts")
    if dimensions is not None and vectors.shape[1] != dimensions:
        raise WrongDimensions(
            f"the embedder gives {vectors.shape[1]} dimensions, the model has {dimensions}",
            hint="is it the function of the model that is named?",
        )
    bad = ~np.isfinite(vectors).all(axis=1)
    if bad.any() or not lengths(vectors).all():
        raise EmbedderFailed(
            f"the embedder returned {int(bad.sum())} vectors with NaN or infinity and {int((lengths(vectors) == 0).sum())} of zero length"
        )
    return vectors


class EmbeddingCache:
    """Vectors on disk by the hash of what they were made from; texts themselves are not kept.

    Attributes:
        path: of an SQLite file, made at first use.
        namespace: keeps models and embedders apart.
    """

    def __init__(self, path: Path, namespace: str) -> None:
        self.path = path
        self.namespace = namespace

    @classmethod
    def of(cls, folder: Path, model: str, reference: str) -> EmbeddingCache:
        """The cache in a folder for a model and the embedder that was named for it."""
        return cls(folder / "embeddings.sqlite", f"{model}\0{reference}")

    def __enter__(self) -> EmbeddingCache:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(self.path, timeout=60)
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS embedding (key BLOB PRIMARY KEY, vector BLOB NOT NULL) WITHOUT ROWID"
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def _key(self, text: str) -> bytes:
        return hashlib.sha256(f"{self.namespace}\0{text}".encode()).digest()

    def get(self, text: str) -> Float32 | None:
        """The vector of a text, None if it is not cached."""
        with closing(self._database.execute("SELECT vector FROM embedding WHERE key = ?", [self._key(text)])) as found:
            row = found.fetchone()
        return None if row is None else np.frombuffer(row[0], dtype="<f4").astype(np.float32)

    def put(self, texts: Iterable[str], vectors: Float32) -> None:
        """Keep a batch, durably once this returns."""
        entries = [(self._key(text), v.astype("<f4").tobytes()) for text, v in zip(texts, vectors, strict=True)]
        with self._database:
            self._database.executemany("INSERT OR REPLACE INTO embedding VALUES (?, ?)", entries)


def embed_all(
    embedder: Embedder,
    texts: Sequence[str],
    cache: EmbeddingCache,
    *,
    dimensions: int,
    batch: int = BATCH,
    progress: Progress | None = None,
) -> Float32:
    """Embed texts in batches, each kept as soon as it came: a crash or Ctrl-C loses at most one.

    The embedder is first tried on one text, so that a wrong one costs one call.

    Raises:
        EmbedderFailed, WrongDimensions: as `embed`.
        InvalidInput: the cache holds another embedder's vectors under the same name.
    """
    _try_one(embedder, texts[0], cache, dimensions)
    missing = [text for text in dict.fromkeys(texts) if cache.get(text) is None]
    done = len(texts) - len(missing)
    report = progress or (lambda *_: None)
    report(done, len(texts))
    for start in range(0, len(missing), batch):
        part = missing[start : start + batch]
        cache.put(part, embed(embedder, part, dimensions=dimensions))
        done += len(part)
        report(done, len(texts))
    return np.array([cache.get(text) for text in texts], dtype=np.float32)


def _try_one(embedder: Embedder, text: str, cache: EmbeddingCache, dimensions: int) -> None:
    vector = embed(embedder, [text], dimensions=dimensions)
    kept = cache.get(text)
    if kept is not None and (kept.shape != (dimensions,) or float(unit(kept) @ unit(vector[0])) < 0.99):
        raise InvalidInput(
            "the embedder gives other vectors than those it gave before, which are cached",
            hint=f"a changed model needs a name of its own; to embed all texts again, delete {cache.path}",
        )
    cache.put([text], vector)
