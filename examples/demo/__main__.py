"""The demo: a production table, the upgrade of its embedding model, and what that did to its searches."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import psycopg
from rich.console import Console

from drift_pg import Pairs
from drift_pg.artifact import write_atomically
from examples.demo import models, server, steps
from examples.demo.cost import Cost, speed
from examples.demo.documents import Document
from examples.demo.figures import Figures, example_tables, measure, quality_table, reading
from examples.demo.searches import BRIDGE, plan
from examples.demo.upgrade import fit_and_store_seconds, upgrade

BUILD = Path("build")
CACHE = BUILD / "cache"
PAIRS = BUILD / "demo-pairs.npz"
RESULT = BUILD / "demo.json"
MIN_QUERIES = 300

console = Console(highlight=False)


@click.command()
@click.option("--documents", default=9000, show_default=True, type=click.IntRange(400), help="At most.")
@click.option("--pairs", default=5000, show_default=True, type=click.IntRange(2), help="Texts to fit on.")
@click.option("--queries", default=500, show_default=True, type=click.IntRange(50), help="To measure by.")
def main(documents: int, pairs: int, queries: int) -> None:
    """Upgrade a real embedding model on a real PostgreSQL, and measure what that did to the results."""
    try:
        demo(documents, pairs, queries)
    except KeyboardInterrupt:
        console.print(f"\nInterrupted. What was embedded is kept in {CACHE}: run it again to go on.")
        sys.exit(130)


def demo(limit: int, wanted_pairs: int, wanted_queries: int) -> None:
    """All steps, one after the other."""
    started = time.perf_counter()
    announce(1, "Documents: docstrings of the standard library and of installed packages.")
    documents = steps.collect(limit)
    conn = production_table(documents)
    commands = run_upgrade(len(documents), wanted_pairs)
    index = reembed(conn, documents)
    figures = compare(conn, documents, wanted_queries)
    fit, store = fit_and_store_seconds(conn)
    cost = Cost(
        pairs=len(Pairs.load(PAIRS)),
        documents=len(documents),
        speed=speed(models.new, [document.body for document in documents]),
        fit=fit,
        store=store,
        commands=commands,
        index=index,
    )
    conclude(figures, cost, time.perf_counter() - started)


def announce(step: int, what: str) -> None:
    """A line before each step."""
    console.print(f"\n[bold cyan]{step}/6[/] {what}")


def production_table(documents: Sequence[Document]) -> psycopg.Connection:
    """What was there before the upgrade: rows, their embeddings by the legacy model, and an index."""
    announce(2, f"Before the upgrade: {len(documents):,} rows, embedded by paraphrase-MiniLM-L3-v2, indexed.")
    os.environ["DRIFT_PG_DSN"] = server.start(BUILD / "demo-pg")
    conn = server.connect(os.environ["DRIFT_PG_DSN"])
    vectors = steps.embed("legacy", [document.body for document in documents], CACHE)
    steps.make_table(console, conn, "docs", documents, vectors)
    return conn


def run_upgrade(rows: int, wanted: int) -> float:
    """The upgrade; returns the seconds of all its commands but the fit."""
    announce(3, "The upgrade to all-MiniLM-L6-v2, by the command line.")
    pairs = min(wanted, rows - MIN_QUERIES)
    if pairs < wanted:
        console.print(f"{pairs:,} pairs instead of {wanted:,}, to leave {MIN_QUERIES} rows to query for.")
    console.print(f"$ export DRIFT_PG_DSN='{os.environ['DRIFT_PG_DSN']}'", style="bold", markup=False)
    return upgrade(console, pairs, PAIRS, CACHE)


def reembed(conn: psycopg.Connection, documents: Sequence[Document]) -> float:
    """What the bridge is measured against; returns the seconds of its index."""
    announce(4, "Only to measure: all rows re-embedded by the new model, in a second table.")
    vectors = steps.embed("new", [document.body for document in documents], CACHE)
    return steps.make_table(console, conn, "docs_reembedded", documents, vectors)


def compare(conn: psycopg.Connection, documents: Sequence[Document], wanted: int) -> dict[str, Figures]:
    """Run the four searches, and show how well they do and what they find."""
    relevant = steps.held_out(Pairs.load(PAIRS), len(documents), wanted)
    announce(5, f"{len(relevant)} queries: first lines of docstrings, each to find the rest of its own.")
    answers = steps.search(conn, [documents[key - 1].summary for key in relevant], CACHE)
    figures = measure(answers, relevant)
    console.print("The bridge in SQL, and how PostgreSQL runs it (InitPlan: the query is adapted once):")
    console.print(BRIDGE.statement, *plan(conn, BRIDGE), sep="\n", style="dim", markup=False)
    console.print(quality_table(figures))
    console.print("\nThe first three queries that the full re-embedding answers in its top 3; ✓ is the right one.")
    for query, table in example_tables(documents, relevant, answers):
        console.print(f"\n“{query}”", style="bold", markup=False)
        console.print(table)
    return figures


def conclude(figures: Mapping[str, Figures], cost: Cost, seconds: float) -> None:
    """Show what it cost, write the figures to a file, and say what they mean."""
    announce(6, "What it cost, and what it gave.")
    console.print(cost.table(), cost.reading(), "")
    for sentence in reading(figures, cost.pairs, cost.documents):
        console.print(sentence)
    result = {
        **{name: this.as_dict() for name, this in figures.items()},
        "pairs": cost.pairs,
        "documents": cost.documents,
        "queries": len(figures["full"].recall),
        "seconds": {name: round(value, 3) for name, value in {**cost.seconds, "demo": seconds}.items()},
    }
    write_atomically(RESULT, json.dumps(result, indent=2).encode())
    console.print(f"\nThe figures are in {RESULT}. This took {seconds:.0f} s.")


if __name__ == "__main__":
    main()
