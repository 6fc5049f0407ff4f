"""The demo: a production table, the upgrade of its embedding model, and what that did to its searches."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import numpy as np
import psycopg
from numpy.typing import NDArray
from rich.console import Console

from drift_pg import Pairs
from drift_pg.artifact import write_atomically
from examples.demo import models, reembedding, server, steps
from examples.demo.cost import Cost, speed
from examples.demo.documents import Document
from examples.demo.figures import Figures, example_tables, measure, quality_table, reading, retention
from examples.demo.reembedding import Stage
from examples.demo.searches import BRIDGE, DEPTH, EF_SEARCH, RERANK_KNOWN, Answers, plan
from examples.demo.upgrade import COMPANION, command, fit_and_store_seconds, upgrade

BUILD = Path("build")
CACHE = BUILD / "cache"
PAIRS = BUILD / "demo-pairs.npz"
RESULT = BUILD / "demo.json"
PLOT = BUILD / "demo-reembedding.svg"
MIN_QUERIES = 300
LOGGED = 800

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
    relevant = steps.held_out(Pairs.load(PAIRS), len(documents), wanted_queries)
    answers, figures = compare(conn, documents, relevant)
    stages = reembed_gradually(conn, documents, relevant, answers, figures)
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
    conclude(figures, stages, cost, time.perf_counter() - started)


def announce(step: int, what: str) -> None:
    """A line before each step."""
    console.print(f"\n[bold cyan]{step}/7[/] {what}")


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


def compare(
    conn: psycopg.Connection, documents: Sequence[Document], relevant: NDArray[np.int64]
) -> tuple[dict[str, Answers], dict[str, Figures]]:
    """Run the searches, and show how well they do and what they find."""
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
    return answers, figures


def reembed_gradually(
    conn: psycopg.Connection,
    documents: Sequence[Document],
    relevant: NDArray[np.int64],
    answers: dict[str, Answers],
    figures: Mapping[str, Figures],
) -> list[Stage]:
    """Fill a companion bit by bit, and show what searches find at each stage."""
    log = steps.logged(Pairs.load(PAIRS), LOGGED)
    announce(6, f"Re-embedding bit by bit, in the order in which {len(log)} other queries, a query log, want the rows.")
    command(console, COMPANION)
    stages = steps.reembed(conn, documents, relevant, log, answers, CACHE)
    console.print(f"Of the full re-embedding, Recall@10/MRR@10 as the rows are re-embedded (drawn in {PLOT}):")
    console.print(reembedding.table(stages))
    recall, ranks = known = retention(figures, RERANK_KNOWN.name)
    reembedding.plot(stages, known, PLOT)
    console.print(
        f"drift_pg.search(…, embed=…) embeds what a search misses before it answers: then {recall:.0%}/{ranks:.0%}, "
        f"however few rows were re-embedded before. (A rerank searches with hnsw.ef_search = {DEPTH}, the bridge with "
        f"{EF_SEARCH}: hence the difference at 0 rows.)"
    )
    return stages


def conclude(figures: Mapping[str, Figures], stages: Sequence[Stage], cost: Cost, seconds: float) -> None:
    """Show what it cost, write the figures to a file, and say what they mean."""
    announce(7, "What it cost, and what it gave.")
    console.print(cost.table(), cost.reading(), "")
    for sentence in reading(figures, cost.pairs, cost.documents):
        console.print(sentence)
    result = {
        **{name: this.as_dict() for name, this in figures.items()},
        "reembedding": [stage.as_dict() for stage in stages],
        "pairs": cost.pairs,
        "documents": cost.documents,
        "queries": len(figures["full"].recall),
        "seconds": {name: round(value, 3) for name, value in {**cost.seconds, "demo": seconds}.items()},
    }
    write_atomically(RESULT, json.dumps(result, indent=2).encode())
    console.print(f"\nThe figures are in {RESULT}. This took {seconds:.0f} s.")


if __name__ == "__main__":
    main()
