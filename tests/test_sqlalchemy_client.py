"""adapt="client": the same rows as adapt="database", on sync and async engines, and nothing else is adapted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psycopg
import pytest
from pgvector import HalfVector, Vector
from sqlalchemy import Engine, Select, bindparam, create_engine, insert, literal, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, aliased, joinedload, mapped_column, relationship
from sqlalchemy.pool import NullPool

import drift_pg
from drift_pg.database.cache import AdapterCache
from drift_pg.errors import (
    ConnectionLost,
    InvalidDefinition,
    InvalidVector,
    NoActiveAdapter,
    UnknownColumn,
    UnknownModel,
    WrongDimensions,
)
from drift_pg.sqlalchemy import EmbeddingHalfVector, EmbeddingVector, adapted, nearest, raw
from drift_pg.sqlalchemy.client import adapt_in_client
from tests import orm, servers
from tests.orm import DIMENSIONS, DRIVERS, LARGE, ODD_MODEL, Database, World
from tests.tables import linear, rotation


class Base(DeclarativeBase):
    """The same tables as in tests/orm.py, adapting here."""


def here(dimensions: int = DIMENSIONS, model: str = "legacy", query_model: str = "new") -> EmbeddingVector:
    return EmbeddingVector(dimensions, model=model, query_model=query_model, adapt="client")


class Author(Base):
    __tablename__ = "authors"

    id: Mapped[int] = mapped_column(primary_key=True)


class Doc(Base):
    __tablename__ = "docs"

    id: Mapped[int] = mapped_column(primary_key=True)
    author_id: Mapped[int]
    embedding: Mapped[Any] = mapped_column(here())
    half: Mapped[Any] = mapped_column(
        EmbeddingHalfVector(DIMENSIONS, model="legacy", query_model="new", adapt="client")
    )
    author: Mapped[Author] = relationship(Author, primaryjoin="foreign(Doc.author_id) == Author.id", viewonly=True)


class Large(Base):
    __tablename__ = "large"

    id: Mapped[int] = mapped_column(primary_key=True)
    embedding: Mapped[Any] = mapped_column(here(LARGE, "large"))


class Odd(Base):
    __tablename__ = orm.Odd.__tablename__
    __table_args__ = {"schema": orm.Odd.__table__.schema}

    id: Mapped[int] = mapped_column(primary_key=True)
    vec: Mapped[Any] = mapped_column(orm.Odd.__table__.c[1].name, here(model=ODD_MODEL))


@pytest.fixture(scope="module")
def world(server: str, template: str) -> Iterator[World]:
    """A database that tests do not change, or put back."""
    with servers.database(server, template) as dsn:
        yield World(dsn)


@pytest.fixture
def cache(world: World) -> Iterator[AdapterCache]:
    with AdapterCache(world.dsn) as cache:
        yield cache


class App:
    """Work in a session of an engine that adapts in the client."""

    def __init__(self, world: World, driver: str, cache: AdapterCache) -> None:
        self.database, self.cache = Database(world.dsn, driver), cache

    def run(self, work: Callable[[Session], Any]) -> Any:
        if self.database.is_async:
            return asyncio.run(self._run(work))
        engine = create_engine(self.database.url, poolclass=NullPool)
        assert adapt_in_client(engine, self.cache) is self.cache
        with Session(engine) as session:
            return work(session)

    async def _run(self, work: Callable[[Session], Any]) -> Any:
        engine = create_async_engine(self.database.url, poolclass=NullPool)
        adapt_in_client(engine, self.cache)
        async with AsyncSession(engine) as session:
            return await session.run_sync(work)


@pytest.fixture(params=DRIVERS)
def app(world: World, cache: AdapterCache, request: pytest.FixtureRequest) -> App:
    return App(world, request.param, cache)


FORMS: dict[str, Callable[[Any, np.ndarray], Select[Any]]] = {
    "order by": lambda m, q: select(m.Doc.id).order_by(m.Doc.embedding.cosine_distance(q)).limit(10),
    "halfvec": lambda m, q: select(m.Doc.id).order_by(m.Doc.half.l2_distance(q)).limit(10),
    "above what an index of vector holds": lambda m, q: (
        select(m.Large.id).order_by(m.Large.embedding.cosine_distance(q)).limit(10)
    ),
    "odd names": lambda m, q: select(m.Odd.id).order_by(m.Odd.vec.cosine_distance(q)).limit(10),
    "twice": lambda m, q: (
        select(m.Doc.id)
        .where(m.Doc.embedding.l1_distance(q) < 100)
        .order_by(m.Doc.embedding.max_inner_product(q))
        .limit(10)
    ),
    "alias": lambda m, q: _alias(aliased(m.Doc), q),
    "subquery": lambda m, q: _subquery(select(m.Doc).subquery(), q),
    "joinedload with limit": lambda m, q: (
        select(m.Doc).options(joinedload(m.Doc.author)).order_by(m.Doc.embedding.cosine_distance(q)).limit(10)
    ),
    "two columns": lambda m, q: (
        select(m.Doc.id)
        .join(m.Odd, m.Odd.id == m.Doc.id)
        .order_by(m.Doc.embedding.cosine_distance(q) + m.Odd.vec.cosine_distance(q[::-1].copy()))
        .limit(10)
    ),
    "adapted in the database": lambda m, q: (
        select(m.Doc.id).order_by(m.Doc.embedding.cosine_distance(adapted(q, model="new"))).limit(10)
    ),
    "raw": lambda m, q: select(m.Doc.id).order_by(m.Doc.embedding.cosine_distance(raw(q))).limit(10),
}


def _alias(other: Any, q: np.ndarray) -> Select[Any]:
    return select(other.id).order_by(other.embedding.cosine_distance(q)).limit(10)


def _subquery(inner: Any, q: np.ndarray) -> Select[Any]:
    return select(inner.c.id).order_by(inner.c.embedding.cosine_distance(q)).limit(10)


def ids(session: Session, statement: Select[Any]) -> list[int]:
    return [getattr(each, "id", each) for each in session.scalars(statement)]


class Here:
    Doc, Large, Odd = Doc, Large, Odd


@pytest.mark.parametrize("form", FORMS)
def test_the_same_rows_as_in_the_database(form: str, world: World, app: App) -> None:
    for q in world.queries[:3]:
        there = app.database.run(lambda s, q=q: ids(s, FORMS[form](orm, q)))  # type: ignore[misc]
        assert len(there) == 10
        assert app.run(lambda s, q=q: ids(s, FORMS[form](Here, q))) == there  # type: ignore[misc]


def test_nearest(world: World, app: App) -> None:
    found = app.run(lambda s: [doc.id for doc in nearest(s, Doc.embedding, world.queries[0])])
    assert found == world.expected(0)


def test_every_kind_of_value(world: World, app: App) -> None:
    q = np.round(world.queries[0] * 64) / 64  # in half precision too

    def work(session: Session) -> None:
        expected = ids(session, FORMS["order by"](Here, q))
        for value in (q.tolist(), Vector(q), HalfVector(q), q.astype(np.float32), Vector(q).to_text()):
            assert ids(session, FORMS["order by"](Here, value)) == expected

    app.run(work)


def test_stored_vectors_are_not_adapted(world: World, app: App) -> None:
    def work(session: Session) -> None:
        rows = [{"id": 1000 + i, "author_id": 0, "embedding": v, "half": v} for i, v in enumerate(world.legacy[:3])]
        session.execute(insert(Doc), rows)
        session.add(Doc(id=1003, author_id=0, embedding=world.legacy[3], half=world.legacy[3]))
        session.flush()
        for i in range(4):
            doc = session.get_one(Doc, 1000 + i, populate_existing=True)
            assert np.asarray(doc.embedding) == pytest.approx(world.legacy[i], abs=1e-6)
        doc.embedding = world.legacy[7]
        session.flush()
        session.refresh(doc)
        assert np.asarray(doc.embedding) == pytest.approx(world.legacy[7], abs=1e-6)
        session.rollback()

    app.run(work)


def test_a_second_execution_is_cached_and_adapts_its_own_query(
    world: World, app: App, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (FORMS["order by"](Here, q) for q in world.queries[:2])
    assert first._generate_cache_key() == second._generate_cache_key()
    caplog.set_level(logging.INFO, "sqlalchemy.engine")

    def work(session: Session) -> None:
        assert ids(session, first) == world.expected(0)
        caplog.clear()
        assert ids(session, second) == world.expected(1)

    app.run(work)
    assert [r for r in caplog.messages if "cached since" in r]
    assert not [r for r in caplog.messages if "drift." in r]  # the database adapts nothing


def test_cache_keys_tell_columns_and_models_apart() -> None:
    q = np.ones(DIMENSIONS)
    others = (Doc.embedding.cosine_distance(q), Doc.half.cosine_distance(q), Odd.vec.cosine_distance(q))
    keys = {select(each)._generate_cache_key().key for each in others}  # type: ignore[union-attr]
    assert len(keys) == 3
    assert "1.0" not in str(keys)


def test_an_activation_is_followed(world: World, app: App) -> None:
    rng = np.random.default_rng(3)
    q = world.queries[0]
    with psycopg.connect(world.dsn, autocommit=True) as conn:
        before = drift_pg.load(conn, source="new", target="legacy")
        row = conn.execute("SELECT id FROM drift.adapter WHERE target = 'legacy' AND status = 'active'").fetchone()
        assert row is not None
        adapter = linear(rotation(rng, DIMENSIONS))
        expected = np.argsort(-world.legacy @ adapter.apply(q), kind="stable")[:10].tolist()

        def work(session: Session) -> None:
            assert ids(session, FORMS["order by"](Here, q)) == world.expected(0)
            drift_pg.activate(conn, drift_pg.store(conn, adapter, source="new", target="legacy"), force=True)
            end = time.monotonic() + 0.9
            while (found := ids(session, FORMS["order by"](Here, q))) != expected and time.monotonic() < end:
                time.sleep(0.01)
            assert found == expected

        try:
            app.run(work)
        finally:
            drift_pg.activate(conn, *row)
            assert drift_pg.load(conn, source="new", target="legacy").checksum == before.checksum


class Unregistered(Base):
    __tablename__ = "questions"

    id: Mapped[int] = mapped_column(primary_key=True)
    embedding: Mapped[Any] = mapped_column(here())


class Wrong(Base):
    __table__ = Doc.__table__.to_metadata(Base.metadata, schema="public")
    embedding = __table__.c.embedding


Wrong.__table__.c.embedding.type = here(query_model="unheard")
Q = np.ones(DIMENSIONS)


@pytest.mark.parametrize(
    ("statement", "kind", "names"),
    [
        (select(Doc).order_by(Doc.embedding.cosine_distance(Q[:9])), WrongDimensions, "Doc, column embedding"),
        (select(Doc).order_by(Doc.embedding.cosine_distance(0 * Q)), InvalidVector, "Doc, column embedding"),
        (select(Doc).order_by(Doc.embedding.cosine_distance(Q * np.nan)), InvalidVector, "Doc, column embedding"),
        (select(Doc).order_by(Doc.embedding.cosine_distance(np.ones((2, 24)))), InvalidVector, "Doc"),
        (select(Doc).order_by(Doc.embedding.cosine_distance(None)), InvalidVector, "Doc, column embedding"),
        (select(Unregistered).order_by(Unregistered.embedding.l2_distance(Q)), UnknownColumn, "Unregistered, column"),
        (select(Wrong).order_by(Wrong.embedding.cosine_distance(Q)), UnknownModel, "Wrong, column embedding"),
    ],
)
def test_errors_name_class_and_column(statement: Select[Any], kind: type[Exception], names: str, app: App) -> None:
    with pytest.raises(kind, match=names) as caught:
        app.run(lambda s: s.scalars(statement).all())
    assert isinstance(caught.value, SQLAlchemyError)


def test_no_active_adapter(world: World, app: App) -> None:
    with psycopg.connect(world.dsn, autocommit=True) as conn:
        row = conn.execute("SELECT id FROM drift.adapter WHERE target = 'legacy' AND status = 'active'").fetchone()
        assert row is not None
        drift_pg.deactivate(conn, source="new", target="legacy")
        try:
            with pytest.raises(NoActiveAdapter, match="Doc, column embedding"):
                app.run(lambda s: ids(s, FORMS["order by"](Here, Q)))
        finally:
            drift_pg.activate(conn, *row)


def test_without_a_cache(world: World) -> None:
    for driver in DRIVERS:
        with pytest.raises(InvalidDefinition, match="adapt_in_client"):
            Database(world.dsn, driver).run(lambda s: ids(s, FORMS["order by"](Here, Q)))


@pytest.mark.parametrize("value", [bindparam("q"), literal([1.0])])
def test_a_parameter_is_refused(value: Any) -> None:
    with pytest.raises(InvalidDefinition, match="the vector itself"):
        Doc.embedding.cosine_distance(value)


def test_another_schema_at_execution_is_refused(world: World, app: App) -> None:
    options = {"schema_translate_map": {None: "elsewhere"}}
    with pytest.raises(InvalidDefinition, match="schema_translate_map"):
        app.run(lambda s: s.execute(FORMS["order by"](Here, Q), execution_options=options))


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_cache_is_made_from_the_url(driver: str, world: World) -> None:
    database = Database(world.dsn, driver)
    engine: Any = (create_async_engine if database.is_async else create_engine)(database.url, poolclass=NullPool)
    with adapt_in_client(engine) as cache:
        assert adapt_in_client(engine) is cache
        assert cache.adapt(world.queries[0], "new", "legacy").shape == (DIMENSIONS,)
    with pytest.raises(ConnectionLost):
        cache.adapt(world.queries[0], "new", "legacy")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+asyncpg://user:hush@127.0.0.1:1/none?ssl=disable&prepared_statement_cache_size=0",
        "postgresql+psycopg://user:hush@127.0.0.1:1/none?sslmode=disable&application_name=mine",
        "postgresql+psycopg://user:hush@127.0.0.1:1/none?unheard=of",
    ],
)
def test_options_of_a_url_and_no_password(url: str) -> None:
    engine: Engine | AsyncEngine = create_async_engine(url) if "asyncpg" in url else create_engine(url)
    with pytest.raises((ConnectionLost, InvalidDefinition)) as caught:
        adapt_in_client(engine).adapt(Q, "new", "legacy")
    assert isinstance(caught.value, InvalidDefinition) == ("unheard" in url)
    assert "hush" not in f"{caught.value} {caught.value.__cause__}"


def test_an_engine_of_another_database() -> None:
    with pytest.raises(InvalidDefinition, match="sqlite"):
        adapt_in_client(create_engine("sqlite://"))


@pytest.mark.parametrize("driver", ["psycopg async", "asyncpg"])
def test_a_question_does_not_hold_up_the_event_loop(driver: str, world: World, cache: AdapterCache) -> None:
    """While the cache's question waits for a lock in the database, other tasks go on."""
    database = Database(world.dsn, driver)

    async def main() -> int:
        engine = create_async_engine(database.url, poolclass=NullPool)
        adapt_in_client(engine, cache)
        async with AsyncSession(engine) as session:
            await session.execute(text("SELECT 1"))
            with psycopg.connect(world.dsn) as conn:
                conn.execute("LOCK TABLE drift.adapter")
                search = asyncio.create_task(session.scalars(FORMS["order by"](Here, world.queries[0])))
                turns = 0
                for _ in range(20):
                    await asyncio.sleep(0.01)
                    turns += not search.done()
            assert (await search).all() == world.expected(0)
        return turns

    assert asyncio.run(main()) == 20
