"""Searching while a column is re-embedded; what a search misses is embedded on the spot, or queued.

One sequence of steps (`_steps`) says what happens; `search` and `search_async` only carry each step out.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import psycopg
from numpy.typing import ArrayLike
from psycopg import sql
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

from drift_pg.adapter import Float32
from drift_pg.database.adapters import texts as vectors_as_text
from drift_pg.database.connection import Connection, Query, translated
from drift_pg.database.registry import no_table
from drift_pg.embedding import Embedder
from drift_pg.errors import InvalidDefinition, InvalidVector
from drift_pg.reembedding.embedding_calls import Call, affordable

log = logging.getLogger("drift_pg.search")

AsyncConnection = psycopg.AsyncConnection[Any]

failures: Counter[str] = Counter()
"""What kept searches of this process from embedding, storing or queueing, by the error's class."""

_counting = threading.Lock()


@dataclass(frozen=True)
class _Request:
    relation: str
    column: str
    query: Float32
    query_model: str
    k: int
    rerank: int
    embedder: Embedder | None
    at_most: int
    within: float
    matching: Mapping[str, Any] | None

    def __post_init__(self) -> None:
        if self.query.ndim != 1 or not np.isfinite(self.query).all():
            raise InvalidVector(f"the query has shape {self.query.shape}, expected one vector of finite numbers")
        if not 1 <= self.k <= self.rerank:
            raise InvalidDefinition(f"k is {self.k} and rerank {self.rerank}: expected 1 ≤ k ≤ rerank")
        if self.at_most < 0 or not self.within > 0:
            raise InvalidDefinition(
                f"at_most is {self.at_most} and within {self.within:g}: expected 0 or more, and seconds"
            )


@dataclass(frozen=True)
class _Ask:
    """A statement. `own_rows`: in the rows of the caller's connection; `attempt`: an error is an answer too."""

    statement: Query
    parameters: list[object]
    own_rows: bool = False
    attempt: bool = False


@dataclass(frozen=True)
class _Embed:
    """Texts to embed; the answer is vectors (n, m), or why there are none."""

    embedder: Embedder
    texts: list[str]
    dimensions: int
    within: float


_Steps: TypeAlias = "Generator[_Ask | _Embed, Any, Any]"

_TABLE = (
    "SELECT n.nspname AS schema, c.relname AS name, pg_catalog.current_setting('transaction_read_only')::boolean AS read_only "
    "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = pg_catalog.to_regclass(%s)"
)
_COUNT = "SELECT pg_catalog.current_setting('drift.missing', true)::integer AS missing"
_MISSING = "SELECT key, content FROM drift.missing(%s::regclass, %s, %s, %s, %s::integer, %s::jsonb)"
_CLAIM = "SELECT key, content FROM drift.claim(%s::regclass, %s, %s::jsonb)"
_STORE = "SELECT drift.store_vectors(%s::regclass, %s, %s::jsonb, %s::text[], %s::text[]) AS stored"
_QUEUE = "SELECT drift.queue_missing(%s::regclass, %s, %s::jsonb)"
_NEAREST = "SELECT * FROM drift.nearest(NULL::{}, %s::name, %s, %s, %s::integer, %s::integer, %s::jsonb)"


def search(
    conn: Connection,
    relation: str,
    column: str,
    query: ArrayLike,
    *,
    query_model: str,
    k: int = 10,
    rerank: int = 200,
    embed: Embedder | None = None,
    at_most: int = 50,
    within: float = 0.5,
    matching: Mapping[str, Any] | None = None,
) -> list[Any]:
    """The k rows nearest to a query of a new model: the bridge's first ordered anew, and what the companion finds.

    With `embed`, those of the bridge's first that lack a vector of their present text are embedded now and kept, so
    the next similar query finds them. No row is embedded by two searches; each row is one client's until its
    transaction ends. An embedder that fails, or takes too long, never fails a search: it answers from what is known,
    with a warning on the logger drift_pg.search. Without `embed`, and where it failed, what is missing is queued,
    with a count. On a read-only server nothing is embedded or queued.

    All of it is one transaction, or part of the caller's if there is one; it stays open while texts are embedded.

    Args:
        conn: a connection.
        relation: the table as SQL names it: 'public.docs', '"Weird Docs"'.
        column: a registered embedding column that has a companion.
        query: (m,), embedded by query_model.
        query_model: the companion's model, or the column's own, whose queries need no companion.
        k: how many rows.
        rerank: how many of the bridge's first are ordered anew.
        embed: the new model's function of a list of texts.
        at_most: how many rows are embedded, or queued.
        within: seconds that a search waits for the embedder.
        matching: values of columns that rows must have; a list: one of these; None: NULL.

    Returns:
        Rows of the table, nearest first, as the connection's row factory makes them.

    Raises:
        NoCompanion, NotCalibrated, NoActiveAdapter, UnknownModel, UnknownColumn, ColumnMissing
        WrongDimensions: the query's are not its model's.
        InvalidVector: the query is no vector, or holds NaN.
        InvalidDefinition: k, rerank, at_most, within or matching is out of its limits.
        PermissionDenied: the role may not read what it needs, or with `embed` not write to the companion.
    """
    request = _Request(
        relation, column, np.asarray(query, np.float32), query_model, k, rerank, embed, at_most, within, matching
    )  # fmt: skip
    steps = _steps(request)
    with translated(), conn.transaction():
        answer = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                return list(end.value)
            answer = _perform(conn, step)


async def search_async(
    conn: AsyncConnection,
    relation: str,
    column: str,
    query: ArrayLike,
    *,
    query_model: str,
    k: int = 10,
    rerank: int = 200,
    embed: Embedder | None = None,
    at_most: int = 50,
    within: float = 0.5,
    matching: Mapping[str, Any] | None = None,
) -> list[Any]:
    """As `search`, on an asynchronous connection; `embed` is a plain function and runs in a thread."""
    request = _Request(
        relation, column, np.asarray(query, np.float32), query_model, k, rerank, embed, at_most, within, matching
    )  # fmt: skip
    steps = _steps(request)
    with translated():
        async with conn.transaction():
            answer = None
            while True:
                try:
                    step = steps.send(answer)
                except StopIteration as end:
                    return list(end.value)
                answer = await _perform_async(conn, step)


def _steps(request: _Request) -> _Steps:
    here = yield _Ask(_TABLE, [request.relation])
    if not here:
        raise no_table(request.relation)
    place: list[object] = [sql.Identifier(here[0].schema, here[0].name).as_string(None), request.column]
    asked: list[object] = [vectors_as_text(request.query[None])[0], request.query_model]
    matching = Jsonb(dict(request.matching)) if request.matching is not None else None
    # A percent sign in a name would be read as a parameter's.
    table = sql.Identifier(*(part.replace("%", "%%") for part in (here[0].schema, here[0].name)))
    nearest = _Ask(
        sql.SQL(_NEAREST).format(table), [request.column, *asked, request.k, request.rerank, matching], own_rows=True
    )
    found = yield nearest
    if here[0].read_only or not request.at_most or not (yield _Ask(_COUNT, []))[0].missing:
        return found
    missing = yield _Ask(_MISSING, [*place, *asked, request.rerank, matching])
    wanted = [row.key for row in missing[: request.at_most]]
    if wanted and (yield from _fill(request, place, wanted)):
        found = yield nearest
    return found


def _fill(request: _Request, place: list[object], wanted: list[Any]) -> Generator[_Ask | _Embed, Any, bool]:
    """Whether another search finds more than the one before."""
    if request.embedder is not None:
        now = affordable(request.embedder, len(wanted))
        claimed = yield _Ask(_CLAIM, [*place, Jsonb(wanted[:now])])
        if not claimed:
            return True  # others have embedded them meanwhile, or are at it
        wanted = [row.key for row in claimed] + wanted[now:]
        distinct = list(dict.fromkeys(row.content for row in claimed))
        vectors = yield _Embed(request.embedder, distinct, len(request.query), request.within)
        if not isinstance(vectors, Exception):
            return (yield from _store(place, claimed, dict(zip(distinct, vectors_as_text(vectors), strict=True))))
        _note("nothing was embedded", vectors)
    queued = yield _Ask(_QUEUE, [*place, Jsonb(wanted)], attempt=True)
    _note("what is missing was not queued", queued)
    return False


def _store(place: list[object], claimed: list[Any], known: Mapping[str, str]) -> Generator[_Ask | _Embed, Any, bool]:
    keys, contents = [row.key for row in claimed], [row.content for row in claimed]
    vectors = [known[text] for text in contents]
    stored = yield _Ask(_STORE, [*place, Jsonb(keys), contents, vectors], attempt=True)
    _note("new vectors were not stored", stored)
    return not isinstance(stored, Exception)


def _note(what: str, answer: object) -> None:
    if isinstance(answer, Exception):
        with _counting:
            failures[type(answer).__name__] += 1
        log.warning("%s, the search answers from what is known: %s", what, str(answer).strip())


def _lost(error: psycopg.Error, conn: Connection | AsyncConnection) -> bool:
    """Whether an attempt's error leaves nothing to go on with, or was the user's own doing."""
    return conn.closed or isinstance(error, (psycopg.errors.QueryCanceled, psycopg.errors.InFailedSqlTransaction))


def _perform(conn: Connection, step: _Ask | _Embed) -> Any:
    if isinstance(step, _Embed):
        call = Call(step.embedder, step.texts, step.dimensions)
        call.wait(step.within)
        return call.outcome(step.within)
    try:
        with conn.transaction() if step.attempt else nullcontext():
            cursor = conn.cursor() if step.own_rows else conn.cursor(row_factory=namedtuple_row)
            return cursor.execute(_composed(step), step.parameters).fetchall()
    except psycopg.Error as error:
        if not step.attempt or _lost(error, conn):
            raise
        return error


async def _perform_async(conn: AsyncConnection, step: _Ask | _Embed) -> Any:
    if isinstance(step, _Embed):
        call = Call(step.embedder, step.texts, step.dimensions)
        await call.wait_async(step.within)
        return call.outcome(step.within)
    try:
        async with conn.transaction() if step.attempt else nullcontext():
            cursor = conn.cursor() if step.own_rows else conn.cursor(row_factory=namedtuple_row)
            return await (await cursor.execute(_composed(step), step.parameters)).fetchall()
    except psycopg.Error as error:
        if not step.attempt or _lost(error, conn):
            raise
        return error


def _composed(step: _Ask) -> sql.SQL | sql.Composed:
    return sql.SQL(step.statement) if isinstance(step.statement, str) else step.statement
