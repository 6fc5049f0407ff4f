"""The sample: what is refused, how it is divided, and files."""

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drift_pg import Pairs, artifact
from drift_pg.adapter import MAX_DIMENSIONS
from drift_pg.errors import DriftError, InvalidInput, InvalidVector, MissingExtra, TooFewPairs, WrongDimensions


def sample(n: int = 10, *, keys: bool = True) -> Pairs:
    """Pairs of 3 and 2 dimensions, all rows different."""
    rows = np.arange(1, n + 1, dtype=np.float32)[:, None]
    return Pairs(
        np.hstack([rows, rows, rows]),
        np.hstack([rows, -rows]),
        np.array([f"doc {i}" for i in range(n)]) if keys else None,
    )


def same(a: Pairs, b: Pairs) -> bool:
    keys = (a.keys is None and b.keys is None) or np.array_equal(a.keys, b.keys)  # type: ignore[arg-type]
    return np.array_equal(a.source, b.source) and np.array_equal(a.target, b.target) and keys


# What is refused


def test_vectors_are_kept_as_float32_rows_with_their_keys() -> None:
    pairs = Pairs([[1, 2], [3, 4]], np.ones((2, 5), np.float16), [7, 8])  # type: ignore[arg-type]
    assert (len(pairs), pairs.source_dimensions, pairs.target_dimensions) == (2, 2, 5)
    assert pairs.source.dtype == pairs.target.dtype == np.float32
    assert pairs.keys is not None
    assert pairs.keys.tolist() == ["7", "8"]


@pytest.mark.parametrize(
    "vectors",
    [
        np.ones(4),
        np.ones((2, 2, 2)),
        np.ones((2, 0)),
        np.ones((2, MAX_DIMENSIONS + 1)),
        3.0,
        [[1, 2], [1]],
        [["a", "b"], ["c", "d"]],
        [[1, 2], None],
        [{}, {}],
    ],
    ids=["1-D", "3-D", "no dimensions", "too many dimensions", "scalar", "ragged", "text", "a missing row", "objects"],
)
@pytest.mark.parametrize("side", ["source", "target"])
def test_vectors_must_be_rows_of_equal_length(side: str, vectors: Any) -> None:
    with pytest.raises(WrongDimensions, match=side):
        Pairs(**{"source": np.ones((2, 3)), "target": np.ones((2, 3)), side: vectors})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bad", "why"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity"), (0, "zero length")]
)
@pytest.mark.parametrize("side", ["source", "target"])
def test_the_first_bad_row_is_named(side: str, bad: float, why: str) -> None:
    vectors = np.ones((5, 2))
    vectors[[2, 4]] = bad
    with pytest.raises(InvalidVector, match=rf"{side} vector 2 .*{why}.*\(2 of 5 rows\)"):
        Pairs(**{"source": np.ones((5, 3)), "target": np.ones((5, 3)), side: vectors})


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_tiny_and_large_vectors_are_accepted(size: float) -> None:
    assert len(Pairs(np.full((2, 3), size), np.full((2, 3), size))) == 2


def test_both_sides_must_have_the_same_number_of_rows() -> None:
    with pytest.raises(WrongDimensions, match="3 source vectors and 2 target vectors"):
        Pairs(np.ones((3, 2)), np.ones((2, 2)))


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_pairs_are_refused(n: int) -> None:
    with pytest.raises(TooFewPairs, match=f"{n} pairs"):
        Pairs(np.ones((n, 2)), np.ones((n, 2)))


def test_keys_must_be_one_per_pair() -> None:
    with pytest.raises(InvalidInput, match="3 keys for 2 pairs"):
        Pairs(np.ones((2, 2)), np.ones((2, 2)), np.array(["a", "b", "c"]))


# Splits


@given(n=st.integers(6, 200), cuts=st.lists(st.integers(1, 5), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_a_split_covers_all_pairs_and_never_overlaps(n: int, cuts: list[int], seed: int) -> None:
    pairs, shares = sample(n), [cut / sum(cuts) for cut in cuts]
    try:
        parts = pairs.split(shares, seed)
    except TooFewPairs:
        assert min(shares) * n < 3
        return
    rows = np.concatenate([part.source[:, 0] for part in parts])
    assert len(parts) == len(shares)
    assert sorted(rows.tolist()) == pairs.source[:, 0].tolist()
    assert all(abs(len(part) - share * n) <= 1 for part, share in zip(parts, shares, strict=True))
    for part in parts:
        np.testing.assert_array_equal(part.target[:, 0], part.source[:, 0])
        assert part.keys is not None
        assert part.keys.tolist() == [f"doc {int(row) - 1}" for row in part.source[:, 0]]


def test_a_split_is_the_same_under_the_same_seed_only() -> None:
    first, again, other = (sample(100).split((0.8, 0.1, 0.1), seed) for seed in (1, 1, 2))
    assert all(map(same, first, again))
    assert not any(map(same, first, other))
    assert not same(first[0], Pairs(sample(100).source[:80], sample(100).target[:80]))


@pytest.mark.parametrize("shares", [(), (0.5, 0.4), (0.6, 0.6), (1.5, -0.5), (1.0, 0.0), (np.nan, 1.0)])
def test_shares_must_be_positive_and_sum_to_one(shares: tuple[float, ...]) -> None:
    with pytest.raises(InvalidInput, match="sum to 1"):
        sample().split(shares)


def test_a_part_of_fewer_than_two_pairs_is_refused() -> None:
    with pytest.raises(TooFewPairs):
        sample(10).split((0.9, 0.1))


def test_pairs_without_keys_are_split_without_keys() -> None:
    assert [part.keys for part in sample(keys=False).split((0.5, 0.5))] == [None, None]


# Files


def to_npz(path: Path, **columns: Any) -> None:
    with path.open("wb") as file:
        np.savez(file, **columns)


def to_parquet(path: Path, **columns: Any) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    lists = {name: column if isinstance(column, list) else column.tolist() for name, column in columns.items()}
    parquet.write_table(pyarrow.table(lists), path)


Writer = Callable[..., None]
kinds = pytest.mark.parametrize(
    ("suffix", "write"), [(".npz", to_npz), (".parquet", to_parquet)], ids=["npz", "parquet"]
)


@pytest.mark.parametrize("keys", [True, False])
def test_what_is_loaded_is_what_was_saved(*, keys: bool, tmp_path: Path) -> None:
    path = tmp_path / "pairs.npz"
    sample(keys=keys).save(path)
    assert same(Pairs.load(str(path)), sample(keys=keys))
    assert list(tmp_path.iterdir()) == [path]


@kinds
def test_files_of_other_tools_are_read(suffix: str, write: Writer, tmp_path: Path) -> None:
    pairs, path = sample(), tmp_path / f"pairs{suffix}"
    write(path, source=pairs.source, target=pairs.target, keys=pairs.keys, text=np.array(["x"] * 10))
    assert same(Pairs.load(path), pairs)
    write(path, source=pairs.source, target=pairs.target)
    assert same(Pairs.load(path), sample(keys=False))


def test_an_exception_while_saving_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pairs.npz"
    sample().save(path)

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(artifact.os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        sample(20).save(path)
    assert same(Pairs.load(path), sample())
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["none.npz", "none.parquet", "."])
def test_a_missing_file_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no pairs file"):
        Pairs.load(tmp_path / name)


@pytest.mark.parametrize("name", ["pairs.csv", "pairs", "pairs.npy", "pairs.pkl"])
def test_a_file_of_another_kind_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("1,2")
    with pytest.raises(InvalidInput, match=r"expected \.npz or \.parquet"):
        Pairs.load(tmp_path / name)


@kinds
@pytest.mark.parametrize("missing", ["source", "target"])
def test_a_file_without_one_of_both_sides_is_refused(missing: str, suffix: str, write: Writer, tmp_path: Path) -> None:
    path = tmp_path / f"pairs{suffix}"
    arrays = {"source": np.ones((3, 2)), "target": np.ones((3, 2)), "other": np.ones(3)}
    del arrays[missing]
    write(path, **arrays)
    with pytest.raises(InvalidInput, match=f"lacks {missing}; it has other"):
        Pairs.load(path)


@kinds
@pytest.mark.parametrize("kept", [0, 4, 0.5, -1])
def test_a_truncated_file_is_refused(kept: float, suffix: str, write: Writer, tmp_path: Path) -> None:
    path = tmp_path / f"pairs{suffix}"
    write(path, source=sample(500).source, target=sample(500).target)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content)) if isinstance(kept, float) else kept])
    with pytest.raises(InvalidInput, match="not a readable"):
        Pairs.load(path)


@kinds
def test_a_damaged_file_is_refused(suffix: str, write: Writer, tmp_path: Path) -> None:
    path = tmp_path / f"pairs{suffix}"
    write(path, source=sample(500).source, target=sample(500).target)
    content = bytearray(path.read_bytes())
    content[len(content) // 4 : len(content) // 2] = bytes(len(content) // 2 - len(content) // 4)
    path.write_bytes(content)
    with pytest.raises(DriftError):
        Pairs.load(path)


@kinds
def test_the_values_of_a_file_are_checked(suffix: str, write: Writer, tmp_path: Path) -> None:
    path = tmp_path / f"pairs{suffix}"
    write(path, source=np.ones((3, 2)), target=np.array([[1.0, 1], [np.nan, 1], [1, 1]]))
    with pytest.raises(InvalidVector, match="target vector 1"):
        Pairs.load(path)


@pytest.mark.parametrize("bad", [[[1.0], [1.0, 2.0]], [[1.0], None], ["a", "b"]], ids=["ragged", "null", "text"])
def test_a_parquet_column_that_is_not_vectors_is_refused(bad: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "pairs.parquet"
    to_parquet(path, source=bad, target=[[1.0], [2.0]])
    with pytest.raises(WrongDimensions, match="source"):
        Pairs.load(path)


class Exploit:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["source", "keys"])
def test_an_npz_that_holds_pickles_is_refused_and_not_unpickled(name: str, tmp_path: Path) -> None:
    path, proof = tmp_path / "pairs.npz", tmp_path / "proof"
    objects = np.array([Exploit(proof), None, None], dtype=object)
    to_npz(path, **{"source": np.ones((3, 2)), "target": np.ones((3, 2)), name: objects})
    with pytest.raises(InvalidInput, match=r"not a readable \.npz file"):
        Pairs.load(path)
    assert not proof.exists()


def test_a_zip_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pairs.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("source.npy", "not an array")
        file.writestr("target.npy", "not an array")
    with pytest.raises(InvalidInput):
        Pairs.load(path)


def test_a_single_array_named_npz_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pairs.npz"
    with path.open("wb") as file:
        np.save(file, np.ones((3, 2)))
    with pytest.raises(InvalidInput, match=r"not a readable \.npz file"):
        Pairs.load(path)


def test_parquet_without_pyarrow_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pairs.parquet"
    path.touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"drift-pg\[parquet\]"):
        Pairs.load(path)
