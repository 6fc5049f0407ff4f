"""evaluate: what an adapter is worth on held-out pairs, with the user's own queries if there are any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from drift_pg.adapter import Adapter, Float32
from drift_pg.cli.adapters import minimum_option
from drift_pg.cli.cache import EMBEDDER, cache_option, embedded
from drift_pg.cli.connect import connected, dsn_option
from drift_pg.cli.figures import show_evaluation
from drift_pg.cli.output import json_option, note, progress, say, show_json
from drift_pg.cli.query_log import logged_option, logged_queries
from drift_pg.database.adapters import load_by_id
from drift_pg.database.connection import Connection, one
from drift_pg.database.evaluations import search_keys, store_evaluation
from drift_pg.database.registry import EmbeddingColumn
from drift_pg.database.sampling import table_size
from drift_pg.errors import InvalidInput, WrongDimensions
from drift_pg.evaluation import Evaluation
from drift_pg.evaluation import evaluate as measured
from drift_pg.evaluation.query_file import QueryFile
from drift_pg.evaluation.through_index import Search, through_index, touched_through_index
from drift_pg.gate import DEFAULT_MINIMUM
from drift_pg.pairs import Pairs


@dataclass(frozen=True)
class Request:
    """What was asked for."""

    adapter: int | None
    adapter_file: Path | None
    test_pairs: Path
    corpus: Path | None
    queries: Path | None
    logged_queries: int | None
    embed: str | None
    legacy_embed: str | None
    column: str | None
    minimum: float
    seed: int
    batch: int
    cache: Path
    dsn: str


@dataclass(frozen=True)
class Subject:
    """The adapter, and the names of its models, which a file does not hold."""

    adapter: Adapter
    source: str | None
    target: str | None


@dataclass(frozen=True, eq=False)
class Asked:
    """Query vectors by both models and labels, as far as they are known: arguments of `evaluate`."""

    queries: Any = None
    labels: Any = None
    legacy_queries: Any = None


@click.command()
@click.argument("adapter", type=click.IntRange(1), required=False)
@click.option("--adapter-file", type=click.Path(path_type=Path), help="An adapter in a file, instead of a stored one.")
@click.option(
    "--test-pairs",
    required=True,
    type=click.Path(path_type=Path),
    help="Pairs (.npz or .parquet) that fitting has never seen.",
)
@click.option("--corpus", type=click.Path(path_type=Path), help="More pairs to search among; may have been fitted on.")
@click.option(
    "--queries",
    type=click.Path(path_type=Path),
    help='JSON lines: {"query": text} or {"vector": […]}, with "relevant": {key: grade} or [key, …] where it is known.',
)
@logged_option
@click.option("--embed", metavar="EMBEDDER", help=f"The new model, for queries that are texts: {EMBEDDER}.")
@click.option("--legacy-embed", metavar="EMBEDDER", help="The old model: tells what staying with it is worth.")
@click.option("--column", help="Search again through this registered column's real index, over the whole table.")
@minimum_option
@click.option("--seed", default=0, show_default=True, help="Of the intervals.")
@click.option("--batch", default=64, show_default=True, type=click.IntRange(1), help="Texts per call of an embedder.")
@cache_option
@json_option
@dsn_option
def evaluate(as_json: bool, **request: Any) -> None:
    """Measure what searches find with ADAPTER (its id), and advise what to do.

    Needs pairs that the adapter was not fitted on; real queries say more, and labelled ones most. The result is
    stored with the adapter, and `drift-pg activate` judges by the latest one. Figures are of exact search among
    the pairs given; among more rows every search finds less.

    \b
    Example:
      drift-pg evaluate 1 --test-pairs test.npz --queries queries.jsonl \\
                        --embed my_models:embed_new --legacy-embed my_models:embed_old \\
                        --column public.docs.embedding
    """
    wanted = Request(**request)
    if (wanted.adapter is None) == (wanted.adapter_file is None):
        raise click.UsageError("name either an ADAPTER by its id or --adapter-file")
    test = Pairs.load(wanted.test_pairs)
    corpus = Pairs.load(wanted.corpus) if wanted.corpus else None
    subject = subject_of(wanted)
    asked = asked_of(wanted, subject)
    note(f"Searching with {len(test):,} test pairs …")
    found = measured(
        subject.adapter, test, corpus=corpus, minimum=wanted.minimum, seed=wanted.seed, **vars(asked)
    )  # fmt: skip
    if wanted.column:
        found = searched_through_index(found, wanted, subject, test, asked)
    stored = None
    if wanted.adapter is not None:
        with connected(wanted.dsn) as conn:
            stored = store_evaluation(conn, wanted.adapter, found.as_dict())
    if as_json:
        show_json({"adapter": wanted.adapter, "evaluation": stored, **found.as_dict()})
        return
    show_evaluation(found)
    if stored is not None:
        say(f"Kept as evaluation {stored}. {_next(wanted, found)}")


def _next(wanted: Request, found: Evaluation) -> str:
    """The command that this evaluation allows."""
    command = f"drift-pg activate {wanted.adapter}"
    if not found.passes:
        return f"The gate will refuse it; to serve it all the same: {command} --force"
    return f"Serve it: {command}" + (f" --minimum {wanted.minimum:g}" if wanted.minimum < DEFAULT_MINIMUM else "")


def subject_of(wanted: Request) -> Subject:
    """The adapter, from its file or from the database."""
    if wanted.adapter_file is not None:
        return Subject(Adapter.load(wanted.adapter_file), None, None)
    with connected(wanted.dsn) as conn:
        loaded = load_by_id(conn, wanted.adapter or 0)
        models = one(conn, "SELECT source, target FROM drift.adapter WHERE id = %s", [wanted.adapter])
    return Subject(loaded, models.source, models.target)


def asked_of(wanted: Request, subject: Subject) -> Asked:
    """The queries of the file, embedded where they are texts, or the logged ones."""
    if wanted.logged_queries:
        return Asked(_logged(wanted, subject, wanted.logged_queries))
    if wanted.queries is None:
        if wanted.embed or wanted.legacy_embed:
            raise click.UsageError("--embed and --legacy-embed embed queries: give --queries")
        return Asked()
    file = QueryFile.load(wanted.queries)
    if file.texts is None:
        if wanted.embed or wanted.legacy_embed:
            raise click.UsageError(f"{wanted.queries} holds vectors, which need no --embed and no --legacy-embed")
        return Asked(file.vectors, file.labelled, file.legacy_vectors)
    if wanted.embed is None:
        raise click.UsageError(f"{wanted.queries} holds texts: give --embed")
    new = _embedded(wanted, file.texts, wanted.embed, subject.source, subject.adapter.source_dimensions)
    legacy = file.legacy_vectors
    if wanted.legacy_embed:
        dimensions = subject.adapter.target_dimensions
        return Asked(new, file.labelled, _embedded(wanted, file.texts, wanted.legacy_embed, subject.target, dimensions))
    return Asked(new, file.labelled, legacy)


def _logged(wanted: Request, subject: Subject, limit: int) -> Float32:
    if wanted.queries or wanted.embed or wanted.legacy_embed:
        raise click.UsageError(
            "--logged-queries are vectors, and take the place of --queries, --embed and --legacy-embed"
        )
    if subject.source is None or wanted.column is None:
        raise click.UsageError("--logged-queries needs an ADAPTER by its id, and --column, whose queries they are")
    with connected(wanted.dsn) as conn:
        column = EmbeddingColumn.find(conn, wanted.column)
        return logged_queries(conn, column.name, subject.source, limit, "evaluate")


def _embedded(wanted: Request, texts: Sequence[str], reference: str, model: str | None, dimensions: int) -> Float32:
    named = model or reference
    return embedded(texts, reference, model=named, cache=wanted.cache, dimensions=dimensions, batch=wanted.batch)


def searched_through_index(
    found: Evaluation, wanted: Request, subject: Subject, test: Pairs, asked: Asked
) -> Evaluation:
    """The evaluation with figures of searches through the registered column's real index, over the whole table."""
    with connected(wanted.dsn) as conn:
        column = EmbeddingColumn.find(conn, wanted.column or "")
        if subject.target not in (None, column.model):
            raise InvalidInput(
                f"column {column.name} holds vectors of {column.model!r}, adapter {wanted.adapter} maps to {subject.target!r}"
            )
        if column.dimensions != subject.adapter.target_dimensions:
            raise WrongDimensions(
                f"column {column.name} has {column.dimensions} dimensions, the adapter maps to {subject.adapter.target_dimensions}"
            )
        search = _search(conn, column)
        figures = through_index(search, subject.adapter, test, seed=wanted.seed, **vars(asked))
        touched = None
        if asked.queries is not None:
            rows = table_size(conn, column.name).rows
            touched = touched_through_index(search, subject.adapter, asked.queries, rows)
    return replace(found, through_index=figures, touched_through_index=touched)


def _search(conn: Connection, column: EmbeddingColumn) -> Search:
    def search(what: str, vectors: Float32, k: int) -> list[list[str]]:
        with progress(f"Searching {column.name.table}: {what}") as report:
            return search_keys(conn, column, vectors, k, report)

    return search


COMMANDS = [evaluate]
