"""The query log: what is kept, how it stays small, who may, and the hook that samples without slowing or failing."""

import gc
import logging
import os
import random
import stat
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain

import numpy as np
import psycopg
import pytest
from psycopg import sql

import drift_pg
from drift_pg import QueryLog, errors
from drift_pg.database.connection import translated
from drift_pg.reembedding import query_sampling
from drift_pg.reembedding.query_log import query_log_status
from tests import servers
from tests.tables import make_docs
from tests.test_cache import in_child
from tests.test_rerank import Mixed, as_role

WHERE = ("docs", "embedding")


def prepare(conn: psycopg.Connection) -> None:
    make_docs(conn, np.eye(3))
    for model in ("legacy", "new", "newer"):
        drift_pg.register_model(conn, model, dimensions=3)
    drift_pg.register_column(conn, *WHERE, model="legacy")


@pytest.fixture(scope="module")
def shared(server: str, template: str) -> Iterator[str]:
    """A database with a registered column, and models of three dimensions; tests leave nothing but logged queries."""
    with servers.database(server, template) as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            prepare(conn)
        yield dsn


@pytest.fixture
def column(shared: str) -> Iterator[psycopg.Connection]:
    """A connection to it; the log is empty."""
    with psycopg.connect(shared, autocommit=True) as conn:
        conn.execute("TRUNCATE drift.query_log")
        yield conn


def log(conn: psycopg.Connection, query: list[float], model: str = "new") -> bool:
    return drift_pg.log_query(conn, *WHERE, query, model=model)


def read(conn: psycopg.Connection, **options) -> list[list[float]]:
    return drift_pg.read_query_log(conn, *WHERE, **{"model": "new", **options}).tolist()


def test_what_was_logged_is_read_newest_first_and_nothing_else_is_kept(column: psycopg.Connection) -> None:
    queries = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    assert all(log(column, query) for query in queries)
    log(column, [1, 2, 3], model="newer")
    assert np.array_equal(read(column), queries[::-1])
    assert np.array_equal(read(column, limit=2), queries[:2:-1])
    assert read(column, model="newer") == [[1, 2, 3]]
    assert drift_pg.read_query_log(column, *WHERE, model="legacy").shape == (0, 3)
    names = [
        name
        for (name,) in column.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'drift.query_log'::regclass AND attnum > 0"
        )
    ]
    assert names == ["id", "logged_at", "model", "relation", "column_name", "query"]


def test_parts_do_not_share_a_query(column: psycopg.Connection) -> None:
    for i in range(60):
        log(column, [1, i % 20, 0])
    fit, evaluate = ({tuple(q) for q in read(column, part=part)} for part in ("fit", "evaluate"))
    assert fit
    assert evaluate
    assert not fit & evaluate
    assert len(fit | evaluate) == 20
    assert len(read(column, part="fit")) + len(read(column, part="evaluate")) == 60


REFUSED = [
    (("docs", "embedding", [1, 2], "new"), errors.WrongDimensions, "2 dimensions"),
    (("docs", "embedding", [[1, 2, 3]], "new"), errors.InvalidVector, "shape .1, 3."),
    (("docs", "embedding", [0, 0, 0], "new"), errors.InvalidVector, "direction|length"),
    (("docs", "embedding", [1, 2, 3], "nope"), errors.UnknownModel, "'nope'"),
    (("docs", "nope", [1, 2, 3], "new"), errors.UnknownColumn, "nope"),
    (("nope", "embedding", [1, 2, 3], "new"), errors.ColumnMissing, "nope"),
]


def test_what_is_refused(column: psycopg.Connection) -> None:
    for (relation, name, query, model), error, match in REFUSED:
        with pytest.raises(error, match=match):
            drift_pg.log_query(column, relation, name, query, model=model)
    assert read(column) == []
    for refused, options in ((errors.UnknownModel, {"model": "nope"}), (errors.InvalidDefinition, {"limit": -1})):
        with pytest.raises(refused):
            read(column, **options)
    with pytest.raises(errors.UnknownColumn):
        drift_pg.read_query_log(column, "docs", "body", model="new")
    for options in ({"keep": -1}, {"days": -1}):
        with pytest.raises(errors.InvalidDefinition, match="negative"):
            drift_pg.trim_query_log(column, **options)
    with translated(), pytest.raises(psycopg.Error, match="must not be NULL"):
        column.execute("SELECT drift.log_query(NULL, 'new', 'docs', 'embedding')")


def test_trimming_keeps_the_newest_of_each_column_and_model(column: psycopg.Connection) -> None:
    for i in range(1, 6):
        log(column, [i, 0, 0])
        log(column, [i, 1, 0], model="newer")
    column.execute("UPDATE drift.query_log SET logged_at = now() - interval '40 days' WHERE query::text = '[5,1,0]'")
    assert drift_pg.trim_query_log(column) == 1
    assert drift_pg.trim_query_log(column, keep=2) == 5
    assert read(column) == [[5, 0, 0], [4, 0, 0]]
    assert read(column, model="newer") == [[4, 1, 0], [3, 1, 0]]
    assert drift_pg.trim_query_log(column, days=0) == 4


def fill(conn: psycopg.Connection, count: int, age: str = "0") -> None:
    """At once: a hundred thousand rows are not looked up by two foreign keys each."""
    with conn.transaction():
        conn.execute("SET LOCAL session_replication_role = replica")
        conn.execute(
            "INSERT INTO drift.query_log (logged_at, model, relation, column_name, query) "
            "SELECT now() - %s::interval, 'new', 'docs'::regclass, 'embedding', '[1,2,3]'::extensions.vector FROM generate_series(1, %s)",
            [age, count],
        )


def test_logging_trims_by_itself(column: psycopg.Connection) -> None:
    fill(column, 50, "40 days")
    fill(column, 10_020)
    log(column, [1, 2, 3])
    assert len(read(column)) == 10_001  # ten thousand, and the one that trimmed
    log(column, [1, 2, 3])
    assert len(read(column)) == 10_002  # the oldest is young: not each call trims
    column.execute(SEED)
    log(column, [1, 2, 3])
    assert len(read(column)) == 10_001
    column.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    column.execute(SEED)
    log(column, [1, 2, 3])
    assert len(read(column)) == 10_002


SEED = """SELECT setseed((SELECT s FROM (SELECT s, setseed(s) AS seeded, random() AS r FROM generate_series(0, 1, 0.0001::float8::numeric)
                                         AS g (n), LATERAL (SELECT n::float8 AS s) AS f OFFSET 0) AS drawn WHERE r < 0.001 LIMIT 1))"""
"""After it the next random() is one in a thousand."""


def test_trimming_waits_for_nobody(column: psycopg.Connection, shared: str) -> None:
    for i in range(1, 4):
        log(column, [i, 0, 0])
    with psycopg.connect(shared) as other:
        other.execute("DELETE FROM drift.query_log WHERE query::text = '[1,0,0]'")
        column.execute("SET lock_timeout = '500ms'")
        assert drift_pg.trim_query_log(column, keep=1) == 1


def test_a_role_that_may_only_insert_logs_until_the_log_is_full(column: psycopg.Connection, shared: str) -> None:
    reader = (
        "GRANT USAGE ON SCHEMA drift, extensions TO {role}",
        "GRANT SELECT ON drift.model, drift.embedding_column TO {role}",
    )
    with psycopg.connect(shared, autocommit=True) as admin, as_role(column, *reader) as role:
        with pytest.raises(errors.PermissionDenied) as refused:
            log(column, [1, 2, 3])
        assert refused.value.hint == f'GRANT INSERT ON drift.query_log TO "{role}";'
        admin.execute(sql.SQL("GRANT INSERT ON drift.query_log TO {}").format(sql.Identifier(role)))
        assert log(column, [1, 2, 3])
        with pytest.raises(errors.PermissionDenied, match="lacks SELECT on"):
            query_log_status(column)
        with pytest.raises(errors.PermissionDenied, match="lacks SELECT, UPDATE, DELETE"):
            drift_pg.trim_query_log(column)
        fill(admin, 100_000)
        admin.execute("SELECT pg_stat_force_next_flush()")
        assert soon(lambda: not log(column, [1, 2, 3]))
        admin.execute(sql.SQL("GRANT SELECT, UPDATE, DELETE ON drift.query_log TO {}").format(sql.Identifier(role)))
        assert log(column, [1, 2, 3])


def test_a_renamed_table_keeps_its_log_and_unregistering_forgets_it_and_says_so(conn: psycopg.Connection) -> None:
    prepare(conn)
    for model in ("new", "newer"):
        log(conn, [1, 2, 3], model=model)
    conn.execute('ALTER TABLE docs RENAME TO "Weird ""Table %s"')
    relation = '"Weird ""Table %s"'
    assert len(drift_pg.read_query_log(conn, relation, "embedding", model="new")) == 1
    drift_pg.unregister_model(conn, "newer")
    assert [(found.relation, found.model, found.queries) for found in query_log_status(conn)] == [(relation, "new", 1)]
    (number,) = conn.execute("SELECT relation::oid::text FROM drift.query_log").fetchone()
    conn.execute('DROP TABLE "Weird ""Table %s"')
    assert query_log_status(conn)[0].relation == number
    drift_pg.unregister_column(conn, number, "embedding")
    assert query_log_status(conn) == []
    events = conn.execute("SELECT action, details FROM drift.event ORDER BY id DESC LIMIT 2").fetchall()
    assert events == [("unregister_column", {"logged_queries": 1}), ("unregister_model", {"logged_queries": 1})]


def test_touched_rows_come_in_the_order_of_whole_answers(conn: psycopg.Connection, rng: np.random.Generator) -> None:
    mixed = Mixed(conn, rng)
    conn.execute("SET enable_seqscan = off; SET hnsw.ef_search = 400")
    assert drift_pg.touched(conn, *WHERE, model="new") == []
    for i in (1, 0, 1, 2):
        log(conn, mixed.new[i])
    found = [int(key) for (key,) in drift_pg.touched(conn, *WHERE, model="new", n=50)]
    answers = [mixed.search(mixed.new[i], 50) for i in (1, 2, 0)]  # twice; last; before
    assert found == list(dict.fromkeys(chain(*answers)))
    assert len(found) > 60
    newest = drift_pg.touched(conn, *WHERE, model="new", n=50, queries=1)
    assert [int(key) for (key,) in newest] == answers[1]
    touches = conn.execute(
        "SELECT touches FROM drift.touched('docs', 'embedding', 'new', 50) WHERE key = %s::jsonb",
        [f'["{answers[0][0]}"]'],
    )
    assert touches.fetchone()[0] == sum(
        (answers[0][0] in answer) * times for answer, times in zip(answers, (2, 1, 1), strict=True)
    )
    claimed = conn.execute("SELECT key FROM drift.claim('docs', 'embedding', %s)", [psycopg.types.json.Jsonb(newest)])
    assert [int(key) for ((key,),) in claimed] == answers[1]
    assert conn.execute("SHOW hnsw.ef_search").fetchone() == ("400",)
    with pytest.raises(errors.InvalidDefinition):
        drift_pg.touched(conn, *WHERE, model="new", n=0)
    with pytest.raises(errors.NoCompanion):
        drift_pg.touched(conn, *WHERE, model="legacy")


def soon(done: Callable[[], bool], within: float = 10.0) -> bool:
    until = time.monotonic() + within
    while not done():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def query_log(column: psycopg.Connection, shared: str) -> Iterator[QueryLog]:
    with QueryLog(shared, sample=1) as made:
        yield made


def hook(query_log: QueryLog, query: object = (1, 2, 3), **names: str) -> None:
    query_log.log(query, **{"model": "new", "relation": "public.docs", "column": "embedding", **names})


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "drift_pg query log"]


def test_the_hook_writes_beside_the_application(query_log: QueryLog, column: psycopg.Connection) -> None:
    query = np.array([1, 2, 3], np.float32)
    hook(query_log, query)
    query[:] = 0  # the application goes on with its array
    assert soon(lambda: query_log.logged == 1)
    assert read(column) == [[1, 2, 3]]
    # A pooler's next client must not inherit what the log's commits are like.
    assert query_log._writer._conn.execute("SHOW synchronous_commit").fetchone() == ("on",)
    assert query_log.close()
    assert threads() == []
    hook(query_log)
    assert (query_log.closed, query_log.logged, query_log.dropped) == (True, 1, 1)
    assert query_log.close()


def test_closing_writes_what_waits(query_log: QueryLog, column: psycopg.Connection) -> None:
    for i in range(1, 101):
        hook(query_log, [i, 0, 0])
    assert query_log.close()
    assert (query_log.logged, query_log.dropped) == (100, 0)
    assert read(column) == [[i, 0, 0] for i in range(100, 0, -1)]


def test_what_cannot_be_kept_is_counted_and_raises_nothing(
    query_log: QueryLog, column: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    for query in ("no vector", None, [[1, 2, 3]], [1, 2], [0, 0, 0], [1, 2, np.nan], object()):
        hook(query_log, query)
    for names in ({"model": "nope"}, {"column": "nope"}, {"relation": "nope"}, {"relation": '"'}):
        hook(query_log, **names)
    hook(query_log)
    assert soon(lambda: query_log.logged == 1)
    assert query_log.dropped == 11
    warned = [record.args for record in caplog.records]
    assert len(warned) < 11
    assert sum("'nope' is not registered" in str(reason) for reason in warned) == 1
    assert read(column) == [[1, 2, 3]]


def test_a_sample_is_taken(column: psycopg.Connection, shared: str) -> None:
    for share in (0.0, 0.3):
        with QueryLog(shared, sample=share) as query_log:
            query_log._random = iter(np.linspace(0, 1, 100, endpoint=False)).__next__
            for _ in range(100):
                hook(query_log)
            assert bool(threads()) == bool(share)  # no sample, no connection
        assert query_log.logged == round(100 * share)


def test_drawing_leaves_the_applications_own_random_numbers_alone(query_log: QueryLog) -> None:
    random.seed(5)
    expected = random.random()
    random.seed(5)
    query_log.draw()
    assert random.random() == expected


def test_an_idle_connection_is_given_back(
    query_log: QueryLog, column: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_sampling, "IDLE", 0.05)
    for logged in (1, 2):
        hook(query_log)
        assert soon(lambda logged=logged: query_log.logged == logged)
        assert soon(lambda: query_log._writer._conn.closed)
    assert query_log.close()
    assert (query_log.logged, query_log.dropped) == (2, 0)


@pytest.mark.parametrize("options", [{"sample": -0.1}, {"sample": 1.1}, {"capacity": 0}])
def test_a_hook_out_of_its_limits_is_refused(options: dict) -> None:
    with pytest.raises(errors.InvalidDefinition, match="expected"):
        QueryLog("", **options)
    with pytest.raises(errors.InvalidDefinition) as refused:
        QueryLog("postgresql://me:secret@host:port word/app")
    assert "secret" not in str(refused.value)


def test_a_connection_that_is_cut_loses_no_query(query_log: QueryLog, column: psycopg.Connection, caplog) -> None:
    hook(query_log)
    assert soon(lambda: query_log.logged == 1)
    for i in range(2):
        assert cut(column) == 1
        hook(query_log, [i, 1, 1])
        assert soon(lambda i=i: query_log.logged == 2 + i, 0.4)  # sooner than the first pause
    assert query_log.dropped == 0
    assert caplog.records == []


def cut(conn: psycopg.Connection) -> int:
    found = conn.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND query LIKE '%%drift.log_query%%' AND backend_type = 'client backend'"
    )
    return len(found.fetchall())


def test_a_database_that_is_away_and_comes_back(
    column: psycopg.Connection, shared: str, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    monkeypatch.setattr(query_sampling, "FIRST_PAUSE", 0.01)
    away, asked = threading.Event(), []
    away.set()

    def connect() -> psycopg.Connection:
        asked.append(1)
        if away.is_set():
            raise OSError("postgresql://me:secret@host is away")
        return psycopg.connect(shared)

    with caplog.at_level(logging.DEBUG, "drift_pg.query_log"), QueryLog(connect, sample=1, capacity=5) as query_log:
        for i in range(1, 30):
            hook(query_log, [i, 0, 0])
        assert soon(lambda: len(asked) > 2)
        assert 29 - 6 <= query_log.dropped <= 29 - 5  # five wait, and one may be in hand
        away.clear()
        assert soon(lambda: query_log.logged + query_log.dropped == 29)
        assert query_log.close()
    assert [1, 0, 0] in read(column)
    assert "no queries are logged" in caplog.text
    assert "secret" not in caplog.text


def test_closing_does_not_wait_for_a_database_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    query_log = QueryLog("host=127.0.0.1 port=1", sample=1)
    for _ in range(3):
        hook(query_log)
    began = time.monotonic()
    assert not query_log.close()
    assert time.monotonic() - began < 1.9
    assert (query_log.logged, query_log.dropped) == (0, 3)


def test_logging_does_not_wait_for_a_lock(query_log: QueryLog, column: psycopg.Connection, shared: str) -> None:
    with psycopg.connect(shared) as other:
        other.execute("LOCK drift.query_log IN ACCESS EXCLUSIVE MODE")
        began = time.monotonic()
        for _ in range(100):
            hook(query_log)
        assert time.monotonic() - began < 0.5
        assert not query_log.close(0.1)
    assert query_log.dropped >= 98
    assert soon(lambda: threads() == [])  # its last query was written, or not, once the lock was gone


def test_a_forked_child_logs_over_a_connection_of_its_own(query_log: QueryLog, column: psycopg.Connection) -> None:
    hook(query_log)
    assert soon(lambda: query_log.logged == 1)

    def child() -> int:
        fresh = query_log.logged == 0
        kept = query_sampling._abandoned[-1]._conn
        alone = kept is not None and not stat.S_ISSOCK(os.fstat(kept.fileno()).st_mode)
        hook(query_log, [2, 2, 2])
        return 0 if fresh and alone and query_log.close() and query_log.logged == 1 else 1

    assert in_child(child) == 0
    hook(query_log, [3, 3, 3])
    assert soon(lambda: query_log.logged == 2)
    assert read(column) == [[3, 3, 3], [2, 2, 2], [1, 2, 3]]
    assert query_log.dropped == 0
    query_log.close()
    assert in_child(lambda: 0 if query_log.closed else 1) == 0


def test_a_forgotten_hook_ends_its_thread(column: psycopg.Connection, shared: str) -> None:
    query_log = QueryLog(shared, sample=1)
    hook(query_log)
    del query_log
    gc.collect()
    assert soon(lambda: threads() == [])
    assert read(column) == [[1, 2, 3]]


def test_who_could_look_at_adapters_can_look_at_the_log(conn: psycopg.Connection) -> None:
    drift_pg.downgrade(conn, to="0004")
    conn.execute("GRANT SELECT, INSERT ON drift.adapter TO PUBLIC")
    drift_pg.upgrade(conn)
    granted = conn.execute(
        "SELECT array_agg(a.privilege_type ORDER BY 1) FROM pg_class c, aclexplode(c.relacl) a "
        "WHERE c.oid = 'drift.query_log'::regclass AND a.grantee = 0"
    )
    assert granted.fetchone() == (["INSERT", "SELECT"],)
