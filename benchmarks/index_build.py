"""How long an HNSW index takes to build: the constant of `drift_pg.evaluation.reembedding_cost`.

python -m benchmarks.index_build
"""

from __future__ import annotations

import tempfile
import time
from math import log2
from pathlib import Path

import psycopg

from benchmarks import vectors
from tests import servers
from tests.tables import make_docs

ROWS, DIMENSIONS = 15_000, 384


def main() -> None:
    """Build once, with pgvector's defaults, and print seconds per row, log₂(rows) and dimension."""
    server = servers.start(Path(tempfile.mkdtemp(prefix="drift_pg_index_")), "18")
    with servers.database(server) as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        servers.install_pgvector(conn)
        make_docs(conn, vectors.corpus(ROWS, DIMENSIONS, 1).documents, opclass=None)
        conn.execute("SET maintenance_work_mem = '1GB'")
        started = time.perf_counter()
        conn.execute(f"CREATE INDEX ON docs USING hnsw (embedding {servers.PGVECTOR_SCHEMA}.vector_cosine_ops)")
        seconds = time.perf_counter() - started
    print(f"{ROWS:,} x {DIMENSIONS}: {seconds:.1f} s, {seconds / (ROWS * log2(ROWS) * DIMENSIONS):.2e} s per unit")


if __name__ == "__main__":
    main()
