"""What the model classes say: embedding columns with their models, and the vector indexes declared on them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from alembic.operations import ops
from sqlalchemy import Column, Dialect, Index
from sqlalchemy.sql import visitors
from sqlalchemy.types import TypeDecorator

from drift_pg.alembic import index_definition
from drift_pg.alembic.indexes import CreateVectorIndexOp
from drift_pg.sqlalchemy import EmbeddingHalfVector, EmbeddingVector

METRICS = {short: metric for metric, short in index_definition.METRICS.items()}
"""By the part of an operator class's name that tells it: vector_ip_ops."""

OPERATOR_CLASS = re.compile(r"(?:.*\.)?(?P<kind>vector|halfvec)_(?P<metric>cosine|ip|l2|l1)_ops")

OPTIONS = tuple(name for known in index_definition.DEFAULTS.values() for name in known)


@dataclass(frozen=True)
class Declared:
    """A column whose type names a model.

    Attributes:
        schema: as Alembic's operations name it; None is the connection's default.
        dimensions: None if the type leaves them open.
        query_model: the model of the queries; the column's own if the type names none.
        kind: "vector" or "halfvec".
    """

    schema: str | None
    table: str
    column: str
    dimensions: int | None
    model: str
    query_model: str
    metric: str
    kind: str

    @classmethod
    def by(cls, schema: str | None, table: str, column: Column[Any], dialect: Dialect) -> Declared | None:
        """Read a mapped column; None if its type names no model."""
        kind = embedding_type(column, dialect)
        if kind is None or kind.model is None:
            return None
        name = "halfvec" if isinstance(kind, EmbeddingHalfVector) else "vector"
        return cls(
            schema, table, str(column.name), kind.dim, kind.model, kind.query_model or kind.model, kind.metric, name
        )

    def __str__(self) -> str:
        return ".".join(part for part in (self.schema, self.table, self.column) if part)

    def written(self, dimensions: int | None, model: str, query_model: str) -> str:
        """The type as the class should have it."""
        name = "EmbeddingHalfVector" if self.kind == "halfvec" else "EmbeddingVector"
        size = "" if dimensions is None else f"{dimensions}, "
        return f"{name}({size}model={model!r}, query_model={query_model!r})"


def embedding_type(column: Column[Any], dialect: Dialect) -> EmbeddingVector | EmbeddingHalfVector | None:
    """The column's type in PostgreSQL, out of variants and decorators, if it is one of drift_pg's."""
    kind: Any = column.type.dialect_impl(dialect)
    if isinstance(kind, TypeDecorator):
        kind = kind.impl_instance
    return kind if isinstance(kind, EmbeddingVector | EmbeddingHalfVector) else None


def indexed_column(index: Index) -> Column[Any] | None:
    """The one column that an index is of, a cast of it included."""
    if len(index.expressions) != 1:
        return None
    found = {part for part in visitors.iterate(_element(index.expressions[0])) if isinstance(part, Column)}
    return found.pop() if len(found) == 1 else None


def _element(expression: Any) -> Any:
    return expression.__clause_element__() if hasattr(expression, "__clause_element__") else expression


def vector_index(
    operation: ops.CreateIndexOp, schema: str | None, dialect: Dialect, *, concurrently: bool
) -> CreateVectorIndexOp | None:
    """What creates a declared HNSW or IVFFlat index; None for any other index, or one that Alembic has to create."""
    index = operation.to_index()
    options = index.dialect_options["postgresql"]
    column = indexed_column(index)
    kind = None if column is None else embedding_type(column, dialect)
    if column is None or kind is None or kind.model is None or not _plain(options):
        return None
    named = _operator_class(options["ops"])
    if options["ops"] and named is None:
        return None
    half = isinstance(kind, EmbeddingHalfVector)
    given: dict[str, Any] = {name: int(value) for name, value in options["with"].items()}
    return CreateVectorIndexOp(
        str(operation.index_name),
        operation.table_name,
        str(column.name),
        schema=schema,
        method=str(options["using"]).lower(),
        metric=METRICS[named["metric"]] if named else kind.metric,
        dimensions=kind.dim,
        column_type="halfvec" if half else "vector",
        concurrently=concurrently,
        **given,
    )


def _plain(options: Any) -> bool:
    partial = options["where"] is not None or options["include"]
    return str(options["using"]).lower() in ("hnsw", "ivfflat") and not partial and set(options["with"]) <= set(OPTIONS)


def _operator_class(named: dict[str, str]) -> re.Match[str] | None:
    return OPERATOR_CLASS.fullmatch(next(iter(named.values()))) if len(named) == 1 else None


def columns(items: Sequence[Any]) -> list[Column[Any]]:
    """The columns among what a table is created of."""
    return [item for item in items if isinstance(item, Column)]
