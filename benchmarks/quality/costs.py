"""What a switch costs beside re-indexing and beside serving two indexes, measured on a table of real vectors."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgvector import Vector

import drift_pg
from benchmarks import searches
from benchmarks.quality.data import Upgrade
from benchmarks.quality.methods import METHODS, Fitted
from benchmarks.timing import interleaved
from drift_pg.adapter import Float32

TEXTS, SAMPLE = 200, 50
"""Embedded to learn the rate, in samples of which the fastest counts: the others were disturbed."""

FAMILIES = ("spectral", "auto")
"""Fitted and stored: the quickest, and the default."""

REPEATS = 300
DATABASE_TABLES = {"legacy": "docs_legacy", "new": "docs_new"}


@dataclass(frozen=True)
class Extrapolation:
    """Seconds and bytes of a re-indexing at another number of rows, from those measured at `rows`."""

    rows: int
    rate: float
    index_seconds: float
    table_bytes: int
    index_bytes: int

    def embedding(self, rows: int) -> float:
        """Seconds: linear."""
        return rows / self.rate

    def indexing(self, rows: int) -> float:
        """Seconds: n log n, as inserting into a graph whose layers grow with log n costs."""
        return self.index_seconds * rows * math.log(rows) / (self.rows * math.log(self.rows))

    def bytes(self, rows: int) -> float:
        """Of table and index together: linear."""
        return (self.table_bytes + self.index_bytes) * rows / self.rows


def measure(upgrade: Upgrade, pairs: int, methods: Sequence[str], tell: Callable[[str], None]) -> dict[str, Any]:
    """Everything at the data set's own number of rows, on a server in a temporary directory."""
    with (
        tempfile.TemporaryDirectory(prefix="drift-pg-quality-") as directory,
        searches.connected(Path(directory) / "data") as conn,
    ):
        versions = searches.install(conn)
        tell("embedding texts to learn the rate")
        rates = _rates()
        tell("building two HNSW indexes")
        legacy = _load(conn, DATABASE_TABLES["legacy"], upgrade.documents_legacy)
        new = _load(conn, DATABASE_TABLES["new"], upgrade.documents_new)
        drift_pg.register_model(conn, "legacy", dimensions=upgrade.documents_legacy.shape[1])
        drift_pg.register_model(conn, "new", dimensions=upgrade.documents_new.shape[1])
        switches = {}
        for name in methods:
            tell(f"fitting and storing {name}")
            switches[name] = _switch(conn, upgrade, pairs, name)
        tell("timing searches")
        return {
            "rows": len(upgrade.documents_new),
            "pairs": pairs,
            "texts_per_second": rates,
            "legacy": legacy,
            "new": new,
            "switches": switches,
            "searches": _searches(conn, upgrade),
            "versions": versions,
        }


def _rates() -> dict[str, float]:
    """Texts per second of the demo's two models on real docstrings."""
    from examples.demo import documents, models

    texts = [document.body for document in documents.collect(TEXTS, lambda _done, _total: None)]
    for model in (models.legacy, models.new):
        model(texts[:4])  # reads the weights
    return {"legacy": _rate(models.legacy, texts), "new": _rate(models.new, texts)}


def _rate(embed: Callable[[list[str]], Float32], texts: list[str]) -> float:
    seconds = []
    for start in range(0, len(texts), SAMPLE):
        sample = texts[start : start + SAMPLE]
        started = time.perf_counter()
        embed(sample)
        seconds.append((time.perf_counter() - started) / len(sample))
    return 1 / min(seconds)


def _load(conn: searches.Connection, table: str, vectors: Float32) -> dict[str, float]:
    conn.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, embedding vector({vectors.shape[1]}))".encode())
    with conn.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN (FORMAT binary)".encode()) as copy:
        copy.set_types(["bigint", "vector"])
        for i, vector in enumerate(vectors):
            copy.write_row((i, vector))
    started = time.perf_counter()
    conn.execute(f"CREATE INDEX {table}_hnsw ON {table} USING hnsw (embedding vector_cosine_ops)".encode())
    seconds = time.perf_counter() - started
    conn.execute(f"VACUUM ANALYZE {table}".encode())
    sizes = f"SELECT pg_table_size('{table}'), pg_relation_size('{table}_hnsw')"
    table_bytes, index_bytes = conn.execute(sizes.encode()).fetchone() or (0, 0)
    return {"index_seconds": seconds, "table_bytes": table_bytes, "index_bytes": index_bytes}


def _switch(conn: searches.Connection, upgrade: Upgrade, pairs: int, name: str) -> dict[str, float]:
    """Fit, store and activate; how many bytes the adapter takes in the database."""
    method = next(method for method in METHODS if method.name == name)
    before, fitted = _adapter_bytes(conn), method.fit(upgrade, pairs, 0)
    started = time.perf_counter()
    _activate(conn, fitted)
    return {
        "fit": fitted.seconds,
        "store": time.perf_counter() - started,
        "bytes": _adapter_bytes(conn) - before,
    }


def _activate(conn: searches.Connection, fitted: Fitted) -> None:
    if fitted.adapter is None:
        raise ValueError("a peer's method has no adapter to store")
    adapter = drift_pg.store(conn, fitted.adapter, source="new", target="legacy")
    drift_pg.activate(conn, adapter, force=True)  # what it costs, not whether it is good


def _adapter_bytes(conn: searches.Connection) -> int:
    query = "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c WHERE c.oid = 'drift.adapter_weight'::regclass"
    return int((conn.execute(query.encode()).fetchone() or (0,))[0])


def _searches(conn: searches.Connection, upgrade: Upgrade) -> dict[str, float]:
    """Median milliseconds of a top 10: one index, the bridge, and two indexes one after the other."""
    new = [(Vector(query),) for query in upgrade.queries_new]
    asked = upgrade.queries_legacy if upgrade.queries_legacy is not None else upgrade.documents_legacy
    legacy = [(Vector(query),) for query in asked]
    statement = "SELECT id FROM {} ORDER BY embedding <=> {} LIMIT 10"
    on_legacy, on_new = (statement.format(table, "%b").encode() for table in DATABASE_TABLES.values())
    bridge = statement.format(DATABASE_TABLES["legacy"], "(SELECT drift.adapt(%b, 'new', 'legacy'))").encode()
    cursor = conn.cursor(binary=True)

    def two(number: int) -> None:
        cursor.execute(on_legacy, legacy[number], prepare=True).fetchall()
        cursor.execute(on_new, new[number], prepare=True).fetchall()

    actions = {
        "one index": lambda number: cursor.execute(on_legacy, legacy[number], prepare=True).fetchall(),
        "bridge": lambda number: cursor.execute(bridge, new[number], prepare=True).fetchall(),
        "two indexes": two,
    }
    repeats = min(REPEATS, len(new), len(legacy))
    return {what: timing.median_ms for what, timing in interleaved(actions, repeats, warm_up=50).items()}
