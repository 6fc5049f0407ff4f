"""Sampling rows of the user's table."""

import stat
from pathlib import Path

import numpy as np
import psycopg
import pytest

import drift_pg
from drift_pg import errors
from drift_pg.database import sampling
from drift_pg.database.registry import EmbeddingColumn
from drift_pg.database.sampling import Sample, draw
from tests.tables import make_docs, vector


@pytest.fixture
def docs(conn: psycopg.Connection, rng: np.random.Generator) -> psycopg.Connection:
    """1,000 rows of 4 dimensions, registered."""
    make_docs(conn, rng.standard_normal((1000, 4)))
    drift_pg.register_model(conn, "legacy", dimensions=4)
    drift_pg.register_column(conn, "docs", "embedding", model="legacy")
    return conn


def sample(
    conn: psycopg.Connection,
    count: int,
    *,
    text: tuple[str, ...] = ("body",),
    column: str = "docs.embedding",
    seed: int = 0,
) -> Sample:
    return draw(conn, EmbeddingColumn.find(conn, column), text, count, seed=seed)


def test_rows_are_drawn_with_their_key_text_and_vector(docs: psycopg.Connection) -> None:
    drawn = sample(docs, 100)
    assert len(drawn) == len(set(drawn.keys)) == 100
    for key, text, row in zip(drawn.keys, drawn.texts, drawn.vectors, strict=True):
        expected = docs.execute("SELECT body, embedding::text FROM docs WHERE id = %s", [int(key)]).fetchone()
        assert (text, vector(np.float32(row))) == (expected[0], vector(np.float32(eval(expected[1]))))


def test_a_seed_decides_the_rows(docs: psycopg.Connection) -> None:
    assert (sample(docs, 100).keys == sample(docs, 100).keys).all()
    assert set(sample(docs, 100).keys) != set(sample(docs, 100, seed=1).keys)


def test_rows_are_drawn_from_the_whole_table(docs: psycopg.Connection) -> None:
    mean = np.mean([sample(docs, 100, seed=seed).keys.astype(int).mean() for seed in range(5)])
    assert abs(mean - 499.5) < 5 * 288 / np.sqrt(500)


@pytest.mark.parametrize("analysed", [True, False])
def test_rows_without_vector_or_text_are_skipped_and_texts_not_repeated(
    docs: psycopg.Connection, analysed: bool
) -> None:
    docs.execute("UPDATE docs SET embedding = NULL WHERE id % 4 = 0; UPDATE docs SET body = NULL WHERE id % 4 = 1")
    docs.execute(
        r"UPDATE docs SET body = E' \n' WHERE id % 8 = 2; UPDATE docs SET body = 'same' WHERE id < 200 AND id % 4 = 3"
    )
    docs.execute("UPDATE docs SET embedding = '[0,0,0,0]' WHERE id = 999")
    docs.execute("ANALYZE docs" if analysed else "UPDATE pg_class SET reltuples = -1 WHERE relname = 'docs'")
    drawn = sample(docs, 5000)
    usable = {i for i in range(1000) if i % 4 == 3 or i % 8 == 6} - {i for i in range(200) if i % 4 == 3} - {999}
    assert len(drawn) == len(usable) + 1
    assert drawn.repeated == 49
    assert {int(key) for key, text in zip(drawn.keys, drawn.texts, strict=True) if text != "same"} == usable


def test_several_text_columns_are_joined(docs: psycopg.Connection) -> None:
    docs.execute('ALTER TABLE docs ADD "The Title" text')
    docs.execute("""UPDATE docs SET "The Title" = 'title ' || id WHERE id > 0""")
    drawn = sample(docs, 2000, text=("The Title", "body"))
    texts = dict(zip(drawn.keys, drawn.texts, strict=True))
    assert (texts["7"], texts["0"]) == ("title 7\ntext 7", "text 0")


@pytest.mark.parametrize("extension", [False, True])
def test_large_tables_are_sampled_by_page(
    docs: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, extension: bool
) -> None:
    monkeypatch.setattr(sampling, "SMALL_TABLE", 0)
    if extension:
        if not docs.execute("SELECT FROM pg_available_extensions WHERE name = 'tsm_system_rows'").fetchall():
            pytest.skip("this server comes without tsm_system_rows")
        docs.execute("CREATE EXTENSION tsm_system_rows SCHEMA extensions")
    drawn = sample(docs, 100)
    assert len(drawn) == 100
    assert drawn.method == ("system_rows" if extension else "system")


def test_keys_of_any_kind(conn: psycopg.Connection) -> None:
    drift_pg.register_model(conn, "legacy", dimensions=2)
    for table, key in (("none", ""), ("composite", ', PRIMARY KEY ("B", a)')):
        conn.execute(f'CREATE TABLE {table} (a int, "B" text, e extensions.halfvec(2) {key})')
        conn.execute(
            f"INSERT INTO {table} SELECT i, 'x,' || i, ('[1,' || i || ']')::extensions.halfvec FROM generate_series(1, 9) i"
        )
        drift_pg.register_column(conn, table, "e", model="legacy", metric="cosine")
        drawn = sample(conn, 9, text=("B",), column=f"{table}.e")
        assert len(set(drawn.keys)) == 9
    assert '("x,3",3)' in drawn.keys or '(3,"x,3")' in drawn.keys


def test_partitions_are_sampled_as_one_table(conn: psycopg.Connection) -> None:
    conn.execute("CREATE TABLE docs (id int, body text, e extensions.vector(2)) PARTITION BY RANGE (id)")
    conn.execute(
        "CREATE TABLE low PARTITION OF docs FOR VALUES FROM (0) TO (50); CREATE TABLE high PARTITION OF docs FOR VALUES FROM (50) TO (100)"
    )
    conn.execute(
        "INSERT INTO docs SELECT i, 'text ' || i, ('[1,' || i || ']')::extensions.vector FROM generate_series(0, 99) i"
    )
    conn.execute("ANALYZE docs")
    drift_pg.register_model(conn, "legacy", dimensions=2)
    drift_pg.register_column(conn, "docs", "e", model="legacy", metric="cosine")
    assert len(sample(conn, 100, column="docs.e")) == 100


def test_what_cannot_be_sampled_is_refused(docs: psycopg.Connection) -> None:
    with pytest.raises(errors.ColumnMissing, match="has no column 'nope'; it has id, body, embedding"):
        sample(docs, 10, text=("nope",))
    docs.execute("CREATE VIEW seen AS SELECT * FROM docs")
    drift_pg.register_column(docs, "seen", "embedding", model="legacy", metric="cosine")
    with pytest.raises(errors.InvalidDefinition, match="is no table"):
        sample(docs, 10, column="seen.embedding")
    docs.execute("TRUNCATE docs")
    with pytest.raises(errors.TooFewPairs, match="0 rows"):
        sample(docs, 10)
    docs.execute("ALTER TABLE docs DROP embedding CASCADE")
    with pytest.raises(errors.ColumnMissing):
        sample(docs, 10)
    drift_pg.unregister_column(docs, "docs", "embedding")
    with pytest.raises(errors.UnknownColumn):
        sample(docs, 10)


def test_a_kept_sample_is_for_its_owner_alone_and_comes_back_whole(docs: psycopg.Connection, tmp_path: Path) -> None:
    drawn = sample(docs, 50)
    drawn.save(tmp_path / "sample.npz")
    assert stat.S_IMODE((tmp_path / "sample.npz").stat().st_mode) == 0o600
    loaded = Sample.load(tmp_path / "sample.npz")
    assert (loaded.texts == drawn.texts).all()
    assert (loaded.vectors == drawn.vectors).all()
    assert (loaded.method, loaded.repeated) == (drawn.method, drawn.repeated)
