"""Building a vector index on a live table: CONCURRENTLY, with memory and workers of its own, and progress."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from drift_pg.database.connection import Connection, Query, one, rows
from drift_pg.embedding import Progress
from drift_pg.errors import InvalidDefinition

log = logging.getLogger("drift_pg.index")

SHARED_MEMORY = re.compile(r"/PostgreSQL\.\d+")
"""How a report names a segment of shared memory in every language; a full disk has the same SQLSTATE."""

BUILT_SERIALLY = (
    "built without parallel workers, which takes longer: %s. maintenance_work_mem has to fit into /dev/shm; "
    "in a container give it more, as by docker run --shm-size"
)
"""A warning, of the report that named one."""

POLL = 0.5
"""Seconds between two looks at how far a build is."""

_PROGRESS = (
    "SELECT coalesce(blocks_done, 0) AS done, blocks_total AS total FROM pg_catalog.pg_stat_progress_create_index "
    "WHERE pid = %s AND phase LIKE 'building index%%' AND blocks_total > 0"
)


def build(
    conn: Connection,
    statement: Query,
    gone: Query,
    *,
    maintenance_work_mem: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Run CREATE INDEX CONCURRENTLY; the session's settings are put back after it.

    Args:
        conn: an autocommit connection outside a transaction.
        statement: the CREATE INDEX CONCURRENTLY.
        gone: drops what a failed build leaves.
        maintenance_work_mem: for this build, such as "2GB"; None as the session has it.
        workers: parallel ones; None as the session has it, and none if their shared memory cannot be had.
        progress: told how many of how many blocks of the table are read, from a connection of its own.

    Raises:
        InvalidDefinition: the connection is in a transaction or not in autocommit mode.
    """
    if not conn.autocommit or conn.info.transaction_status != TransactionStatus.IDLE:
        raise InvalidDefinition(
            "an index cannot be built CONCURRENTLY inside a transaction",
            hint="psycopg.connect(…, autocommit=True), and call this outside conn.transaction()",
        )
    wanted = {"maintenance_work_mem": maintenance_work_mem, "max_parallel_maintenance_workers": workers}
    with _settings(conn, wanted), _watched(conn, progress):
        try:
            rows(conn, statement)
        except psycopg.Error as error:
            if workers is not None or conn.closed or not SHARED_MEMORY.search(str(error)):
                raise
            log.warning(f"the index is {BUILT_SERIALLY}", str(error).strip())
            rows(conn, gone)
            _set(conn, "max_parallel_maintenance_workers", 0)
            rows(conn, statement)


def _set(conn: Connection, name: str, value: object) -> None:
    rows(conn, "SELECT pg_catalog.set_config(%s, %s, false)", [name, str(value)])


@contextmanager
def _settings(conn: Connection, wanted: dict[str, Any]) -> Iterator[None]:
    before = {name: one(conn, "SELECT pg_catalog.current_setting(%s) AS value", [name]).value for name in wanted}
    try:
        for name, value in wanted.items():
            if value is not None:
                _set(conn, name, value)
        yield
    finally:
        if not conn.closed:
            for name, value in before.items():
                _set(conn, name, value)


@contextmanager
def _watched(conn: Connection, progress: Progress | None) -> Iterator[None]:
    """Report from another connection while this one is busy; a build never fails because nobody could watch it."""
    if progress is None:
        yield
        return
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(conn, progress, done), name="drift_pg index progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _watch(conn: Connection, progress: Progress, done: threading.Event) -> None:
    try:
        with psycopg.connect(conn.info.dsn, password=conn.info.password or None, autocommit=True) as other:
            while not done.wait(POLL):
                for row in rows(other, _PROGRESS, [conn.info.backend_pid]):
                    progress(row.done, row.total)
    except psycopg.Error as error:
        log.info("the build's progress cannot be shown: %s", error)


def drop_statement(schema: str, name: str) -> sql.Composed:
    """Drops an index without stopping writers."""
    return sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {}").format(sql.Identifier(schema, name))
