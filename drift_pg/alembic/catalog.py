"""What a database has: schema drift's registry, its vector columns, and the indexes on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.functions import Function

from drift_pg.alembic.declared import METRICS, OPERATOR_CLASS, OPTIONS, Declared
from drift_pg.alembic.indexes import CreateVectorIndexOp, DropVectorIndexOp
from drift_pg.database import scripts

Place = tuple[str, str, str]
"""Schema, table and column."""

_PGVECTOR = """
SELECT n.nspname::text AS name, quote_ident(n.nspname) AS quoted
FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector'
"""

_INSTALLED = "SELECT to_regclass('drift.alembic_version') IS NOT NULL"

_REGISTERED = """
SELECT n.nspname::text AS schema, k.relname::text AS relation, c.column_name::text AS attribute, c.model, c.metric,
       to_jsonb(c) ->> 'query_model' AS query_model  -- NULL at revisions that have no such column
FROM drift.embedding_column c
JOIN pg_catalog.pg_class k ON k.oid = c.relation
JOIN pg_catalog.pg_namespace n ON n.oid = k.relnamespace
"""

_ACTIVE = "SELECT id, source, target, encode(checksum, 'hex') AS checksum FROM drift.adapter WHERE status = 'active'"

_COLUMNS = """
SELECT n.nspname::text AS schema, k.relname::text AS relation, a.attname::text AS attribute,
       t.typname::text AS kind, nullif(a.atttypmod, -1) AS dimensions
FROM pg_catalog.pg_extension e
JOIN pg_catalog.pg_type t ON t.typnamespace = e.extnamespace AND t.typname IN ('vector', 'halfvec')
JOIN pg_catalog.pg_attribute a ON a.atttypid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_catalog.pg_class k ON k.oid = a.attrelid AND k.relkind IN ('r', 'p')
JOIN pg_catalog.pg_namespace n ON n.oid = k.relnamespace
WHERE e.extname = 'vector'
"""

# An expression's column is known from its dependency; one row for each, and an index of two columns is not ours.
_INDEXES = """
SELECT n.nspname::text AS schema, k.relname::text AS name, t.relname::text AS relation, a.attname::text AS attribute,
       m.amname::text AS method, o.opcname::text AS operator_class, k.reloptions AS options,
       y.typname::text AS kind, nullif(a.atttypmod, -1) AS dimensions, i.indpred IS NULL AND i.indnatts = 1 AS plain
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class k ON k.oid = i.indexrelid
JOIN pg_catalog.pg_am m ON m.oid = k.relam AND m.amname IN ('hnsw', 'ivfflat')
JOIN pg_catalog.pg_class t ON t.oid = i.indrelid
JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
JOIN pg_catalog.pg_opclass o ON o.oid = i.indclass[0]
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum > 0 AND (a.attnum = i.indkey[0] OR i.indkey[0] = 0
    AND EXISTS (SELECT FROM pg_catalog.pg_depend d
                WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = i.indexrelid
                  AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = i.indrelid AND d.refobjsubid = a.attnum))
JOIN pg_catalog.pg_type y ON y.oid = a.atttypid AND y.typname IN ('vector', 'halfvec')
"""


@dataclass(frozen=True)
class Registered:
    """What the registry says of a column."""

    model: str
    query_model: str | None
    metric: str


@dataclass(frozen=True)
class Active:
    """The adapter that serves two models."""

    id: int
    checksum: str


@dataclass(frozen=True)
class Vectors:
    """What a column holds.

    Attributes:
        kind: "vector" or "halfvec"; None if the column is of another type, or does not exist.
        dimensions: of its type, or of its first vector; None if neither tells.
        filled: whether a row has a vector, as far as that matters.
    """

    kind: str | None = None
    dimensions: int | None = None
    filled: bool = False

    def differ(self, declared: Declared) -> bool:
        """Whether these are of other dimensions than a class says."""
        return None not in (self.dimensions, declared.dimensions) and self.dimensions != declared.dimensions


@dataclass(frozen=True)
class VectorIndex:
    """An HNSW or IVFFlat index that the database has, of one column."""

    relation: str
    column: str
    method: str
    operator_class: str
    kind: str
    dimensions: int | None
    plain: bool
    options: dict[str, Any] = field(default_factory=dict)

    def serves(self, wanted: CreateVectorIndexOp) -> bool:
        """Whether it is what a declared index asks for; its parameters may differ, since rebuilding is dear."""
        this = (self.relation, self.column, self.method, self.metric)
        return self.plain and this == (wanted.table, wanted.column, wanted.method, wanted.metric)

    @property
    def metric(self) -> str | None:
        """What it orders by; None if that is none of drift_pg's metrics."""
        named = OPERATOR_CLASS.fullmatch(self.operator_class)
        return METRICS[named["metric"]] if named else None

    def drop(self, name: str, schema: str | None, *, concurrently: bool) -> DropVectorIndexOp | None:
        """What drops it, and whose reverse builds it; None if that could not build the same."""
        if not self.plain or self.metric is None:
            return None
        return DropVectorIndexOp(
            name,
            self.relation,
            self.column,
            schema=schema,
            method=self.method,
            metric=self.metric,
            dimensions=self.dimensions,
            column_type=self.kind,
            concurrently=concurrently,
            **self.options,
        )


class Database:
    """A database as autogenerate finds it; each part is read once, when it is first asked for."""

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection
        self.default_schema: str = connection.dialect.default_schema_name or "public"
        self._vectors: dict[Place, Vectors] = {}

    def _rows(self, query: str) -> list[Any]:
        return list(self.connection.execute(sa.text(query)))

    def place(self, schema: str | None, table: str, column: str) -> Place:
        """A column by its schema's name."""
        return schema or self.default_schema, table, column

    def of(self, declared: Declared) -> Place:
        """Where a declared column is."""
        return self.place(declared.schema, declared.table, declared.column)

    @cached_property
    def pgvector(self) -> tuple[str, str] | None:
        """The schema of pgvector, as it is and quoted as the server quotes it; None without pgvector."""
        found = self._rows(_PGVECTOR)
        return (found[0].name, found[0].quoted) if found else None

    @cached_property
    def revision(self) -> str:
        """The revision of schema drift, "base" if it is not installed."""
        if not self._rows(_INSTALLED)[0][0]:
            return scripts.BASE
        found = self._rows("SELECT version_num FROM drift.alembic_version")
        return str(found[0][0]) if found else scripts.BASE

    def _registry(self, query: str, table: str) -> list[Any]:
        there = self.revision != scripts.BASE and self._rows(f"SELECT to_regclass('drift.{table}') IS NOT NULL")[0][0]
        return self._rows(query) if there else []

    @cached_property
    def models(self) -> dict[str, int]:
        """Dimensions by model."""
        return {row.name: row.dimensions for row in self._registry("SELECT name, dimensions FROM drift.model", "model")}

    @cached_property
    def registered(self) -> dict[Place, Registered]:
        """The embedding columns."""
        return {
            (row.schema, row.relation, row.attribute): Registered(row.model, row.query_model, row.metric)
            for row in self._registry(_REGISTERED, "embedding_column")
        }

    @cached_property
    def adapters(self) -> dict[tuple[str, str], Active]:
        """The active adapters by source and target."""
        return {
            (row.source, row.target): Active(row.id, row.checksum) for row in self._registry(_ACTIVE, "adapter")
        }  # fmt: skip

    @cached_property
    def _columns(self) -> dict[Place, tuple[str, int | None]]:
        return {(row.schema, row.relation, row.attribute): (row.kind, row.dimensions) for row in self._rows(_COLUMNS)}

    @cached_property
    def indexes(self) -> dict[tuple[str, str], VectorIndex]:
        """HNSW and IVFFlat indexes by schema and name."""
        found: dict[tuple[str, str], VectorIndex] = {}
        for row in self._rows(_INDEXES):
            key = row.schema, row.name
            options = dict(option.split("=", 1) for option in row.options or [])
            known = {name: int(value) for name, value in options.items() if name in OPTIONS}
            index = VectorIndex(
                row.relation, row.attribute, row.method, row.operator_class, row.kind, row.dimensions,
                row.plain and key not in found, known,
            )  # fmt: skip
            found[key] = index
        return found

    def vectors(self, declared: Declared) -> Vectors:
        """What a column holds, looked at if it is not what its class says: where rows have no vector that reads them all."""
        place = self.of(declared)
        if place not in self._vectors:
            kind, dimensions = self._columns.get(place, (None, None))
            held = self.registered.get(place)
            as_declared = dimensions == declared.dimensions and (held is None or held.model == declared.model)
            look = kind is not None and not (dimensions and as_declared)
            first = self._first(place, self.pgvector[0]) if look and self.pgvector else None
            self._vectors[place] = Vectors(kind, dimensions or first, first is not None)
        return self._vectors[place]

    def _first(self, place: Place, pgvector: str) -> int | None:
        """The dimensions of a column's first vector; None if it has none."""
        schema, table, name = place
        column: sa.ColumnClause[Any] = sa.column(name)
        # A column without dimensions holds vectors of some: pgvector's function need not be on the search_path.
        length: Function[int] = Function("vector_dims", column, packagenames=(pgvector,), type_=sa.Integer())
        query = sa.select(length).select_from(sa.table(table, column, schema=schema)).where(column.is_not(None))
        return self.connection.execute(query.limit(1)).scalar()
