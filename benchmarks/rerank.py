"""What ordering the bridge's first 200 anew costs, beside the raw search for as many.

python -m benchmarks.rerank [--json] [--rows 200000] [--repeats 300] [--known 1.0]
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np
import psycopg
from pgvector import Vector
from pgvector.psycopg import register_vector
from rich.console import Console

import drift_pg
from benchmarks import companions, report, searches, vectors
from benchmarks.report import Row
from benchmarks.searches import Connection
from benchmarks.timing import Action, interleaved
from benchmarks.vectors import Corpus
from drift_pg import Adapter, fit

DIMENSIONS, PAIRS, WARM_UP = 384, 5000, 60
DEPTH = 200

RAW = f"raw top {DEPTH}, whole rows"
_RAW = "SELECT {} FROM docs ORDER BY embedding <=> %b LIMIT {}"
_NEAREST = "SELECT {} FROM drift.nearest(NULL::docs, 'embedding', %b, 'new', 10{})"


def prepare(conn: Connection, corpus: Corpus, known: float, console: Console) -> Adapter:
    """The table with its index, an active adapter, and a companion that knows a share of the rows, with its own."""
    rows = len(corpus.documents)
    with console.status(f"{rows:,} rows and their HNSW index"):
        companions.load(conn, "docs", corpus.documents)
    adapter = fit(corpus.pairs.take(range(PAIRS)), "spectral")
    companions.serve(conn, adapter, corpus.pairs.take(range(PAIRS, 2 * PAIRS)))
    with console.status(f"a companion that knows {known:.0%} of the rows, and its HNSW index"):
        companions.store(conn, corpus.pairs.source, np.arange(round(known * rows)))
        drift_pg.build_index(conn, "docs", "embedding")
    conn.execute("VACUUM ANALYZE")
    return adapter


def actions(conn: Connection, usual: Connection, corpus: Corpus, adapter: Adapter) -> dict[str, Action]:
    """The searches; the raw ones are given the adapted vector, and find as many rows as the bridge's candidates.

    A rerank's bridge always runs with hnsw.ef_search = 200; its search of the companion's index as the session says:
    200 on the connection `conn`, pgvector's own default of 40 on `usual`.
    """
    queries = [(Vector(query),) for query in corpus.queries]
    adapted = [(Vector(query),) for query in adapter.apply(corpus.queries)]
    rerank = _NEAREST.format("*", f", {DEPTH}")
    return {
        RAW: searches.prepared(conn, _RAW.format("*", DEPTH), adapted),
        f"raw top {DEPTH}, keys only": searches.prepared(conn, _RAW.format("id", DEPTH), adapted),
        "raw top 10": searches.prepared(conn, _RAW.format("*", 10), adapted),
        "bridge, drift.nearest top 10": searches.prepared(conn, _NEAREST.format("*", ""), queries),
        f"rerank {DEPTH}": searches.prepared(conn, rerank, queries),
        "raw top 10, session at 40": searches.prepared(usual, _RAW.format("*", 10), adapted),
        f"rerank {DEPTH}, session at 40": searches.prepared(usual, rerank, queries),
    }


def plan(conn: Connection, query: Vector) -> list[str]:
    """How the statement inside drift.nearest runs, by EXPLAIN ANALYZE.

    Raises:
        RuntimeError: it does without one of the two HNSW indexes.
    """
    conn.execute("LOAD 'auto_explain'")
    told = list[str]()

    def hear(notice: psycopg.errors.Diagnostic) -> None:
        told.append(notice.message_primary or "")

    conn.add_notice_handler(hear)
    settings = {"log_min_duration": "0", "log_nested_statements": "on", "log_analyze": "on", "log_timing": "off"}
    with conn.transaction():
        for name, value in settings.items():
            conn.execute(f"SET LOCAL auto_explain.{name} = '{value}'".encode())
        conn.execute("SET LOCAL client_min_messages = log")
        conn.execute(_NEAREST.format("id", f", {DEPTH}").encode(), [query])
    conn.remove_notice_handler(hear)
    (found,) = [text for text in told if "docs_hnsw" in text]
    if "companion_1_vectors" not in found:
        raise RuntimeError(f"the companion's index is not used:\n{found}")
    short = re.sub(r"'\[[^]]*\]'", "'[…]'", found.partition("Query Text")[2])
    lines = short.splitlines()
    return lines[next(i for i, line in enumerate(lines) if "cost=" in line) :]


def run(rows: int, repeats: int, known: float) -> tuple[list[Row], dict[str, Any], list[str]]:
    """Measure on a server in a temporary directory."""
    console = Console(stderr=True)
    about: dict[str, Any] = {"rows": rows, "known": known, "repeats": repeats, "hnsw.ef_search": DEPTH}
    about |= report.machine()
    corpus = vectors.corpus(rows, DIMENSIONS, repeats, pairs=rows)
    with (
        tempfile.TemporaryDirectory(prefix="drift-pg-bench-") as directory,
        searches.connected(Path(directory) / "data") as conn,
    ):
        about |= searches.install(conn) | {"vectors": corpus.origin}
        adapter = prepare(conn, corpus, known, console)
        conn.execute(f"SET hnsw.ef_search = {DEPTH}".encode())
        with (
            psycopg.connect(conn.info.dsn, autocommit=True) as usual,
            console.status(f"{repeats} queries of each kind"),
        ):
            register_vector(usual)
            found = interleaved(actions(conn, usual, corpus, adapter), repeats, warm_up=WARM_UP)
        shown = plan(conn, Vector(corpus.queries[0]))
    limited = dict.fromkeys((f"rerank {DEPTH}", f"rerank {DEPTH}, session at 40"), "rerank")
    return report.compare(DIMENSIONS, "ef_search 200", found, RAW, limited), about, shown


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of the table.")
@click.option("--rows", default=200_000, show_default=True, type=click.IntRange(15_000), help="Rows in the table.")
@click.option("--repeats", default=300, show_default=True, type=click.IntRange(10), help="Queries of each kind.")
@click.option("--known", default=1.0, show_default=True, type=click.FloatRange(0, 1), help="Share with new vectors.")
def main(as_json: bool, rows: int, repeats: int, known: float) -> None:
    """Measure what a rerank of 200 adds to the search for 200 rows, and show how PostgreSQL runs it.

    The searches run with hnsw.ef_search = 200 (two of them in a session with pgvector's default of 40, which a rerank
    raises for its bridge alone), one call of each after the other in ever new order. The raw searches are given the vector that the adapter makes of the same query.
    """
    measured, about, shown = run(rows, repeats, known)
    report.show(measured, about, as_json=as_json)
    if not as_json:
        print("\nHow drift.nearest(…, rerank => 200) runs:", *shown, sep="\n")


if __name__ == "__main__":
    main()
