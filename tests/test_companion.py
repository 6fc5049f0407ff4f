"""Companion tables: what creating one asks for, its index, how far it is, and the way back."""

import json
import threading
import time

import numpy as np
import psycopg
import pytest
from psycopg import sql

import drift_pg
from drift_pg import errors
from drift_pg.database import index_building
from tests.servers import PGVECTOR_SCHEMA
from tests.tables import make_docs, vector
from tests.test_rerank import Mixed, as_role

WHERE = ("docs", "embedding")


@pytest.fixture
def mixed(conn: psycopg.Connection, rng: np.random.Generator) -> Mixed:
    return Mixed(conn, rng)


def index(conn: psycopg.Connection) -> tuple:
    return conn.execute(
        "SELECT m.amname, k.reloptions, o.opcname, i.indisvalid, pg_get_indexdef(i.indexrelid, 1, true) FROM pg_class k "
        "JOIN pg_index i ON i.indexrelid = k.oid JOIN pg_am m ON m.oid = k.relam JOIN pg_opclass o ON o.oid = i.indclass[0] "
        "WHERE k.relname = 'companion_1_vectors'"
    ).fetchone()


def test_creating_it_again_alike_does_nothing_and_otherwise_is_refused(mixed: Mixed, conn: psycopg.Connection) -> None:
    mixed.fill(np.arange(10), index=False)
    events = "SELECT count(*) FROM drift.event WHERE action = 'create_companion'"
    assert drift_pg.create_companion(conn, *WHERE, model="new", text=["body"]) == "drift.companion_1"
    assert conn.execute(events).fetchone() == (1,)
    assert drift_pg.coverage(conn, *WHERE).known == 10
    with pytest.raises(errors.AlreadyRegistered, match="has a companion for model 'new', from the text of body"):
        drift_pg.create_companion(conn, *WHERE, model="new", text=["body", "id"])


def test_what_forbids_a_companion_is_named(mixed: Mixed, conn: psycopg.Connection) -> None:
    drift_pg.drop_companion(conn, *WHERE)

    def refused(error: type[errors.DriftError], match: str, model: str = "new", text: object = "body") -> None:
        with pytest.raises(error, match=match):
            drift_pg.create_companion(conn, *WHERE, model=model, text=text)

    refused(errors.UnknownModel, "'newer' is not registered", model="newer")
    refused(errors.InvalidDefinition, "itself", model="legacy")
    refused(errors.ColumnMissing, "no column boddy", text=["body", "boddy"])
    refused(errors.ColumnMissing, "no column named", text=[])
    conn.execute("ALTER TABLE docs DROP CONSTRAINT docs_pkey")
    refused(errors.InvalidDefinition, "no primary key")
    drift_pg.unregister_column(conn, *WHERE)
    refused(errors.UnknownColumn, "not registered")
    assert conn.execute("SELECT count(*) FROM drift.companion").fetchone() == (0,)


def test_dropping_it_leaves_nothing_behind(mixed: Mixed, conn: psycopg.Connection) -> None:
    mixed.fill(np.arange(10))
    drift_pg.drop_companion(conn, *WHERE)
    assert conn.execute("SELECT count(*) FROM pg_trigger WHERE tgrelid = 'docs'::regclass").fetchone() == (0,)
    assert conn.execute("SELECT to_regclass('drift.companion_1')").fetchone() == (None,)
    action, details = conn.execute("SELECT action, details FROM drift.event ORDER BY id DESC LIMIT 1").fetchone()
    assert (action, details["vectors"]) == ("drop_companion", 10)
    with pytest.raises(errors.NoCompanion):
        drift_pg.drop_companion(conn, *WHERE)


def test_a_companion_whose_table_was_dropped_is_dropped_by_number(mixed: Mixed, conn: psycopg.Connection) -> None:
    (number,) = conn.execute("SELECT 'docs'::regclass::oid::text").fetchone()
    conn.execute("DROP TABLE docs")
    drift_pg.drop_companion(conn, number, "embedding")
    assert conn.execute("SELECT to_regclass('drift.companion_1')").fetchone() == (None,)


def test_it_waits_for_writers_only_so_long(mixed: Mixed, conn: psycopg.Connection, dsn: str) -> None:
    drift_pg.drop_companion(conn, *WHERE)
    with psycopg.connect(dsn) as writer:
        writer.execute("UPDATE docs SET body = body WHERE id = 1")
        conn.execute("SET lock_timeout = '200ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            drift_pg.create_companion(conn, *WHERE, model="new", text="body")
    assert drift_pg.create_companion(conn, *WHERE, model="new", text="body") == "drift.companion_3"
    assert conn.execute("SHOW lock_timeout").fetchone() == ("200ms",)


def test_coverage_tells_known_stale_queued_and_orphaned_apart(mixed: Mixed, conn: psycopg.Connection) -> None:
    mixed.fill(np.arange(100), index=False)
    conn.execute("UPDATE docs SET body = 'changed' WHERE id < 30")
    conn.execute("UPDATE docs SET body = NULL WHERE id BETWEEN 30 AND 34")
    conn.execute(
        "SELECT drift.queue_missing('docs', 'embedding', %s)", [json.dumps([[str(i)] for i in range(200, 207)])]
    )
    conn.execute("ALTER TABLE docs DISABLE TRIGGER ALL; DELETE FROM docs WHERE id IN (90, 91, 92)")
    found = drift_pg.coverage(conn, *WHERE)
    assert (found.rows, found.known, found.stale, found.queued, found.orphaned) == (392, 62, 30, 7, 3)
    assert found.share == pytest.approx(62 / 392)
    conn.execute("TRUNCATE docs")
    assert drift_pg.coverage(conn, *WHERE).share == 1.0


def test_a_vector_is_stored_only_beside_the_text_it_was_made_from(mixed: Mixed, conn: psycopg.Connection) -> None:
    def store(key: int, text: str) -> int:
        values = [json.dumps([[str(key)]]), [text], [vector(mixed.new[0])]]
        return conn.execute("SELECT drift.store_vectors('docs', 'embedding', %s, %s, %s)", values).fetchone()[0]

    assert [store(1, "text 1"), store(2, "text of before"), store(1000, "text 1000")] == [1, 0, 0]
    conn.execute("UPDATE docs SET body = 'changed' WHERE id = 1")
    assert [store(1, "text 1"), store(1, "changed")] == [0, 1]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("WITH (m = 7, ef_construction = 33)", ("hnsw", ["m=7", "ef_construction=33"], "vector_l2_ops", True, "embedding")),
        ("", ("hnsw", None, "vector_l2_ops", True, "embedding")),
    ],
)  # fmt: skip
def test_its_index_is_the_columns_own(
    conn: psycopg.Connection, rng: np.random.Generator, options: str, expected: tuple
) -> None:
    mixed = Mixed(conn, rng, "l2", opclass=None).fill(np.arange(200), index=False)
    conn.execute(f"CREATE INDEX ON docs USING hnsw (embedding {PGVECTOR_SCHEMA}.vector_l2_ops) {options}".encode())
    assert drift_pg.build_index(conn, *WHERE)
    assert index(conn) == expected
    assert not drift_pg.build_index(conn, *WHERE)
    assert len(mixed.search(mixed.new[0], 5, 50)) == 5


def test_an_ivfflat_column_gets_an_ivfflat_index(conn: psycopg.Connection, rng: np.random.Generator) -> None:
    Mixed(conn, rng, opclass=None).fill(np.arange(200), index=False)
    conn.execute(
        f"CREATE INDEX ON docs USING ivfflat (embedding {PGVECTOR_SCHEMA}.vector_cosine_ops) WITH (lists = 5)".encode()
    )
    drift_pg.build_index(conn, *WHERE)
    assert index(conn)[:3] == ("ivfflat", ["lists=5"], "vector_cosine_ops")


def test_above_2000_dimensions_it_is_over_a_cast(conn: psycopg.Connection, rng: np.random.Generator) -> None:
    Mixed(conn, rng, dimensions=2500, legacy_dimensions=16, rows=20).fill(np.arange(20), index=False)
    drift_pg.build_index(conn, *WHERE)
    assert index(conn) == ("hnsw", None, "halfvec_cosine_ops", True, "(embedding::extensions.halfvec(2500))")


def test_an_index_of_another_definition_is_not_taken_for_it(mixed: Mixed, conn: psycopg.Connection) -> None:
    drift_pg.build_index(conn, *WHERE)
    conn.execute(
        f"DROP INDEX docs_embedding_idx; CREATE INDEX ON docs USING hnsw (embedding {PGVECTOR_SCHEMA}.vector_cosine_ops) WITH (m = 5)"
    )
    with pytest.raises(errors.AlreadyRegistered, match=r"m=5") as refused:
        drift_pg.build_index(conn, *WHERE)
    assert "DROP INDEX CONCURRENTLY drift.companion_1_vectors" in (refused.value.hint or "")


def test_an_interrupted_build_is_dropped_and_built_again(mixed: Mixed, conn: psycopg.Connection, dsn: str) -> None:
    mixed.fill(np.arange(400), index=False)
    with psycopg.connect(dsn) as other:  # CONCURRENTLY waits for whoever might still use the table
        other.execute("LOCK drift.companion_1 IN ROW EXCLUSIVE MODE")
        conn.execute("SET statement_timeout = '300ms'")
        with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
            drift_pg.build_index(conn, *WHERE, maintenance_work_mem="80MB", workers=0)
    assert index(conn)[3] is False
    conn.execute("SET statement_timeout = 0")
    assert conn.execute("SHOW maintenance_work_mem").fetchone() == ("64MB",)
    assert drift_pg.build_index(conn, *WHERE)
    assert index(conn)[3] is True


def test_a_build_that_is_going_on_is_not_disturbed(mixed: Mixed, conn: psycopg.Connection, dsn: str) -> None:
    mixed.fill(np.arange(400), index=False)
    with psycopg.connect(dsn) as blocker, psycopg.connect(dsn, autocommit=True) as builder:
        blocker.execute("LOCK drift.companion_1 IN ROW EXCLUSIVE MODE")
        thread = threading.Thread(target=drift_pg.build_index, args=(builder, *WHERE))
        thread.start()
        limit = time.monotonic() + 10
        while index(conn) is None and time.monotonic() < limit:
            time.sleep(0.02)
        with pytest.raises(errors.Conflict, match="being built at this moment by process"):
            drift_pg.build_index(conn, *WHERE)
        blocker.rollback()
        thread.join()
    assert index(conn)[3] is True


def test_settings_hold_for_the_build_alone(
    mixed: Mixed, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed.fill(np.arange(100), index=False)
    seen, names = [], ("maintenance_work_mem", "max_parallel_maintenance_workers")
    original = index_building.rows

    def watching(conn: psycopg.Connection, query: object, *parameters: object) -> list:
        if isinstance(query, sql.Composed):
            seen.append([conn.execute(f"SHOW {name}".encode()).fetchone()[0] for name in names])
        return original(conn, query, *parameters)

    monkeypatch.setattr(index_building, "rows", watching)
    before = [conn.execute(f"SHOW {name}".encode()).fetchone()[0] for name in names]
    drift_pg.build_index(conn, *WHERE, maintenance_work_mem="96MB", workers=3)
    assert seen == [["96MB", "3"]]
    assert [conn.execute(f"SHOW {name}".encode()).fetchone()[0] for name in names] == before != seen[0]


def test_without_shared_memory_it_is_built_without_workers(
    mixed: Mixed, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt fails as PostgreSQL fails in a container of 64 MB /dev/shm; what that leaves is gone."""
    original, failed = index_building.rows, []

    def small(conn: psycopg.Connection, query: object, *parameters: object) -> list:
        if isinstance(query, sql.Composed) and not failed and "CREATE" in query.as_string(None):
            failed.append(True)
            raise psycopg.errors.DiskFull('could not resize shared memory segment "/PostgreSQL.1234" to 67145408 bytes')
        return original(conn, query, *parameters)

    monkeypatch.setattr(index_building, "rows", small)
    with pytest.raises(psycopg.errors.DiskFull):
        drift_pg.build_index(conn, *WHERE, workers=2)  # who asks for workers is told
    failed.clear()
    assert drift_pg.build_index(conn, *WHERE)
    assert index(conn)[3] is True


def test_progress_is_told_while_it_is_built(conn: psycopg.Connection, rng: np.random.Generator, monkeypatch) -> None:
    Mixed(conn, rng, rows=6000, dimensions=64, opclass=None).fill(np.arange(6000), index=False)
    monkeypatch.setattr(index_building, "POLL", 0.01)
    told: list[tuple[int, int]] = []
    drift_pg.build_index(conn, *WHERE, progress=lambda done, total: told.append((done, total)))
    assert told
    assert told == sorted(told)
    assert all(0 <= done <= total for done, total in told)


def test_an_index_needs_a_connection_outside_a_transaction(mixed: Mixed, conn: psycopg.Connection, dsn: str) -> None:
    with psycopg.connect(dsn) as other, pytest.raises(errors.InvalidDefinition, match="inside a transaction"):
        drift_pg.build_index(other, *WHERE)
    with conn.transaction(), pytest.raises(errors.InvalidDefinition, match="inside a transaction"):
        drift_pg.build_index(conn, *WHERE)
    assert index(conn) is None


def test_a_partitioned_table(conn: psycopg.Connection, rng: np.random.Generator) -> None:
    make_docs(conn, rng.standard_normal((60, 8)), table="plain", opclass=None)
    conn.execute("""CREATE TABLE docs (id bigint PRIMARY KEY, body text, embedding extensions.vector(8)) PARTITION BY RANGE (id);
                    CREATE TABLE low PARTITION OF docs FOR VALUES FROM (0) TO (30);
                    CREATE TABLE high PARTITION OF docs FOR VALUES FROM (30) TO (100);
                    INSERT INTO docs SELECT * FROM plain; DROP TABLE plain""")  # fmt: skip
    for model in ("legacy", "new"):
        drift_pg.register_model(conn, model, dimensions=8)
    drift_pg.register_column(conn, *WHERE, model="legacy", metric="cosine")
    drift_pg.create_companion(conn, *WHERE, model="new", text="body")
    conn.execute(
        "SELECT drift.store_vectors('docs', 'embedding', jsonb_agg(jsonb_build_array(id)), array_agg(body), array_agg(embedding::text)) FROM docs"
    )
    assert drift_pg.coverage(conn, *WHERE).known == 60
    conn.execute("DELETE FROM docs WHERE id BETWEEN 25 AND 34")
    found = drift_pg.coverage(conn, *WHERE)
    assert (found.known, found.orphaned) == (50, 0)


def test_the_tables_owner_may_use_a_companion_that_another_role_made(mixed: Mixed, conn: psycopg.Connection) -> None:
    owner = ("GRANT USAGE ON SCHEMA drift, extensions TO {role}", "ALTER TABLE docs OWNER TO {role}")
    again = "SELECT drift.create_companion('docs', 'embedding', 'new', '{{body}}')"
    reading = "GRANT SELECT ON ALL TABLES IN SCHEMA drift TO {role}; REVOKE ALL ON drift.companion_1 FROM {role}"
    mixed.fill(np.arange(100), index=False)
    try:
        with as_role(conn, *owner, reading, again):
            assert drift_pg.coverage(conn, *WHERE).known == 100
            conn.execute("DELETE FROM docs WHERE id < 50")
            assert drift_pg.coverage(conn, *WHERE).known == 50
            conn.execute("RESET ROLE; ALTER TABLE docs OWNER TO CURRENT_USER")
    finally:
        conn.execute("RESET ROLE")


@pytest.mark.parametrize("secured", [False, True])
def test_a_renamed_key_does_not_keep_rows_from_being_deleted(
    mixed: Mixed, conn: psycopg.Connection, secured: bool
) -> None:
    if secured:  # the trigger is another one then
        conn.execute("ALTER TABLE docs ENABLE ROW LEVEL SECURITY")
        drift_pg.create_companion(conn, *WHERE, model="new", text="body")
    mixed.fill(np.arange(20), index=False)
    conn.execute("ALTER TABLE docs RENAME id TO number")
    told: list[str] = []
    conn.add_notice_handler(lambda notice: told.append(notice.message_primary or ""))
    assert conn.execute("DELETE FROM docs WHERE number < 5").rowcount == 5
    assert "a key column of public.docs was renamed" in told[0]
    conn.execute("UPDATE drift.companion SET key_columns = '{number}'")
    assert conn.execute("DELETE FROM docs WHERE number < 10").rowcount == 5
    assert conn.execute("SELECT drift.sweep_companion('docs', 'embedding')").fetchone() == (5,)
    assert conn.execute("SELECT count(*) FROM drift.companion_1").fetchone() == (10,)
