"""Pairs: the same items embedded by both models, in memory and in files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from drift_pg.adapter import MAX_DIMENSIONS, Float32, lengths
from drift_pg.artifact import write_atomically
from drift_pg.errors import InvalidInput, InvalidVector, MissingExtra, TooFewPairs, WrongDimensions

MINIMUM = 2
RECOMMENDED_MINIMUM = 2000
"""Below this many pairs quality falls off (DESIGN.md, section 1); fitting warns."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Vectors of the same items by both models, row by row.

    Attributes:
        source: (n, m) float32, the new model's vectors.
        target: (n, k) float32, the legacy model's vectors.
        keys: (n,) text, the items' primary keys, or None if they are not known.

    Raises:
        WrongDimensions: the arrays are not two-dimensional or differ in length.
        InvalidVector: NaN, infinity, or a vector of zero length.
        TooFewPairs: fewer than two.
    """

    source: Float32
    target: Float32
    keys: NDArray[np.str_] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", checked_vectors("source", self.source))
        object.__setattr__(self, "target", checked_vectors("target", self.target))
        if len(self.source) != len(self.target):
            raise WrongDimensions(
                f"{len(self.source)} source vectors and {len(self.target)} target vectors are no pairs"
            )
        if len(self) < MINIMUM:
            raise TooFewPairs(f"{len(self)} pairs; at least {MINIMUM} are needed, {RECOMMENDED_MINIMUM:,} recommended")
        if self.keys is not None:
            object.__setattr__(self, "keys", np.asarray(self.keys, dtype=np.str_))
            if len(self.keys) != len(self):
                raise InvalidInput(f"{len(self.keys)} keys for {len(self)} pairs")

    def __len__(self) -> int:
        return len(self.source)

    @property
    def source_dimensions(self) -> int:
        """m."""
        return int(self.source.shape[1])

    @property
    def target_dimensions(self) -> int:
        """k."""
        return int(self.target.shape[1])

    def take(self, rows: NDArray[np.int64]) -> Pairs:
        """The pairs at these rows."""
        return Pairs(self.source[rows], self.target[rows], None if self.keys is None else self.keys[rows])

    def split(self, shares: Sequence[float], seed: int = 0) -> list[Pairs]:
        """Shuffle and divide into parts that do not overlap, e.g. (.8, .1, .1) for fit, validation and test.

        Raises:
            InvalidInput: the shares do not sum to 1.
            TooFewPairs: a part would hold fewer than two.
        """
        if not np.isclose(sum(shares), 1) or min(shares) <= 0:
            raise InvalidInput(f"shares {tuple(shares)} must be positive and sum to 1")
        order = np.random.default_rng(seed).permutation(len(self))
        ends = np.round(np.cumsum(shares)[:-1] * len(self)).astype(int)
        return [self.take(part) for part in np.split(order, ends)]

    def save(self, path: str | Path) -> None:
        """Write an .npz file, atomically; raises InvalidInput for a file of another kind."""
        if Path(path).suffix != ".npz":
            raise InvalidInput(f"pairs are written to .npz files, not to {str(path)!r}")
        arrays: dict[str, Any] = {"source": self.source, "target": self.target}
        if self.keys is not None:
            arrays["keys"] = self.keys
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        write_atomically(Path(path), buffer.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> Pairs:
        """Read `source`, `target` and, if present, `keys` from an .npz or a .parquet file.

        In a parquet file the vectors are columns of lists of numbers (needs the extra `parquet`).

        Raises:
            InvalidInput: the file is missing, of another kind, or lacks an array.
        """
        path = Path(path)
        if not path.is_file():
            raise InvalidInput(f"there is no pairs file {str(path)!r}")
        if path.suffix not in _READERS:
            raise InvalidInput(f"{str(path)!r} is no pairs file: expected {' or '.join(_READERS)}")
        arrays = _READERS[path.suffix](path)
        missing = {"source", "target"} - set(arrays)
        if missing:
            raise InvalidInput(
                f"{str(path)!r} lacks {', '.join(sorted(missing))}; it has {', '.join(sorted(arrays)) or 'nothing'}",
                hint="it must hold `source` (new model) and `target` (legacy model), one row per item",
            )
        return cls(arrays["source"], arrays["target"], arrays.get("keys"))


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # numpy raises a dozen kinds for a damaged archive
        raise InvalidInput(f"{str(path)!r} is not a readable .npz file", detail=str(error)) from error


def _read_parquet(path: Path) -> dict[str, Any]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError as error:
        raise MissingExtra("reading parquet needs pyarrow", hint="pip install 'drift-pg[parquet]'") from error
    try:
        table = parquet.read_table(path)
    except (ArrowInvalid, OSError) as error:
        raise InvalidInput(f"{str(path)!r} is not a readable parquet file", detail=str(error)) from error
    return {name: table[name].to_pylist() for name in table.column_names}


_READERS = {".npz": _read_npz, ".parquet": _read_parquet}


def checked_vectors(side: str, vectors: ArrayLike) -> Float32:
    """Vectors as float32 (n, d), or an error that names the side and the first bad row.

    Raises:
        WrongDimensions: they are not rows of equal length.
        InvalidVector: NaN, infinity, or a vector of zero length.
    """
    try:
        array = np.ascontiguousarray(vectors, dtype=np.float32)
    except (ValueError, TypeError) as error:
        raise WrongDimensions(f"{side} vectors are not rows of equal length of numbers", detail=str(error)) from error
    if array.ndim != 2 or not 1 <= array.shape[1] <= MAX_DIMENSIONS:
        raise WrongDimensions(f"{side} vectors have shape {array.shape}, expected (n, d) with 1 ≤ d ≤ {MAX_DIMENSIONS}")
    _refuse(side, ~np.isfinite(array).all(axis=1), "holds NaN or infinity")
    _refuse(side, lengths(array) == 0, "has zero length: was its text empty?")
    return array


def _refuse(side: str, bad: Any, why: str) -> None:
    if bad.any():
        raise InvalidVector(f"{side} vector {int(bad.argmax())} {why} ({int(bad.sum())} of {len(bad)} rows)")
