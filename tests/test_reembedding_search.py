"""Searches that embed what they miss: many clients at once, and every way in which an embedder goes wrong."""

import asyncio
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import psycopg
import pytest
from psycopg.rows import dict_row

import drift_pg
from drift_pg import errors
from drift_pg.reembedding.search import failures
from tests import embedders
from tests.tables import vector
from tests.test_rerank import Mixed, as_role

DIMENSIONS = embedders.DIMENSIONS


@pytest.fixture
def mixed(conn: psycopg.Connection, rng: np.random.Generator) -> Mixed:
    """A table whose texts `embedders.hashed` embeds."""
    made = Mixed(conn, rng, dimensions=DIMENSIONS, rows=200)
    made.new = embedders.hashed([f"text {i}" for i in range(200)])
    return made


@pytest.fixture
def query(rng: np.random.Generator) -> np.ndarray:
    return embedders.hashed(["a query"])[0]


class Counting:
    """The embedder `hashed`, which remembers what it was asked for; slow enough for others to come between."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.texts, self.batches = seconds, Counter[str](), 0

    def __call__(self, texts: list[str]) -> np.ndarray:
        self.texts.update(texts)
        self.batches += 1
        time.sleep(self.seconds)
        return embedders.hashed(texts)


def search(conn: psycopg.Connection, query: np.ndarray, **options) -> list:
    return drift_pg.search(conn, "docs", "embedding", query, **{"query_model": "new", "within": 30.0, **options})


def ids(rows: list) -> list[int]:
    return [row[0] for row in rows]


def coverage(conn: psycopg.Connection) -> drift_pg.reembedding.Coverage:
    return drift_pg.coverage(conn, "docs", "embedding")


def test_what_is_missing_is_embedded_in_one_batch_in_the_bridges_order_and_kept(
    mixed: Mixed, conn: psycopg.Connection, query: np.ndarray
) -> None:
    embed = Counting()
    bridge = mixed.search(query, 100)
    found = ids(search(conn, query, rerank=100, embed=embed, at_most=30))
    assert embed.batches == 1
    assert set(embed.texts) == {f"text {i}" for i in bridge[:30]}
    mixed.known = {i: mixed.new[i] for i in bridge[:30]}
    assert found == mixed.reference(query, 10, 100)
    assert ids(search(conn, query, rerank=100, embed=embed, at_most=100)) == _best(mixed, query, bridge)
    assert embed.batches == 2
    assert set(embed.texts.values()) == {1}
    assert ids(search(conn, query, rerank=100, embed=embedders.raising)) == _best(mixed, query, bridge)
    assert coverage(conn).known == 100


def _best(mixed: Mixed, query: np.ndarray, rows: list[int]) -> list[int]:
    return sorted(rows, key=lambda i: -float(mixed.new[i] @ query))[:10]


def test_the_asynchronous_search_is_the_same(
    mixed: Mixed, conn: psycopg.Connection, dsn: str, query: np.ndarray
) -> None:
    embed = Counting()

    async def run() -> list:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as other:
            options = {"query_model": "new", "rerank": 100, "at_most": 30, "embed": embed, "within": 30.0}
            first = await drift_pg.search_async(other, "docs", "embedding", query, **options)
            hanging = {**options, "embed": hangs(), "within": 0.1}
            return [first, await drift_pg.search_async(other, "docs", "embedding", query, **hanging)]

    first, second = asyncio.run(run())
    assert ids(first) == ids(second) == ids(search(conn, query, rerank=100, at_most=0))
    assert set(embed.texts) == {f"text {i}" for i in mixed.search(query, 100)[:30]}


def test_without_an_embedder_misses_are_counted_and_bounded(
    mixed: Mixed, conn: psycopg.Connection, query: np.ndarray
) -> None:
    bridge = mixed.search(query, 100)
    for _ in range(3):
        assert ids(search(conn, query, rerank=100, at_most=20)) == bridge[:10]
    queued = conn.execute("SELECT key1, misses FROM drift.companion_1 WHERE embedding IS NULL").fetchall()
    assert dict(queued) == dict.fromkeys(bridge[:20], 3)
    assert coverage(conn).queued == 20
    search(conn, query, rerank=100, at_most=20, embed=embedders.hashed)
    assert (coverage(conn).queued, coverage(conn).known) == (0, 20)


class Noting(psycopg.Cursor):
    """A cursor that remembers which functions of schema drift were called."""

    called: ClassVar[list[str]] = []

    def execute(self, query, params=None, **options):
        text = query if isinstance(query, str) else query.as_string(None)
        self.called += re.findall(r"drift\.(\w+)\(", text)
        return super().execute(query, params, **options)


def test_the_bridge_is_searched_once_where_nothing_is_to_be_embedded(
    mixed: Mixed, conn: psycopg.Connection, query: np.ndarray
) -> None:
    conn.cursor_factory = Noting
    Noting.called.clear()
    search(conn, query, rerank=100, embed=embedders.hashed, at_most=100)
    assert Noting.called == ["nearest", "missing", "claim", "store_vectors", "nearest"]
    Noting.called.clear()
    search(conn, query, rerank=100, embed=embedders.raising)
    search(conn, query, rerank=100)
    search(conn, query, rerank=150, at_most=0)
    assert Noting.called == ["nearest"] * 3
    Noting.called.clear()
    search(conn, query, rerank=150)
    assert Noting.called == ["nearest", "missing", "queue_missing"]


def test_rows_come_as_the_connection_makes_them_and_filters_hold(
    mixed: Mixed, conn: psycopg.Connection, query: np.ndarray
) -> None:
    conn.row_factory = dict_row
    embed = Counting()
    found = search(conn, query, rerank=50, embed=embed, matching={"id": list(range(20))})
    assert len(found) == 10
    assert set(found[0]) == {"id", "body", "embedding"}
    assert set(embed.texts) == {f"text {i}" for i in range(20)}


def test_rows_without_text_are_never_embedded(mixed: Mixed, conn: psycopg.Connection, query: np.ndarray) -> None:
    conn.execute("UPDATE docs SET body = CASE id % 3 WHEN 0 THEN NULL WHEN 1 THEN E' \\n\\t' ELSE body END")
    embed = Counting()
    assert len(search(conn, query, rerank=200, embed=embed, at_most=200)) == 10
    assert set(embed.texts) == {f"text {i}" for i in range(2, 200, 3)}
    found = coverage(conn)
    assert (found.rows, found.known, found.queued, found.share) == (66, 66, 0, 1.0)


def test_a_text_that_several_rows_share_is_embedded_once(
    mixed: Mixed, conn: psycopg.Connection, query: np.ndarray
) -> None:
    conn.execute("UPDATE docs SET body = 'the same'")
    embed = Counting()
    search(conn, query, rerank=100, embed=embed)
    assert embed.texts == {"the same": 1}
    assert coverage(conn).known == 50


def hangs() -> Callable[[list[str]], np.ndarray]:
    """An embedder that does not answer in time; it ends by itself, since a thread cannot be ended."""

    def embed(texts: list[str]) -> np.ndarray:
        time.sleep(1.5)
        return embedders.hashed(texts)

    return embed


def leaves(texts: list[str]) -> np.ndarray:
    raise SystemExit(3)


WRONG = {
    "narrow": (embedders.narrow, "7 dimensions, the model has 24"),
    "too few": (embedders.short, r"shape \(49, 24\) for 50 texts"),
    "NaN": (embedders.not_a_number, "NaN"),
    "zeros": (embedders.zeros, "zero length"),
    "raises": (embedders.raising, "503 service unavailable"),
    "exits": (leaves, "SystemExit"),
    "hangs": (hangs(), "within 0.2 s"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_embedder_that_goes_wrong_costs_no_search_and_its_rows_are_queued(
    mixed: Mixed, conn: psycopg.Connection, query: np.ndarray, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    embed, message = WRONG[wrong]
    mixed.fill(np.arange(0, 200, 4))
    before = failures.total()
    started = time.monotonic()
    with caplog.at_level(logging.WARNING, "drift_pg.search"):
        found = ids(search(conn, query, rerank=100, embed=embed, within=0.2))
    assert time.monotonic() - started < 1.2
    assert found == mixed.reference(query, 10, 100)
    assert failures.total() == before + 1
    (record,) = caplog.records
    assert re.search(message, record.getMessage())
    assert (coverage(conn).known, coverage(conn).queued) == (50, 50)
    search(conn, query, rerank=100, embed=embedders.hashed)  # and nobody holds them
    assert coverage(conn).known == 100


def test_an_embedder_that_is_late_is_given_fewer_texts_until_it_is_in_time(
    mixed: Mixed, conn: psycopg.Connection, query: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drift_pg.reembedding.embedding_calls._most", {})  # what the process has learnt so far
    asked = list[int]()

    def slow(texts: list[str]) -> np.ndarray:
        asked.append(len(texts))
        time.sleep(0.02 * len(texts))
        return embedders.hashed(texts)

    for _ in range(4):
        search(conn, query, rerank=100, embed=slow, at_most=80, within=0.6)
    assert asked == [80, 40, 20, 21]
    assert coverage(conn).known == 41


def test_a_service_that_hangs_does_not_collect_threads(
    mixed: Mixed, conn: psycopg.Connection, query: np.ndarray
) -> None:
    release = threading.Event()

    def stuck(texts: list[str]) -> np.ndarray:
        release.wait(60)
        return embedders.hashed(texts)

    before = threading.active_count()
    try:
        for _ in range(20):
            assert len(search(conn, query, embed=stuck, within=0.01)) == 10
        assert threading.active_count() <= before + 8
    finally:
        release.set()
    _settle(before)


def _settle(threads: int) -> None:
    limit = time.monotonic() + 10
    while threading.active_count() > threads and time.monotonic() < limit:
        time.sleep(0.02)
    assert threading.active_count() <= threads


def test_a_cancelled_search_keeps_nothing_and_holds_nothing(
    mixed: Mixed, conn: psycopg.Connection, query: np.ndarray, monkeypatch
) -> None:
    def interrupted(self: object, seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("drift_pg.reembedding.embedding_calls.Call.wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            search(conn, query, embed=embedders.hashed)
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert coverage(conn).known == 0
    search(conn, query, embed=embedders.hashed)
    assert coverage(conn).known == 50


def test_in_a_transaction_of_the_callers_it_is_part_of_it(
    mixed: Mixed, conn: psycopg.Connection, query: np.ndarray
) -> None:
    with conn.transaction(force_rollback=True):
        search(conn, query, embed=embedders.hashed)
        assert coverage(conn).known == 50
    assert coverage(conn).known == 0


def test_a_failed_transaction_is_said_and_nothing_is_embedded(
    mixed: Mixed, conn: psycopg.Connection, query: np.ndarray
) -> None:
    embed = Counting()
    with conn.transaction(force_rollback=True):
        with pytest.raises(psycopg.errors.UndefinedTable):
            conn.execute("SELECT FROM nowhere")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            search(conn, query, embed=embed)
    assert not embed.texts


def test_on_a_read_only_server_it_searches_and_writes_nothing(
    mixed: Mixed, conn: psycopg.Connection, query: np.ndarray
) -> None:
    embed = Counting()
    with conn.transaction():
        conn.execute("SET TRANSACTION READ ONLY")
        assert ids(search(conn, query, embed=embed)) == ids(search(conn, query)) == mixed.search(query)
    assert not embed.texts


def test_what_cannot_be_searched_is_refused_before_anything_is_embedded(
    mixed: Mixed, conn: psycopg.Connection, query: np.ndarray
) -> None:
    embed = Counting()

    def refused(
        error: type[errors.DriftError], match: str, q: object = query, relation: str = "docs", **options
    ) -> None:
        with pytest.raises(error, match=match):
            drift_pg.search(conn, relation, "embedding", q, **{"query_model": "new", "embed": embed, **options})

    refused(errors.ColumnMissing, "no table nowhere", relation="nowhere")
    refused(errors.UnknownModel, "'other' is not registered", query_model="other")
    refused(errors.WrongDimensions, "query has 3 dimensions", [1.0, 2.0, 3.0])
    refused(errors.InvalidVector, "shape", np.ones((2, DIMENSIONS)))
    refused(errors.InvalidVector, "finite", np.full(DIMENSIONS, np.nan))
    refused(errors.InvalidDefinition, "1 ≤ k ≤ rerank", k=20, rerank=10)
    refused(errors.InvalidDefinition, "1 ≤ k", k=0)
    refused(errors.InvalidDefinition, "within", within=0)
    refused(errors.InvalidDefinition, "within", within=float("nan"))
    refused(errors.InvalidDefinition, "at_most", at_most=-1)
    refused(errors.ColumnMissing, "no column colour to match", matching={"colour": "red"})
    conn.execute("DELETE FROM drift.calibration")
    refused(errors.NotCalibrated, "not calibrated")
    drift_pg.deactivate(conn, source="new", target="legacy")
    refused(errors.NoActiveAdapter, "no adapter")
    drift_pg.drop_companion(conn, "docs", "embedding")
    drift_pg.activate(conn, mixed.adapter_id, force=True)
    refused(errors.NoCompanion, "no companion")
    drift_pg.unregister_column(conn, "docs", "embedding")
    refused(errors.UnknownColumn, "not registered")
    assert not embed.texts


def test_after_the_cutover_the_same_call_searches_the_columns_own_model(mixed: Mixed, conn: psycopg.Connection) -> None:
    drift_pg.drop_companion(conn, "docs", "embedding")
    assert ids(search(conn, mixed.legacy[5], query_model="legacy", k=1, embed=embedders.hashed)) == [5]


def test_who_may_not_write_to_the_companion_is_told_before_anything_is_embedded(
    mixed: Mixed, conn: psycopg.Connection, query: np.ndarray, caplog: pytest.LogCaptureFixture
) -> None:
    embed = Counting()
    reading = (
        "GRANT USAGE ON SCHEMA drift, extensions TO {role}",
        "GRANT SELECT ON ALL TABLES IN SCHEMA drift, public TO {role}",
    )
    expected = mixed.search(query)
    with as_role(conn, *reading) as role:
        with pytest.raises(errors.PermissionDenied, match="lacks INSERT, UPDATE on drift") as refused:
            search(conn, query, embed=embed)
        assert refused.value.hint == f'GRANT INSERT, UPDATE ON drift.companion_1 TO "{role}";'
        assert ids(search(conn, query)) == expected  # it may read, so it may search
        assert "not queued" in caplog.text
    assert not embed.texts
    again = "SELECT drift.create_companion('docs', 'embedding', 'new', '{{body}}')"
    with as_role(conn, *reading, "GRANT UPDATE ON docs TO {role}", again):
        search(conn, query, embed=embed)
    assert coverage(conn).known == 50


def test_a_row_that_another_transaction_holds_is_left_and_nobody_waits(
    mixed: Mixed, conn: psycopg.Connection, dsn: str, query: np.ndarray
) -> None:
    mixed.fill(np.arange(200), index=False)
    bridge = mixed.search(query, 50)
    conn.execute("UPDATE docs SET body = body || '!'")
    with psycopg.connect(dsn) as other:
        other.execute("DELETE FROM docs WHERE id = %s", [bridge[0]])
        started = time.monotonic()
        search(conn, query, rerank=50, embed=embedders.hashed)
        assert time.monotonic() - started < 2
        assert coverage(conn).known == 49
    assert coverage(conn).known == 49
    assert coverage(conn).orphaned == 0


def test_many_clients_embed_no_row_twice_while_rows_come_change_and_go(
    mixed: Mixed, conn: psycopg.Connection, dsn: str
) -> None:
    conn.execute("CREATE INDEX ON drift.companion_1 USING hnsw (embedding extensions.vector_cosine_ops)")
    embed, stop, problems = Counting(0.02), threading.Event(), list[BaseException]()
    queries = embedders.hashed([f"query {i}" for i in range(12)])
    searches = Counter[str]()

    def client(number: int) -> None:
        rng = np.random.default_rng(number)
        with psycopg.connect(dsn, autocommit=bool(number % 2)) as other:
            while not stop.is_set():
                found = search(other, queries[rng.integers(len(queries))], rerank=100, embed=embed, at_most=20)
                searches["done"] += 1
                if len(found) != 10:
                    raise AssertionError(f"{len(found)} rows")

    def writer(number: int) -> None:
        rng, own = np.random.default_rng(100 + number), 1000 * (1 + number)
        with psycopg.connect(dsn, autocommit=True) as other:
            while not stop.is_set():
                own += 1
                chosen = [int(i) for i in rng.permutation(200)[:3]]
                with other.transaction():
                    other.execute("UPDATE docs SET body = body || '+' WHERE id = ANY (%s)", [sorted(chosen)[:1]])
                    new = vector(rng.standard_normal(DIMENSIONS))
                    other.execute("INSERT INTO docs VALUES (%s, 'new ' || %s, %s)", [own, own, new])
                    if own % 3 == 0:
                        other.execute("DELETE FROM docs WHERE id = %s", [own - 1])
                time.sleep(0.01)

    def guarded(run: Callable[[int], None], number: int) -> None:
        try:
            run(number)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=guarded, args=(client, i)) for i in range(16)]
    threads += [threading.Thread(target=guarded, args=(writer, i)) for i in range(2)]
    before = failures.total()
    for thread in threads:
        thread.start()
    time.sleep(6)
    stop.set()
    for thread in threads:
        thread.join()
    assert problems == []
    assert searches["done"] > 50
    assert failures.total() == before
    # Texts are unique here, so a text embedded twice is a row embedded twice.
    assert [text for text, times in embed.texts.items() if times > 1] == []
    fresh = conn.execute(
        "SELECT t.body, c.embedding FROM docs t JOIN drift.companion_1 c ON c.key1 = t.id "
        f"WHERE c.embedding IS NOT NULL AND c.content_hash = {_hash(conn)}".encode()
    ).fetchall()
    assert len(fresh) > 100
    held = np.array([np.fromstring(row[1][1:-1], sep=",") for row in fresh])
    np.testing.assert_allclose(held, embedders.hashed([row[0] for row in fresh]), atol=1e-6)
    # Stored while their rows were being deleted, which only a lock on users' rows would prevent.
    left = coverage(conn).orphaned
    assert conn.execute("SELECT drift.sweep_companion('docs', 'embedding')").fetchone() == (left,)
    assert coverage(conn).orphaned == 0


def _hash(conn: psycopg.Connection) -> str:
    return conn.execute("SELECT drift.hash_sql(drift.content_sql(c)) FROM drift.companion c").fetchone()[0]
