"""What new vectors cost to write: a companion beside the user's table against a column in it; triggers against a key.

python -m benchmarks.companion_writes [ROWS]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psycopg
from psycopg import sql

import drift_pg
from benchmarks import vectors
from benchmarks.vectors import Float32
from drift_pg.database.adapters import texts as as_text
from tests import servers
from tests.tables import make_docs

DIMENSIONS, BATCH, WRITTEN = 384, 500, 3_000
WORDS = "a paragraph of documentation as long as they come, with an example of how it is called; "


def prepare(conn: psycopg.Connection, documents: Float32) -> None:
    """A table with texts and an HNSW index, a second column for new vectors, and a companion."""
    servers.install_pgvector(conn)
    drift_pg.upgrade(conn)
    make_docs(conn, documents)
    conn.execute(f"ALTER TABLE docs ADD new_embedding {servers.PGVECTOR_SCHEMA}.vector({DIMENSIONS})".encode())
    conn.execute("UPDATE docs SET body = body || ' ' || repeat(%s, 8)", [WORDS])
    for command in ("VACUUM FULL docs", "VACUUM ANALYZE docs"):
        conn.execute(command.encode())
    for model in ("legacy", "new"):
        drift_pg.register_model(conn, model, dimensions=DIMENSIONS)
    drift_pg.register_column(conn, "docs", "embedding", model="legacy")
    drift_pg.create_companion(conn, "docs", "embedding", model="new", text="body")


def size(conn: psycopg.Connection) -> int:
    """Bytes of the user's table, indexes and TOAST included."""
    return int(conn.execute("SELECT pg_total_relation_size('docs')").fetchone()[0])  # type: ignore[index]  # always a row


def seconds(action: Callable[[], object]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def write(conn: psycopg.Connection, statement: bytes, texts: list[str], new: list[str]) -> float:
    """Rows per second of a statement over batches of keys, texts and vectors."""

    def batches() -> None:
        for start in range(0, len(new), BATCH):
            keys = range(start, min(start + BATCH, len(new)))
            part = slice(keys.start, keys.stop)
            given = {
                "keys": list(keys),
                "json": json.dumps([[k] for k in keys]),
                "texts": texts[part],
                "new": new[part],
            }
            conn.execute(statement, given)

    return len(new) / seconds(batches)


STORE = b"SELECT drift.store_vectors('docs', 'embedding', %(json)s, %(texts)s, %(new)s)"
UPDATE = (
    b"UPDATE docs t SET new_embedding = g.v::extensions.vector "
    b"FROM unnest(%(keys)s::bigint[], %(new)s::text[]) AS g (id, v) WHERE t.id = g.id"
)


def writes(conn: psycopg.Connection, new: list[str]) -> None:
    """Both ways in one run, and what the user's table grows by."""
    texts = [row[0] for row in conn.execute("SELECT body FROM docs ORDER BY id LIMIT %s", [len(new)])]
    before = size(conn)
    rates = {"companion": write(conn, STORE, texts, new)}
    grown = size(conn) - before
    print(
        f"companion, no vector index yet: {rates['companion']:,.0f} rows/s, the user's table grows by {grown:,} bytes"
    )
    conn.execute("TRUNCATE drift.companion_1")
    drift_pg.build_index(conn, "docs", "embedding")
    print(f"companion under its HNSW index: {write(conn, STORE, texts, new):,.0f} rows/s")
    before = size(conn)
    rates["column"] = write(conn, UPDATE, texts, new)
    grown = size(conn) - before
    print(
        f"UPDATE of a column, the table's HNSW index on another: {rates['column']:,.0f} rows/s, grows by {grown:,} bytes"
    )
    print(f"ratio {rates['companion'] / rates['column']:.1f}")


KEY = "ALTER TABLE drift.companion_1 ADD CONSTRAINT follows FOREIGN KEY (key1) REFERENCES docs ON DELETE CASCADE"
NO_KEY = "ALTER TABLE drift.companion_1 DROP CONSTRAINT IF EXISTS follows"
INSERT = b"INSERT INTO drift.companion_1 (key1) SELECT id FROM docs WHERE id < 10000 ORDER BY id"
LOCKS = "SELECT DISTINCT mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'docs'::regclass AND mode <> 'AccessShareLock'"


def removal(conn: psycopg.Connection, how: str) -> None:
    """What each way of removing a vector with its row costs: locks, 10,000 inserts, a DELETE of 1,000 rows."""
    conn.execute(sql.SQL(NO_KEY))
    conn.execute("TRUNCATE drift.companion_1")
    for trigger in ("drift_companion_1_delete", "drift_companion_1_truncate"):
        conn.execute(sql.SQL("DROP TRIGGER IF EXISTS {} ON docs").format(sql.Identifier(trigger)))
    with conn.transaction():
        taken = seconds(lambda: _arrange(conn, how))
        locks = [row[0] for row in conn.execute(sql.SQL(LOCKS))]
    inserts, deletes = list[float](), list[float]()
    for _ in range(5):
        conn.execute("DELETE FROM drift.companion_1")
        conn.execute("VACUUM docs")
        conn.execute("VACUUM drift.companion_1")
        inserts.append(seconds(lambda: conn.execute(INSERT)))
        with conn.transaction(force_rollback=True):
            deletes.append(seconds(lambda: conn.execute("DELETE FROM docs WHERE id < 1000")))
    row_locks = _row_locks(conn)
    print(
        f"{how:12} created in {1000 * taken:.1f} ms under {locks}; 10,000 inserts {1000 * np.median(inserts):.0f} ms; "
        f"DELETE of 1,000 rows {1000 * np.median(deletes):.0f} ms; {row_locks} of the user's rows locked by an insert of 100"
    )


def _arrange(conn: psycopg.Connection, how: str) -> None:
    if how == "triggers":
        conn.execute("SELECT drift.follow_deletes(c) FROM drift.companion c")
    if how == "foreign key":
        conn.execute(sql.SQL(KEY))


def _row_locks(conn: psycopg.Connection) -> int:
    conn.execute("CREATE EXTENSION IF NOT EXISTS pgrowlocks")
    with conn.transaction(force_rollback=True):
        conn.execute("DELETE FROM drift.companion_1")
        conn.execute("INSERT INTO drift.companion_1 (key1) SELECT id FROM docs WHERE id < 100")
        return int(conn.execute("SELECT count(*) FROM pgrowlocks('docs')").fetchone()[0])  # type: ignore[index]  # always a row


def main() -> None:
    """Run everything on a server of its own and print it."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 15_000
    corpus = vectors.corpus(rows, DIMENSIONS, 1)
    server = servers.start(Path(tempfile.mkdtemp(prefix="drift_pg_writes_")), "18")
    with servers.database(server) as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        prepare(conn, corpus.documents)
        writes(conn, as_text(corpus.documents[::-1][:WRITTEN]))
        for how in ("nothing", "triggers", "foreign key"):
            removal(conn, how)


if __name__ == "__main__":
    main()
