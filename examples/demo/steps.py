"""The steps around the upgrade: the table before it, and what is needed to measure it afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psycopg
from numpy.typing import NDArray
from rich.console import Console

from drift_pg import Pairs
from drift_pg.cli.output import progress
from drift_pg.embedding import EmbeddingCache, embed_all
from examples.demo import documents, models, reembedding, server
from examples.demo.documents import Document
from examples.demo.models import Vectors
from examples.demo.reembedding import Stage
from examples.demo.searches import SEARCHES, Answers, plan, run

SEED = 0
BATCH = 256
EMBEDDERS = {"legacy": models.legacy, "new": models.new}
# By the names that `drift-pg fit` caches under, so that the pairs it embedded are not embedded again here.
NAMES = {
    "legacy": ("minilm-l3", "examples.demo.models:legacy"),
    "new": ("minilm-l6", "examples.demo.models:new"),
}


def collect(limit: int) -> list[Document]:
    """Read the documents."""
    with progress("Reading sources") as report:
        return documents.collect(limit, report)


def embed(model: str, texts: Sequence[str], cache: Path) -> Vectors:
    """Embed by the model "legacy" or "new", or take from the cache what an earlier run embedded."""
    with (
        EmbeddingCache.of(cache, *NAMES[model]) as kept,
        progress(f"Embedding, {model} model") as report,
    ):
        return embed_all(EMBEDDERS[model], texts, kept, dimensions=models.DIMENSIONS, batch=BATCH, progress=report)


def make_table(
    console: Console, conn: psycopg.Connection, name: str, found: Sequence[Document], vectors: Vectors
) -> float:
    """Create, fill and index a table; returns the seconds of indexing."""
    with console.status(f"Loading and indexing {len(found):,} rows"):
        server.load(conn, name, found, vectors)
        return server.index(conn, name)


def held_out(pairs: Pairs, rows: int, queries: int) -> NDArray[np.int64]:
    """Ids (q,) of rows that the adapter was not fitted on, drawn at random: their summaries are the queries."""
    unseen = np.setdiff1d(np.arange(1, rows + 1), _keys(pairs))
    return np.random.default_rng(SEED).choice(unseen, min(queries, len(unseen)), replace=False)


def logged(pairs: Pairs, queries: int) -> NDArray[np.int64]:
    """Ids (q,) of rows that it was fitted on, whose summaries play the part of a query log: no test query is among them."""
    keys = _keys(pairs)
    return np.random.default_rng(SEED).choice(keys, min(queries, len(keys)), replace=False)


def _keys(pairs: Pairs) -> NDArray[np.int64]:
    return np.zeros(0, np.int64) if pairs.keys is None else pairs.keys.astype(np.int64)


def search(conn: psycopg.Connection, queries: Sequence[str], cache: Path) -> dict[str, Answers]:
    """Run the searches for all queries."""
    vectors = {model: embed(model, queries, cache) for model in EMBEDDERS}
    answers = {}
    with progress("Searching") as report:
        for done, kind in enumerate(SEARCHES, 1):
            plan(conn, kind)
            answers[kind.name] = run(conn, kind, vectors[kind.model])
            report(done * len(queries), len(SEARCHES) * len(queries))
    return answers


def reembed(
    conn: psycopg.Connection,
    found: Sequence[Document],
    relevant: NDArray[np.int64],
    log: NDArray[np.int64],
    answers: dict[str, Answers],
    cache: Path,
) -> list[Stage]:
    """Embed ever more rows anew, those first that the logged queries (their rows' ids) want, and search at each stage."""
    embedded = embed("new", [document.body for document in found], cache)
    queries, logged_queries = (
        embed("new", [found[key - 1].summary for key in keys], cache) for keys in (relevant, log)
    )
    ordered = reembedding.order(conn, logged_queries, len(found))
    return list(reembedding.stages(conn, found, embedded, ordered, queries, relevant, answers))
