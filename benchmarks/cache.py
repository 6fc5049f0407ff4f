"""What an AdapterCache adds to the product that adapting a query cannot do without.

python -m benchmarks.cache [--json] [--repeats 500] [--dimensions 384 …]
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import click
import numpy as np
from psycopg import Connection
from rich.console import Console

import drift_pg
from benchmarks import report, searches, vectors
from benchmarks.computing import PRODUCT, applied
from benchmarks.report import Row
from benchmarks.timing import Action, interleaved, once
from benchmarks.vectors import Corpus, Float32
from drift_pg import Adapter
from drift_pg.database.cache import AdapterCache, AsyncAdapterCache

PAIRS, DOCUMENTS = 5000, 100
CALLS = 100
"""Calls per measurement: one is too short for the clock."""

HIT, HIT_FOR, TASK = "AdapterCache.adapt", "AdapterCache.adapt_for", "AsyncAdapterCache.adapt"
SQL = "SELECT drift.adapt_for(…)"
ASKED, LOADED = "a hit that has to ask first", "a miss: connect, ask, load"


def measure(conn: Connection[Any], dsn: str, dimensions: int, repeats: int) -> list[Row]:
    """All rows of one number of dimensions."""
    corpus = vectors.corpus(PAIRS, dimensions, repeats, PAIRS)
    adapter = drift_pg.fit(corpus.pairs, "procrustes")
    searches.load(conn, corpus.documents[:DOCUMENTS])
    _register(conn, dimensions, adapter)
    matrix = np.ascontiguousarray(adapter.layers[0].weights[:, :-1])
    with AdapterCache(dsn) as cache:
        hits: dict[str, Action] = {
            PRODUCT: lambda i: matrix @ corpus.queries[i],
            applied("procrustes"): lambda i: adapter.apply(corpus.queries[i]),
            HIT: lambda i: cache.adapt(corpus.queries[i], "new", "legacy"),
            HIT_FOR: lambda i: cache.adapt_for(corpus.queries[i], "new", "docs", "embedding"),
        }
        found = interleaved(hits, repeats, calls=CALLS)
    limited = {HIT: "apply", HIT_FOR: "apply"}
    return [
        *report.compare(dimensions, "one query in Python", found, PRODUCT, limited),
        *asyncio.run(_in_tasks(dsn, corpus, matrix, repeats)),
        *_asked(conn, dsn, corpus, repeats),
    ]


def _register(conn: Connection[Any], dimensions: int, adapter: Adapter) -> None:
    """Schema drift anew, with one adapter; only its cost matters, so the quality gate is passed by."""
    drift_pg.downgrade(conn, destroy_adapters=True)
    drift_pg.upgrade(conn)
    for model in ("new", "legacy"):
        drift_pg.register_model(conn, model, dimensions=dimensions)
    drift_pg.register_column(conn, "docs", "embedding", model="legacy")
    drift_pg.activate(conn, drift_pg.store(conn, adapter, source="new", target="legacy"), force=True)


async def _in_tasks(dsn: str, corpus: Corpus, matrix: Float32, repeats: int) -> list[Row]:
    """Hits awaited, within one turn of the event loop."""
    async with AsyncAdapterCache(dsn) as cache:
        await cache.adapt(corpus.queries[0], "new", "legacy")

        async def products(i: int) -> None:
            for _ in range(CALLS):
                matrix @ corpus.queries[i]

        async def hits(i: int) -> None:
            for _ in range(CALLS):
                await cache.adapt(corpus.queries[i], "new", "legacy")

        found = interleaved({PRODUCT: _at_once(products), TASK: _at_once(hits)}, repeats)
    name = f"{CALLS} queries, each awaited"
    return report.compare(corpus.dimensions, name, found, PRODUCT, {TASK: "apply"})


def _at_once(work: Callable[[int], Coroutine[Any, Any, None]]) -> Action:
    def run(i: int) -> None:
        try:
            work(i).send(None)
        except StopIteration:
            return
        raise RuntimeError("a hit gave way to the event loop")

    return run


def _asked(conn: Connection[Any], dsn: str, corpus: Corpus, repeats: int) -> list[Row]:
    """What is paid now and then, beside adapting in the database each time."""
    with AdapterCache(dsn, listen=False) as cache:

        def ask(i: int) -> None:
            cache.doubt()
            cache.adapt_for(corpus.queries[i], "new", "docs", "embedding")

        def load(i: int) -> None:
            with AdapterCache(dsn) as fresh:
                fresh.adapt_for(corpus.queries[i], "new", "docs", "embedding")

        query = "SELECT drift.adapt_for(%b, 'new', 'docs', 'embedding')"
        timed: dict[str, Action] = {
            SQL: lambda i: conn.execute(query, [searches.Vector(corpus.queries[i])]).fetchall(),
            ASKED: ask,
            LOADED: load,
        }
        once(ask)
        found = interleaved(timed, max(repeats // 10, 10))
    return report.compare(corpus.dimensions, "what a question costs", found, SQL)


def run(dimensions: tuple[int, ...], repeats: int) -> tuple[list[Row], dict[str, Any]]:
    """Measure everything on a server in a temporary directory."""
    console, measured = Console(stderr=True), list[Row]()
    about: dict[str, Any] = {"repeats": repeats} | report.machine()
    with (
        tempfile.TemporaryDirectory(prefix="drift-pg-bench-") as directory,
        searches.connected(Path(directory) / "data") as conn,
    ):
        about |= searches.install(conn)
        for width in dimensions:
            with console.status(f"{width} dimensions"):
                measured += measure(conn, conn.info.dsn, width, repeats)
    return measured, about


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of the table.")
@click.option("--repeats", default=500, show_default=True, type=click.IntRange(10), help="Measurements of each.")
@click.option(
    "--dimensions",
    multiple=True,
    default=[384, 768, 1536],
    show_default=True,
    type=click.IntRange(64, 2000),
    help="Of both models; may be given several times.",
)
def main(as_json: bool, repeats: int, dimensions: tuple[int, ...]) -> None:
    """Measure what adapting a query in the client costs, beside the bare product W @ q.

    On a PostgreSQL of its own, with one adapter of family procrustes, everything in a group is timed side by side,
    one after the other in ever new order. Set OMP_NUM_THREADS=1: a product of this size gains nothing from more.
    "met" and "missed" refer to the project's limit: a hit costs at most 1.5 times the product.

    \b
    Examples:
      OMP_NUM_THREADS=1 python -m benchmarks.cache
      OMP_NUM_THREADS=1 python -m benchmarks.cache --json > build/cache.json
    """
    try:
        measured, about = run(dimensions, repeats)
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}; pip install 'drift-pg[dev]'") from error
    report.show(measured, about, as_json=as_json)


if __name__ == "__main__":
    main()
