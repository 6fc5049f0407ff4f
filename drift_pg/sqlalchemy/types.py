"""The types of embedding columns: pgvector's own, which know the model of a column and of its queries."""

from __future__ import annotations

from numbers import Integral
from types import NoneType
from typing import Any

from pgvector.sqlalchemy import HALFVEC, VECTOR
from sqlalchemy import ColumnElement, Float, Operators, cast
from sqlalchemy.sql.operators import OperatorType, custom_op
from sqlalchemy.types import TypeEngine

from drift_pg.errors import InvalidDefinition
from drift_pg.neighbours import METRICS
from drift_pg.sqlalchemy.client import client_query
from drift_pg.sqlalchemy.expressions import AdaptedQuery, as_element, as_query, is_value

PLACES = ("database", "client")

INDEXED = 2000
"""The most dimensions that pgvector indexes in single precision; above, the index is of the cast to `halfvec`."""

L2, INNER_PRODUCT, COSINE, L1 = (custom_op[float](sign, return_type=Float) for sign in ("<->", "<#>", "<=>", "<+>"))


DISTANCES = {operator.opstring: operator for operator in (L2, INNER_PRODUCT, COSINE, L1)}


class Distances(TypeEngine.Comparator[Any]):
    """pgvector's distances, of queries that are adapted as the column's type says."""

    def l2_distance(self, other: object, /) -> Operators:
        """Euclidean distance, `<->`."""
        return self.operate(L2, other)

    def max_inner_product(self, other: object, /) -> Operators:
        """Negative inner product, `<#>`."""
        return self.operate(INNER_PRODUCT, other)

    def cosine_distance(self, other: object, /) -> Operators:
        """Cosine distance, `<=>`."""
        return self.operate(COSINE, other)

    def l1_distance(self, other: object, /) -> Operators:
        """Taxicab distance, `<+>`."""
        return self.operate(L1, other)

    def operate(self, op: OperatorType, *other: Any, **options: Any) -> ColumnElement[Any]:
        """Any operator; a distance written as `Doc.embedding.op("<=>")(q)` adapts too, or it would be silently wrong."""
        kind: Any = self.type
        if getattr(op, "opstring", None) not in DISTANCES or (
            kind.model is None and not isinstance(other[0], AdaptedQuery)
        ):
            return super().operate(op, *other, **options)
        query = _right_side(self.expr, kind, other[0])
        if not kind.indexed_as_half:
            return super().operate(op, query, **options)
        half = HALFVEC(kind.dim)
        if not isinstance(query, AdaptedQuery):
            query = cast(query, half)
        return cast(self.expr, half).operate(op, query, **options)


def _right_side(column: ColumnElement[Any], kind: Any, other: object) -> ColumnElement[Any]:
    element = as_element(other)
    if isinstance(element, AdaptedQuery):
        return AdaptedQuery(element.query, element.query_model or kind.query_model, column, kind.half)
    if element is not None and not is_value(element):
        return element
    if kind.query_model is None:
        return as_query(other)
    if kind.adapt_in == "client":
        return client_query(column, other, kind.query_model)
    return AdaptedQuery(as_query(other), kind.query_model, column, kind.half)


class Embedding(TypeEngine[Any]):
    """What both types have: the models of the column and of its queries."""

    dim: int | None

    def _describe(
        self, dimensions: int | None, model: str | None, query_model: str | None, metric: str, adapt: str
    ) -> None:
        _check(dimensions, model, query_model, metric, adapt)
        self.dimensions = dimensions  # SQLAlchemy reads the arguments' names: for a type's cache key and its copies
        self.model = model
        self.query_model = query_model
        self.metric = metric
        self.adapt_in = adapt  # TypeEngine.adapt is a method

    @property
    def indexed_as_half(self) -> bool:
        """Whether the column's index can only be one of its cast to `halfvec`."""
        return isinstance(self, VECTOR) and self.model is not None and (self.dim or 0) > INDEXED

    @property
    def half(self) -> bool:
        """Whether distances are those of `halfvec`."""
        return isinstance(self, HALFVEC) or self.indexed_as_half

    def copy(self, **options: Any) -> Any:  # noqa: ARG002 (SQLAlchemy's signature)
        """Another of the same, as SQLAlchemy asks for with `with_variant`."""
        return self.adapt(type(self), adapt=self.adapt_in)

    def __repr__(self) -> str:
        given = {"model": self.model, "query_model": self.query_model, "metric": self.metric, "adapt": self.adapt_in}
        defaults = {"model": None, "query_model": None, "metric": "cosine", "adapt": "database"}
        named = [f"{name}={value!r}" for name, value in given.items() if value != defaults[name]]
        return f"{type(self).__name__}({', '.join(([] if self.dim is None else [repr(self.dim)]) + named)})"


class EmbeddingVector(Embedding, VECTOR):
    """A column of type `vector` whose vectors are a model's.

    With a query_model every distance from the column to a query adapts the query, by what the database has active:
    `embedding <=> (SELECT drift.adapt_for(:q, 'query_model', 'table'::regclass, 'embedding'))`. A column on the right
    side is taken as it is; `adapted(…)` and `raw(…)` say otherwise. It costs once for a statement, and once more
    where a distance stands in WHERE besides. SQL that names no method or operator of this column does not adapt:
    `text()`, `func.cosine_distance(…)`, a distance written from the query to the column, and the column cast to
    another type than EmbeddingVector or EmbeddingHalfVector.

    Args:
        dimensions: of the column; None leaves them open.
        model: the registered model whose vectors the column holds; None makes it pgvector's own VECTOR.
        query_model: the registered model that queries are embedded by; it may be the model itself.
        metric: what the column is searched by: cosine, inner_product, l2 or l1.
        adapt: where queries are adapted: "database", or "client" (see `adapt_in_client`).

    Raises:
        InvalidDefinition: a query_model without a model, or another metric or place than these.

    Example:
        embedding = mapped_column(EmbeddingVector(384, model="minilm-l3", query_model="minilm-l6"))
    """

    __module__ = "drift_pg.sqlalchemy"
    cache_ok = True

    class Comparator(Distances, VECTOR.Comparator):
        """pgvector's comparator, whose distances adapt."""

    comparator_factory = Comparator

    # Not keyword-only: SQLAlchemy's cache key and copies of a type know positional names only.
    def __init__(
        self,
        dimensions: int | None = None,
        model: str | None = None,
        query_model: str | None = None,
        metric: str = "cosine",
        adapt: str = "database",
    ) -> None:
        super().__init__(dimensions)
        self._describe(dimensions, model, query_model, metric, adapt)


class EmbeddingHalfVector(Embedding, HALFVEC):
    """A column of type `halfvec` whose vectors are a model's; arguments as of `EmbeddingVector`."""

    __module__ = "drift_pg.sqlalchemy"
    cache_ok = True

    class Comparator(Distances, HALFVEC.Comparator):
        """pgvector's comparator, whose distances adapt."""

    comparator_factory = Comparator

    def __init__(
        self,
        dimensions: int | None = None,
        model: str | None = None,
        query_model: str | None = None,
        metric: str = "cosine",
        adapt: str = "database",
    ) -> None:
        super().__init__(dimensions)
        self._describe(dimensions, model, query_model, metric, adapt)


def _check(dimensions: object, model: str | None, query_model: str | None, metric: str, adapt: str) -> None:
    if not isinstance(dimensions, (Integral, NoneType)):
        raise InvalidDefinition(
            f"dimensions are {dimensions!r}, expected a number", hint='EmbeddingVector(384, model="…")'
        )
    if query_model is not None and model is None:
        raise InvalidDefinition(
            f"query_model {query_model!r} is given, but not the model that the column holds",
            hint=f'EmbeddingVector(384, model="…", query_model={query_model!r})',
        )
    for name, value, allowed in (("metric", metric, METRICS), ("adapt", adapt, PLACES)):
        if value not in allowed:
            raise InvalidDefinition(f"{name} {value!r} is not one of {', '.join(allowed)}")
