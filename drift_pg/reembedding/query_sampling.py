"""A hook that keeps a sample of an application's queries without slowing it."""

from __future__ import annotations

import logging
import os
import queue
import random
import sys
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from types import TracebackType

from numpy.typing import ArrayLike

from drift_pg.adapter import Float32
from drift_pg.database.adapters import texts
from drift_pg.database.connection import Connection, one
from drift_pg.database.following import Connect, connector
from drift_pg.errors import ConnectionLost, DriftError, InvalidDefinition
from drift_pg.reembedding.query_log import one_vector

SAMPLE = 0.01
"""The share of queries that is kept, unless another is named."""

CAPACITY = 1000
"""How many queries may wait to be written."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds between the first two attempts to reach a database that is away; doubled after each, up to the longest."""

IDLE = 60.0
"""Seconds without a query after which the connection is given back: there is one for each process."""

log = logging.getLogger("drift_pg.query_log")


class QueryLog:
    """Logs a sample of an application's queries from a thread of its own, over a connection of its own.

    `log` returns at once and never raises. What cannot be kept (the database is away, too many wait, the vector is
    not one, the log is full) is dropped and counted, with a warning on the logger drift_pg.query_log for the first of each kind. Thread and connection are made for the first query that is
    sampled, and made anew in a forked child and when the database comes back. What was logged in the last moments
    before the server crashes may be lost: commits are not waited for.

    Args:
        dsn_or_connect: a DSN for libpq, or a function that opens a psycopg connection. Its role needs INSERT on
            drift.query_log, and SELECT, UPDATE and DELETE if the log is to be trimmed by itself.
        sample: the share of queries that is kept, 0 to 1.
        capacity: how many may wait to be written.

    Raises:
        InvalidDefinition: `sample` is not from 0 to 1, `capacity` not above 0, or the DSN cannot be read.

    Example:
        query_log = QueryLog("postgresql:///app", sample=0.02)
        query_log.log(vector, model="minilm-l6", relation="public.docs", column="embedding")
    """

    def __init__(self, dsn_or_connect: str | Connect, *, sample: float = SAMPLE, capacity: int = CAPACITY) -> None:
        if not 0 <= sample <= 1 or capacity < 1:
            raise InvalidDefinition(f"sample is {sample}, expected 0 to 1; capacity {capacity}, expected 1 or more")
        self._connect = connector(dsn_or_connect) if isinstance(dsn_or_connect, str) else dsn_or_connect
        self._sample, self._capacity = sample, capacity
        self._begin()
        _open.add(self)

    def _begin(self) -> None:
        self._random = random.Random().random  # an application that seeds its own goes on as it would without us
        self._writer = _Writer(self._connect, self._capacity)
        self._finalizer = weakref.finalize(self, self._writer.close, 1.0)  # when it is forgotten, and at exit

    def log(self, query: ArrayLike, *, model: str, relation: str, column: str) -> None:
        """Keep a query's vector (m,), or not, as the sample has it. Names as in `log_query`, checked by the database."""
        if self.draw():
            self.keep(query, model=model, relation=relation, column=column)

    def draw(self) -> bool:
        """Whether the next query is of the sample; for callers to whom already naming it costs something."""
        return self._random() < self._sample

    def keep(self, query: ArrayLike, *, model: str, relation: str, column: str) -> None:
        """As `log`, of a query that is of the sample."""
        try:
            self._writer.put(_Query(one_vector(query), model, relation, column))
        except Exception as error:
            self._writer.drop(error)

    @property
    def logged(self) -> int:
        """How many queries this process has written."""
        return self._writer.logged

    @property
    def dropped(self) -> int:
        """How many this process has sampled and lost."""
        return self._writer.dropped

    @property
    def closed(self) -> bool:
        """Whether nothing is taken any more."""
        return self._writer.closing.is_set()

    def close(self, within: float = 2.0) -> bool:
        """Write what waits, for `within` seconds at most; drop and count the rest. Whether there was no rest.

        Closing again does nothing.
        """
        self._finalizer.detach()
        return self._writer.close(within)

    def after_fork(self) -> None:
        """Begin anew in a child process: the thread is gone, the connection and what waits are the parent's."""
        before = self._writer
        self._finalizer.detach()
        before.abandon()
        self._begin()
        if before.closing.is_set():
            self.close()

    def __enter__(self) -> QueryLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, eq=False)
class _Query:
    vector: Float32
    model: str
    relation: str
    column: str


class _Writer:
    """Writes the queries that wait. Its thread knows nothing of the `QueryLog`, so that a forgotten one ends."""

    def __init__(self, connect: Connect, capacity: int) -> None:
        self.logged = self.dropped = 0
        self.closing = threading.Event()
        self._connect = connect
        self._waiting: queue.Queue[_Query | None] = queue.Queue(capacity)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._conn: Connection | None = None
        self._query: _Query | None = None  # in hand, not yet written
        self._ended = False
        self._told: set[type[BaseException]] = set()

    def put(self, query: _Query) -> None:
        """Let it wait. Raises queue.Full, or ConnectionLost after `close`."""
        if self.closing.is_set():
            raise ConnectionLost("the query log is closed")
        if self._thread is None:
            self._start()
        self._waiting.put_nowait(query)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="drift_pg query log", daemon=True)
                thread.start()
                self._thread = thread

    def drop(self, error: BaseException | None = None, count: int = 1) -> None:
        """Count what is lost; why is told once for each kind of reason, then only to who debugs."""
        with self._lock:
            self.dropped += count
        if error is not None:
            known = type(error) in self._told
            self._told.add(type(error))
            log.log(logging.DEBUG if known else logging.WARNING, "a query was not logged: %s", _reason(error))

    def close(self, within: float) -> bool:
        """End the thread; whether all was written."""
        until = monotonic() + within
        self.closing.set()
        if self._thread is None:
            return True
        if self._thread is threading.current_thread():  # it collected a QueryLog that nobody held
            return False
        if self._thread.is_alive():
            with suppress(queue.Full):
                self._waiting.put(None, timeout=within)
            self._thread.join(max(until - monotonic(), 0))
        return not self._discard() and not self._thread.is_alive()

    def _discard(self) -> int:
        left = 0
        with suppress(queue.Empty):
            while True:
                left += self._waiting.get_nowait() is not None
        with suppress(queue.Full):
            self._waiting.put_nowait(None)  # for a thread that is still at its last query
        self.drop(count=left)
        return left

    def abandon(self) -> None:
        """Let go in a forked child: nothing is sent over the parent's connection, nothing shut down."""
        _abandoned.append(self)  # else psycopg would warn of a connection that nobody closed
        if self._conn is not None and not self._conn.closed:
            with open(os.devnull, "r+b") as nothing:
                os.dup2(nothing.fileno(), self._conn.fileno())

    def _run(self) -> None:
        pause = 0.0
        while self._query is not None or self._take(None):
            done = self.logged + self.dropped
            try:
                self._write_all()
            except Exception as error:
                # A connection that worked may have been cut while it was idle: then at once, and the same query again.
                worked = self.logged + self.dropped > done
                pause = 0.0 if worked else min(max(2 * pause, FIRST_PAUSE), LONGEST_PAUSE)
                if pause:
                    log.warning("no queries are logged; trying again in %.1f s: %s", pause, _reason(error))
                if self.closing.wait(pause):
                    self.drop(error)
                    return

    def _take(self, patience: float | None) -> bool:
        """Wait for the next query; False if none came in so many seconds, or none will."""
        self._query = None
        if not self._ended:
            with suppress(queue.Empty):
                self._query = self._waiting.get(timeout=patience)
                self._ended = self._query is None
        return self._query is not None

    def _write_all(self) -> None:
        """Until none has come for a while, or the log is closed; raises if there is no connection, or none any more."""
        with self._connect() as conn:
            self._conn = conn
            conn.autocommit = True
            conn.prepare_threshold = None  # a pooler may give every statement another connection
            while self._query is not None:
                self._write(conn, self._query)
                self._take(IDLE)

    def _write(self, conn: Connection, query: _Query) -> None:
        parameters = [texts(query.vector[None])[0], query.model, query.relation, query.column]
        try:
            kept = one(conn, _WRITE, parameters).kept
        except Exception as error:
            if conn.closed:
                raise
            self.drop(error)
            return
        if kept:
            self.logged += 1
        else:
            self.drop()


# For this statement's transaction alone: a pooler's next client must not inherit it.
_WRITE = """
SELECT drift.log_query(%s, %s, %s::regclass, %s) AS kept
FROM (SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.set_config('lock_timeout', '2s', true) OFFSET 0) AS settings
"""


def _reason(error: BaseException) -> str:
    # What a function of the application's raises may hold anything, a password too.
    return str(error) if isinstance(error, DriftError) else type(error).__name__


_open: weakref.WeakSet[QueryLog] = weakref.WeakSet()
_abandoned: list[_Writer] = []


def _after_fork() -> None:
    for each in list(_open):
        each.after_fork()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork)
