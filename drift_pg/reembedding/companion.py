"""Companion tables: the new model's vectors of a column's rows, beside the user's table and never in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from psycopg import sql

from drift_pg.database import index_building
from drift_pg.database.connection import Connection, one, rows
from drift_pg.database.registry import held_name, relation_name
from drift_pg.embedding import Progress
from drift_pg.errors import AlreadyRegistered, Conflict, InvalidDefinition


@dataclass(frozen=True)
class Coverage:
    """How far a column is.

    Attributes:
        rows: of the user's table that have a text.
        known: of these, with a vector of their present text.
        stale: with a vector of a text that has changed since; searches count them as missing.
        queued: without a vector, and missed by a search.
        orphaned: vectors whose rows are gone, deleted from one partition or while they were being embedded; no search
            finds them, drift.sweep_companion removes them.
    """

    rows: int
    known: int
    stale: int
    queued: int
    orphaned: int

    @property
    def share(self) -> float:
        """Known of all, 0 to 1; 1 for an empty table."""
        return self.known / self.rows if self.rows else 1.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"share": self.share}


def create_companion(conn: Connection, relation: str, column: str, *, model: str, text: str | Sequence[str]) -> str:
    """Create the table that holds a new model's vectors of an embedding column's rows.

    It is keyed by the user's primary key and removes a vector with its row, by triggers, whose creation waits at
    most 5 s (or lock_timeout) for writers. If it is there alike, it gets the privileges and the row-level security
    that the user's table has by now.

    Args:
        conn: a connection.
        relation: the table as SQL names it.
        column: a registered embedding column of another model.
        model: the registered model that its vectors will be of.
        text: the column, or columns, that the embedded text is made of, joined by a line break.

    Returns:
        Its name, drift.companion_1.

    Raises:
        UnknownColumn, UnknownModel
        ColumnMissing: a text column does not exist.
        InvalidDefinition: the table has no primary key, or the column holds vectors of that very model.
        AlreadyRegistered: the column has a companion for another model or from another text.
    """
    columns = [text] if isinstance(text, str) else list(text)
    query = "SELECT drift.create_companion(%s::regclass, %s, %s, %s::name[])::text AS name"
    return str(one(conn, query, [relation_name(conn, relation), column, model, columns]).name)


def drop_companion(conn: Connection, relation: str, column: str) -> None:
    """Drop a companion with its vectors, its index and its triggers; raises NoCompanion.

    A table that was dropped is named by its number, as `drift-pg status` shows it.
    """
    rows(conn, "SELECT drift.drop_companion(%s::regclass, %s)", [held_name(conn, relation), column])


def coverage(conn: Connection, relation: str, column: str) -> Coverage:
    """Count rows, known, stale and queued ones; reads both tables whole. Raises NoCompanion."""
    found = one(conn, "SELECT * FROM drift.coverage(%s::regclass, %s)", [relation_name(conn, relation), column])
    return Coverage(found.rows, found.known, found.stale, found.queued, found.orphaned)


_EXISTING = """
SELECT i.indisvalid AS valid, m.amname AS method, o.opcname AS operator_class, k.reloptions AS options,
       (SELECT p.pid FROM pg_catalog.pg_stat_progress_create_index p WHERE p.index_relid = k.oid LIMIT 1) AS builder
FROM pg_catalog.pg_class k
JOIN pg_catalog.pg_index i ON i.indexrelid = k.oid
JOIN pg_catalog.pg_am m ON m.oid = k.relam
JOIN pg_catalog.pg_opclass o ON o.oid = i.indclass[0]
WHERE k.relnamespace = 'drift'::regnamespace AND k.relname = %s
"""


def build_index(
    conn: Connection,
    relation: str,
    column: str,
    *,
    maintenance_work_mem: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> bool:
    """Build a companion's vector index CONCURRENTLY, as the column's own is: its method and its parameters.

    What an interrupted build left is dropped and built again; above 2,000 dimensions the index is over a cast to
    halfvec. Best run once most vectors are there: pgvector builds an index many times faster than it fills one.

    Args:
        conn: an autocommit connection.
        relation: the table as SQL names it.
        column: the embedding column.
        maintenance_work_mem: for this build, such as "2GB".
        workers: parallel ones; None as the server is set, and none if their shared memory cannot be had.
        progress: told how many of how many blocks are read.

    Returns:
        Whether it was built; False if it was there.

    Raises:
        NoCompanion
        AlreadyRegistered: it was built like an index that the column no longer has.
        Conflict: it is being built at this moment.
        InvalidDefinition: the connection is in a transaction, or a setting is out of range.
    """
    wanted = one(conn, "SELECT * FROM drift.companion_index(%s::regclass, %s)", [relation_name(conn, relation), column])
    gone = index_building.drop_statement("drift", wanted.name)
    if workers is not None and workers < 0:
        raise InvalidDefinition(f"{workers} parallel workers: expected 0 or more")
    for found in rows(conn, _EXISTING, [wanted.name]):
        if found.valid:
            _expect(found, wanted)
            return False
        if found.builder is not None:
            raise Conflict(
                f"index drift.{wanted.name} is being built at this moment by process {found.builder}",
                hint="wait for it: SELECT * FROM pg_stat_progress_create_index;",
            )
        rows(conn, gone)
    index_building.build(
        conn,
        sql.Composed([sql.SQL(wanted.statement)]),  # composed in the database, by quote_ident
        gone,
        maintenance_work_mem=maintenance_work_mem,
        workers=workers,
        progress=progress,
    )
    return True


def _expect(found: Any, wanted: Any) -> None:
    same = all(getattr(found, part) == getattr(wanted, part) for part in ("method", "operator_class", "options"))
    if not same:
        raise AlreadyRegistered(
            f"index drift.{wanted.name} is {found.method} ({found.operator_class}) {found.options or ''}, "
            f"the column's own {wanted.method} ({wanted.operator_class}) {wanted.options or ''}",
            hint=f"DROP INDEX CONCURRENTLY drift.{wanted.name}; then build it again",
        )
