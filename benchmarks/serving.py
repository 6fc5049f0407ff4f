"""What a search through an adapter costs, beside the search without it.

python -m benchmarks.serving [--json] [--rows 20000] [--repeats 500] [--dimensions 384 …]
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks import computing, report, searches, vectors
from benchmarks.report import Row
from benchmarks.timing import interleaved
from drift_pg import Adapter

WARM_UP = 100
"""Searches before the first that counts: until then a connection maps the server's memory page by page."""

FIT_DIMENSIONS = 768


def measure(conn: searches.Connection, rows: int, dimensions: int, repeats: int, about: dict[str, Any]) -> list[Row]:
    """All rows of one number of dimensions; `about` learns what the reader should know."""
    corpus = vectors.corpus(rows, dimensions, repeats)
    adapters, skipped = computing.adapters(corpus.pairs)
    about |= {"vectors": corpus.origin} | {f"left out, {family}": why for family, why in skipped.items()}
    searches.load(conn, corpus.documents)
    searches.register(conn, dimensions, adapters)
    rows_ = _searched(conn, corpus, adapters, repeats) + _applied(corpus, adapters, repeats)
    return rows_ + (_fitted(corpus) if dimensions == FIT_DIMENSIONS else [])


def _searched(
    conn: searches.Connection, corpus: vectors.Corpus, adapters: dict[str, Adapter], repeats: int
) -> list[Row]:
    dimensions, default = corpus.queries.shape[1], next(iter(adapters.values()))
    timed = searches.searches(conn, corpus, default)
    raw = {searches.RAW: timed[searches.RAW]}
    found = interleaved(timed, repeats, warm_up=WARM_UP)
    alone = interleaved(raw | searches.evaluations(conn, corpus, list(adapters)), repeats, warm_up=WARM_UP)
    first = searches.first_searches(conn, corpus, repeats=20)
    return [
        *report.group(dimensions, "searches", found, searches.RAW, dict.fromkeys(searches.BRIDGES, "bridge")),
        *report.group(dimensions, "no search", alone, searches.RAW, {}),
        *report.group(dimensions, "first of a connection", first, searches.RAW, {}),
    ]


def _applied(corpus: vectors.Corpus, adapters: dict[str, Adapter], repeats: int) -> list[Row]:
    timed = computing.time_apply(adapters, corpus.queries, repeats)
    # The other families are two products of other shapes: their ratio informs, the limit is not theirs.
    limited = {computing.applied("procrustes"): "apply"}
    return report.group(corpus.queries.shape[1], "Python", timed, computing.PRODUCT, limited)


def _fitted(corpus: vectors.Corpus) -> list[Row]:
    timed = computing.time_fit(corpus.pairs, repeats=9)
    return report.group(
        FIT_DIMENSIONS, f"fit, {len(corpus.pairs):,} pairs", timed, computing.DECOMPOSITION, {computing.FIT: "fit"}
    )


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
@click.option(
    "--repeats", default=500, show_default=True, type=click.IntRange(10), help="Queries of each kind, all distinct."
)
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
    connection, query by query in ever new order, as prepared statements with binary parameters:

    \b
    raw search            the index searched with the adapted vector: what there is to pay anyway
    drift.adapt, adapt_for, nearest
                          the same search by the same vector, adapted in SQL
    drift.adapt alone     no search, each family; the ratio is still to the raw search
    first of a connection a new connection compiles the functions once
    Adapter.apply         in Python, against the bare product W @ q
    fit                   5,000 pairs, against the decomposition and the product that it cannot do without

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
    if as_json:
        print(json.dumps({"about": about, "measurements": [row.as_json() for row in measured]}, indent=2))
    else:
        report.print_table(measured, about)


if __name__ == "__main__":
    main()
