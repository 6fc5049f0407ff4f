"""One connection that several threads ask through, and a thread that hears of changes and asks anew in time."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Thread, Timer, current_thread
from time import monotonic
from typing import Protocol, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from drift_pg.database.connection import Connection, one, rows
from drift_pg.errors import ConnectionLost, DriftError, InvalidDefinition

T = TypeVar("T")
Connect = Callable[[], Connection]

PATIENCE = 10.0
"""Seconds that an answer may take before the connection counts as lost."""

FIRST_PAUSE = 0.2
"""Seconds between the first two attempts to reconnect; doubled after each, up to the pause between two questions."""

NEVER = (-1.0, "")

_DEFAULTS: dict[str, str | int] = {"connect_timeout": 5, "tcp_user_timeout": 10_000, "application_name": "drift_pg"}


def connector(dsn: str) -> Connect:
    """What opens a connection to `dsn`; it gives up in time where the DSN does not say when.

    Raises:
        InvalidDefinition: libpq cannot read the DSN. Neither it nor libpq's message is shown: both may hold a password.
    """
    try:
        given = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        raise InvalidDefinition(
            "the DSN cannot be read",
            hint="write it for libpq: postgresql://user@host/database (no +psycopg), or host=… dbname=…",
        ) from None
    conninfo = make_conninfo(dsn, **{name: value for name, value in _DEFAULTS.items() if name not in given})
    return lambda: psycopg.connect(conninfo, autocommit=True)


class Owner(Protocol):
    """Who holds what was learnt."""

    def doubt(self) -> None:
        """What was learnt may be old from now on."""

    def refresh(self, conn: Connection) -> object:
        """Ask, and learn."""


class Follower:
    """A connection, opened when first needed and again when it broke, for one question at a time.

    Attributes:
        heard: whether a notification came since this was last set to False.
    """

    def __init__(self, connect: Connect, owner: Callable[[], Owner | None], *, pause: float | None) -> None:
        """Open nothing yet.

        Args:
            connect: opens a connection.
            owner: a weak reference: a forgotten owner's thread ends.
            pause: seconds between two questions of the thread; None for no thread and no LISTEN.
        """
        self.heard = False
        self._connect, self._owner, self._pause = connect, owner, pause
        self._lock = Lock()
        self._conn: Connection | None = None
        self._listening = self._closed = False
        self._plug: socket.socket | None = None
        self._thread: Thread | None = None
        self._bell: tuple[socket.socket, socket.socket] | None = None
        self._due, self._backoff = 0.0, FIRST_PAUSE
        self._failed = NEVER

    def ask(self, work: Callable[[Connection], T]) -> T:
        """Run `work` with the connection; once more with a new one if the old one turns out to be broken.

        Raises:
            ConnectionLost: there is no connection, none came in time, or the follower is closed.
        """
        arrived = monotonic()
        with self._held():
            # Who waited while another failed would fail alike, one connection timeout later.
            if self._failed[0] >= arrived:
                raise _lost(self._failed[1])
            self._start_thread()
            return self._attempt(work)

    @contextmanager
    def _held(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=2 * PATIENCE):
            raise _lost(f"no answer within {2 * PATIENCE:g} s")
        try:
            if self._closed:
                raise ConnectionLost("this adapter cache is closed", hint="make a new AdapterCache")
            yield
        finally:
            self._lock.release()

    def _attempt(self, work: Callable[[Connection], T]) -> T:
        used = self._conn is not None
        try:
            return self._run(work)
        except ConnectionLost:
            if not used:
                raise
        return self._run(work)

    def _run(self, work: Callable[[Connection], T]) -> T:
        try:
            conn = self._conn or self._open()
            with self._deadline():
                self._listen(conn)
                found = work(conn)
                self._take_notifications(conn)
        except (psycopg.OperationalError, psycopg.InterfaceError, OSError, ConnectionLost) as error:
            self._drop()
            self._failed = (monotonic(), str(getattr(error, "message", error)).strip())
            raise _lost(self._failed[1]) from error
        except DriftError:
            raise
        except BaseException:
            self._drop()  # whatever state it was left in
            raise
        self._due, self._backoff = monotonic() + (self._pause or 0), FIRST_PAUSE
        self._failed = NEVER
        return found

    def _open(self) -> Connection:
        conn = self._connect()
        conn.autocommit = True
        conn.prepare_threshold = None  # a pooler between may hand each question to another session
        conn.add_notify_handler(self._hear)
        self._conn, self._plug = conn, socket.fromfd(conn.fileno(), socket.AF_INET, socket.SOCK_STREAM)
        self._ring()
        return conn

    def _listen(self, conn: Connection) -> None:
        """Listen before the first question, so that nothing falls between; a standby cannot until it is promoted."""
        if self._pause is None or self._listening:
            return
        if not one(conn, "SELECT pg_catalog.pg_is_in_recovery() AS standby").standby:
            rows(conn, "LISTEN drift_adapter")
            self._listening = True
            self._doubt()

    def _hear(self, _: object = None) -> None:
        self.heard = True
        self._doubt()

    def _doubt(self) -> None:
        owner = self._owner()
        if owner is not None:
            owner.doubt()

    def _take_notifications(self, conn: Connection) -> None:
        while conn.pgconn.notifies():
            self._hear()

    @contextmanager
    def _deadline(self) -> Iterator[None]:
        timer = Timer(PATIENCE, self._cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    def _cut(self) -> None:
        """Wake whoever waits for the server, with an end of file."""
        if self._plug is not None:
            with suppress(OSError):
                self._plug.shutdown(socket.SHUT_RDWR)

    def _drop(self) -> None:
        conn, plug = self._conn, self._plug
        self._conn = self._plug = None
        self._listening, self._due = False, 0.0
        self._doubt()
        if conn is not None and plug is not None:
            plug.close()
            conn.close()
            self._ring()

    def _start_thread(self) -> None:
        if self._pause is not None and self._thread is None:
            self._bell = socket.socketpair()
            for end in self._bell:
                end.setblocking(False)
            self._thread = Thread(target=self._follow, name="drift_pg adapter cache", daemon=True)
            self._thread.start()

    def _ring(self) -> None:
        """Let the thread look up: at a new connection, or the end."""
        if self._bell is not None:
            with suppress(OSError):
                self._bell[1].send(b"!")

    def _follow(self) -> None:
        while not self._closed and self._owner() is not None:
            self._wait()
            with self._lock:
                if not self._closed:
                    self._attend()
        with self._lock:
            self._drop()
            for end in self._bell or ():
                end.close()

    def _wait(self) -> None:
        """Until the server says something, the bell rings, or a question is due."""
        assert self._bell is not None  # noqa: S101 (made before the thread)
        with selectors.DefaultSelector() as selector:
            selector.register(self._bell[0], selectors.EVENT_READ)
            with self._lock:
                if self._conn is not None:
                    selector.register(self._conn.fileno(), selectors.EVENT_READ)
                pause = self._due - monotonic()
            selector.select(max(pause, 0))
        with suppress(OSError):
            self._bell[0].recv(64)

    def _attend(self) -> None:
        if self._conn is not None:
            try:
                self._conn.pgconn.consume_input()
                self._take_notifications(self._conn)
            except psycopg.Error:
                self._drop()
        owner = self._owner()
        if owner is not None and monotonic() >= self._due:
            try:
                self._attempt(owner.refresh)
            except Exception:  # whoever needs an answer now asks, and is told
                owner.doubt()
                self._due = monotonic() + self._backoff
                self._backoff = min(2 * self._backoff, max(self._pause or 0, FIRST_PAUSE))

    def close(self) -> None:
        """End the thread and the connection; nothing happens the second time."""
        self._closed = True
        self._ring()
        thread = self._thread
        if thread is current_thread():  # the owner was forgotten during its last question
            return
        if thread is not None:
            thread.join(timeout=1)
            if thread.is_alive():
                self._cut()
                thread.join(timeout=1)
        with self._lock:
            self._drop()

    def abandon(self) -> None:
        """Let go in a forked child, where the connection is still the parent's: nothing is sent, nothing is shut down."""
        self._closed = True
        for end in (*(self._bell or ()), *([self._plug] if self._plug else ())):
            end.close()
        if self._conn is not None and not self._conn.closed:
            with open(os.devnull, "r+b") as nothing:
                os.dup2(nothing.fileno(), self._conn.fileno())


def _lost(why: str) -> ConnectionLost:
    return ConnectionLost(
        f"it cannot be asked which adapter is active: {why}",
        hint="an adapter that may be old is not served; the cache connects again by itself once the server answers",
    )
