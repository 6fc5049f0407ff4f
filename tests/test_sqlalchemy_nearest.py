"""nearest(): entities or rows, by the column's metric, with pgvector's settings raised for the call and put back."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import psycopg
import pytest
from sqlalchemy import Connection, create_engine, insert, select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, aliased, backref, mapped_column, relationship

from drift_pg.errors import InvalidDefinition, NoActiveAdapter
from drift_pg.sqlalchemy import EmbeddingVector, adapted, nearest, nearest_async, raw
from tests.orm import DIMENSIONS, Author, Database, Doc, Question, World


def by_metric(metric: str) -> Any:
    """A class of documents whose column is searched by that metric."""

    class Base(DeclarativeBase):
        pass

    class Item(Base):
        __tablename__ = "items"

        id: Mapped[int] = mapped_column(primary_key=True)
        embedding: Mapped[Any] = mapped_column(EmbeddingVector(DIMENSIONS, model="legacy", metric=metric))

    return Item


# The literal loads pgvector: before, a connection does not know its settings.
SETTINGS = "SELECT current_setting('hnsw.ef_search'), current_setting('hnsw.iterative_scan', true) FROM (SELECT '[1]'::vector) AS loaded"


def settings(session: Session | Connection) -> tuple[Any, ...]:
    return tuple(session.execute(text(SETTINGS)).one())


def test_entities_nearest_first(world: World, database: Database) -> None:
    def search(session: Session) -> list[Any]:
        found = nearest(session, Doc.embedding, world.queries[0])
        assert all(isinstance(doc, Doc) and doc in session for doc in found)
        return [doc.id for doc in found]

    assert database.run(search) == world.expected(0)


def test_rows_from_a_connection_or_a_table(world: World, database: Database) -> None:
    q = world.queries[1]
    rows = database.connected(lambda c: nearest(c, Doc.embedding, q, k=3))
    assert [row.id for row in rows] == world.expected(1, 3)
    assert rows[0].author_id == rows[0].id % 10
    docs = Doc.__table__
    assert [row.id for row in database.connected(lambda c: nearest(c, docs.c.embedding, q, k=3))] == world.expected(
        1, 3
    )
    assert [row.id for row in database.run(lambda s: nearest(s, docs.c.half, q, k=1))] == world.expected(1, 1)


def test_an_alias_and_a_condition(world: World, database: Database) -> None:
    other = aliased(Doc)
    found = database.run(lambda s: nearest(s, other.embedding, world.queries[2], k=5, where=other.author_id == 3))
    assert [doc.id for doc in found] == [i for i in world.expected(2, 300) if i % 10 == 3][:5]


def test_the_query_may_say_what_it_is(world: World) -> None:
    database = Database(world.dsn, "psycopg")
    for q in (raw(world.legacy[9]), adapted(world.new[9], model="new")):
        assert [doc.id for doc in database.run(lambda s, q=q: nearest(s, Doc.embedding, q, k=1))] == [9]


def test_as_many_as_are_asked_for_and_the_settings_are_put_back(world: World, database: Database) -> None:
    def search(session: Session) -> list[int]:
        before = settings(session)
        lengths = [len(nearest(session, Doc.embedding, world.queries[0], k=k)) for k in (0, 5, 40, 41, 200, 1000)]
        assert settings(session) == before
        return lengths

    assert database.run(search) == [0, 5, 40, 41, 200, 300]


def test_settings_of_the_applications_own_are_put_back(world: World, database: Database) -> None:
    def search(connection: Connection) -> list[tuple[Any, ...]]:
        connection.execute(text("SET hnsw.ef_search = 77"))
        connection.commit()
        connection.execute(text("SET LOCAL hnsw.ef_search = 88"))
        connection.execute(text("SET LOCAL hnsw.iterative_scan = 'relaxed_order'"))
        assert len(nearest(connection, Doc.embedding, world.queries[0], k=100)) == 100
        inside = settings(connection)
        connection.commit()
        return [inside, settings(connection)]

    assert database.connected(search) == [("88", "relaxed_order"), ("77", "off")]


def test_rare_rows_are_found_though_the_index_hides_them(world: World, database: Database) -> None:
    def search(session: Session) -> list[int]:
        session.execute(text("SET LOCAL enable_seqscan = off"))
        session.execute(text("SET LOCAL enable_sort = off"))
        return [doc.id for doc in nearest(session, Doc.embedding, world.queries[0], where=Doc.id >= 290)]

    assert database.run(search) == [i for i in world.expected(0, 300) if i >= 290]


def test_an_autocommit_connection_keeps_its_settings(world: World, database: Database) -> None:
    database.options["isolation_level"] = "AUTOCOMMIT"

    def search(session: Session) -> tuple[Any, ...]:
        assert len(nearest(session, Doc.embedding, world.queries[0], k=100)) == 100
        with pytest.raises(NoActiveAdapter):
            nearest(session, Doc.embedding, unadaptable(world), k=100)
        return settings(session)

    assert database.run(search) == ("40", "off")


def unadaptable(world: World) -> Any:
    return adapted(np.ones(3072), model="large")


def test_an_error_leaves_the_transaction_to_be_rolled_back(world: World, database: Database) -> None:
    def search(session: Session) -> tuple[Any, ...]:
        session.execute(text("SELECT 1"))
        with pytest.raises(NoActiveAdapter), session.begin_nested():
            nearest(session, Doc.embedding, unadaptable(world), k=100)
        return settings(session)

    assert database.run(search) == ("40", "off")


@pytest.mark.parametrize("metric", ["cosine", "inner_product", "l2", "l1"])
def test_by_the_columns_metric(dsn: str, rng: np.random.Generator, metric: str) -> None:
    entity, vectors, q = by_metric(metric), rng.standard_normal((50, DIMENSIONS)), rng.standard_normal(DIMENSIONS)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(f"ALTER DATABASE {conn.info.dbname} SET search_path = public, extensions".encode())

    def search(session: Session) -> list[int]:
        entity.__table__.create(session.connection())
        session.execute(insert(entity), [{"id": i, "embedding": v} for i, v in enumerate(vectors)])
        return [row.id for row in nearest(session, entity.embedding, q, k=5)]

    distances = {
        "cosine": -(vectors @ q) / np.linalg.norm(vectors, axis=1),
        "inner_product": -(vectors @ q),
        "l2": np.linalg.norm(vectors - q, axis=1),
        "l1": np.abs(vectors - q).sum(axis=1),
    }
    assert Database(dsn, "psycopg").run(search) == np.argsort(distances[metric])[:5].tolist()


def test_eagerly_joined_collections(world: World) -> None:
    class Base(DeclarativeBase):
        pass

    class Writer(Base):
        __table__ = Author.__table__.to_metadata(Base.metadata)

    class Text(Base):
        __table__ = Doc.__table__.to_metadata(Base.metadata)
        author = relationship(Writer, lazy="joined", backref=backref("texts", lazy="joined", join_depth=2))

    found = Database(world.dsn, "psycopg").run(
        lambda s: [(each.id, len(each.author.texts)) for each in nearest(s, Text.embedding, world.queries[0], k=4)]
    )
    assert found == [(i, 30) for i in world.expected(0, 4)]


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_nearest_async(world: World, driver: str) -> None:
    async def search() -> list[list[int]]:
        engine = create_async_engine(Database(world.dsn, driver).url)
        async with AsyncSession(engine) as session, engine.connect() as connection:
            entities = await nearest_async(session, Doc.embedding, world.queries[3], k=7, where=Doc.author_id < 5)
            rows = await nearest_async(connection, Doc.embedding, world.queries[3], k=60)
        await engine.dispose()
        return [[doc.id for doc in entities], [row.id for row in rows]]

    few, many = asyncio.run(search())
    assert few == [i for i in world.expected(3, 300) if i % 10 < 5][:7]
    assert len(many) == 60


def test_the_right_database_is_asked(world: World) -> None:
    def refuse() -> Any:
        raise AssertionError("the other database was asked")

    wrong = create_engine("postgresql+psycopg://", creator=refuse)
    engine = create_engine(Database(world.dsn, "psycopg").url)
    for binds, column in (({Doc: engine}, Doc.embedding), ({Doc.__table__: engine}, Doc.__table__.c.embedding)):
        with Session(wrong, binds=binds) as session:
            assert [row.id for row in nearest(session, column, world.queries[0], k=2)] == world.expected(0, 2)
    engine.dispose()


def test_what_cannot_be_searched_is_refused(world: World) -> None:
    database = Database(world.dsn, "psycopg")
    with pytest.raises(InvalidDefinition, match="by which metric it is searched is not known"):
        database.run(lambda s: nearest(s, Question.embedding, world.queries[0]))
    with pytest.raises(InvalidDefinition, match="k is -1"):
        database.run(lambda s: nearest(s, Doc.embedding, world.queries[0], k=-1))
    assert database.run(lambda s: s.scalar(select(Doc.id).limit(1))) is not None
