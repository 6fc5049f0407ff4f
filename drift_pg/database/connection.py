"""Using a caller's connection: rows whatever its row factory, and the database's errors as drift_pg's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import psycopg
from psycopg import sql
from psycopg.rows import namedtuple_row

from drift_pg import errors
from drift_pg.errors import ConnectionLost, DriftError, NotInstalled, PermissionDenied

if TYPE_CHECKING:
    from typing_extensions import LiteralString

Connection = psycopg.Connection[Any]
Query: TypeAlias = "LiteralString | sql.Composed"
"""Literals of this package, or composed from them: what a user gives is never formatted into a query."""


GRANT_HINT = "GRANT USAGE ON SCHEMA drift TO the_role; GRANT SELECT ON ALL TABLES IN SCHEMA drift TO the_role;"


def _subclasses(cls: type[DriftError]) -> Iterator[type[DriftError]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


BY_SQLSTATE = {cls.sqlstate: cls for cls in _subclasses(errors.DriftError) if cls.sqlstate}
_ABSENT = {"3F000", "42P01", "42883"}  # schema, table, function


def as_drift_error(sqlstate: str | None, message: str, detail: str | None, hint: str | None) -> DriftError | None:
    """The error of drift_pg that a report of the database stands for, whichever driver brought it; None if none."""
    if sqlstate in BY_SQLSTATE:
        if sqlstate == PermissionDenied.sqlstate and not hint:
            hint = GRANT_HINT
        return BY_SQLSTATE[sqlstate](message, detail=detail, hint=hint)
    if sqlstate in _ABSENT and "drift" in message:
        return NotInstalled(f"this database has no schema drift, or an old one: {message}", hint="drift-pg upgrade")
    return None


def translate(error: psycopg.Error) -> DriftError | None:
    """The error of drift_pg that a database error stands for, or None if it is none of ours."""
    report = error.diag
    ours = as_drift_error(
        error.sqlstate, report.message_primary or str(error), report.message_detail, report.message_hint
    )
    broken = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    # 57P0x ends a session (shutdown, crash, an administrator); 57014 only cancels its statement.
    if ours is None and broken and (error.sqlstate or "08000").startswith(("08", "57P")):
        return ConnectionLost(
            f"the connection to the database failed: {str(error).strip()}",
            hint="nothing that was not committed has been kept; run the same command again",
        )
    return ours


@contextmanager
def translated() -> Iterator[None]:
    """Raise a database error as drift_pg's, where it is one of ours."""
    try:
        yield
    except psycopg.Error as error:
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error


def rows(conn: Connection, query: Query, parameters: Sequence[object] | None = None) -> list[Any]:
    """Run a query and return its rows as named tuples, whatever the connection's row factory."""
    statement = sql.SQL(query) if isinstance(query, str) else query
    with translated(), conn.cursor(row_factory=namedtuple_row) as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


def one(conn: Connection, query: Query, parameters: Sequence[object] | None = None) -> Any:
    """The single row of a query."""
    return rows(conn, query, parameters)[0]


def vector_schema(conn: Connection) -> str:
    """The schema that pgvector is installed in.

    Raises:
        NotInstalled: pgvector is not in this database, or is older than 0.7.
    """
    found = rows(
        conn,
        "SELECT n.nspname, e.extversion FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector'",
    )
    if not found:
        database = one(conn, "SELECT current_database() AS name").name
        raise NotInstalled(f"database {database!r} has no pgvector", hint="CREATE EXTENSION vector;")
    version = tuple(int(part) for part in found[0].extversion.split(".")[:2])
    if version < (0, 7):
        raise NotInstalled(
            f"pgvector {found[0].extversion} is too old: 0.7 is the first with halfvec and subvector",
            hint="ALTER EXTENSION vector UPDATE;",
        )
    return str(found[0].nspname)
