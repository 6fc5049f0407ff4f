"""The searches that are compared, each plain SQL through a real HNSW index."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import psycopg
from numpy.typing import NDArray

from examples.demo.models import DIMENSIONS, Vectors

LIMIT = 10
DEPTH = 200
EF_SEARCH = 100

_NEAREST = f"SELECT id FROM public.{{}}\nORDER BY embedding <=> {{}}\nLIMIT {LIMIT}"
_ADAPTED = "(SELECT drift.adapt_for(%(query)s, 'minilm-l6', 'public.docs', 'embedding'))"
_FIRST = f"SELECT id FROM public.docs ORDER BY embedding <=> {_ADAPTED} LIMIT {DEPTH}"


@dataclass(frozen=True)
class Search:
    """One way to search.

    Attributes:
        name: as in build/demo.json.
        meaning: the same for a reader.
        model: which model embeds the queries, "legacy" or "new".
        statement: SQL that takes the query's vector.
        ef_search: hnsw.ef_search, of which an HNSW scan returns no more rows.
    """

    name: str
    meaning: str
    model: str
    statement: str
    ef_search: int = EF_SEARCH


FULL = Search("full", "new queries, new index", "new", _NEAREST.format("docs_reembedded", "%(query)s"))
BRIDGE = Search("bridge", "the same, adapted", "new", _NEAREST.format("docs", _ADAPTED))
RERANK_KNOWN = Search(
    "rerank_known",
    f"its first {DEPTH}, reranked",
    "new",
    f"SELECT r.id FROM ({_FIRST}) AS bridge\nJOIN public.docs_reembedded r USING (id)\n"
    f"ORDER BY r.embedding <=> %(query)s\nLIMIT {LIMIT}",
    DEPTH,
)
SEARCHES = (
    Search("stay", "old queries, old index", "legacy", _NEAREST.format("docs", "%(query)s")),
    Search("unadapted", "new queries, old index", "new", _NEAREST.format("docs", "%(query)s")),
    BRIDGE,
    RERANK_KNOWN,
    FULL,
)
RERANK = Search(
    "rerank",
    f"the bridge's first {DEPTH}, by the new vectors that are there",
    "new",
    f"SELECT id FROM drift.nearest(NULL::public.docs, 'embedding', %(query)s, 'minilm-l6', {LIMIT}, rerank => {DEPTH})",
)


@dataclass(frozen=True, eq=False)
class Answers:
    """What one search found.

    Attributes:
        keys: (q, LIMIT) ids, nearest first; 0, which is no row's, where it found fewer.
        seconds: (q,) each query's time.
    """

    keys: NDArray[np.int64]
    seconds: NDArray[np.float64]


def run(conn: psycopg.Connection, search: Search, vectors: Vectors) -> Answers:
    """Run a search for each query's vector (q, d), one by one as an application does."""
    _set_up(conn, search)
    keys, seconds = np.zeros((len(vectors), LIMIT), np.int64), np.zeros(len(vectors))
    for i, vector in enumerate(vectors):
        started = time.perf_counter()
        found = [key for (key,) in conn.execute(search.statement, {"query": vector})]
        seconds[i] = time.perf_counter() - started
        keys[i, : len(found)] = found
    return Answers(keys, seconds)


def _set_up(conn: psycopg.Connection, search: Search) -> None:
    conn.execute(f"SET hnsw.ef_search = {search.ef_search}")
    # A table this small the planner would rather read whole than through the index that is to be measured.
    conn.execute("SET enable_seqscan = off")


def plan(conn: psycopg.Connection, search: Search) -> list[str]:
    """How PostgreSQL executes a search.

    Raises:
        RuntimeError: without its HNSW index, so that the figures would be of something else.
    """
    _set_up(conn, search)
    vector = np.ones(DIMENSIONS, np.float32)
    lines = [line for (line,) in conn.execute(f"EXPLAIN (COSTS OFF) {search.statement}", {"query": vector})]
    if not any("Index Scan using docs" in line and "embedding_idx" in line for line in lines):
        raise RuntimeError("\n".join([f"the search {search.name!r} does not use its HNSW index:", *lines]))
    return lines
