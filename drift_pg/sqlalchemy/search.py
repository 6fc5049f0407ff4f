"""Searching through SQLAlchemy: the k nearest rows, with pgvector's settings raised for the call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, Select, select, text
from sqlalchemy.orm import Session, scoped_session

from drift_pg.errors import InvalidDefinition
from drift_pg.sqlalchemy.rerank import reranked
from drift_pg.sqlalchemy.types import Embedding

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

_METHODS = {
    "cosine": "cosine_distance",
    "inner_product": "max_inner_product",
    "l2": "l2_distance",
    "l1": "l1_distance",
}


def nearest(
    session: Session | scoped_session[Any] | Connection,
    column: Any,
    query: object,
    *,
    k: int = 10,
    where: ColumnElement[bool] | None = None,
    rerank: int | None = None,
    matching: Mapping[str, Any] | None = None,
) -> Sequence[Any]:
    """The k rows nearest to a query, nearest first by the metric of the column's type.

    As `drift.nearest` in SQL it raises `hnsw.ef_search` if k exceeds it, and turns on the iterative scan where
    pgvector (0.8 or newer) has it, so that rows that `where` or a policy hides are made up for. Both are put back.

    Args:
        session: a Session, or a Connection.
        column: `Doc.embedding`, that of an `aliased(Doc)`, or a Table's column; of type EmbeddingVector or
            EmbeddingHalfVector.
        query: (n,) floats, adapted as the column's type says; or `adapted(…)`, `raw(…)`.
        k: how many rows; fewer come back if there are fewer.
        where: rows to search among.
        rerank: how many of the bridge's first to order anew, with what the column's companion finds, by the new
            model's own vectors where they are known; queries are adapted in the database then, whatever the type says.
        matching: what stands for `where` with rerank: {column name: value, or list of values, or None for NULL}.

    Returns:
        Entities of the column's class; with a Connection or a Table's column, rows.

    Raises:
        InvalidDefinition: the column is of another type, k is negative or more than rerank, `where` is given with
            rerank, or `matching` without.
        DriftError: from the database, as of each distance.

    Example:
        nearest(session, Doc.embedding, q, k=20, where=Doc.language == "en")
        nearest(session, Doc.embedding, q, k=20, rerank=200, matching={"language": "en"})
    """
    statement = _statement(column, query, k, where, rerank, matching)
    entities = hasattr(column, "parent")
    if isinstance(session, Connection):
        with _thorough(session, k):
            return session.execute(statement).all()
    with _thorough(session.connection(bind_arguments=_bind_arguments(column)), k):
        return session.scalars(statement).unique().all() if entities else session.execute(statement).all()


async def nearest_async(
    session: AsyncSession | AsyncConnection,
    column: Any,
    query: object,
    *,
    k: int = 10,
    where: ColumnElement[bool] | None = None,
    rerank: int | None = None,
    matching: Mapping[str, Any] | None = None,
) -> Sequence[Any]:
    """As `nearest`, for an AsyncSession or an AsyncConnection."""
    return await session.run_sync(nearest, column, query, k=k, where=where, rerank=rerank, matching=matching)


def _statement(
    column: Any,
    query: object,
    k: int,
    where: ColumnElement[bool] | None,
    rerank: int | None,
    matching: Mapping[str, Any] | None,
) -> Select[Any]:
    kind = getattr(column, "type", None)
    if not isinstance(kind, Embedding):
        raise InvalidDefinition(
            f"{column} is of type {kind!r}, so by which metric it is searched is not known",
            hint="declare it as drift_pg.sqlalchemy.EmbeddingVector or EmbeddingHalfVector",
        )
    if k < 0:
        raise InvalidDefinition(f"k is {k}, expected 0 or more")
    if (rerank is None and matching is not None) or (rerank is not None and where is not None):
        raise InvalidDefinition(
            "rows are chosen by `where`, but with rerank by `matching`, which filters both of its searches",
            hint='nearest(…, where=Doc.language == "en"); nearest(…, rerank=200, matching={"language": "en"})',
        )
    if rerank is not None:
        return reranked(column, query, k, rerank, matching)
    parent = getattr(column, "parent", None)
    statement = select(parent.entity if parent is not None else column.table)
    if where is not None:
        statement = statement.where(where)
    distance = getattr(column, _METHODS[kind.metric])(query)
    return statement.order_by(distance).limit(k)


def _bind_arguments(column: Any) -> dict[str, Any]:
    parent = getattr(column, "parent", None)
    return {"clause": column.table} if parent is None else {"mapper": parent.mapper}


# The literal loads pgvector, without which a new connection does not know its settings.
_RAISE = text("""
WITH held AS MATERIALIZED (
    SELECT current_setting('hnsw.ef_search', true) AS breadth, current_setting('hnsw.iterative_scan', true) AS scan
    WHERE '[1]'::vector IS NOT NULL)
SELECT breadth, scan, CASE WHEN breadth::integer < :k THEN set_config('hnsw.ef_search', least(:k, 1000)::text, true) END,
    CASE WHEN scan = 'off' THEN set_config('hnsw.iterative_scan', 'strict_order', true) END
FROM held
""")
_PUT_BACK = text("""
SELECT set_config('hnsw.ef_search', :breadth, true),
    CASE WHEN :scan <> '' THEN set_config('hnsw.iterative_scan', :scan, true) END
""")


@contextmanager
def _thorough(connection: Connection, k: int) -> Iterator[None]:
    with _transaction(connection):
        breadth, scan, *raised = connection.execute(_RAISE, {"k": k}).one()
        yield
        # Not after an error: it has ended the transaction, which takes the settings with it.
        if any(raised):
            connection.execute(_PUT_BACK, {"breadth": breadth, "scan": scan or ""})


@contextmanager
def _transaction(connection: Connection) -> Iterator[None]:
    """Settings last for a transaction, which a connection that commits each statement by itself has to be given."""
    driver: Any = connection.connection.dbapi_connection
    if not driver.autocommit:
        yield
        return
    connection.exec_driver_sql("BEGIN")
    try:
        yield
    except BaseException:
        connection.exec_driver_sql("ROLLBACK")
        raise
    connection.exec_driver_sql("COMMIT")
