"""What it costs that the database fills the legacy column: COPY of new rows with and without drift.follow, and their recall.

python -m benchmarks.follow [ROWS]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import psycopg
from psycopg.conninfo import conninfo_to_dict

import drift_pg
from benchmarks import vectors
from benchmarks.vectors import Float32
from drift_pg.adapter import Adapter
from drift_pg.database.adapters import texts as as_text
from tests import servers
from tests.tables import make_docs

Write = Callable[[psycopg.Connection], None]

DIMENSIONS, PAIRS, REPEATS, BATCH, K = 384, 5_000, 3, 500, 10
BASELINE = "no trigger, both vectors given"
VECTOR = f"{servers.PGVECTOR_SCHEMA}.vector"

# The alternative that a trigger after the statement would be: a second write of every row, and of its index entries.
AFTER = f"""
CREATE OR REPLACE FUNCTION public.fill_after() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, {servers.PGVECTOR_SCHEMA} AS $$
BEGIN
    UPDATE public.docs t SET embedding = drift.adapt(w.new_embedding, 'new', 'legacy') FROM written w WHERE t.id = w.id AND w.embedding IS NULL;
    RETURN NULL;
END $$;
CREATE TRIGGER after_all AFTER INSERT ON docs REFERENCING NEW TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION public.fill_after();
"""


def prepare(conn: psycopg.Connection, corpus: vectors.Corpus, adapter: Adapter) -> None:
    """The rows that the legacy model embedded, a column for new vectors, and an active adapter."""
    servers.install_pgvector(conn)
    drift_pg.upgrade(conn)
    make_docs(conn, corpus.documents[:PAIRS])
    conn.execute(f"ALTER TABLE docs ADD new_embedding {VECTOR}({DIMENSIONS})".encode())
    for model in ("legacy", "new"):
        drift_pg.register_model(conn, model, dimensions=DIMENSIONS)
    drift_pg.register_column(conn, "docs", "embedding", model="legacy")
    drift_pg.activate(conn, drift_pg.store(conn, adapter, source="new", target="legacy"), force=True)
    drift_pg.set_query_model(conn, "docs", "embedding", "new")


def copy(conn: psycopg.Connection, columns: str, rows: Iterable[tuple[object, ...]]) -> None:
    """COPY them in one statement."""
    with conn.cursor() as cursor, cursor.copy(f"COPY docs ({columns}) FROM STDIN".encode()) as pipe:
        for row in rows:
            pipe.write_row(row)


class Rows:
    """New rows, and the ways in which an application can write them."""

    def __init__(self, adapter: Adapter, new: Float32) -> None:
        self.adapter, self.new = adapter, new
        self.texts, self.keys = as_text(new), range(PAIRS, PAIRS + len(new))
        self.ready = as_text(adapter.apply(new))

    def new_only(self, conn: psycopg.Connection) -> None:
        """COPY of the new vectors; what the triggers do is up to them."""
        copy(conn, "id, new_embedding", zip(self.keys, self.texts, strict=True))

    def both_ready(self, conn: psycopg.Connection) -> None:
        """COPY of both columns, as an application did that had both models at hand."""
        copy(conn, "id, new_embedding, embedding", zip(self.keys, self.texts, self.ready, strict=True))

    def adapted_in_python(self, conn: psycopg.Connection) -> None:
        """COPY of both columns, the legacy one by the adapter in numpy."""
        adapted = as_text(self.adapter.apply(self.new))
        copy(conn, "id, new_embedding, embedding", zip(self.keys, self.texts, adapted, strict=True))

    def ways(self) -> dict[str, tuple[Write, str]]:
        """How, and under which triggers."""
        return {
            "no trigger, the legacy column stays NULL": (self.new_only, ""),
            BASELINE: (self.both_ready, ""),
            "adapted in Python, both copied": (self.adapted_in_python, ""),
            "drift.follow": (self.new_only, "follow"),
            "drift.follow, both vectors given": (self.both_ready, "follow"),
            "a trigger after the statement": (self.new_only, "after"),
        }


def seconds(server: str, template: str, write: Write, triggers: str, *, index: bool) -> float:
    """How long one way takes, in a copy of the database."""
    with servers.database(server, template) as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        if not index:
            conn.execute("DROP INDEX docs_embedding_idx")
        if triggers == "follow":
            drift_pg.follow(conn, "docs", "embedding", source="new_embedding")
        if triggers == "after":
            conn.execute(AFTER.encode())
        conn.execute("CHECKPOINT")
        started = time.perf_counter()
        write(conn)
        return time.perf_counter() - started


def measure(server: str, template: str, rows: Rows, *, index: bool) -> None:
    """All ways, side by side."""
    taken = {name: list[float]() for name in rows.ways()}
    for _ in range(REPEATS):
        for name, (write, triggers) in rows.ways().items():
            taken[name].append(seconds(server, template, write, triggers, index=index))
    base = float(np.median(taken[BASELINE]))
    print(
        f"\n{'With an' if index else 'Without'} HNSW index on the legacy column: COPY of {len(rows.new):,} rows, "
        f"{DIMENSIONS} dimensions, median of {REPEATS}"
    )
    for name, values in taken.items():
        median = float(np.median(values))
        print(
            f"  {name:42} {median:7.2f} s  {1e3 * median / len(rows.new):6.3f} ms/row  ratio {median / base:5.2f}",
            flush=True,
        )


def adapter_alone(server: str, template: str) -> None:
    """What of the trigger's cost is the adapter's own."""
    with servers.database(server, template) as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        started = time.perf_counter()
        conn.execute("SELECT count(drift.adapt(embedding, 'new', 'legacy')) FROM docs")
        print(
            f"  the adapter alone, in a SELECT of {PAIRS:,} rows: {1e3 * (time.perf_counter() - started) / PAIRS:.3f} ms/row"
        )


def beside(server: str, template: str, new: Float32) -> None:
    """Vectors stored in a companion, whose rows have a legacy vector or lack one, followed or not."""
    texts = as_text(new)
    print(
        f"\nA companion: {len(texts):,} vectors by drift.store_vectors, {BATCH} a call, an HNSW index on the legacy column"
    )
    base = 0.0
    for name, lacking, followed in (
        ("not followed", False, False),
        ("followed, every row has a legacy vector", False, True),
        ("followed, no row has one", True, True),
    ):
        with servers.database(server, template) as dsn, psycopg.connect(dsn, autocommit=True) as conn:
            drift_pg.create_companion(conn, "docs", "embedding", model="new", text="body")
            if lacking:
                conn.execute("UPDATE docs SET embedding = NULL WHERE id < %s", [len(texts)])
            if followed:
                drift_pg.follow(conn, "docs", "embedding")
            started = time.perf_counter()
            for start in range(0, len(texts), BATCH):
                keys = range(start, min(start + BATCH, len(texts)))
                given = [json.dumps([[k] for k in keys]), [f"text {k}" for k in keys], [texts[k] for k in keys]]
                conn.execute("SELECT drift.store_vectors('docs', 'embedding', %s, %s, %s)", given)
            taken = time.perf_counter() - started
        base = base or taken
        print(f"  {name:42} {taken:7.2f} s  {len(texts) / taken:6,.0f} rows/s  ratio {taken / base:5.2f}", flush=True)


def recall(conn: psycopg.Connection, new: Rows, corpus: vectors.Corpus) -> None:
    """Bridge searches through the index, half of the rows filled by the adapter, against exact search in real vectors."""
    drift_pg.follow(conn, "docs", "embedding", source="new_embedding")
    new.new_only(conn)
    conn.execute("ANALYZE docs")
    total = PAIRS + len(new.new)
    mixed = corpus.documents[:total].copy()
    mixed[PAIRS:] = new.adapter.apply(new.new)
    asked = new.adapter.apply(corpus.queries)
    conn.execute("SET hnsw.ef_search = 100")
    statement = f"SELECT array_agg(id) FROM drift.nearest(NULL::docs, 'embedding', %s, 'new', {K})".encode()
    found = [conn.execute(statement, [query]).fetchone()[0] for query in as_text(corpus.queries)]  # type: ignore[index]  # always a row
    truth = np.vstack([corpus.pairs.source, new.new])
    print(f"\n{len(asked)} bridge queries, top {K} of {total:,} rows, {len(new.new):,} of them filled by the adapter")
    for name, rows, queries in (
        ("exact search in the same vectors (what the index loses)", mixed, asked),
        ("exact bridge search, all legacy vectors real", corpus.documents[:total], asked),
        ("exact search in the new model's own vectors", truth, corpus.queries),
    ):
        print(f"  overlap with {name}: {_overlap(found, rows, queries):.3f}")
    real = _nearest(corpus.documents[:total], asked)
    print(
        f"  for comparison, real legacy vectors against the new model's own: {_overlap(real, truth, corpus.queries):.3f}"
    )
    share = np.mean([np.mean(np.array(row) >= PAIRS) for row in found])
    best = np.mean(_nearest(truth, corpus.queries) >= PAIRS)
    print(f"  filled rows among the answers: {share:.3f}; in the new model's own {best:.3f}")


def _nearest(rows: Float32, queries: Float32, k: int = K) -> np.ndarray:
    return np.argsort(-(queries @ rows.T), axis=1)[:, :k]


def _overlap(found: Iterable[Iterable[int]], rows: Float32, queries: Float32) -> float:
    return float(
        np.mean([len(set(a) & set(b.tolist())) / K for a, b in zip(found, _nearest(rows, queries), strict=True)])
    )


def main() -> None:
    """Run everything on a server of its own and print it."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    corpus = vectors.corpus(PAIRS + rows, DIMENSIONS, 500, pairs=PAIRS + rows)
    adapter = drift_pg.fit(corpus.pairs.take(np.arange(PAIRS)), "spectral")
    print(corpus.origin)
    server = servers.start(Path(tempfile.mkdtemp(prefix="drift_pg_follow_")), "18")
    new = Rows(adapter, corpus.pairs.source[PAIRS:])
    with servers.database(server) as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            prepare(conn, corpus, adapter)
        template = str(conninfo_to_dict(dsn)["dbname"])
        for index in (False, True):
            measure(server, template, new, index=index)
            adapter_alone(server, template)
        beside(server, template, corpus.pairs.source[: PAIRS // 2])
        with psycopg.connect(dsn, autocommit=True) as conn:
            recall(conn, new, corpus)


if __name__ == "__main__":
    main()
