"""What SQLAlchemy's types cost: compiling an adapted distance, and an ORM search through an adapter.

python -m benchmarks.orm [--json] [--rows 20000] [--repeats 500]
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from pgvector.sqlalchemy import VECTOR
from rich.console import Console
from sqlalchemy import Dialect, Engine, Select, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import drift_pg
from benchmarks import report, searches, vectors
from benchmarks.report import Row
from benchmarks.searches import Connection
from benchmarks.serving import WARM_UP
from benchmarks.timing import Action, Timing, interleaved
from benchmarks.vectors import Corpus, Float32
from drift_pg import Adapter
from drift_pg.sqlalchemy import EmbeddingVector, adapt_in_client

DIMENSIONS = 384

PGVECTOR, DATABASE, CLIENT = "pgvector's VECTOR", "EmbeddingVector", 'EmbeddingVector(adapt="client")'
RAW = "EmbeddingVector without a query_model"
"""It writes queries in fewer digits than pgvector's own: what the adapter alone costs shows beside this."""

TYPES = {
    PGVECTOR: VECTOR(DIMENSIONS),
    RAW: EmbeddingVector(DIMENSIONS, model="legacy"),
    DATABASE: EmbeddingVector(DIMENSIONS, model="legacy", query_model="new"),
    CLIENT: EmbeddingVector(DIMENSIONS, model="legacy", query_model="new", adapt="client"),
}


def mapped(kind: Any) -> Any:
    """A class of the table, its column of that type."""

    class Base(DeclarativeBase):
        pass

    class Doc(Base):
        __tablename__ = "docs"

        id: Mapped[int] = mapped_column(primary_key=True)
        embedding: Mapped[Any] = mapped_column(kind)

    return Doc


CLASSES = {name: mapped(kind) for name, kind in TYPES.items()}


def entities(cls: Any, query: Any) -> Select[Any]:
    """The ten nearest, their vectors among what is loaded."""
    return select(cls).order_by(cls.embedding.cosine_distance(query)).limit(10)


def keys(cls: Any, query: Any) -> Select[Any]:
    """The ids of the ten nearest."""
    return select(cls.id).order_by(cls.embedding.cosine_distance(query)).limit(10)


Statement = Callable[[Any, Any], Select[Any]]


def compiling(dialect: Dialect, queries: Float32, repeats: int) -> list[Row]:
    """Python's share of a statement, without a database: for the first time, and when it is known."""
    found = []
    for name, action in {"compiled for the first time": _cold, "compiled before": _warm}.items():
        actions = {type_: action(dialect, CLASSES[type_], queries) for type_ in (PGVECTOR, DATABASE)}
        timed = interleaved(actions, repeats, calls=5, warm_up=WARM_UP)
        found += report.compare(DIMENSIONS, f"a statement, {name}", timed, PGVECTOR, {DATABASE: "compile"})
    return found


def _cold(dialect: Dialect, cls: Any, queries: Float32) -> Action:
    return lambda number: entities(cls, queries[number]).compile(dialect=dialect)


def _warm(dialect: Dialect, cls: Any, queries: Float32) -> Action:
    cache: dict[Any, Any] = {}

    def action(number: int) -> Any:
        # What Connection.execute calls: the key, the look-up, and the parameters with this statement's values.
        compiled, extracted, *_ = entities(cls, queries[number])._compile_w_cache(
            dialect, compiled_cache=cache, column_keys=[], for_executemany=False
        )
        return compiled.construct_params(extracted_parameters=extracted)

    return action


def searching(engines: dict[str, Engine], corpus: Corpus, adapter: Adapter, repeats: int) -> list[Row]:
    """Searches through the ORM, in a session each, and within one."""
    before = adapter.apply(corpus.queries)
    queries = {PGVECTOR: before, RAW: before, DATABASE: corpus.queries, CLIENT: corpus.queries}
    limited = dict.fromkeys((DATABASE, CLIENT), "orm")
    found = []
    for statement, what in ((entities, "entities"), (keys, "ids")):
        actions = {name: _search(engine, statement, CLASSES[name], queries[name]) for name, engine in engines.items()}
        _check(actions)
        timed = interleaved(actions, repeats, warm_up=WARM_UP)
        kinds = limited if statement is entities else {}
        found += report.compare(DIMENSIONS, f"top 10, {what}, a session each", timed, PGVECTOR, kinds)
    return found + _within_a_session(engines, queries, repeats)


def _search(engine: Engine, statement: Statement, cls: Any, queries: Float32) -> Action:
    def action(number: int) -> list[int]:
        with Session(engine) as session:
            return [getattr(found, "id", found) for found in session.scalars(statement(cls, queries[number]))]

    return action


def _within_a_session(engines: dict[str, Engine], queries: dict[str, Float32], repeats: int) -> list[Row]:
    sessions = {name: Session(engine) for name, engine in engines.items()}
    actions: dict[str, Action] = {
        name: lambda n, s=session, c=CLASSES[name], q=queries[name]: s.scalars(keys(c, q[n])).all()
        for name, session in sessions.items()
    }
    timed: dict[str, Timing] = interleaved(actions, repeats, warm_up=WARM_UP)
    for session in sessions.values():
        session.close()
    return report.compare(DIMENSIONS, "top 10, ids, within one session", timed, PGVECTOR)


def _check(actions: dict[str, Action]) -> None:
    """All must find the same, or different searches are compared."""
    for query in range(10):
        found = {name: action(query) for name, action in actions.items()}
        if len({str(ids) for ids in found.values()}) > 1:
            raise RuntimeError(f"the searches differ on query {query}: {found}")


def measure(conn: Connection, rows: int, repeats: int, about: dict[str, Any]) -> list[Row]:
    """All rows; `about` learns what the reader should know."""
    corpus = vectors.corpus(rows, DIMENSIONS, repeats)
    about |= {"vectors": corpus.origin}
    adapter = drift_pg.fit(corpus.pairs, family="procrustes")
    searches.load(conn, corpus.documents)
    _register(conn, adapter)
    engines = {name: create_engine("postgresql+psycopg://" + _rest(conn)) for name in TYPES}
    cache = adapt_in_client(engines[CLIENT])
    try:
        dialect = engines[PGVECTOR].dialect
        found = searching(engines, corpus, adapter, repeats)
        return compiling(dialect, corpus.queries, repeats) + found
    finally:
        cache.close()
        for engine in engines.values():
            engine.dispose()


def _register(conn: Connection, adapter: Adapter) -> None:
    for model in ("legacy", "new"):
        drift_pg.register_model(conn, model, dimensions=DIMENSIONS)
    drift_pg.register_column(conn, "docs", "embedding", model="legacy")
    drift_pg.activate(conn, drift_pg.store(conn, adapter, source="new", target="legacy"), force=True)
    conn.execute("VACUUM ANALYZE")  # autovacuum is off


def _rest(conn: Connection) -> str:
    return f"{conn.info.user}@/{conn.info.dbname}?host={conn.info.host}&port={conn.info.port}"


def run(rows: int, repeats: int) -> tuple[list[Row], dict[str, Any]]:
    """Measure everything on a server in a temporary directory."""
    about: dict[str, Any] = {"rows": rows, "repeats": repeats} | report.machine()
    with (
        tempfile.TemporaryDirectory(prefix="drift-pg-bench-") as directory,
        searches.connected(Path(directory) / "data") as conn,
        Console(stderr=True).status(f"{rows:,} rows, an HNSW index, {repeats} queries of each kind"),
    ):
        about |= searches.install(conn)
        return measure(conn, rows, repeats, about), about


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of the table.")
@click.option("--rows", default=20000, show_default=True, type=click.IntRange(5000), help="Rows in the table.")
@click.option("--repeats", default=500, show_default=True, type=click.IntRange(10), help="Queries of each kind.")
def main(as_json: bool, rows: int, repeats: int) -> None:
    """Measure what drift_pg.sqlalchemy adds to a statement and to an ORM search, at 384 dimensions.

    As benchmarks.serving: a PostgreSQL of its own, real embeddings where there are some, one call of each after the
    other in ever new order. pgvector's VECTOR searches with the adapted vector, which EmbeddingVector adapts in the
    database and EmbeddingVector(adapt="client") in this process. "met" and "missed" refer to the project's limits.
    """
    measured, about = run(rows, repeats)
    report.show(measured, about, as_json=as_json)


if __name__ == "__main__":
    main()
