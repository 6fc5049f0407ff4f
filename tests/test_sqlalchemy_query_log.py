"""log_queries: which of an engine's statements' values are logged, for what, on every driver; and what it never does."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psycopg
import pytest
from pgvector import HalfVector, Vector
from sqlalchemy import bindparam, cast, create_engine, lambda_stmt, literal, select, text, true, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, aliased
from sqlalchemy.pool import NullPool

import drift_pg
from drift_pg import QueryLog
from drift_pg.errors import InvalidDefinition
from drift_pg.sqlalchemy import EmbeddingVector, adapt_in_client, adapted, log_queries, nearest, raw
from tests import test_sqlalchemy_client as client
from tests.orm import DIMENSIONS, Database, Doc, Item, Large, Odd, Question, World
from tests.test_rerank import LINE

LOGGED = "SELECT relation::text, column_name::text, model, query::text FROM drift.query_log ORDER BY id"
DOCS, HALF, LARGE, ODD = (
    ("docs", "embedding"),
    ("docs", "half"),
    ("large", "embedding"),
    ('"Odd % \'Schema\'"."Weird ""100%"" \'Table\' :x \\"', """Vec "50%(x)s" 'Col'"""),
)


@pytest.fixture
def log(world: World) -> Iterator[psycopg.Connection]:
    """What reads the log, which is empty at first."""
    with psycopg.connect(world.dsn, autocommit=True) as conn:
        conn.execute("TRUNCATE drift.query_log")
        yield conn


def run(database: Database, work: Callable[[Session], Any], **options: Any) -> QueryLog:
    """Work in a session of an engine whose queries are all logged; the log is closed."""
    if database.is_async:
        return asyncio.run(_run(database, work, options))
    engine = create_engine(database.url, poolclass=NullPool)
    with log_queries(engine, **{"sample": 1, **options}) as query_log, Session(engine) as session:
        work(session)
    return query_log


async def _run(database: Database, work: Callable[[Session], Any], options: dict[str, Any]) -> QueryLog:
    engine = create_async_engine(database.url, poolclass=NullPool)
    with log_queries(engine, **{"sample": 1, **options}) as query_log:
        async with AsyncSession(engine) as session:
            await session.run_sync(work)
    return query_log


def logged(conn: psycopg.Connection) -> list[tuple[Any, ...]]:
    rows = conn.execute(LOGGED).fetchall()
    return [(relation, column, model, np.fromstring(query[1:-1], sep=",")) for relation, column, model, query in rows]


def near(column: Any, query: Any, method: str = "cosine_distance") -> Any:
    return select(column.class_.id).order_by(getattr(column, method)(query)).limit(3)


def from_lambda(query: Any) -> Any:
    return lambda_stmt(lambda: select(Doc.id).order_by(Doc.embedding.cosine_distance(query)).limit(3))


Form = tuple[Callable[[Any, Any], Any], list[tuple[str, str]]]
FORMS: dict[str, Form] = {
    "list": (lambda q, r: near(Doc.embedding, q.tolist()), [DOCS]),
    "the same statement, another value": (lambda q, r: near(Doc.embedding, (-q).tolist()), [DOCS]),
    "Vector": (lambda q, r: near(Doc.embedding, Vector(q), "l2_distance"), [DOCS]),
    "half": (lambda q, r: near(Doc.half, q), [HALF]),
    "HalfVector": (lambda q, r: near(Doc.half, HalfVector(q.astype(np.float16)), "max_inner_product"), [HALF]),
    "large": (lambda q, r: near(Large.embedding, q), [LARGE]),
    "odd names": (lambda q, r: near(Odd.vec, q), [ODD]),
    "operator": (lambda q, r: select(Doc.id).order_by(Doc.embedding.op("<=>")(q)).limit(3), [DOCS]),
    "lambda": (lambda q, r: from_lambda(q), [DOCS]),
    "literal": (lambda q, r: near(Doc.embedding, literal(q, EmbeddingVector(DIMENSIONS))), [DOCS]),
    "cast": (lambda q, r: near(Doc.embedding, cast(q, EmbeddingVector(DIMENSIONS))), [DOCS]),
    "named parameter": (lambda q, r: near(Doc.embedding, bindparam("q", q)), [DOCS]),
    "alias": (lambda q, r: near(aliased(Doc).embedding, q), [DOCS]),
    "another model": (lambda q, r: near(Doc.embedding, adapted(q, model="new")), [DOCS]),
    "shown, filtered and ordered by": (
        lambda q, r: (
            select(Doc.id, Doc.embedding.cosine_distance(q))
            .where(Doc.embedding.cosine_distance(q) < 3)
            .order_by(Doc.embedding.cosine_distance(q))
            .limit(3)
        ),
        [DOCS],
    ),
    "two columns": (
        lambda q, r: (
            select(Doc.id)
            .join(Odd, Odd.id == Doc.id)
            .order_by(Doc.embedding.cosine_distance(q) + Odd.vec.cosine_distance(r))
            .limit(3)
        ),
        [DOCS, ODD],
    ),
    "rendered": (lambda q, r: near(Doc.embedding, bindparam("q", q, literal_execute=True)), []),
    "raw": (lambda q, r: near(Doc.embedding, raw(q)), []),
    "a column of queries": (
        lambda q, r: select(Doc.embedding.cosine_distance(adapted(Question.embedding))).join(Question, true()).limit(3),
        [],
    ),
    "no search": (lambda q, r: select(Doc.id).limit(1), []),
    "text": (lambda q, r: text("SELECT 1"), []),
}


def test_every_form_of_a_query_is_logged_once_for_its_column(
    world: World, database: Database, log: psycopg.Connection
) -> None:
    q, r = world.queries[:2]

    def work(session: Session) -> None:
        for make, _ in FORMS.values():
            session.execute(make(q, r)).all()

    query_log = run(database, work)
    found = logged(log)
    expected = [(name, *where) for name, (_, columns) in FORMS.items() for where in columns]
    assert [row[:3] for row in found] == [(*where, "new") for _, *where in expected]
    for (name, *where), row in zip(expected, found, strict=True):
        query = r if (name, tuple(where)) == ("two columns", ODD) else q
        sign = -1 if name == "the same statement, another value" else 1
        assert row[3] == pytest.approx(sign * query, abs=1e-3 if name == "HalfVector" else 1e-6), name
    assert (query_log.logged, query_log.dropped) == (len(found), 0)


def test_many_parameters_and_nearest(world: World, database: Database, log: psycopg.Connection) -> None:
    drift_pg.create_companion(log, "items", "embedding", model="new", text="kind")
    log.execute("SELECT drift.store_calibration(1, %s)", [json.dumps({"cosine": LINE})])
    many = update(Doc).where(Doc.embedding.cosine_distance(bindparam("q")) < -1).values(author_id=1)

    def work(session: Session) -> None:
        session.connection().execute(many, [{"q": q} for q in world.queries[:3]])
        nearest(session, Doc.embedding, world.queries[3], k=100)
        nearest(session, Item.embedding, world.queries[4], rerank=60)
        nearest(session, Item.embedding, raw(world.queries[5]), rerank=60)

    run(database, work)
    found = logged(log)
    assert [row[0] for row in found] == ["docs"] * 4 + ["items"]
    assert np.array([row[3] for row in found]) == pytest.approx(world.queries[:5], abs=1e-6)


def test_client_mode_logs_what_came_in(world: World, database: Database, log: psycopg.Connection) -> None:
    statements = [near(client.Doc.half, world.queries[0]), near(client.Odd.vec, world.queries[1])]
    statements += [near(client.Large.embedding, world.queries[2])]

    def work(session: Session) -> None:
        with adapt_in_client(session.get_bind().engine):
            for statement in statements:
                session.execute(statement).all()

    run(database, work)
    found = logged(log)
    assert [row[:2] for row in found] == [HALF, ODD, LARGE]
    assert np.array([row[3] for row in found]) == pytest.approx(world.queries[:3], abs=1e-6)


def test_a_statement_that_fails_is_not_logged_and_its_error_is_the_same(
    world: World, database: Database, log: psycopg.Connection
) -> None:
    def work(session: Session) -> None:
        with pytest.raises(DBAPIError):
            session.execute(near(Doc.embedding, [1.0, 2.0]))
        session.rollback()

    assert run(database, work).dropped == 0
    assert logged(log) == []


def test_tenants_are_told_apart(world: World, database: Database, log: psycopg.Connection) -> None:
    log.execute('CREATE SCHEMA IF NOT EXISTS "Tenant %"; CREATE TABLE IF NOT EXISTS "Tenant %".docs (LIKE public.docs)')
    log.execute("""SELECT drift.register_column('"Tenant %".docs', 'embedding', 'legacy', 'cosine')""")

    def work(session: Session) -> None:
        for schemas in ({None: "Tenant %"}, {None: "public"}):
            session.execute(
                near(Doc.embedding, world.queries[0]), execution_options={"schema_translate_map": schemas}
            ).all()

    assert run(database, work).logged == 2
    assert [row[0] for row in logged(log)] == ['"Tenant %".docs', "docs"]


def test_a_sample_is_taken_and_another_log_replaces_the_first(world: World, log: psycopg.Connection) -> None:
    engine = create_engine(Database(world.dsn, "psycopg").url)
    assert not engine._has_events  # nothing is looked at before
    first, nothing = QueryLog(world.dsn, sample=1), QueryLog(world.dsn, sample=0)
    with engine.connect() as connection, first, nothing:
        for query_log, expected in ((first, 1), (nothing, 1), (first, 2)):
            assert log_queries(engine, query_log=query_log) is query_log
            connection.execute(near(Doc.embedding, world.queries[0]))
            until = time.monotonic() + 10
            while first.logged < expected and time.monotonic() < until:
                time.sleep(0.01)
            assert (first.logged, nothing.logged) == (expected, 0)
        first.close()
        connection.execute(near(Doc.embedding, world.queries[0]))
        assert (first.logged, first.dropped) == (2, 0)
    engine.dispose()
    with pytest.raises(InvalidDefinition, match="sqlite"):
        log_queries(create_engine("sqlite://"))


def test_nothing_in_the_hook_reaches_the_application(
    world: World, database: Database, log: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> None:
        raise KeyError("q")

    monkeypatch.setattr("drift_pg.sqlalchemy.query_log.floats", broken)
    found: list[int] = []
    run(database, lambda s: found.extend(s.scalars(near(Doc.embedding, world.queries[0]))))
    assert len(found) == 3
    assert logged(log) == []
