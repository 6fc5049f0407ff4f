"""What the query log costs: drift.log_query beside a search, and an application's searches with the hook and without.

python -m benchmarks.query_log [--json] [--rows 20000] [--repeats 100]
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import click
from rich.console import Console
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

import drift_pg
from benchmarks import orm, report, searches, vectors
from benchmarks.report import Row
from benchmarks.searches import NEAREST, Connection
from benchmarks.timing import Timing, interleaved
from benchmarks.vectors import Corpus
from drift_pg import QueryLog
from drift_pg.sqlalchemy import log_queries

DIMENSIONS, BLOCK = 384, 25
SEARCH, LOG, TRIM = "drift.nearest(…)", "drift.log_query(…)", "drift.trim_query_log() of a full log, nothing to trim"
WITHOUT = "without"
SHARES = {"1 % logged": 0.01, "10 % logged": 0.1, "every query logged": 1.0}


def in_the_database(conn: Connection, corpus: Corpus, repeats: int) -> list[Row]:
    """One call of each, from one connection whose commits are not waited for, as the hook's; the log as full as it gets."""
    conn.execute("SET synchronous_commit = off")
    conn.execute(
        "INSERT INTO drift.query_log (model, relation, column_name, query) SELECT 'new', 'docs'::regclass, 'embedding', d.embedding "
        "FROM docs d LIMIT 10000"
    )
    conn.execute("VACUUM ANALYZE drift.query_log")
    queries = [(vector,) for vector in map(searches.Vector, corpus.queries)]
    statements = {
        SEARCH: NEAREST["drift.nearest(…)"],
        LOG: "SELECT drift.log_query(%b, 'new', 'docs', 'embedding')",
        TRIM: "SELECT drift.trim_query_log(20000) WHERE %b IS NOT NULL",
    }
    actions = {what: searches._action(conn, statement, queries) for what, statement in statements.items()}
    timed = interleaved(actions, repeats)
    conn.execute("RESET synchronous_commit")
    return report.compare(DIMENSIONS, "in the database, one call", timed, SEARCH)


def in_blocks(
    searching: dict[str, Callable[[int], object]], drained: Callable[[str], None], repeats: int
) -> dict[str, Timing]:
    """Time blocks of searches in ever new order; what the hook's thread does during a block is in it, the rest is awaited."""
    names, seconds = list(searching), {name: list[float]() for name in searching}
    for repeat in range(-2, repeats):
        random.Random(repeat).shuffle(names)
        for name in names:
            began = perf_counter()
            for i in range(BLOCK):
                searching[name](i)
            if repeat >= 0:
                seconds[name].append((perf_counter() - began) / BLOCK)
            drained(name)
    return {name: Timing.of(values) for name, values in seconds.items()}


@contextmanager
def logs(dsn: str) -> Iterator[dict[str, QueryLog]]:
    """A log for each share, whose connections are open."""
    made = {name: QueryLog(dsn, sample=share) for name, share in SHARES.items()}
    try:
        yield made
    finally:
        for each in made.values():
            each.close()


def drained(made: dict[str, QueryLog], name: str) -> None:
    """Wait until all that was sampled is written; nothing may be lost, or less was timed than is said."""
    log = made.get(name)
    while log is not None and log._writer._waiting.qsize():
        time.sleep(0.005)
    if log is not None and log.dropped:
        raise RuntimeError(f"{log.dropped} queries were dropped with {name}")


def through_psycopg(conn: Connection, corpus: Corpus, repeats: int) -> list[Row]:
    """Searches of an application that calls QueryLog.log after each."""
    queries = [(vector,) for vector in map(searches.Vector, corpus.queries)]
    statement, cursor = NEAREST["drift.nearest(…)"].encode(), conn.cursor(binary=True)

    def search(i: int) -> object:
        return cursor.execute(statement, queries[i], prepare=True).fetchall()

    def logging(log: QueryLog) -> Callable[[int], object]:
        def work(i: int) -> object:
            found = search(i)
            log.log(corpus.queries[i], model="new", relation="docs", column="embedding")
            return found

        return work

    with logs(conn.info.dsn) as made:
        actions = {WITHOUT: search} | {name: logging(log) for name, log in made.items()}
        timed = in_blocks(actions, lambda name: drained(made, name), repeats)
    return report.compare(DIMENSIONS, "a search with psycopg", timed, WITHOUT)


def through_sqlalchemy(conn: Connection, corpus: Corpus, repeats: int) -> list[Row]:
    """Searches through the ORM, by engines with and without the hook."""
    url = "postgresql+psycopg://" + orm._rest(conn)
    engines = {name: create_engine(url) for name in (WITHOUT, *SHARES)}
    cls = orm.CLASSES[orm.DATABASE]

    def searching(engine: Engine) -> Callable[[int], object]:
        def work(i: int) -> object:
            with Session(engine) as session:
                return session.scalars(orm.keys(cls, corpus.queries[i])).all()

        return work

    with logs(conn.info.dsn) as made:
        for name, log in made.items():
            log_queries(engines[name], query_log=log)
        actions = {name: searching(engine) for name, engine in engines.items()}
        timed = in_blocks(actions, lambda name: drained(made, name), repeats)
    for engine in engines.values():
        engine.dispose()
    return report.compare(DIMENSIONS, "a search with SQLAlchemy, a session each", timed, WITHOUT)


def calling(dsn: str, corpus: Corpus) -> list[Row]:
    """What the call itself takes of the application's time, without a search."""
    with QueryLog(dsn, sample=0) as none, QueryLog(dsn, sample=1, capacity=100_000) as every:
        names = {"model": "new", "relation": "docs", "column": "embedding"}
        seconds = {"not of the sample": list[float](), "of the sample": list[float]()}
        for vector in corpus.queries:
            for what, log in (("not of the sample", none), ("of the sample", every)):
                began = perf_counter()
                log.log(vector, **names)
                seconds[what].append(perf_counter() - began)
        every.close(30)
    timed = {name: Timing.of(values) for name, values in seconds.items()}
    return report.compare(DIMENSIONS, "QueryLog.log, one call", timed, "not of the sample")


def run(rows: int, repeats: int) -> tuple[list[Row], dict[str, Any]]:
    """Measure everything on a server in a temporary directory."""
    about: dict[str, Any] = {"rows": rows, "repeats": repeats, "block": BLOCK} | report.machine()
    with (
        tempfile.TemporaryDirectory(prefix="drift-pg-bench-") as directory,
        searches.connected(Path(directory) / "data") as conn,
        Console(stderr=True).status(f"{rows:,} rows, an HNSW index, {repeats} blocks of {BLOCK} searches"),
    ):
        about |= searches.install(conn)
        corpus = vectors.corpus(rows, DIMENSIONS, 1000)
        about |= {"vectors": corpus.origin}
        adapter = drift_pg.fit(corpus.pairs, family="procrustes")
        searches.load(conn, corpus.documents)
        orm._register(conn, adapter)
        found = in_the_database(conn, corpus, 500)
        conn.execute("TRUNCATE drift.query_log")
        found += calling(conn.info.dsn, corpus)
        found += through_psycopg(conn, corpus, repeats) + through_sqlalchemy(conn, corpus, repeats)
        return found, about


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of the table.")
@click.option("--rows", default=20000, show_default=True, type=click.IntRange(5000), help="Rows in the table.")
@click.option("--repeats", default=100, show_default=True, type=click.IntRange(10), help="Blocks of each kind.")
def main(as_json: bool, rows: int, repeats: int) -> None:
    """Measure what logging queries adds to searches, at 384 dimensions; blocks of 25 searches side by side."""
    measured, about = run(rows, repeats)
    report.show(measured, about, as_json=as_json)


if __name__ == "__main__":
    main()
