"""The items that searches of an evaluation run among: test pairs first, then a corpus."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from drift_pg.adapter import Adapter, Float32
from drift_pg.errors import InvalidInput, WrongDimensions
from drift_pg.neighbours import directions
from drift_pg.pairs import Pairs, checked_vectors


@dataclass(frozen=True, eq=False)
class Items:
    """What is searched, in unit length.

    Attributes:
        new: (n, m) the new model's vectors.
        legacy: (n, k) the legacy model's.
        adapted: (t, k) the new vectors of the test pairs, adapted.
        keys: (n,) text; positions where the pairs have none.
        tested: t, how many are test pairs: the first.
    """

    new: Float32
    legacy: Float32
    adapted: Float32
    keys: NDArray[np.str_]
    tested: int

    def __len__(self) -> int:
        return len(self.new)

    @property
    def rows(self) -> NDArray[np.int64]:
        """(t,) the positions of the test pairs."""
        return np.arange(self.tested)

    @property
    def depth(self) -> int:
        """How many neighbours are compared: ten, fewer where there are not ten others."""
        return min(10, len(self) - 1)

    @classmethod
    def of(cls, adapter: Adapter, test: Pairs, corpus: Pairs | None) -> Items:
        """Test pairs, and those of the corpus whose keys are not among theirs.

        Raises:
            WrongDimensions: pairs do not fit the adapter, or the corpus does not fit the test pairs.
        """
        for name, pairs in (("test pairs", test), ("corpus", corpus)):
            if pairs is not None:
                check_dimensions(name, pairs, adapter)
        keys = _keys(test, 0)
        new, legacy = [test.source], [test.target]
        if corpus is not None:
            more = _keys(corpus, len(test))
            others = ~np.isin(more, keys)
            keys = np.concatenate([keys, more[others]])
            new.append(corpus.source[others])
            legacy.append(corpus.target[others])
        adapted = directions(adapter.apply(test.source))
        return cls(directions(np.concatenate(new)), directions(np.concatenate(legacy)), adapted, keys, len(test))

    def check_keys(self) -> None:
        """Raises InvalidInput if two items have the same key, since labels then mean neither."""
        names, counts = np.unique(self.keys, return_counts=True)
        if (repeated := names[counts > 1]).size:
            raise InvalidInput(
                f"{len(repeated)} keys are of several items, so labels are ambiguous: {str(repeated[0])!r}, …"
            )


def _keys(pairs: Pairs, start: int) -> NDArray[np.str_]:
    return np.arange(start, start + len(pairs)).astype(np.str_) if pairs.keys is None else pairs.keys


def check_dimensions(name: str, pairs: Pairs, adapter: Adapter) -> None:
    """Raises WrongDimensions if an adapter does not map one side of the pairs to the other."""
    given = (pairs.source_dimensions, pairs.target_dimensions)
    expected = (adapter.source_dimensions, adapter.target_dimensions)
    if given != expected:
        raise WrongDimensions(
            f"the {name} have {given[0]} and {given[1]} dimensions, the adapter maps {expected[0]} to {expected[1]}",
            hint="source is the new model, target the legacy one",
        )


def query_vectors(name: str, vectors: object, dimensions: int, count: int | None = None) -> Float32:
    """Checked query vectors (q, dimensions).

    Raises:
        WrongDimensions: another width, or not `count` of them.
        InvalidVector: NaN, infinity or zero length.
    """
    checked = checked_vectors(name, vectors)  # type: ignore[arg-type]  # whatever it is, it is checked there
    if checked.shape[1] != dimensions or count not in (None, len(checked)):
        expected = f"({'q' if count is None else count}, {dimensions})"
        raise WrongDimensions(f"{name} vectors have shape {checked.shape}, expected {expected}")
    return checked
