"""The query log's hook: a sample of the queries that an engine's statements adapt."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, TableClause, event
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.ext.asyncio import AsyncEngine

from drift_pg.errors import InvalidDefinition
from drift_pg.reembedding.query_sampling import SAMPLE, QueryLog
from drift_pg.sqlalchemy.client import PLAIN, dsn_of, floats
from drift_pg.sqlalchemy.expressions import ASKED, Searched

log = logging.getLogger("drift_pg.query_log")


def log_queries(engine: Engine | AsyncEngine, *, sample: float = SAMPLE, query_log: QueryLog | None = None) -> QueryLog:
    """Log a sample of the queries of this engine's statements, beside the application and without slowing it.

    Logged is each value that a distance of an EmbeddingVector or EmbeddingHalfVector with a query_model adapts, in the
    database or in the client, once its statement has succeeded. Not logged are columns of queries, `raw(…)`, literals
    that are rendered into the SQL, and SQL that does not adapt by itself, such as `text()`. A table without a schema is
    looked up along the search_path of the log's own connection.

    Calling it again for an engine replaces the log that it had; close that one.

    Args:
        engine: sync or async, of any driver for PostgreSQL.
        sample: the share of statements whose queries are kept, 0 to 1.
        query_log: what writes, with a sample of its own; None makes one of the engine's URL. Make your own where the URL
            is not enough: with `connect_args`, `creator`, or a token for a password.

    Returns:
        The query log: close it with the engine. Once it is closed, the engine's statements are not looked at.

    Raises:
        InvalidDefinition: the engine is not PostgreSQL's, its URL cannot be read by libpq, or `sample` is not 0 to 1.

    Example:
        engine = create_engine("postgresql+psycopg:///app")
        query_log = log_queries(engine, sample=0.01)
    """
    watched = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
    if not isinstance(watched.dialect, PGDialect):
        raise InvalidDefinition(f"the engine's database is {watched.dialect.name}, pgvector is PostgreSQL's")
    kept = query_log or QueryLog(dsn_of(watched.url), sample=sample)
    if watched in _listeners:
        event.remove(watched, _EVENT, _listeners[watched])
    _listeners[watched] = _listener(kept)
    event.listen(watched, _EVENT, _listeners[watched])
    return kept


_EVENT = "after_cursor_execute"
_listeners: WeakKeyDictionary[Engine, Callable[..., None]] = WeakKeyDictionary()


def _listener(query_log: QueryLog) -> Callable[..., None]:
    def note(conn: Any, cursor: Any, statement: Any, parameters: Any, context: Any, executemany: Any) -> None:  # noqa: ARG001 (SQLAlchemy's signature)
        asked = getattr(context.compiled, ASKED, None)
        if asked and not query_log.closed and query_log.draw():
            try:
                _keep(query_log, context, asked)
            except Exception as error:  # nothing here is worth a search
                log.debug("a query was not logged: %s", type(error).__name__)

    return note


def _keep(query_log: QueryLog, context: Any, asked: Iterable[tuple[Searched, str]]) -> None:
    schemas = context.execution_options.get("schema_translate_map") or {}
    kept = set()  # a query may stand in a statement twice: what is shown, and what is ordered by
    for values in context.compiled_parameters:
        for searched, name in asked:
            if name not in values:  # literal_execute, which is rendered into the SQL
                continue
            query = floats(values[name])
            key = (searched.query_model, _relation(searched.table, schemas), searched.column, query.tobytes())
            if key not in kept:
                kept.add(key)
                query_log.keep(query, model=key[0], relation=key[1], column=key[2])


def _relation(table: TableClause, schemas: Any) -> str:
    schema = getattr(table, "schema", None)
    parts = [schemas.get(schema, schema), table.name]
    return ".".join(PLAIN.identifier_preparer.quote(part) for part in parts if part is not None)
