"""A table with texts, an adapter that serves it, and a companion that is filled step by step."""

from __future__ import annotations

import json

import drift_pg
from benchmarks.searches import Connection
from benchmarks.vectors import Float32
from drift_pg import Adapter, Pairs
from drift_pg.database.adapters import texts as as_text
from drift_pg.evaluation.calibration import calibrate
from drift_pg.neighbours import Indices

BATCH = 1000
TEXT = "a paragraph of documentation as long as they come, with an example of how it is called; " * 4


def text_of(row: int) -> str:
    """What stands in for a document's text: only its length and its being different matter to the database."""
    return f"document {row}: {TEXT}"


def row_of(text: str) -> int:
    """The document whose text it is."""
    return int(text.split(" ", 2)[1].rstrip(":"))


def load(conn: Connection, name: str, documents: Float32) -> None:
    """A table of texts and these vectors, row i document i, with an HNSW index."""
    conn.execute(
        f"CREATE TABLE {name} (id bigint PRIMARY KEY, body text, embedding vector({documents.shape[1]}))".encode()
    )
    with conn.cursor() as cursor, cursor.copy(f"COPY {name} FROM STDIN (FORMAT binary)".encode()) as copy:
        copy.set_types(["bigint", "text", "vector"])
        for i, document in enumerate(documents):
            copy.write_row((i, text_of(i), document))
    conn.execute(f"CREATE INDEX {name}_hnsw ON {name} USING hnsw (embedding vector_cosine_ops)".encode())


def serve(conn: Connection, adapter: Adapter, held_out: Pairs) -> None:
    """Activate an adapter for table `docs`, calibrated by pairs that it was not fitted on; and an empty companion."""
    drift_pg.register_model(conn, "legacy", dimensions=adapter.target_dimensions)
    drift_pg.register_model(conn, "new", dimensions=adapter.source_dimensions)
    drift_pg.register_column(conn, "docs", "embedding", model="legacy")
    stored = drift_pg.store(conn, adapter, source="new", target="legacy")
    drift_pg.activate(conn, stored, force=True)
    line = calibrate(adapter, held_out).as_dict()
    conn.execute("SELECT drift.store_calibration(%s, %s)", [stored, json.dumps({"cosine": line})])
    drift_pg.create_companion(conn, "docs", "embedding", model="new", text="body")


def store(conn: Connection, new: Float32, rows: Indices) -> None:
    """Keep the new model's vectors (n, m) of these rows."""
    for start in range(0, len(rows), BATCH):
        part = rows[start : start + BATCH].tolist()
        conn.execute(
            "SELECT drift.store_vectors('docs', 'embedding', %s, %s, %s)",
            [json.dumps([[row] for row in part]), [text_of(row) for row in part], as_text(new[part])],
        )
