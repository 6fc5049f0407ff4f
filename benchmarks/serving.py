"""What a search through an adapter costs, beside the search without it.

python -m benchmarks.serving [--json] [--rows 20000] [--repeats 500] [--dimensions 384 …]
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks import computing, report, searches, vectors
from benchmarks.report import Row
from benchmarks.searches import Connection
from benchmarks.timing import interleaved
from benchmarks.vectors import Corpus
from drift_pg import Adapter

WARM_UP = 100
"""Searches before the first that counts: until then a connection maps the server's memory page by page."""

FIT_DIMENSIONS = 768


def measure(conn: Connection, rows: int, dimensions: int, repeats: int, about: dict[str, Any]) -> list[Row]:
    """All rows of one number of dimensions; `about` learns what the reader should know."""
    corpus = vectors.corpus(rows, dimensions, repeats)
    adapters, skipped = computing.adapters(corpus.pairs)
    about |= {"vectors": corpus.origin} | {f"left out, {family}": why for family, why in skipped.items()}
    searches.load(conn, corpus.documents)
    searches.register(conn, dimensions, adapters)
    found = _searched(conn, corpus, adapters, repeats) + _applied(corpus, adapters, repeats)
    return found + (_fitted(corpus) if dimensions == FIT_DIMENSIONS else [])


def _searched(conn: Connection, corpus: Corpus, adapters: dict[str, Adapter], repeats: int) -> list[Row]:
    timed = searches.searches(conn, corpus, next(iter(adapters.values())))
    raw = {searches.RAW: timed[searches.RAW]}
    found = interleaved(timed, repeats, warm_up=WARM_UP)
    alone = interleaved(raw | searches.evaluations(conn, corpus, list(adapters)), repeats, warm_up=WARM_UP)
    first = searches.first_searches(conn, corpus, repeats=20)
    limited = dict.fromkeys(searches.BRIDGES, "bridge")
    return [
        *report.compare(corpus.dimensions, "top 10", found, searches.RAW, limited),
        *report.compare(corpus.dimensions, "the adapter without a search", alone, searches.RAW),
        *report.compare(corpus.dimensions, "first search of a connection", first, searches.RAW),
    ]


def _applied(corpus: Corpus, adapters: dict[str, Adapter], repeats: int) -> list[Row]:
    timed = computing.time_apply(adapters, corpus.queries, repeats)
    # The other families are products of other shapes: their ratio informs, the limit is not theirs.
    limited = {computing.applied("procrustes"): "apply"}
    return report.compare(corpus.dimensions, "one vector in Python", timed, computing.PRODUCT, limited)


def _fitted(corpus: Corpus) -> list[Row]:
    timed = computing.time_fit(corpus.pairs, repeats=9)
    name = f"a fit of {len(corpus.pairs):,} pairs"
    return report.compare(corpus.dimensions, name, timed, computing.DECOMPOSITION, {computing.FIT: "fit"})


def run(rows: int, dimensions: tuple[int, ...], repeats: int) -> tuple[list[Row], dict[str, Any]]:
    """Measure everything on a server in a temporary directory."""
    console, measured = Console(stderr=True), list[Row]()
    about: dict[str, Any] = {"rows": rows, "repeats": repeats} | report.machine()
    with (
        tempfile.TemporaryDirectory(prefix="drift-pg-bench-") as directory,
        searches.connected(Path(directory) / "data") as conn,
    ):
        about |= searches.install(conn)
        for width in dimensions:
            with console.status(f"{width} dimensions: {rows:,} rows, an HNSW index, {repeats} queries of each kind"):
                measured += measure(conn, rows, width, repeats, about)
    return measured, about


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of the table.")
@click.option("--rows", default=20000, show_default=True, type=click.IntRange(5000), help="Rows in the table.")
@click.option("--repeats", default=500, show_default=True, type=click.IntRange(10), help="Queries of each kind.")
@click.option(
    "--dimensions",
    multiple=True,
    default=[384, 768, 1536],
    show_default=True,
    type=click.IntRange(64, 2000),
    help="Of both models; may be given several times.",
)
def main(as_json: bool, rows: int, repeats: int, dimensions: tuple[int, ...]) -> None:
    """Measure what drift_pg adds to a search, and print medians and ratios.

    For each number of dimensions it fills a table on a PostgreSQL of its own (in a temporary directory, removed
    afterwards), builds an HNSW index, fits and activates an adapter of each family, and times them on one
    connection, one call of each after the other in ever new order, as prepared statements with binary parameters.
    All answer the same queries, but never two the same at once, which would find the first one's pages warm:

    \b
    raw search       the index searched with the adapted vector: what there is to pay anyway
    (SELECT drift.adapt(…)), (SELECT drift.adapt_for(…)), drift.nearest(…)
                     the same search for the same vector, which is adapted in SQL
    drift.adapt      without a search, each family; the ratio is to the raw search still
    first search     of a new connection, which compiles the functions
    Adapter.apply    one vector in Python, beside the bare product W @ q
    fit              of 5,000 pairs, beside the decomposition and the product that it cannot do without

    Read the ratios rather than the milliseconds, which depend on the machine and on what else runs there. "met"
    and "missed" refer to the project's limits. The vectors are real embeddings where DRIFT_PG_QUALITY_DATA (or
    ../shared/data/pydocs.npz) has some, else clustered draws; nothing is claimed about quality.

    \b
    Examples:
      python -m benchmarks.serving                                  all, in a few minutes
      python -m benchmarks.serving --dimensions 384 --repeats 100   a quick look
      python -m benchmarks.serving --json > build/serving.json      for a machine
    """
    try:
        measured, about = run(rows, dimensions, repeats)
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}; pip install 'drift-pg[dev]'") from error
    report.show(measured, about, as_json=as_json)


if __name__ == "__main__":
    main()
