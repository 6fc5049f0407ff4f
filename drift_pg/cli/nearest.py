"""nearest: type a query, see rows."""

from __future__ import annotations

from typing import Any

import click
from psycopg import sql

from drift_pg.cli.cache import EMBEDDER, loaded
from drift_pg.cli.connect import connected, dsn_option
from drift_pg.cli.output import json_option, show_json, show_table
from drift_pg.database.connection import Connection, one, rows
from drift_pg.database.registry import ColumnName, EmbeddingColumn
from drift_pg.embedding import embed

_READABLE = """
SELECT a.attname::text AS name FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped AND t.typname NOT IN ('vector', 'halfvec', 'sparsevec')
ORDER BY a.attnum
"""


@click.command()
@click.argument("query")
@click.option("--column", required=True, help="The registered embedding column, e.g. public.docs.embedding.")
@click.option("--query-model", required=True, help="The registered model that embeds the query.")
@click.option(
    "--embed",
    "embedder",
    metavar="EMBEDDER",
    help=f"That model: {EMBEDDER}; without it QUERY is itself a vector, [0.1,…].",
)
@click.option("-k", default=10, show_default=True, type=click.IntRange(1, 1000), help="How many rows.")
@click.option(
    "--rerank",
    metavar="N",
    type=click.IntRange(1, 10_000),
    help="Order the bridge's first N anew, by the new model's own vectors where the column's companion has them.",
)
@click.option("--show", multiple=True, help="A column to show; several may be given. Default: all but vectors.")
@json_option
@dsn_option
def nearest(
    query: str,
    column: str,
    query_model: str,
    embedder: str | None,
    k: int,
    rerank: int | None,
    show: tuple[str, ...],
    as_json: bool,
    dsn: str,
) -> None:
    """Search a column for a QUERY and show the nearest rows, nearest first.

    The query is adapted if the column holds another model's vectors, exactly as in your application.

    \b
    Example:
      drift-pg nearest "read a file line by line" --column public.docs.embedding \\
                       --query-model minilm-l6 --embed my_models:embed_new --show title --rerank 200
    """
    with connected(dsn) as conn:
        name = EmbeddingColumn.find(conn, column).name
        shown = list(show) or [row.name for row in rows(conn, _READABLE, [name.relation_text])]
        vector = _vector(conn, query, query_model, embedder)
        parameters = [name.column, vector, query_model, k, rerank]
        found = [row._asdict() for row in rows(conn, _statement(name, shown), parameters)]
    if as_json:
        show_json(found)
    else:
        show_table(({"#": i, **row} for i, row in enumerate(found, 1)), ["#", *shown])


def _vector(conn: Connection, query: str, query_model: str, embedder: str | None) -> str:
    if embedder is None:
        return query
    dimensions = int(one(conn, "SELECT drift.model_dimensions(%s) AS n", [query_model]).n)
    vector: Any = embed(loaded(embedder), [query], dimensions=dimensions)[0]
    return str(vector.tolist())


def _statement(name: ColumnName, shown: list[str]) -> sql.Composed:
    columns = sql.SQL(", ").join(_identifier(column) for column in shown)
    return sql.SQL("SELECT {} FROM drift.nearest(NULL::{}, %s::name, %s, %s, %s::integer, %s::integer)").format(
        columns, _identifier(name.schema, name.table)
    )


def _identifier(*parts: str) -> sql.Identifier:
    """For a query with parameters, where a percent sign in a name would be read as one."""
    return sql.Identifier(*(part.replace("%", "%%") for part in parts))


COMMANDS = [nearest]
