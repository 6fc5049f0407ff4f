"""The query log: a hook that samples an application's queries without slowing it, and reading what was kept."""

from __future__ import annotations

import logging
import os
import queue
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import psycopg
from numpy.typing import ArrayLike
from psycopg import sql

from drift_pg.adapter import Float32
from drift_pg.database.connection import Connection, one, rows, translated, vector_schema
from drift_pg.database.registry import ColumnName
from drift_pg.errors import ConnectionLost, DriftError, InvalidDefinition, UnknownColumn

Connect = Callable[[], Connection]

SAMPLE = 0.01
CAPACITY = 1000
LONGEST_PAUSE = 60.0
"""Seconds between two attempts to reach a database that is away, at most."""

_log = logging.getLogger("drift_pg.query_log")


def log_query(conn: Connection, query: ArrayLike, *, model: str, relation: str, column: str) -> None:
    """Keep a query's vector (m,) in the caller's transaction; `QueryLog` does it beside the application.

    Raises:
        WrongDimensions, InvalidVector, UnknownModel, UnknownColumn, PermissionDenied
    """
    rows(conn, "SELECT drift.log_query(%s, %s, %s::regclass, %s)", [_text(query), model, relation, column])


def trim(conn: Connection, *, keep: int = 10_000, days: float = 30) -> int:
    """Delete logged queries beyond the newest `keep` of each column or older than `days`; returns how many.

    Raises:
        InvalidDefinition: a negative limit.
    """
    query = "SELECT drift.trim_query_log(%s::integer, %s::float8 * interval '1 day') AS gone"
    return int(one(conn, query, [keep, days]).gone)


def read(conn: Connection, column: str, model: str, limit: int | None = None) -> Float32:
    """Logged queries of a model for a column ("public.docs.embedding"), newest first: (n, m) float32.

    `fit` and `evaluate` take it as their `query_log`.

    Raises:
        UnknownModel, UnknownColumn, ColumnMissing, PermissionDenied
        InvalidDefinition: a negative limit, or not a column's name.
    """
    if limit is not None and limit < 0:
        raise InvalidDefinition(f"limit is {limit}, expected 0 or more")
    name = ColumnName.resolve(conn, column)
    dimensions = one(conn, "SELECT drift.model_dimensions(%s) AS dimensions", [model]).dimensions
    if not rows(
        conn,
        "SELECT FROM drift.embedding_column WHERE relation = %s::regclass AND column_name = %s",
        [name.relation_text, name.column],
    ):
        raise UnknownColumn(f"column {name} is not registered", hint=f"drift-pg register-column '{name}' --model NAME")
    found = rows(
        conn,
        sql.SQL(
            "SELECT {}(query) AS query FROM drift.query_log WHERE relation = %s::regclass AND column_name = %s AND model = %s "
            "ORDER BY id DESC LIMIT %s"
        ).format(sql.Identifier(vector_schema(conn), "vector_send")),
        [name.relation_text, name.column, model, limit],
    )
    vectors = [np.frombuffer(row.query, ">f4", offset=4) for row in found]
    return np.array(vectors, np.float32).reshape(len(found), dimensions)


@dataclass(frozen=True)
class _Query:
    vector: Float32
    model: str
    relation: str
    column: str


class QueryLog:
    """Logs a sample of an application's queries from a thread of its own, over a connection of its own.

    `log` returns at once and never raises: what cannot be kept, because the database is away, the queue is full
    or the vector is not one, is dropped and counted. The connection and the thread are made by the first query
    that is sampled; forked children make their own. Commits are asynchronous: a crash of the server loses a few.

    Args:
        dsn_or_connect: a DSN for libpq, or a function that opens a psycopg connection.
        sample: the share of queries that is kept.
        capacity: how many may wait.

    Attributes:
        logged: queries written.
        dropped: queries that were sampled and lost.

    Raises:
        InvalidDefinition: `sample` is not from 0 to 1, or `capacity` not above 0.

    Example:
        query_log = QueryLog("postgresql:///app", sample=0.02)
        query_log.log(vector, model="minilm-l6", relation="public.docs", column="embedding")
    """

    def __init__(self, dsn_or_connect: str | Connect, *, sample: float = SAMPLE, capacity: int = CAPACITY) -> None:
        if not 0 <= sample <= 1 or capacity < 1:
            raise InvalidDefinition(f"sample is {sample}, expected 0 to 1; capacity {capacity}, expected 1 or more")
        self._connect = dsn_or_connect if callable(dsn_or_connect) else _connector(dsn_or_connect)
        self._sample, self._capacity = sample, capacity
        self._closed = False
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._waiting: queue.Queue[_Query | None] = queue.Queue(self._capacity)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.logged = self.dropped = 0

    def __enter__(self) -> QueryLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def log(self, query: ArrayLike, *, model: str, relation: str, column: str) -> None:
        """Keep a query's vector (m,), or not, as the sample has it. Never blocks, never raises."""
        if random.random() >= self._sample:
            return
        try:
            # A copy: the application may go on to change its array.
            wanted = _Query(np.array(query, dtype=np.float32), str(model), str(relation), str(column))
            self._running().put_nowait(wanted)
        except Exception as error:
            self._drop(1, error)

    def _running(self) -> queue.Queue[_Query | None]:
        if os.getpid() != self._pid:
            self._lock = threading.Lock()
            self._begin()
        if self._closed:
            raise InvalidDefinition("the query log is closed")
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="drift_pg query log", daemon=True)
                    thread.start()
                    self._thread = thread
        return self._waiting

    def _drop(self, count: int, error: Exception) -> None:
        self.dropped += count
        _log.debug("dropped %s queries: %s", count, error)

    def close(self, within: float = 2.0) -> bool:
        """Write what waits, for `within` seconds at most; the rest is dropped and counted. False if there was a rest."""
        self._closed = True
        self._closing.set()
        if self._thread is None or os.getpid() != self._pid:
            return True
        try:
            self._waiting.put(None, timeout=within / 2)
        except queue.Full:
            pass
        self._thread.join(within)
        left = self._discard()
        return left == 0 and not self._thread.is_alive()

    def _discard(self) -> int:
        left = 0
        while True:
            try:
                left += self._waiting.get_nowait() is not None
            except queue.Empty:
                self.dropped += left
                return left

    def _run(self) -> None:
        pause = 0.0
        while True:
            first = self._waiting.get()
            if first is None:
                return
            try:
                with self._connect() as conn:
                    conn.autocommit = True
                    conn.execute("SET synchronous_commit = off")
                    pause = 0.0
                    if self._write_all(conn, first):
                        return
            except Exception as error:
                self._drop(1, error)
                pause = min(max(2 * pause, 0.5), LONGEST_PAUSE)
                _log.warning("the query log cannot be written, trying again in %.1f s: %s", pause, error)
                if self._closing.wait(pause):
                    return

    def _write_all(self, conn: Connection, query: _Query | None) -> bool:
        """Until the log is closed (True), or raise because the connection is gone."""
        while query is not None:
            self._write(conn, query)
            query = self._waiting.get()
        return True

    def _write(self, conn: Connection, query: _Query) -> None:
        try:
            log_query(conn, query.vector, model=query.model, relation=query.relation, column=query.column)
        except ConnectionLost:
            raise
        except (DriftError, psycopg.Error, ValueError) as error:
            if conn.closed:
                raise
            self._drop(1, error)
        else:
            self.logged += 1


def _text(query: ArrayLike) -> str:
    return str(np.asarray(query, dtype=np.float32).tolist())


def _connector(dsn: str) -> Connect:
    def connect() -> Connection:
        with translated():
            return psycopg.connect(dsn, connect_timeout=10)

    return connect
