"""New rows without the old model: vectors of the new one fill the legacy column as they are written."""

from __future__ import annotations

from drift_pg.database.connection import Connection, one, rows
from drift_pg.database.registry import relation_name
from drift_pg.embedding import Progress

BATCH = 1000


def follow(conn: Connection, relation: str, column: str, *, source: str | None = None) -> None:
    """Fill an embedding column by its active adapter whenever a vector of the new model is written.

    That is, to column `source` of the same row, or to the column's companion, where there is one. It is done by
    triggers on the table, whose creation waits at most 5 s (or lock_timeout) for writers. A legacy vector that the
    application writes stays as it is. So does one that is there when a row gets its first vector in `source`, unless
    its text (of which a companion knows the columns) changes in that statement, or the statement sets the column to
    NULL. Where there is a companion, rows whose text is new or changes are queued in it.

    What the application writes does not fail because of it: a row that cannot be filled (no active adapter, no
    privilege) keeps a NULL and brings a warning, and `catch_up` fills it later. Only where the column is NOT NULL is
    the row refused, with the reason. Nothing happens if the column is followed alike.

    In a bridge search filled rows come before rows with vectors of the column's own model, of which the database
    warns; a search that reranks scores those that are in the companion by their own vectors (README, Limits).

    Args:
        conn: a connection.
        relation: the table as SQL names it.
        column: the embedding column to be filled.
        source: the column that the application writes vectors of the new model to. Its model is the one that it is
            registered with, else the companion's, else the column's query model.

    Raises:
        NoCompanion: no `source` is given and the column has no companion.
        NoActiveAdapter: none is active from the new model.
        PermissionDenied: a role that may write to the table may not use drift.adapt; the hint has the GRANTs.
        UnknownColumn: the column is not registered, or no model is known of `source`.
        ColumnMissing, WrongDimensions: `source` is not such a column.
        InvalidDefinition: `source` is the column itself, or of its model, or one of the two is generated.
    """
    query = "SELECT drift.follow(%s::regclass, %s, %s)"
    rows(conn, query, [relation_name(conn, relation), column, source])


def unfollow(conn: Connection, relation: str, column: str) -> bool:
    """Remove what `follow` installed; False if there was nothing. Vectors that were filled in stay."""
    query = "SELECT drift.unfollow(%s::regclass, %s) AS removed"
    return bool(one(conn, query, [relation_name(conn, relation), column]).removed)


def followed(conn: Connection, relation: str, column: str) -> list[str]:
    """What a column is filled from: the name of another column, of its companion, or both; empty if not followed."""
    query = "SELECT source_column::text, drift.companion_table(companion) AS companion FROM drift.following(%s::regclass, %s)"
    return [name for found in rows(conn, query, [relation_name(conn, relation), column]) for name in found if name]


def catch_up(conn: Connection, relation: str, column: str, *, progress: Progress | None = None) -> int:
    """Fill a followed column where it is NULL and a vector of the new model is known; returns how many rows.

    On an autocommit connection each 1,000 rows are a transaction, so an interruption loses nothing that was done.
    Rows that somebody is changing are left out.

    Raises:
        UnknownColumn: the column is not registered or not followed.
        NoActiveAdapter, PermissionDenied
    """
    name, filled, total = relation_name(conn, relation), 0, 0
    if progress:
        total = int(one(conn, "SELECT drift.left_behind(%s::regclass, %s) AS n", [name, column]).n)
    query = "SELECT drift.catch_up(%s::regclass, %s, %s::integer) AS filled"
    while more := int(one(conn, query, [name, column, BATCH]).filled):
        filled += more
        if progress:
            progress(filled, max(total, filled))
    return filled
