"""Adapters in the client: numpy computes what drift.adapt would, by the adapter that is active now."""

from __future__ import annotations

import asyncio
import os
import sys
import weakref
from time import monotonic
from types import TracebackType

import numpy as np
from numpy.typing import ArrayLike
from psycopg import sql

from drift_pg.adapter import Adapter, Float32
from drift_pg.database.active import NOTHING, Apply, Key, Pair, Snapshot, State, identity
from drift_pg.database.adapters import load_by_id
from drift_pg.database.connection import Connection, rows, vector_schema
from drift_pg.database.following import Connect, Follower, connector
from drift_pg.database.registry import relation_name
from drift_pg.errors import ActivationRunning, DriftError, InvalidDefinition, UnknownAdapter

DEFAULT_TTL = 30.0
LONGEST = 16_000
"""The most dimensions that pgvector's type has."""
ATTEMPTS = 3
"""How often a change that comes between question and answer is looked at again."""


class AdapterCache:
    """Holds the active adapters of a database and applies them here, without a round trip.

    What it holds it serves only while the database vouches for it. A hit takes no lock. Otherwise it asks: one
    query tells what is active, and what changed is loaded anew. If it cannot ask, it raises; it never serves an
    adapter that may be old. It is opened by its first use, may be shared by threads, and works in forked children.

    With `listen`, a thread hears of every activation, deactivation and registration as it is committed, and asks
    anew three times per `ttl`. Where notifications cannot come (a hot standby, a transaction pooler) or do not tell
    (a renamed table), a change is followed by its next question.

    Args:
        dsn_or_connect: a DSN for libpq, or a function that opens a psycopg connection.
        ttl: seconds for which an answer of the database counts: the longest that a change can go unseen, even if
            the network drops packets in silence.
        listen: False for no thread: a change is then seen when `ttl` ends.

    Raises:
        InvalidDefinition: `ttl` is not above 0, or the DSN cannot be read.

    Example:
        with AdapterCache("postgresql:///app") as cache:
            q = cache.adapt_for(embed("a question"), "minilm-l6", "public.docs", "embedding")
    """

    def __init__(self, dsn_or_connect: str | Connect, *, ttl: float = DEFAULT_TTL, listen: bool = True) -> None:
        if not 0 < ttl < float("inf"):
            raise InvalidDefinition(f"ttl is {ttl} s, expected more than 0 and a finite number")
        self._connect = connector(dsn_or_connect) if isinstance(dsn_or_connect, str) else dsn_or_connect
        self._ttl, self._pause = ttl, ttl / 3 if listen else None
        self._loaded: dict[str, Adapter] = {}
        self._relations: set[str] = set()
        self._begin()
        _open.add(self)

    def _begin(self) -> None:
        self._state = State(NOTHING)
        self._follower = Follower(self._connect, weakref.ref(self), pause=self._pause)
        self._finalizer = weakref.finalize(self, self._follower.close)

    def adapt(self, query: ArrayLike, source: str, target: str) -> Float32:
        """Map a query (m,), or rows of queries (n, m), as `drift.adapt` does: (k,) or (n, k), float32.

        Raises:
            NoActiveAdapter, UnknownModel, WrongDimensions, InvalidVector, PermissionDenied, NotInstalled
            ConnectionLost: it had to ask, and could not.
        """
        return self._through((source, target), query)

    def adapt_for(self, query: ArrayLike, query_model: str, relation: str, column: str) -> Float32:
        """Map a query, or rows of queries, into the space of the model that a column holds, as `drift.adapt_for` does.

        Args:
            query: (m,) or (n, m).
            query_model: the model that it is of.
            relation: the table as SQL names it: 'public.docs', '"Weird Docs"'.
            column: the column's name, unquoted.

        Raises:
            UnknownColumn: the column is not registered.
            ColumnMissing: there is no such table.
            NoActiveAdapter, UnknownModel, WrongDimensions, InvalidVector, PermissionDenied, NotInstalled
            ConnectionLost: it had to ask, and could not.
        """
        return self._through((query_model, relation, column), query)

    def _through(self, key: Key, query: ArrayLike) -> Float32:
        state = self._state
        apply = state.ready.get(key)
        if apply is None or monotonic() >= state.until:
            apply = self.find(key, query)
        return apply(query)

    def ready(self, key: Key) -> Apply | None:
        """What maps queries for `key`, if no question is needed; for callers that must not block."""
        state = self._state
        apply = state.ready.get(key)
        return apply if monotonic() < state.until else None

    def find(self, key: Key, query: ArrayLike) -> Apply:
        """What maps queries for `key`; asks and loads where that is needed, and raises as `adapt` does."""
        dimensions = (np.shape(query) or (0,))[-1]
        return self._follower.ask(lambda conn: self._find(conn, key, dimensions))

    def _find(self, conn: Connection, key: Key, dimensions: int) -> Apply:
        if self._name_relation(conn, key) or monotonic() >= self._state.until:
            self.refresh(conn)
        for _ in range(ATTEMPTS):
            apply = self._make(conn, key)
            if apply is not None:
                return apply
            self.refresh(conn)
            apply = self._make(conn, key)
            if apply is not None:
                return apply
            _refuse(conn, key, dimensions)
        raise ActivationRunning("what is active changed each time it was asked", hint="SELECT * FROM drift.adapters;")

    def _name_relation(self, conn: Connection, key: Key) -> bool:
        """Whether this table has not been asked for before; from now on every question asks for it."""
        if len(key) == 2 or key[1] in self._relations:
            return False
        relation_name(conn, key[1])
        self._relations.add(key[1])
        return True

    def _make(self, conn: Connection, key: Key) -> Apply | None:
        state = self._state
        pair = state.snapshot.pair(key)
        apply = None if pair is None else state.ready.get(pair) or self._map(conn, state.snapshot, pair)
        if pair is not None and apply is not None:
            state.ready[pair] = state.ready[key] = apply
        return apply

    def _map(self, conn: Connection, snapshot: Snapshot, pair: Pair) -> Apply | None:
        source, target = pair
        if source == target:
            dimensions = snapshot.models.get(source)
            return None if dimensions is None else identity(source, dimensions)
        if pair not in snapshot.adapters:
            return None
        adapter_id, checksum = snapshot.adapters[pair]
        adapter = self._loaded.get(checksum)
        if adapter is None:
            try:
                adapter = load_by_id(conn, adapter_id)
            except UnknownAdapter:  # replaced and dropped since it was asked
                return None
            self._loaded[checksum] = adapter
        return adapter.apply if adapter.checksum == checksum else None

    def refresh(self, conn: Connection) -> None:
        """Ask what is active. For the follower, which sees to it that nobody else does at the same time."""
        for _ in range(ATTEMPTS):
            self._follower.heard = False
            asked = monotonic()
            snapshot = self._take(conn)
            if not self._follower.heard:
                break
        until = 0.0 if self._follower.heard else asked + self._ttl
        if snapshot == self._state.snapshot:
            self._state.until = until
            return
        self.doubt()
        self._state = State(snapshot, until)
        active = {checksum for _, checksum in snapshot.adapters.values()}
        self._loaded = {checksum: adapter for checksum, adapter in self._loaded.items() if checksum in active}

    def _take(self, conn: Connection) -> Snapshot:
        try:
            return Snapshot.take(conn, self._relations)
        except DriftError:
            self._relations.clear()  # one table whose schema was closed to us must not fail the others
            raise

    def doubt(self) -> None:
        """Serve nothing more without asking."""
        self._state.until = 0.0

    def close(self) -> None:
        """End the thread and the connection. Afterwards `adapt` raises; closing again does nothing."""
        self.doubt()
        self._finalizer()
        self.doubt()

    def after_fork(self) -> None:
        """Begin anew in a child process: the thread is gone, the connection is the parent's. What is loaded stays."""
        closed = not self._finalizer.alive
        self._finalizer.detach()
        self._follower.abandon()
        _abandoned.append(self._follower)  # else psycopg would warn of a connection that nobody closed
        self._begin()
        if closed:
            self.close()

    def __enter__(self) -> AdapterCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncAdapterCache:
    """An `AdapterCache` for asyncio: a hit is computed at once, a question runs in a thread. Arguments as there.

    Example:
        async with AsyncAdapterCache("postgresql:///app") as cache:
            q = await cache.adapt_for(embedded, "minilm-l6", "public.docs", "embedding")
    """

    def __init__(self, dsn_or_connect: str | Connect, *, ttl: float = DEFAULT_TTL, listen: bool = True) -> None:
        self._cache = AdapterCache(dsn_or_connect, ttl=ttl, listen=listen)
        self._ready = self._cache.ready

    async def adapt(self, query: ArrayLike, source: str, target: str) -> Float32:
        """As `AdapterCache.adapt`."""
        apply = self._ready((source, target)) or await self._find((source, target), query)
        return apply(query)

    async def adapt_for(self, query: ArrayLike, query_model: str, relation: str, column: str) -> Float32:
        """As `AdapterCache.adapt_for`."""
        key = (query_model, relation, column)
        apply = self._ready(key) or await self._find(key, query)
        return apply(query)

    async def _find(self, key: Key, query: ArrayLike) -> Apply:
        return await asyncio.to_thread(self._cache.find, key, query)

    async def close(self) -> None:
        """As `AdapterCache.close`."""
        await asyncio.to_thread(self._cache.close)

    async def __aenter__(self) -> AsyncAdapterCache:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _refuse(conn: Connection, key: Key, dimensions: int) -> None:
    """Let SQL say what is wrong, so that both say the same; nothing if by now nothing is."""
    if len(key) == 3:
        relation_name(conn, key[1])
    given = sql.SQL("pg_catalog.array_fill(1::real, ARRAY[%s::integer])::{}.vector").format(
        sql.Identifier(vector_schema(conn))
    )
    call = "drift.adapt({}, %s, %s)" if len(key) == 2 else "drift.adapt_for({}, %s, %s::regclass, %s)"
    rows(conn, sql.SQL("SELECT " + call).format(given), [min(max(dimensions, 1), LONGEST), *key])


_open: weakref.WeakSet[AdapterCache] = weakref.WeakSet()
_abandoned: list[Follower] = []


def _after_fork() -> None:
    for cache in list(_open):
        cache.after_fork()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork)
