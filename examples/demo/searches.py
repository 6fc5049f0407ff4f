"""The four searches that are compared, each plain SQL through a real HNSW index."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import psycopg
from numpy.typing import NDArray

from examples.demo.models import DIMENSIONS, Vectors

LIMIT = 10
EF_SEARCH = 100

_NEAREST = f"SELECT id FROM public.{{}}\nORDER BY embedding <=> {{}}\nLIMIT {LIMIT}"
_ADAPTED = "(SELECT drift.adapt_for(%s, 'minilm-l6', 'public.docs', 'embedding'))"


@dataclass(frozen=True)
class Search:
    """One way to search.

    Attributes:
        name: as in build/demo.json.
        meaning: the same for a reader.
        model: which model embeds the queries, "legacy" or "new".
        statement: SQL that takes the query's vector.
    """

    name: str
    meaning: str
    model: str
    statement: str


SEARCHES = (
    Search("stay", "old queries, old index", "legacy", _NEAREST.format("docs", "%s")),
    Search("unadapted", "new queries, old index", "new", _NEAREST.format("docs", "%s")),
    Search("bridge", "the same, adapted", "new", _NEAREST.format("docs", _ADAPTED)),
    Search("full", "new queries, new index", "new", _NEAREST.format("docs_reembedded", "%s")),
)
BRIDGE = next(search for search in SEARCHES if search.name == "bridge")


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
    conn.execute(f"SET hnsw.ef_search = {EF_SEARCH}")
    # A table this small the planner would rather read whole than through the index that is to be measured.
    conn.execute("SET enable_seqscan = off")
    plan(conn, search)
    keys, seconds = np.zeros((len(vectors), LIMIT), np.int64), np.zeros(len(vectors))
    for i, vector in enumerate(vectors):
        started = time.perf_counter()
        found = [key for (key,) in conn.execute(search.statement, [vector])]
        seconds[i] = time.perf_counter() - started
        keys[i, : len(found)] = found
    return Answers(keys, seconds)


def plan(conn: psycopg.Connection, search: Search) -> list[str]:
    """How PostgreSQL executes a search.

    Raises:
        RuntimeError: without its HNSW index, so that the figures would be of something else.
    """
    vector = np.ones(DIMENSIONS, np.float32)
    lines = [line for (line,) in conn.execute(f"EXPLAIN (COSTS OFF) {search.statement}", [vector])]
    if not any("Index Scan using docs" in line for line in lines):
        raise RuntimeError("\n".join([f"the search {search.name!r} does not use its HNSW index:", *lines]))
    return lines
