"""The query log: vectors of real queries, kept, read, trimmed, and the rows that they touch."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from psycopg import sql

from drift_pg.adapter import Float32
from drift_pg.database.adapters import texts
from drift_pg.database.connection import Connection, one, rows, vector_schema
from drift_pg.database.registry import relation_name
from drift_pg.errors import InvalidDefinition, InvalidVector

KEEP, DAYS = 10_000, 30
"""What the log keeps of each column and model, as drift.trim_query_log has it."""


def log_query(conn: Connection, relation: str, column: str, query: ArrayLike, *, model: str) -> bool:
    """Keep a query's vector in the caller's transaction; `QueryLog` does it beside the application.

    Kept are the vector, its model, the column and the time.

    Args:
        conn: a connection.
        relation: the table as SQL names it: 'public.docs', '"Weird Docs"'.
        column: the registered embedding column that was searched.
        query: (m,), as it came from its model.
        model: the registered model that it is of.

    Returns:
        Whether it was kept: a role that may only INSERT keeps nothing more once the log has 100,000 queries.

    Raises:
        UnknownModel, UnknownColumn, WrongDimensions, InvalidVector, PermissionDenied
        ColumnMissing: there is no such table.
    """
    name = relation_name(conn, relation)
    statement = "SELECT drift.log_query(%s, %s, %s::regclass, %s) AS kept"
    return bool(one(conn, statement, [texts(one_vector(query)[None])[0], model, name, column]).kept)


def read_query_log(
    conn: Connection,
    relation: str,
    column: str,
    *,
    model: str,
    limit: int | None = None,
    part: Literal["fit", "evaluate"] | None = None,
) -> Float32:
    """Logged queries of a model for a column, newest first: (n, m) float32. `fit` takes it as its `query_log`.

    Args:
        conn: a connection.
        relation: the table as SQL names it.
        column: a registered embedding column.
        model: a registered model.
        limit: how many at most; None for all.
        part: "fit" for four fifths of them, "evaluate" for the others, None for all. Equal queries are of one part, so
            that what an adapter is judged by is never what it has learnt from.

    Raises:
        UnknownModel, UnknownColumn, ColumnMissing, PermissionDenied
        InvalidDefinition: a negative limit.
    """
    if limit is not None and limit < 0:
        raise InvalidDefinition(f"limit is {limit}, expected 0 or more")
    name = relation_name(conn, relation)
    rows(conn, _MAY_READ)
    dimensions = one(conn, "SELECT drift.model_dimensions(%s) AS dimensions", [model]).dimensions
    rows(conn, "SELECT drift.searched_column(%s::regclass, %s)", [name, column])
    found = rows(
        conn,
        sql.SQL(_READ).format(send=sql.Identifier(vector_schema(conn).replace("%", "%%"), "vector_send")),
        [name, column, model, part, part, limit],
    )
    vectors = [np.frombuffer(row.query, ">f4", offset=4) for row in found]
    return np.array(vectors, np.float32).reshape(len(found), dimensions)


def trim_query_log(conn: Connection, *, keep: int = KEEP, days: float = DAYS) -> int:
    """Delete logged queries beyond the newest `keep` of each column and model, or older than `days`; how many.

    Raises:
        InvalidDefinition: a negative limit.
        PermissionDenied
    """
    query = "SELECT drift.trim_query_log(%s::integer, %s::float8 * interval '1 day') AS gone"
    return int(one(conn, query, [keep, days]).gone)


def touched(
    conn: Connection, relation: str, column: str, *, model: str, n: int = 200, queries: int = 1000
) -> list[list[str]]:
    """The rows that logged queries' bridge candidates touch, in the order in which to embed them.

    The query that was asked most often comes first, its nearest row first, so that whole answers become known.

    Args:
        conn: a connection.
        relation: the table as SQL names it.
        column: an embedding column that has a companion.
        model: the companion's.
        n: how many of the bridge's first count for each query.
        queries: how many of the newest logged ones are searched with.

    Returns:
        Per row the values of its primary key as text, as drift.claim and drift.store_vectors take them.

    Raises:
        NoCompanion, NoActiveAdapter, UnknownModel, UnknownColumn, ColumnMissing, PermissionDenied
        InvalidDefinition: n or queries is below 1.
    """
    query = "SELECT key FROM drift.touched(%s::regclass, %s, %s, %s::integer, %s::integer)"
    return [row.key for row in rows(conn, query, [relation_name(conn, relation), column, model, n, queries])]


@dataclass(frozen=True)
class Logged:
    """What the log holds of a column and a model.

    Attributes:
        relation: as SQL names it; a table that was dropped has only its number left.
        column: of the table.
        model: of the queries.
        queries: how many.
        oldest, newest: when they were logged.
        bytes: of their vectors.
    """

    relation: str
    column: str
    model: str
    queries: int
    oldest: datetime
    newest: datetime
    bytes: int


def query_log_status(conn: Connection) -> list[Logged]:
    """What is logged, per column and model. Raises PermissionDenied."""
    rows(conn, _MAY_READ)
    return [Logged(**row._asdict()) for row in rows(conn, _STATUS)]


_MAY_READ = "SELECT drift.require_query_log('{SELECT}')"
_READ = """
SELECT {send}(l.query) AS query FROM drift.query_log l
WHERE l.relation = %s::regclass AND l.column_name = %s AND l.model = %s AND (%s::text IS NULL
      OR (pg_catalog.hashtextextended(pg_catalog.encode({send}(l.query), 'hex'), 0) %% 5 = 0) = (%s::text = 'evaluate'))
ORDER BY l.id DESC LIMIT %s
"""
_STATUS = """
SELECT l.relation::text AS relation, l.column_name::text AS column, l.model, count(*) AS queries, min(l.logged_at) AS oldest,
       max(l.logged_at) AS newest, sum(pg_catalog.pg_column_size(l.query))::bigint AS bytes
FROM drift.query_log l GROUP BY l.relation, l.column_name, l.model ORDER BY 1, 2, 3
"""


def one_vector(query: ArrayLike) -> Float32:
    """A copy of a query, (m,); raises InvalidVector if it is not one vector."""
    vector = np.array(query, dtype=np.float32)
    if vector.ndim != 1:
        raise InvalidVector(f"a query has shape {vector.shape}, expected one vector")
    return vector
