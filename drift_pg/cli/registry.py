"""register-model, register-column, and the ways back."""

from __future__ import annotations

import click

from drift_pg.cli.connect import connected, dsn_option
from drift_pg.cli.output import say
from drift_pg.database import registry
from drift_pg.database.connection import one
from drift_pg.database.registry import ColumnName
from drift_pg.neighbours import METRICS


@click.command("register-model")
@click.argument("name")
@click.option("--dimensions", type=click.IntRange(1, 4000), required=True, help="How many numbers its vectors have.")
@click.option(
    "--normalized/--not-normalized",
    default=True,
    show_default=True,
    help="Whether its vectors have unit length.",
)
@dsn_option
def register_model(name: str, dimensions: int, normalized: bool, dsn: str) -> None:
    """Register an embedding model under a NAME that says its version, such as minilm-l6-v2.

    Registering it again alike does nothing; with other dimensions it is refused.
    """
    with connected(dsn) as conn:
        registry.register_model(conn, name, dimensions=dimensions, normalized=normalized)
    say(f"Model {name} is registered: {dimensions} dimensions, {'unit length' if normalized else 'any length'}.")


@click.command("unregister-model")
@click.argument("name")
@dsn_option
def unregister_model(name: str, dsn: str) -> None:
    """Forget a model that no column and no adapter uses, with its logged queries."""
    with connected(dsn) as conn:
        registry.unregister_model(conn, name)
    say(f"Model {name} is forgotten.")


@click.command("register-column")
@click.argument("column")
@click.option("--model", required=True, help="The registered model that its vectors are of.")
@click.option(
    "--metric",
    type=click.Choice(METRICS),
    help="How vectors are compared. Default: as the column's HNSW or IVFFlat index does.",
)
@dsn_option
def register_column(column: str, model: str, metric: str | None, dsn: str) -> None:
    """Register an embedding COLUMN: public.docs.embedding, or '"Weird Table"."Vec Col"'.

    Checks that it exists, its type and dimensions, and finds the metric from its index; also from an
    index over a cast, such as ((embedding::halfvec(3072)) halfvec_cosine_ops). Nothing is written to your
    table. Run it again after the index changed.
    """
    with connected(dsn) as conn:
        name = ColumnName.resolve(conn, column)
        registry.register_column(conn, name.relation_text, name.column, model=model, metric=metric)
        found = one(
            conn,
            "SELECT * FROM drift.columns WHERE relation = %s::regclass AND column_name = %s",
            [name.relation_text, name.column],
        )
    cast = f", through {found.index_cast}({found.dimensions})" if found.index_cast else ""
    served = (
        f"served by {found.indexes} index{'es' if found.indexes != 1 else ''}{cast}"
        if found.indexes
        else "without an index"
    )
    say(f"Column {name} is registered: model {model}, {found.dimensions} dimensions, metric {found.metric}, {served}.")


@click.command("unregister-column")
@click.argument("column")
@dsn_option
def unregister_column(column: str, dsn: str) -> None:
    """Forget an embedding COLUMN, with its logged queries; the table is not touched.

    A table that was dropped has only its number left, as drift-pg status shows it: 16423.embedding
    """
    with connected(dsn) as conn:
        registry.unregister_column(conn, *registry.held_column(conn, column))
    say(f"Column {column} is forgotten.")


@click.command("set-query-model")
@click.argument("column")
@click.argument("model", required=False)
@dsn_option
def set_query_model(column: str, model: str | None, dsn: str) -> None:
    """Record that queries of a COLUMN come from MODEL; without MODEL, from the column's own.

    It changes no search, since each names its model itself; status then tells when no adapter from that
    model is active, and an Alembic history compares it with your classes.
    """
    with connected(dsn) as conn:
        name = ColumnName.resolve(conn, column)
        registry.set_query_model(conn, name.relation_text, name.column, model)
    say(f"Queries of column {name} come from {f'model {model}' if model else 'its own model'}.")


COMMANDS = [register_model, unregister_model, register_column, unregister_column, set_query_model]
