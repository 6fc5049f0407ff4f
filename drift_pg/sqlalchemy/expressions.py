"""A query as an element of a statement: adapted in the database, once, or taken as it is."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from pgvector import HalfVector, Vector
from pgvector.sqlalchemy import VECTOR
from sqlalchemy import (
    BindParameter,
    Cast,
    ColumnElement,
    Dialect,
    FromClause,
    TableClause,
    TypeCoerce,
    type_coerce,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ClauseElement, ColumnClause, Grouping
from sqlalchemy.sql.operators import ColumnOperators, OperatorType
from sqlalchemy.sql.selectable import SelectBase
from sqlalchemy.sql.visitors import InternalTraversal
from sqlalchemy.types import NullType

from drift_pg.errors import InvalidDefinition, InvalidVector


class QueryVector(VECTOR):
    """The type of a query: pgvector's own, in single precision for either type of column; None is refused."""

    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Any:  # noqa: ARG002 (SQLAlchemy's signature)
        """Text as pgvector reads it."""
        return _text

    def literal_processor(self, dialect: Dialect) -> Any:
        """The same, quoted."""
        quoted = self._string._cached_literal_processor(dialect)
        return lambda value: quoted(_text(value)) if quoted else _text(value)


def require_query(value: object) -> None:
    """Refuse None: its distance to everything would be NULL, rows in any order, and no error."""
    if value is None:
        raise InvalidVector("a query is None", hint="embed the query first; was an empty text passed?")


def _text(value: Any) -> str:
    require_query(value)
    floats = (value if isinstance(value, (Vector, HalfVector)) else Vector(value)).to_list()
    return _digits(len(floats)) % tuple(floats)


@lru_cache(maxsize=64)
def _digits(dimensions: int) -> str:
    # Nine give back the same float32, and are written and read in half the time of pgvector-python's seventeen.
    return f"[{','.join(['%.9g'] * dimensions)}]"


QUERY = QueryVector()


_QUERY = [("query", InternalTraversal.dp_clauseelement)]


class RawQuery(ColumnElement[Any]):
    """A query of the column's own model: what `raw` returns."""

    __visit_name__ = "drift_raw_query"
    inherit_cache = True
    _traverse_internals = _QUERY

    def __init__(self, query: ColumnElement[Any]) -> None:
        self.query = query

    def self_group(self, against: OperatorType | None = None) -> RawQuery:
        """In parentheses, where the expression that it stands for needs them."""
        return RawQuery(self.query.self_group(against))

    @property
    def _from_objects(self) -> list[FromClause]:
        return self.query._from_objects


_PARTS = [
    *_QUERY,
    ("column", InternalTraversal.dp_clauseelement),
    ("query_model", InternalTraversal.dp_string),
    ("half", InternalTraversal.dp_boolean),
]


class AdaptedQuery(ColumnElement[Any]):
    """`(SELECT drift.adapt_for(query, query_model, relation, column))`: an InitPlan, run once for a statement.

    Attributes:
        query: a value's bind parameter, or a column of queries.
        query_model: the model that the query is of; None until a column says its own.
        column: the embedding column that is searched, as the statement sees it; None until it is compared with one.
        half: whether the result is cast to `halfvec`.
    """

    __visit_name__ = "drift_adapted_query"
    inherit_cache = True
    _traverse_internals = _PARTS

    def __init__(
        self,
        query: ColumnElement[Any],
        query_model: str | None = None,
        column: ColumnElement[Any] | None = None,
        half: bool = False,
    ) -> None:
        self.query = query
        self.query_model = query_model
        self.column = column
        self.half = half

    @property
    def _from_objects(self) -> list[FromClause]:
        # A column of queries brings its table; the searched column stands on the left side already.
        return self.query._from_objects


def adapted(query: object, *, model: str | None = None) -> AdaptedQuery:
    """A query of another model than the column's type says, or a column of queries, to compare a column with.

    Args:
        query: (n,) floats, or an expression whose value is a vector.
        model: the registered model that it is of; None takes the `query_model` of the column's type.

    Example:
        Doc.embedding.cosine_distance(adapted(q, model="minilm-l6"))
    """
    return AdaptedQuery(as_query(query), model)


def raw(query: object) -> RawQuery:
    """A query that is of the column's own model already: it is not adapted.

    Args:
        query: (n,) floats, or an expression whose value is a vector.
    """
    return RawQuery(as_query(query))


def as_element(value: object) -> ColumnElement[Any] | None:
    """An SQL expression, mapped attributes and subqueries included; None for a plain value."""
    unwrap = getattr(value, "__clause_element__", None)
    element: Any = unwrap() if unwrap else value
    if isinstance(element, SelectBase):
        return element.scalar_subquery()
    if isinstance(element, ClauseElement):
        return element  # type: ignore[return-value]
    # What a lambda statement puts in a variable's place: a parameter that has each call's value.
    return type_coerce(element, QUERY) if isinstance(element, ColumnOperators) else None


def as_query(value: object) -> ColumnElement[Any]:
    """A query as an SQL expression: a value becomes a bind parameter."""
    element = as_element(value)
    if element is None:
        return BindParameter(None, value, type_=QUERY, unique=True)
    # A bind parameter without a type, such as `bindparam("q")`, takes a query's.
    untyped = isinstance(element, BindParameter) and isinstance(element.type, NullType)
    return type_coerce(element, QUERY) if untyped else element


def is_value(element: ColumnElement[Any]) -> bool:
    """Whether it is a value that is bound, also one that is cast: a query, where a column speaks for itself."""
    return isinstance(_without_casts(element), BindParameter)


def _without_casts(element: Any) -> Any:
    while isinstance(element, (Cast, TypeCoerce, Grouping)):
        if isinstance(element, TypeCoerce):
            element = element.typed_expression  # what is compiled: of a parameter a clone
        else:
            element = element.element if isinstance(element, Grouping) else element.clause
    return element


class Searched(NamedTuple):
    """What a statement adapts a query for, and what an error about it names.

    Attributes:
        entity: the mapped class; None without the ORM.
        table, column: of the database.
        query_model: of the query.
    """

    entity: str | None
    table: TableClause
    column: str
    query_model: str

    @classmethod
    def by(cls, element: Any) -> Searched:
        """Follow the column through aliases, subqueries and casts to its table.

        Raises:
            InvalidDefinition: it is not one column of one table.
        """
        if element.column is None or element.query_model is None:
            raise InvalidDefinition(
                "adapted(…) stands where no embedding column is compared with it, or its model is not known",
                hint='write Doc.embedding.cosine_distance(adapted(q, model="…")), the column an EmbeddingVector',
            )
        # Through a cast too: EmbeddingHalfVector for an index of the column's cast.
        searched = _without_casts(element.column)
        found = [c for c in searched.base_columns if isinstance(c, ColumnClause)]
        table = found[0].table if len(found) == 1 else None
        if not isinstance(table, TableClause):
            raise InvalidDefinition(
                f"{element.column} is not one column of one table, so whose vectors it holds is not known",
                hint="take the distance from a table's column; in a union, in each of its parts",
            )
        parent = searched._annotations.get("parententity")
        entity = parent.mapper.class_.__name__ if parent is not None else None
        return cls(entity, table, found[0].name, element.query_model)

    def __str__(self) -> str:
        """For an error's detail."""
        column = f"column {self.column} of table {self.table}"
        where = f"{self.entity}, {column}" if self.entity else column
        return f"{where} (query_model {self.query_model!r})"


SEARCHED = "drift_pg_searched"
"""The attribute of a compiled statement that holds what it searches."""


ASKED = "drift_pg_asked"
"""The attribute of a compiled statement that holds which parameters are queries, by (Searched, the parameter's name)."""


def note_query(compiler: SQLCompiler, searched: Searched, query: ColumnElement[Any]) -> None:
    """Remember, once its SQL is made, that a value is a query of a newer model: `log_queries` looks for it."""
    name = compiler.bind_names.get(_without_casts(query))
    if name is not None:  # not a column of queries, nor a literal in the SQL
        compiler.__dict__.setdefault(ASKED, []).append((searched, name))


@compiles(RawQuery)
def _compile_raw(element: RawQuery, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(element.query, **options)


@compiles(AdaptedQuery)
def _compile(element: AdaptedQuery, compiler: SQLCompiler, **options: Any) -> str:
    searched = Searched.by(element)
    compiler.__dict__.setdefault(SEARCHED, []).append(searched)
    relation = _relation(compiler, searched.table)
    names = f"{_literal(compiler, searched.query_model)}, {relation}, {_literal(compiler, searched.column)}"
    query = compiler.process(element.query, **options)
    note_query(compiler, searched, element.query)
    return f"(SELECT drift.adapt_for({query}, {names}){'::halfvec' if element.half else ''})"


def _relation(compiler: SQLCompiler, table: TableClause) -> str:
    name = compiler.preparer.format_table(table)
    if "__[SCHEMA_" not in name:
        return f"{_quoted(compiler, name)}::regclass"
    # schema_translate_map fills the name in at execution, and could not double a quote of it inside a literal.
    return f"(SELECT typrelid FROM pg_catalog.pg_type WHERE oid = pg_catalog.pg_typeof(NULL::{name}))"  # noqa: S608 (a quoted name)


def _literal(compiler: SQLCompiler, text: str) -> str:
    doubled = text.replace("%", "%%") if compiler.preparer._double_percents else text
    return _quoted(compiler, doubled)


def _quoted(compiler: SQLCompiler, text: str) -> str:
    if getattr(compiler.dialect, "_backslash_escapes", False):
        text = text.replace("\\", "\\\\")
    return "'" + text.replace("'", "''") + "'"
