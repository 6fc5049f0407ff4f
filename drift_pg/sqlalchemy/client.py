"""Queries that are adapted in the client: a column of type `EmbeddingVector(…, adapt="client")` binds the adapted vector."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import psycopg
from numpy.typing import ArrayLike
from pgvector import HalfVector, Vector
from psycopg.conninfo import make_conninfo
from sqlalchemy import URL, BindParameter, ColumnElement, Dialect, Engine
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.visitors import InternalTraversal
from sqlalchemy.util import await_only

from drift_pg.adapter import Float32
from drift_pg.database.adapters import texts
from drift_pg.database.cache import AdapterCache
from drift_pg.errors import DriftError, InvalidDefinition, InvalidVector
from drift_pg.sqlalchemy.expressions import (
    AdaptedQuery,
    QueryVector,
    Searched,
    as_element,
    as_query,
    note_query,
    require_query,
)

_ATTRIBUTE = "drift_pg_cache"
"""Of an engine's dialect: the only thing of an engine that a bind parameter's type is shown."""

_ASYNCPG = {"host": "host", "port": "port", "ssl": "sslmode", "passfile": "passfile"}
"""What libpq knows of the options in asyncpg's URL, and its own names for them."""


def adapt_in_client(engine: Engine | AsyncEngine, cache: AdapterCache | None = None) -> AdapterCache:
    """Let columns of type `EmbeddingVector(…, adapt="client")` adapt their queries in this process.

    What counts is what is committed: an adapter that the session itself activates serves from its commit on.
    A table without a schema is looked up along the search_path of the *cache's* connection. If a database has
    several of one name, name the schema in the model.

    Args:
        engine: sync or async, of any driver for PostgreSQL.
        cache: what adapts; None keeps the one that the engine has, or makes one of the engine's URL. Make your own
            where the URL is not enough: with `connect_args`, `creator`, or a token for a password.

    Returns:
        The cache: close it with the engine.

    Raises:
        InvalidDefinition: the engine is not PostgreSQL's, or its URL cannot be read by libpq.

    Example:
        engine = create_engine("postgresql+psycopg:///app")
        cache = adapt_in_client(engine)
    """
    dialect = engine.dialect
    if not isinstance(dialect, PGDialect):
        raise InvalidDefinition(f"the engine's database is {dialect.name}, pgvector is PostgreSQL's")
    if cache is None:
        cache = getattr(dialect, _ATTRIBUTE, None) or AdapterCache(dsn_of(engine.url))
    setattr(dialect, _ATTRIBUTE, cache)
    return cache


def dsn_of(url: URL) -> str:
    """For libpq, of an engine's URL; raises InvalidDefinition if libpq has no such options."""
    if url.get_driver_name() == "asyncpg":
        known = {_ASYNCPG[name]: value for name, value in url.query.items() if name in _ASYNCPG}
        url = url.set(query=known)
    dialect = url.set(drivername="postgresql+psycopg").get_dialect()()
    options = dialect.create_connect_args(url)[1]
    try:
        return make_conninfo(**options)
    except psycopg.ProgrammingError:
        raise InvalidDefinition(
            f"libpq cannot read the options in the engine's URL: {', '.join(sorted(url.query))}",
            hint="give what connects by itself: adapt_in_client(engine, AdapterCache(…)), log_queries(engine, QueryLog(…))",
        ) from None


class ClientQuery(QueryVector):
    """The type of a query that is adapted when it is bound.

    Attributes:
        query_model: of the query.
        relation, column: what it is adapted for; the table as SQL names it.
        searched: the same for an error.
    """

    cache_ok = True

    def __init__(self, query_model: str, relation: str, column: str, searched: str) -> None:
        super().__init__()
        self.query_model, self.relation, self.column = query_model, relation, column
        self.searched = searched

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], str]:
        """The adapted vector, as text that pgvector reads."""
        key = (self.query_model, self.relation, self.column)

        def process(value: Any) -> str:
            try:
                return texts(_adapted(dialect, key, floats(value))[None])[0]
            except DriftError as error:
                error.detail = "\n".join(p for p in (error.detail, f"The query was for {self.searched}.") if p)
                raise

        return process

    def literal_processor(self, dialect: Dialect) -> Callable[[Any], str]:
        """The same, quoted."""
        process = self.bind_processor(dialect)
        return lambda value: f"'{process(value)}'"


def _adapted(dialect: Dialect, key: tuple[str, ...], query: ArrayLike) -> Float32:
    cache: AdapterCache | None = getattr(dialect, _ATTRIBUTE, None)
    if cache is None:
        raise InvalidDefinition(
            'a column says adapt="client", but its engine has no adapter cache',
            hint="from drift_pg.sqlalchemy import adapt_in_client; adapt_in_client(engine)",
        )
    apply = cache.ready(key)
    if apply is None:
        # A statement of an async engine runs in a greenlet of its event loop, which must not wait for a question.
        apply = await_only(asyncio.to_thread(cache.find, key, query)) if dialect.is_async else cache.find(key, query)
    return apply(query)


def floats(value: Any) -> Float32:
    """A query of any kind that pgvector takes, (m,); raises InvalidVector if it is none."""
    require_query(value)
    if isinstance(value, str):
        value = Vector.from_text(value)
    if isinstance(value, (Vector, HalfVector)):
        value = value.to_numpy()
    query: Float32 = np.asarray(value, dtype=np.float32)
    if query.ndim != 1:
        raise InvalidVector(f"a query has shape {query.shape}, expected one vector")
    return query


_PARTS = [("bind", InternalTraversal.dp_clauseelement)]


class ClientOperand(ColumnElement[Any]):
    """A query that is adapted when it is bound, as the right side of a distance."""

    __visit_name__ = "drift_client_operand"
    inherit_cache = True
    _traverse_internals = _PARTS

    def __init__(self, bind: BindParameter[Any], searched: Searched) -> None:
        self.bind = bind
        self.searched = searched  # as the type of `bind` has it, so the cache key needs it only once


def client_query(column: ColumnElement[Any], value: object, query_model: str) -> ColumnElement[Any]:
    """A query of `query_model` as what `column` is compared with.

    Raises:
        InvalidDefinition: the column is not one column of one table, or the value is no vector but a parameter.
    """
    if as_element(value) is not None:
        # Two columns may share a parameter, and each would want it adapted for itself; it is bound once.
        raise InvalidDefinition(
            'with adapt="client" a query is the vector itself, not bindparam(), literal() or part of a lambda',
            hint='pass the vector (statements are cached all the same), or use adapt="database"',
        )
    searched = Searched.by(AdaptedQuery(as_query(value), query_model, column))
    relation = PLAIN.identifier_preparer.format_table(searched.table)
    kind = ClientQuery(query_model, relation, searched.column, str(searched))
    return ClientOperand(BindParameter(None, value, type_=kind, unique=True), searched)


_dialect: Any = PGDialect  # which has no type hints
PLAIN = _dialect(paramstyle="named")
"""Quotes names as SQL has them: no percent sign doubled for a driver."""


@compiles(ClientOperand)
def _compile(element: ClientOperand, compiler: SQLCompiler, **options: Any) -> str:
    if "__[SCHEMA_" in compiler.preparer.format_table(element.searched.table):
        raise InvalidDefinition(
            'with adapt="client" a table\'s schema must be known, and schema_translate_map changes it',
            detail=f"The query was for {element.searched}.",
            hint='use adapt="database", which follows schema_translate_map',
        )
    query = compiler.process(element.bind, **options)
    note_query(compiler, element.searched, element.bind)
    return query
