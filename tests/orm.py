"""An application with SQLAlchemy models, its database, and its engines on every driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np
import psycopg
from pgvector.sqlalchemy import VECTOR
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL, Connection, ForeignKey, Index, NullPool, create_engine, insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, query_expression, relationship

import drift_pg
from drift_pg.adapter import Adapter, Layer
from drift_pg.sqlalchemy import EmbeddingHalfVector, EmbeddingVector
from tests.servers import PGVECTOR_SCHEMA
from tests.tables import linear, rotation

T = TypeVar("T")
DIMENSIONS = 24
LARGE = 3072
ROWS = 300
DRIVERS = ["psycopg", "psycopg async", "asyncpg"] + (["psycopg2"] if find_spec("psycopg2") else [])


class Base(DeclarativeBase):
    pass


class Author(Base):
    __tablename__ = "authors"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    docs: Mapped[list[Doc]] = relationship(back_populates="author", order_by="Doc.id")


class Doc(Base):
    __tablename__ = "docs"

    id: Mapped[int] = mapped_column(primary_key=True)
    author_id: Mapped[int] = mapped_column(ForeignKey("authors.id"))
    embedding: Mapped[Any] = mapped_column(EmbeddingVector(DIMENSIONS, model="legacy", query_model="new"))
    half: Mapped[Any] = mapped_column(EmbeddingHalfVector(DIMENSIONS, model="legacy", query_model="new"))
    author: Mapped[Author] = relationship(back_populates="docs")
    distance: Mapped[float | None] = query_expression()


class Item(Base):
    __tablename__ = "items"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "item"}

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    embedding: Mapped[Any] = mapped_column(EmbeddingVector(DIMENSIONS, model="legacy", query_model="new"))


class Article(Item):
    __tablename__ = "articles"
    __mapper_args__ = {"polymorphic_identity": "article"}

    id: Mapped[int] = mapped_column(ForeignKey("items.id"), primary_key=True)


class Large(Base):
    __tablename__ = "large"

    id: Mapped[int] = mapped_column(primary_key=True)
    embedding: Mapped[Any] = mapped_column(EmbeddingVector(LARGE, model="large", query_model="new"))


class Odd(Base):
    __tablename__ = """Weird "100%" 'Table' :x \\"""
    __table_args__ = {"schema": "Odd % 'Schema'"}

    id: Mapped[int] = mapped_column(primary_key=True)
    vec: Mapped[Any] = mapped_column(
        """Vec "50%(x)s" 'Col'""", EmbeddingVector(DIMENSIONS, model="it's 100% %(legacy)s", query_model="new")
    )


class Question(Base):
    """Queries that were kept, embedded by the new model."""

    __tablename__ = "questions"

    id: Mapped[int] = mapped_column(primary_key=True)
    embedding: Mapped[Any] = mapped_column(VECTOR(DIMENSIONS))


Index("docs_hnsw", Doc.embedding, postgresql_using="hnsw", postgresql_ops={"embedding": "vector_cosine_ops"})
Index("docs_half", Doc.half, postgresql_using="hnsw", postgresql_ops={"half": "halfvec_cosine_ops"})


class World:
    """A database whose rows are a rotation of the new model's space, and the adapters that know it.

    Attributes:
        new, legacy: the documents' vectors; (ROWS, DIMENSIONS).
        queries: of the new model.
    """

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        rng = np.random.default_rng(7)
        self.new = unit(rng.standard_normal((ROWS, DIMENSIONS)))
        self.matrix = rotation(rng, DIMENSIONS)
        self.legacy = self.new @ self.matrix
        self.queries = unit(rng.standard_normal((20, DIMENSIONS)))
        self.widening = rotation(rng, 64)[:DIMENSIONS].repeat(LARGE // 64, axis=1)
        self.large = unit(self.new[:100] @ self.widening)
        with psycopg.connect(dsn, autocommit=True) as conn:
            name = sql.Identifier(conn.info.dbname)
            conn.execute(sql.SQL("ALTER DATABASE {} SET search_path = public, {}").format(name, _EXTENSIONS))
        with psycopg.connect(dsn, autocommit=True) as conn:
            self._fill(conn)

    def _fill(self, conn: psycopg.Connection) -> None:
        conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier("Odd % 'Schema'")))
        Database(self.dsn, "psycopg").run(self._load)
        conn.execute(
            b"CREATE INDEX large_hnsw ON large USING hnsw ((embedding::halfvec(%d)) halfvec_cosine_ops)" % LARGE
        )
        for model, dimensions in {
            "new": DIMENSIONS,
            "legacy": DIMENSIONS,
            "large": LARGE,
            ODD_MODEL: DIMENSIONS,
        }.items():
            drift_pg.register_model(conn, model, dimensions=dimensions)
        for target, matrix in {"legacy": self.matrix, ODD_MODEL: self.matrix, "large": self.widening}.items():
            activate(conn, linear(matrix), "new", target)
        for relation, column, model in (
            ("public.docs", "embedding", "legacy"),
            ("public.docs", "half", "legacy"),
            ("public.items", "embedding", "legacy"),
            ("public.large", "embedding", "large"),
        ):
            drift_pg.register_column(conn, relation, column, model=model, metric="cosine")
        odd = Odd.__table__
        relation = sql.Identifier(odd.schema, odd.name).as_string(None)
        drift_pg.register_column(conn, relation, odd.c[1].name, model=ODD_MODEL, metric="cosine")
        conn.execute("ANALYZE")

    def _load(self, session: Session) -> None:
        Base.metadata.create_all(session.connection())
        session.add_all(Author(id=i, name=f"author {i}") for i in range(10))
        session.flush()
        session.execute(
            insert(Doc),
            [{"id": i, "author_id": i % 10, "embedding": v, "half": v} for i, v in enumerate(self.legacy)],
        )
        session.add_all(Article(id=i, embedding=v) for i, v in enumerate(self.legacy))
        session.add_all(Large(id=i, embedding=v) for i, v in enumerate(self.large))
        session.add_all(Odd(id=i, vec=v.tolist()) for i, v in enumerate(self.legacy))
        session.add_all(Question(id=i, embedding=v) for i, v in enumerate(self.queries))
        session.commit()

    def expected(self, query: int, k: int = 10) -> list[int]:
        """The ids of the documents that the new model would find."""
        return np.argsort(-self.new @ self.queries[query], kind="stable")[:k].tolist()


ODD_MODEL = "it's 100% %(legacy)s"
_EXTENSIONS = sql.Identifier(PGVECTOR_SCHEMA)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Of unit length."""
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def activate(conn: psycopg.Connection, adapter: Adapter | np.ndarray, source: str, target: str) -> None:
    """Store and activate, the quality gate passed by."""
    if isinstance(adapter, np.ndarray):
        layer = Layer(np.column_stack([adapter.T, np.zeros(adapter.shape[1])]), normalize=True)
        adapter = Adapter((layer,), adapter.shape[0], adapter.shape[1])
    drift_pg.activate(conn, drift_pg.store(conn, adapter, source=source, target=target), force=True)


class Database:
    """A database as an application reaches it: the same work on a sync or an async engine."""

    def __init__(self, dsn: str, driver: str, **options: Any) -> None:
        self.driver, self.options = driver, {"poolclass": NullPool} | options
        given = conninfo_to_dict(dsn)
        query = {"host": given["host"]} if str(given.get("host", "")).startswith("/") else {}
        if query and "port" in given:
            query["port"] = str(given["port"])
        self.url = URL.create(
            f"postgresql+{driver.split()[0]}",
            username=given.get("user"),
            password=given.get("password") or None,
            host=None if query else given.get("host"),
            port=None if query else int(given.get("port") or 5432),
            database=given["dbname"],
            query=query,
        )

    @property
    def is_async(self) -> bool:
        return self.driver in ("psycopg async", "asyncpg")

    def run(self, work: Callable[[Session], T]) -> T:
        """The result of work in a session."""
        if self.is_async:
            return asyncio.run(self._session(work))
        engine = create_engine(self.url, **self.options)
        with Session(engine) as session:
            return work(session)

    def connected(self, work: Callable[[Connection], T]) -> T:
        """The result of work with a connection."""
        if self.is_async:
            return asyncio.run(self._connection(work))
        with create_engine(self.url, **self.options).connect() as connection:
            return work(connection)

    async def _session(self, work: Callable[[Session], T]) -> T:
        async with AsyncSession(create_async_engine(self.url, **self.options)) as session:
            return await session.run_sync(work)

    async def _connection(self, work: Callable[[Connection], T]) -> T:
        connection: AsyncConnection
        async with create_async_engine(self.url, **self.options).connect() as connection:
            return await connection.run_sync(work)
