"""Tables and adapters that several tests need."""

import numpy as np
import psycopg
from psycopg import sql

import drift_pg
from drift_pg.adapter import Adapter, Layer
from tests.servers import PGVECTOR_SCHEMA


def vector(values: np.ndarray) -> str:
    """A vector as pgvector reads it."""
    return str(np.asarray(values, dtype=float).tolist())


def rotation(rng: np.random.Generator, dimensions: int) -> np.ndarray:
    """A random orthogonal matrix."""
    return np.linalg.qr(rng.standard_normal((dimensions, dimensions)))[0]


def linear(matrix: np.ndarray) -> Adapter:
    """The adapter y = x @ matrix, of unit length."""
    layer = Layer(np.column_stack([matrix.T, np.zeros(matrix.shape[1])]), normalize=True)
    return Adapter((layer,), matrix.shape[0], matrix.shape[1])


def make_docs(
    conn: psycopg.Connection,
    vectors: np.ndarray,
    *,
    schema: str = "public",
    table: str = "docs",
    column: str = "embedding",
    kind: str | None = None,
    opclass: str | None = "vector_cosine_ops",
    expression: str = "{column}",
) -> None:
    """A table (id, body, column) of these vectors, with an HNSW index of `expression`."""
    extension = sql.Identifier(PGVECTOR_SCHEMA)
    relation, name = sql.Identifier(schema, table), sql.Identifier(column)
    conn.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
    conn.execute(
        sql.SQL("CREATE TABLE {} (id bigint PRIMARY KEY, body text, {} {}.{})").format(
            relation, name, extension, sql.SQL(kind or f"vector({vectors.shape[1]})")
        )
    )
    with conn.cursor() as cursor, cursor.copy(sql.SQL("COPY {} FROM STDIN").format(relation)) as copy:
        for i, row in enumerate(vectors):
            copy.write_row((i, f"text {i}", vector(row)))
    if opclass:
        conn.execute(
            sql.SQL("CREATE INDEX ON {} USING hnsw (({}) {}.{})").format(
                relation, sql.SQL(expression).format(column=name, vector=extension), extension, sql.SQL(opclass)
            )
        )
    conn.execute(sql.SQL("ANALYZE {}").format(relation))


class Upgrade:
    """A table whose legacy space is a rotation of the new model's, and the adapter that knows it."""

    def __init__(
        self, conn: psycopg.Connection, rng: np.random.Generator, rows: int = 500, dimensions: int = 24
    ) -> None:
        self.conn = conn
        new = rng.standard_normal((rows, dimensions))
        self.new = new / np.linalg.norm(new, axis=1, keepdims=True)
        self.matrix = rotation(rng, dimensions)
        self.legacy = self.new @ self.matrix
        make_docs(conn, self.legacy)
        drift_pg.register_model(conn, "legacy", dimensions=dimensions)
        drift_pg.register_model(conn, "new", dimensions=dimensions)
        drift_pg.register_column(conn, "public.docs", "embedding", model="legacy")
        self.adapter = drift_pg.store(conn, linear(self.matrix), source="new", target="legacy")

    def activate(self) -> "Upgrade":
        drift_pg.activate(self.conn, self.adapter, force=True)
        return self
