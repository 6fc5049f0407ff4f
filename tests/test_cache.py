"""AdapterCache gives what drift.adapt gives, follows every change, and never serves what may be old."""

import asyncio
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import drift_pg
from drift_pg.adapter import Adapter, Float32, Layer
from drift_pg.database import cache as module
from drift_pg.database import following
from drift_pg.database.cache import AdapterCache, AsyncAdapterCache
from drift_pg.errors import (
    ColumnMissing,
    ConnectionLost,
    DriftError,
    InvalidDefinition,
    InvalidVector,
    NoActiveAdapter,
    NotInstalled,
    PermissionDenied,
    UnknownColumn,
    UnknownModel,
    WrongDimensions,
)
from tests.servers import PGVECTOR_SCHEMA
from tests.tables import Upgrade, linear, make_docs, rotation, vector

CLOSE = 1 - 1e-6
SOON = 0.9
"""Seconds within which a notification is followed."""


@pytest.fixture
def upgrade(conn: psycopg.Connection, rng: np.random.Generator) -> Upgrade:
    return Upgrade(conn, rng, rows=50).activate()


@pytest.fixture
def cache(dsn: str, upgrade: Upgrade) -> Iterator[AdapterCache]:
    with AdapterCache(dsn) as cache:
        yield cache


def cosine(a: Float32, b: Float32) -> float:
    return float(a.astype(float) @ b.astype(float) / np.linalg.norm(a) / np.linalg.norm(b))


def in_sql(conn: psycopg.Connection, call: str, query: np.ndarray, *names: str) -> Float32:
    marks = sql.SQL(", ").join([sql.Placeholder()] * len(names))
    text = sql.SQL("SELECT {}({}::{}.vector, {})::real[]").format(
        sql.SQL(call), sql.Placeholder(), sql.Identifier(PGVECTOR_SCHEMA), marks
    )
    row = conn.execute(text, [vector(query), *names]).fetchone()
    assert row is not None
    return np.array(row[0], np.float32)


def error_in_sql(conn: psycopg.Connection, call: str, query: np.ndarray, *names: str) -> str | None:
    with pytest.raises(psycopg.Error) as caught:
        in_sql(conn, call, query, *names)
    return caught.value.sqlstate


def another(upgrade: Upgrade, rng: np.random.Generator) -> tuple[int, Adapter]:
    """A second adapter, stored but not active."""
    adapter = linear(rotation(rng, upgrade.new.shape[1]))
    return drift_pg.store(upgrade.conn, adapter, source="new", target="legacy"), adapter


def soon(happens: Callable[[], bool], seconds: float = SOON) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if happens():
            return True
        time.sleep(0.005)
    return False


def gives(cache: AdapterCache, adapter: Adapter, query: np.ndarray) -> bool:
    return cosine(cache.adapt(query, "new", "legacy"), adapter.apply(query)) > CLOSE


def threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("drift_pg")]


def backends(conn: psycopg.Connection) -> list[int]:
    """The connections that caches have to this database."""
    found = conn.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'drift_pg'"
    )
    return [pid for (pid,) in found]


def layer(rng: np.random.Generator, outputs: int, inputs: int, **flags: Any) -> Layer:
    return Layer(rng.standard_normal((outputs, inputs + 1)) / np.sqrt(inputs), **flags)


SHAPES: dict[str, Callable[[np.random.Generator], Adapter]] = {
    "square": lambda rng: linear(rotation(rng, 16)),
    "narrower, biased": lambda rng: Adapter((layer(rng, 7, 16, normalize=True),), 16, 7),
    "lengths kept": lambda rng: Adapter((layer(rng, 20, 16),), 16, 20, normalize_input=False),
    "two layers": lambda rng: Adapter(
        (layer(rng, 9, 16, activation="gelu"), layer(rng, 12, 25, takes_input=True, normalize=True)), 16, 12
    ),
    "mixture": lambda rng: Adapter(
        (layer(rng, 2, 16, is_route=True), layer(rng, 16, 16, expert=0), layer(rng, 16, 16, expert=1)), 16, 16
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_same_vectors_as_sql(shape: str, dsn: str, conn: psycopg.Connection, rng: np.random.Generator) -> None:
    adapter = SHAPES[shape](rng)
    drift_pg.register_model(conn, "new model", dimensions=adapter.source_dimensions)
    drift_pg.register_model(conn, "it's 100% old", dimensions=adapter.target_dimensions)
    make_docs(
        conn, rng.standard_normal((3, adapter.target_dimensions)), schema="Weird %s", table='Ta"ble', column="V'c"
    )
    drift_pg.register_column(conn, '"Weird %s"."Ta""ble"', "V'c", model="it's 100% old")
    stored = drift_pg.store(conn, adapter, source="new model", target="it's 100% old")
    drift_pg.activate(conn, stored, force=True)
    with AdapterCache(dsn) as cache:
        for query in rng.standard_normal((3, adapter.source_dimensions)):
            pair = ("new model", "it's 100% old")
            column = ("new model", '"Weird %s"."Ta""ble"', "V'c")
            for _ in ("asked", "hit"):
                for mine, theirs in (
                    (cache.adapt(query, *pair), in_sql(conn, "drift.adapt", query, *pair)),
                    (cache.adapt_for(query, *column), in_sql(conn, "drift.adapt_for", query, *column)),
                ):
                    assert mine.dtype == np.float32
                    assert mine.shape == theirs.shape
                    assert cosine(mine, theirs) >= CLOSE
                    assert np.linalg.norm(mine) == pytest.approx(np.linalg.norm(theirs), rel=1e-5)
        rows = rng.standard_normal((4, adapter.source_dimensions))
        assert cache.adapt(rows, *pair) == pytest.approx(adapter.apply(rows))


def test_identity_where_the_column_holds_the_query_model(cache: AdapterCache, upgrade: Upgrade) -> None:
    query = 3 * upgrade.legacy[0]
    assert cache.adapt_for(query, "legacy", "public.docs", "embedding") == pytest.approx(query, rel=1e-6)
    assert cache.adapt(query, "legacy", "legacy") == pytest.approx(query, rel=1e-6)
    for wrong, kind in ((query[:-1], WrongDimensions), (query * np.nan, InvalidVector), (None, WrongDimensions)):
        with pytest.raises(kind):
            cache.adapt(wrong, "legacy", "legacy")  # type: ignore[arg-type]  # what a caller may pass


Q = np.ones(24)


@pytest.mark.parametrize(
    ("call", "query", "names", "kind"),
    [
        ("adapt", Q, ("unheard", "legacy"), UnknownModel),
        ("adapt", Q, ("new", "unheard"), UnknownModel),
        ("adapt", Q, ("unheard", "unheard"), UnknownModel),
        ("adapt", Q, ("legacy", "new"), NoActiveAdapter),
        ("adapt", Q[:9], ("legacy", "new"), WrongDimensions),
        ("adapt", Q[:9], ("new", "legacy"), WrongDimensions),
        ("adapt", Q[:9], ("new", "new"), WrongDimensions),
        ("adapt", 0 * Q, ("new", "legacy"), InvalidVector),
        ("adapt_for", Q, ("new", "public.docs", "body"), UnknownColumn),
        ("adapt_for", Q, ("new", "public.docs", "it's"), UnknownColumn),
        ("adapt_for", Q, ("unheard", "public.docs", "embedding"), UnknownModel),
        ("adapt_for", Q[:9], ("new", "public.docs", "embedding"), WrongDimensions),
    ],
)
def test_errors_are_those_of_sql(
    call: str, query: np.ndarray, names: tuple[str, ...], kind: type[DriftError], cache: AdapterCache, upgrade: Upgrade
) -> None:
    assert error_in_sql(upgrade.conn, f"drift.{call}", query, *names) == kind.sqlstate
    for _ in ("first", "again"):
        with pytest.raises(kind) as caught:
            getattr(cache, call)(query, *names)
        assert type(caught.value) is kind


@pytest.mark.parametrize("relation", ["no.such", "a b c", "", "'", "12"])
def test_a_table_that_is_none(relation: str, cache: AdapterCache, upgrade: Upgrade) -> None:
    with pytest.raises((ColumnMissing, InvalidDefinition)):  # which of them, is the server's version's choice
        cache.adapt_for(Q, "new", relation, "embedding")
    assert gives(cache, linear(upgrade.matrix), Q)


@pytest.mark.parametrize("query", [np.nan * Q, np.ones((2, 2, 24)), [[]], "text", np.ones(20_000)])
def test_what_is_no_query(query: object, cache: AdapterCache) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (InvalidInput is a ValueError, as is numpy's)
        cache.adapt(query, "new", "legacy")  # type: ignore[arg-type]
    with pytest.raises(DriftError):
        cache.adapt(np.ones(20_000), "legacy", "new")


def test_an_activation_elsewhere_is_followed(cache: AdapterCache, upgrade: Upgrade, rng: np.random.Generator) -> None:
    assert gives(cache, linear(upgrade.matrix), Q)
    second, adapter = another(upgrade, rng)
    assert not gives(cache, adapter, Q)
    drift_pg.activate(upgrade.conn, second, force=True)
    assert soon(lambda: gives(cache, adapter, Q))
    drift_pg.activate(upgrade.conn, upgrade.adapter)
    assert soon(lambda: gives(cache, linear(upgrade.matrix), Q))


def test_a_deactivation_elsewhere_is_followed(cache: AdapterCache, upgrade: Upgrade) -> None:
    cache.adapt(Q, "new", "legacy")
    drift_pg.deactivate(upgrade.conn, source="new", target="legacy")

    def refused() -> bool:
        try:
            cache.adapt(Q, "new", "legacy")
        except NoActiveAdapter as error:
            return f"drift.activate({upgrade.adapter})" in str(error)
        return False

    assert soon(refused)


def test_another_model_of_a_column_is_followed(cache: AdapterCache, upgrade: Upgrade) -> None:
    names = ("new", "public.docs", "embedding")
    assert cosine(cache.adapt_for(Q, *names), linear(upgrade.matrix).apply(Q)) > CLOSE
    with upgrade.conn.transaction():
        drift_pg.unregister_column(upgrade.conn, "public.docs", "embedding")
        drift_pg.register_column(upgrade.conn, "public.docs", "embedding", model="new")
    assert soon(lambda: np.allclose(cache.adapt_for(Q, *names), Q))


def test_a_table_that_is_dropped_or_renamed(dsn: str, upgrade: Upgrade) -> None:
    with AdapterCache(dsn, ttl=0.1, listen=False) as cache:
        cache.adapt_for(Q, "new", "docs", "embedding")
        upgrade.conn.execute("ALTER TABLE docs RENAME TO papers")
        time.sleep(0.15)
        with pytest.raises(ColumnMissing):
            cache.adapt_for(Q, "new", "docs", "embedding")
        cache.adapt_for(Q, "new", "papers", "embedding")
        upgrade.conn.execute("DROP TABLE papers")
        time.sleep(0.15)
        with pytest.raises(ColumnMissing):
            cache.adapt_for(Q, "new", "papers", "embedding")
        assert gives(cache, linear(upgrade.matrix), Q)


def test_what_is_rolled_back_changes_nothing(cache: AdapterCache, upgrade: Upgrade, rng: np.random.Generator) -> None:
    cache.adapt(Q, "new", "legacy")
    second, _ = another(upgrade, rng)
    with upgrade.conn.transaction(force_rollback=True):
        drift_pg.activate(upgrade.conn, second, force=True)
        assert not soon(lambda: not gives(cache, linear(upgrade.matrix), Q), 0.2)
    assert not soon(lambda: not gives(cache, linear(upgrade.matrix), Q), 0.2)


def test_without_listening_a_change_is_seen_when_the_ttl_ends(
    dsn: str, upgrade: Upgrade, rng: np.random.Generator
) -> None:
    with AdapterCache(dsn, ttl=0.6, listen=False) as cache:
        asked = time.monotonic()
        assert gives(cache, linear(upgrade.matrix), Q)
        assert threads() == []
        second, adapter = another(upgrade, rng)
        drift_pg.activate(upgrade.conn, second, force=True)
        if time.monotonic() < asked + 0.5:
            assert gives(cache, linear(upgrade.matrix), Q)
        time.sleep(max(0.0, asked + 0.7 - time.monotonic()))
        assert gives(cache, adapter, Q)


def test_where_notifications_do_not_come_the_next_question_tells(
    dsn: str, upgrade: Upgrade, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following.Follower, "_listen", lambda self, conn: None)
    with AdapterCache(dsn, ttl=0.6) as cache:
        assert gives(cache, linear(upgrade.matrix), Q)
        second, adapter = another(upgrade, rng)
        drift_pg.activate(upgrade.conn, second, force=True)
        assert soon(lambda: gives(cache, adapter, Q))


def test_a_hit_asks_nothing(cache: AdapterCache, upgrade: Upgrade, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.adapt(Q, "new", "legacy")
    cache.adapt_for(Q, "new", "public.docs", "embedding")
    monkeypatch.setattr(AdapterCache, "find", None)
    cache.adapt(Q, "new", "legacy")
    cache.adapt_for(Q, "new", "public.docs", "embedding")


class Door:
    """Lets nobody into a database, and throws out who is in it."""

    def __init__(self, server: str, dsn: str) -> None:
        self._server = server
        self._database = str(conninfo_to_dict(dsn)["dbname"])

    def _set(self, allowed: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as conn:
            conn.execute(
                sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}").format(
                    sql.Identifier(self._database), sql.SQL(allowed)
                )
            )

    def __enter__(self) -> "Door":
        self._set("false")
        return self

    def __exit__(self, *_: object) -> None:
        self._set("true")


def terminate(conn: psycopg.Connection) -> None:
    for pid in backends(conn):
        conn.execute("SELECT pg_terminate_backend(%s)", [pid])


def test_a_terminated_connection_is_replaced(cache: AdapterCache, upgrade: Upgrade, rng: np.random.Generator) -> None:
    assert gives(cache, linear(upgrade.matrix), Q)
    (before,) = backends(upgrade.conn)
    terminate(upgrade.conn)
    assert soon(lambda: backends(upgrade.conn) not in ([], [before]))
    second, adapter = another(upgrade, rng)
    drift_pg.activate(upgrade.conn, second, force=True)
    assert soon(lambda: gives(cache, adapter, Q))


@pytest.mark.usefixtures("upgrade")
def test_an_answer_needs_no_luck_when_the_connection_was_terminated(dsn: str, conn: psycopg.Connection) -> None:
    with AdapterCache(dsn, listen=False, ttl=0.05) as cache:
        for _ in range(3):
            cache.adapt(Q, "new", "legacy")
            terminate(conn)
            time.sleep(0.1)
        cache.adapt(Q, "new", "legacy")


def test_unreachable_it_serves_nothing_and_recovers_by_itself(
    server: str, dsn: str, cache: AdapterCache, upgrade: Upgrade, rng: np.random.Generator
) -> None:
    assert gives(cache, linear(upgrade.matrix), Q)
    second, adapter = another(upgrade, rng)

    def lost() -> bool:
        try:
            cache.adapt(Q, "new", "legacy")
        except ConnectionLost:
            return True
        return False

    with Door(server, dsn):
        terminate(upgrade.conn)
        assert soon(lost)
        drift_pg.activate(upgrade.conn, second, force=True)
        assert all(lost() for _ in range(20))
    assert soon(lambda: backends(upgrade.conn) != [], 3)
    assert gives(cache, adapter, Q)


def test_while_it_reconnects_it_serves_nothing(dsn: str, upgrade: Upgrade) -> None:
    slow = threading.Event()

    def connect() -> psycopg.Connection:
        if slow.is_set():
            time.sleep(0.5)
        return psycopg.connect(dsn, application_name="drift_pg")

    with AdapterCache(connect) as cache:
        cache.adapt(Q, "new", "legacy")
        assert cache.ready(("new", "legacy"))
        slow.set()
        terminate(upgrade.conn)
        time.sleep(0.2)
        assert cache.ready(("new", "legacy")) is None
        assert gives(cache, linear(upgrade.matrix), Q)


def test_without_listening_a_dead_server_is_noticed_when_the_ttl_ends(server: str, dsn: str, upgrade: Upgrade) -> None:
    with AdapterCache(dsn, ttl=0.3, listen=False) as cache:
        cache.adapt(Q, "new", "legacy")
        with Door(server, dsn):
            terminate(upgrade.conn)
            time.sleep(0.35)
            with pytest.raises(ConnectionLost, match="cannot be asked"):
                cache.adapt(Q, "new", "legacy")


def test_a_server_that_says_nothing_is_given_up(
    cache: AdapterCache, upgrade: Upgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PATIENCE", 0.3)
    cache.adapt(Q, "new", "legacy")
    with upgrade.conn.transaction():
        upgrade.conn.execute("LOCK TABLE drift.adapter")  # a question waits for ever
        started = time.monotonic()
        with pytest.raises(ConnectionLost):
            cache.adapt(Q, "legacy", "new")
        assert time.monotonic() - started < 3
    assert soon(lambda: gives(cache, linear(upgrade.matrix), Q), 3)


def test_many_threads_load_an_adapter_once(dsn: str, upgrade: Upgrade, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[int] = []
    load = module.load_by_id

    def counted(conn: psycopg.Connection, adapter_id: int) -> Adapter:
        loads.append(adapter_id)
        return load(conn, adapter_id)

    monkeypatch.setattr(module, "load_by_id", counted)
    with AdapterCache(dsn) as cache, ThreadPoolExecutor(16) as pool:
        assert all(pool.map(lambda _: gives(cache, linear(upgrade.matrix), Q), range(200)))
        assert loads == [upgrade.adapter]
        assert len(backends(upgrade.conn)) == 1


def test_threads_see_one_adapter_or_the_other(cache: AdapterCache, upgrade: Upgrade, rng: np.random.Generator) -> None:
    second, adapter = another(upgrade, rng)
    expected = {upgrade.adapter: linear(upgrade.matrix).apply(Q), second: adapter.apply(Q)}
    stop = threading.Event()

    def search() -> bool:
        while not stop.is_set():
            found = cache.adapt(Q, "new", "legacy")
            if not any(cosine(found, each) > CLOSE for each in expected.values()):
                return False
        return True

    with ThreadPoolExecutor(6) as pool:
        searches = [pool.submit(search) for _ in range(6)]
        for chosen in [second, upgrade.adapter] * 5:
            drift_pg.activate(upgrade.conn, chosen, force=True)
            served = expected[chosen]
            assert soon(lambda served=served: cosine(cache.adapt(Q, "new", "legacy"), served) > CLOSE)  # type: ignore[misc]
        stop.set()
        assert all(search.result() for search in searches)


def in_child(work: Callable[[], int]) -> int:
    """What `work` returns in a forked child: a number below 128, which is 0 if all is well."""
    pid = os.fork()
    if pid == 0:
        status = 127
        try:
            status = work()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_has_a_connection_of_its_own(
    cache: AdapterCache, upgrade: Upgrade, dsn: str, rng: np.random.Generator
) -> None:
    assert gives(cache, linear(upgrade.matrix), Q)
    before = backends(upgrade.conn)
    second, adapter = another(upgrade, rng)

    def child() -> int:
        # Caches of other tests may still be there, and be given up by this fork too: none may keep the parent's socket.
        kept = [follower._conn for follower in module._abandoned if follower._conn is not None]
        alone = bool(kept) and not any(stat.S_ISSOCK(os.fstat(conn.fileno()).st_mode) for conn in kept)
        right = gives(cache, linear(upgrade.matrix), Q)
        with psycopg.connect(dsn, autocommit=True) as mine:
            own = set(backends(mine)) - set(before)
            drift_pg.activate(mine, second, force=True)
            followed = soon(lambda: gives(cache, adapter, Q))
        cache.close()
        return 8 * (not alone) + 4 * (not right) + 2 * (len(own) != 1) + (not followed)

    assert in_child(child) == 0
    assert soon(lambda: gives(cache, adapter, Q))
    assert backends(upgrade.conn) == before


@pytest.mark.usefixtures("upgrade")
def test_a_closed_cache_stays_closed_in_a_child(cache: AdapterCache) -> None:
    cache.close()

    def child() -> int:
        try:
            cache.adapt(Q, "new", "legacy")
        except ConnectionLost:
            return 0
        return 1

    assert in_child(child) == 0


@pytest.mark.parametrize("listen", [True, False])
def test_close_leaves_nothing_and_may_be_repeated(listen: bool, dsn: str, upgrade: Upgrade) -> None:
    cache = AdapterCache(dsn, listen=listen)
    cache.adapt(Q, "new", "legacy")
    assert len(threads()) == int(listen)
    cache.close()
    assert threads() == []
    assert soon(lambda: backends(upgrade.conn) == [])
    cache.close()
    with pytest.raises(ConnectionLost, match="closed"):
        cache.adapt(Q, "new", "legacy")
    AdapterCache(dsn).close()


def test_a_forgotten_cache_leaves_nothing(dsn: str, upgrade: Upgrade) -> None:
    cache = AdapterCache(dsn)
    cache.adapt(Q, "new", "legacy")
    del cache
    assert soon(lambda: threads() == [] and backends(upgrade.conn) == [])


def test_making_one_connects_to_nothing() -> None:
    AdapterCache("postgresql://nowhere.invalid/none").close()


def test_a_function_that_connects(dsn: str, upgrade: Upgrade) -> None:
    with AdapterCache(lambda: psycopg.connect(dsn)) as cache:
        assert gives(cache, linear(upgrade.matrix), Q)


@pytest.mark.parametrize("ttl", [0, -1, float("inf"), float("nan")])
def test_a_ttl_that_is_none(ttl: float) -> None:
    with pytest.raises(InvalidDefinition, match="ttl"):
        AdapterCache("", ttl=ttl)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql+psycopg://user:hush@localhost:1/none",
        "host=localhost hush",
        "postgresql://user:hush@127.0.0.1:1/none",
        "host=127.0.0.1 port=1 user=a password=hush",
        "postgresql://user:hush@127.0.0.1:no/none",
    ],
)
def test_no_password_is_shown(dsn: str) -> None:
    with pytest.raises(DriftError) as caught:
        AdapterCache(dsn).adapt(Q, "new", "legacy")
    assert "hush" not in f"{caught.value} {caught.value.__cause__} {caught.value.args}"


def test_a_cache_does_not_show_its_password() -> None:
    assert "hush" not in repr(AdapterCache("postgresql://user:hush@127.0.0.1:1/none"))


def test_a_database_without_drift(bare_dsn: str) -> None:
    with AdapterCache(bare_dsn) as cache, pytest.raises(NotInstalled):
        cache.adapt(Q, "new", "legacy")


def test_a_role_that_may_not_read(dsn: str, upgrade: Upgrade) -> None:
    upgrade.conn.execute("CREATE ROLE nobody_cache LOGIN")
    try:
        with (
            AdapterCache(make_conninfo(dsn, options="-crole=nobody_cache")) as cache,
            pytest.raises(PermissionDenied, match="GRANT"),
        ):
            cache.adapt(Q, "new", "legacy")
    finally:
        upgrade.conn.execute("DROP ROLE nobody_cache")


def test_a_schema_closed_to_it_fails_its_own_tables_only(
    cache: AdapterCache, upgrade: Upgrade, rng: np.random.Generator
) -> None:
    conn = upgrade.conn
    make_docs(conn, rng.standard_normal((3, 24)), schema="shut")
    drift_pg.register_column(conn, "shut.docs", "embedding", model="legacy")
    conn.execute("CREATE ROLE shut_cache LOGIN; GRANT USAGE ON SCHEMA drift, shut, extensions TO shut_cache")
    conn.execute("GRANT SELECT ON ALL TABLES IN SCHEMA drift TO shut_cache")
    try:
        dsn = make_conninfo(conn.info.dsn, options="-crole=shut_cache")
        with AdapterCache(dsn, ttl=0.1, listen=False) as cache:
            cache.adapt_for(Q, "new", "shut.docs", "embedding")
            conn.execute("REVOKE USAGE ON SCHEMA shut FROM shut_cache")
            time.sleep(0.15)
            with pytest.raises(PermissionDenied):
                cache.adapt_for(Q, "new", "shut.docs", "embedding")
            assert gives(cache, linear(upgrade.matrix), Q)
    finally:
        conn.execute("DROP OWNED BY shut_cache; DROP ROLE shut_cache")


def test_tasks_share_a_cache_and_the_loop_goes_on(dsn: str, upgrade: Upgrade) -> None:
    """While a question waits for a lock in the database, the loop runs on and hits are answered."""
    conn = upgrade.conn
    expected = linear(upgrade.matrix).apply(Q)

    async def main() -> int:
        async with AsyncAdapterCache(dsn) as cache:
            found = await asyncio.gather(*(cache.adapt(Q, "new", "legacy") for _ in range(100)))
            assert all(cosine(each, expected) > CLOSE for each in found)
            by_column = await cache.adapt_for(Q, "new", "public.docs", "embedding")
            assert cosine(by_column, expected) > CLOSE
            with conn.transaction():
                conn.execute("LOCK TABLE drift.adapter")
                waiting = asyncio.create_task(cache.adapt(Q, "legacy", "new"))
                turns = 0
                for _ in range(20):
                    await asyncio.sleep(0.01)
                    await cache.adapt(Q, "new", "legacy")
                    turns += not waiting.done()
            with pytest.raises(NoActiveAdapter):
                await waiting
        with pytest.raises(ConnectionLost, match="closed"):
            await cache.adapt(Q, "new", "legacy")
        return turns

    assert asyncio.run(main()) == 20
