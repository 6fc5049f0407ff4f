"""A mixed search as a statement: `drift.nearest(…, rerank => n)` joined to what is asked for by the table's key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Integer, Select, String, and_, func, inspect, literal, select
from sqlalchemy import column as named
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.visitors import InternalTraversal

from drift_pg.errors import InvalidDefinition
from drift_pg.sqlalchemy.expressions import (
    SEARCHED,
    AdaptedQuery,
    RawQuery,
    Searched,
    as_element,
    as_query,
    note_query,
)


class RowType(ColumnElement[Any]):
    """`NULL::table`, which says whose rows drift.nearest returns.

    Attributes:
        column: the embedding column that is searched.
        query_model: the model that the query is of.
    """

    __visit_name__ = "drift_row_type"
    inherit_cache = True
    _traverse_internals = [("column", InternalTraversal.dp_clauseelement), ("query_model", InternalTraversal.dp_string)]  # noqa: RUF012 (as SQLAlchemy has it)

    def __init__(self, column: ColumnElement[Any], query_model: str) -> None:
        self.column = column
        self.query_model = query_model


@compiles(RowType)
def _compile(element: RowType, compiler: SQLCompiler, **_options: Any) -> str:
    searched = Searched.by(element)
    compiler.__dict__.setdefault(SEARCHED, []).append(searched)
    return f"NULL::{compiler.preparer.format_table(searched.table)}"


class NotedQuery(ColumnElement[Any]):
    """A query that `log_queries` looks for.

    Attributes:
        query: a value's bind parameter, or a column of queries.
        place: what it is searched in.
    """

    __visit_name__ = "drift_noted_query"
    inherit_cache = True
    _traverse_internals = [("query", InternalTraversal.dp_clauseelement), ("place", InternalTraversal.dp_clauseelement)]  # noqa: RUF012 (as SQLAlchemy has it)

    def __init__(self, query: ColumnElement[Any], place: RowType) -> None:
        self.query = query
        self.place = place

    @property
    def _from_objects(self) -> list[FromClause]:
        return self.query._from_objects


@compiles(NotedQuery)
def _compile_noted(element: NotedQuery, compiler: SQLCompiler, **options: Any) -> str:
    query = compiler.process(element.query, **options)
    note_query(compiler, Searched.by(element.place), element.query)
    return query


def reranked(column: Any, query: object, k: int, rerank: int, matching: Mapping[str, Any] | None) -> Select[Any]:
    """The k rows nearest to a query, of the bridge's first `rerank` and of what the companion finds, nearest first.

    Args:
        column: a mapped attribute, or a Table's column; of a type with a model.
        query: (m,) floats of the type's query model; or `adapted(…)`, `raw(…)`.
        k: how many rows.
        rerank: how many of the bridge's first are ordered anew.
        matching: values of columns that rows must have.

    Raises:
        InvalidDefinition: not 0 ≤ k ≤ rerank, no model of the query is known, or the table has no primary key.
    """
    if rerank < k:
        raise InvalidDefinition(f"k is {k} and rerank {rerank}: expected k ≤ rerank")
    vector, model = _of_model(column.type, query)
    parent = getattr(column, "parent", None)
    source: Any = column.table if parent is None else inspect(parent.entity).selectable
    element: Any = as_element(column)
    place = RowType(element, model)
    searched = Searched.by(place)
    keys = list(getattr(searched.table, "primary_key", ()))
    if not keys:
        raise InvalidDefinition(
            f"table {searched.table} is declared without a primary key, by which a companion finds its rows"
        )
    if not isinstance(as_element(query), RawQuery):
        vector = NotedQuery(vector, place)
    found = func.drift.nearest(
        place, literal(searched.column, String), vector, literal(model, String), literal(k, Integer),
        literal(rerank, Integer), literal(dict(matching) if matching is not None else None, JSONB(none_as_null=True)),
    ).table_valued(*(named(key.name, key.type) for key in keys), with_ordinality="ordinality", name="found")  # fmt: skip
    same_row = and_(*(source.corresponding_column(key) == found.c[key.name] for key in keys))
    asked = parent.entity if parent is not None else column.table
    return select(asked).join_from(asked, found, same_row).order_by(found.c.ordinality)


def _of_model(kind: Any, query: object) -> tuple[ColumnElement[Any], str]:
    element = as_element(query)
    if isinstance(element, RawQuery):
        vector, model = element.query, kind.model
    elif isinstance(element, AdaptedQuery):
        vector, model = element.query, element.query_model or kind.query_model
    else:
        vector, model = as_query(query), kind.query_model or kind.model
    if model is None:
        raise InvalidDefinition(
            f"{kind!r} does not say of which model a query is, so it cannot be reranked",
            hint='EmbeddingVector(384, model="…", query_model="…"), or adapted(q, model="…")',
        )
    return vector, model
