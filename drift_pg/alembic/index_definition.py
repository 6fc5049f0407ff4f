"""What a vector index is made of, its limits, and the SQL that it is written in."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from drift_pg.alembic.operations import ModelOperation
from drift_pg.alembic.run import qualified, relation
from drift_pg.errors import InvalidDefinition
from drift_pg.sqlalchemy.types import INDEXED

METRICS = {"cosine": "cosine", "inner_product": "ip", "l2": "l2", "l1": "l1"}
"""drift_pg's metrics, and what pgvector's operator classes call them."""

DEFAULTS = {"hnsw": {"m": 16, "ef_construction": 64}, "ivfflat": {"lists": 100}}
"""Each method's parameters, with what pgvector takes if they are not named."""

HALFVEC_LIMIT = 4000
"""The most dimensions that pgvector indexes; above INDEXED only as halfvec."""


@dataclass
class VectorIndexOperation(ModelOperation):
    """A vector index and how it is built.

    Attributes:
        metric: "cosine", "inner_product", "l2" or "l1" (l1 only with hnsw).
        dimensions: of the column; needed with --sql above 2,000, where the index is over a cast to halfvec.
        column_type: "vector" or "halfvec"; online the column's own type is read.
        concurrently: outside the transaction, which commits what stands before it in the revision.
        maintenance_work_mem: for this build, such as "2GB".
        parallel_workers: for this build; None: as the server is set, and none if their shared memory cannot be had.
    """

    name: str
    table: str
    column: str
    schema: str | None = None
    method: str = "hnsw"
    metric: str = "cosine"
    dimensions: int | None = None
    column_type: str = "vector"
    m: int | None = None
    ef_construction: int | None = None
    lists: int | None = None
    concurrently: bool = True
    maintenance_work_mem: str | None = None
    parallel_workers: int | None = None

    @property
    def relation(self) -> str:
        """The table as SQL names it."""
        return relation(self.table, self.schema)

    @property
    def parameters(self) -> dict[str, int]:
        """What goes into WITH (…)."""
        named = {name: getattr(self, name) for known in DEFAULTS.values() for name in known}
        return {name: value for name, value in named.items() if value is not None}

    def validate(self) -> None:
        """Raise InvalidDefinition for what no column allows."""
        _one_of("method", self.method, DEFAULTS, self.name)
        _one_of("metric", self.metric, METRICS, self.name)
        _one_of("column_type", self.column_type, ("vector", "halfvec"), self.name)
        if self.method == "ivfflat" and self.metric == "l1":
            raise InvalidDefinition(f"index {self.name!r}: ivfflat has no metric 'l1'", hint="method='hnsw'")
        for parameter in set(self.parameters) - set(DEFAULTS[self.method]):
            raise InvalidDefinition(f"index {self.name!r}: {self.method} has no parameter {parameter!r}")
        if self.dimensions is not None and not 1 <= self.dimensions <= HALFVEC_LIMIT:
            raise InvalidDefinition(
                f"index {self.name!r}: {self.dimensions} dimensions are outside the limits of pgvector's indexes, 1 to {HALFVEC_LIMIT}"
            )


def _one_of(what: str, value: str, known: Any, name: str) -> None:
    if value not in known:
        raise InvalidDefinition(f"index {name!r}: {what} {value!r} is none of {', '.join(known)}")


@dataclass(frozen=True)
class Key:
    """What is indexed: a column of a type, or its cast to halfvec; `place` is pgvector's schema, None: not named."""

    column: str
    kind: str
    cast: int | None
    metric: str
    place: str | None = None

    @classmethod
    def of(
        cls, index: VectorIndexOperation, kind: str, dimensions: int | None, place: str | None = None
    ) -> Key:  # fmt: skip
        """The key for a column of that type and those dimensions (None: not known)."""
        limited = dimensions or 0
        if limited > HALFVEC_LIMIT:
            raise InvalidDefinition(
                f"index {index.name!r}: column {index.column!r} has {dimensions} dimensions, pgvector indexes at most {HALFVEC_LIMIT}"
            )
        cast = dimensions if kind == "vector" and limited > INDEXED else None
        return cls(index.column, kind, cast, METRICS[index.metric], place)

    @property
    def operator_class(self) -> str:
        """Its name, such as halfvec_cosine_ops."""
        return f"{'halfvec' if self.cast else self.kind}_{self.metric}_ops"

    def render(self) -> sql.Composed:
        """As it stands in CREATE INDEX."""
        column: sql.Composable = sql.Identifier(self.column)
        if self.cast:
            column = sql.SQL("(({}::{}({})))").format(column, self._named("halfvec"), sql.Literal(self.cast))
        return sql.SQL("{} {}").format(column, self._named(self.operator_class))

    def _named(self, name: str) -> sql.Identifier:
        return qualified(name, self.place)


def create(index: VectorIndexOperation, key: Key) -> str:
    """CREATE INDEX."""
    options = sql.SQL(", ").join(
        sql.SQL("{} = {}").format(sql.Identifier(name), sql.Literal(value)) for name, value in index.parameters.items()
    )
    statement = sql.SQL("CREATE INDEX {}{} ON {} USING {} ({}){}").format(
        sql.SQL("CONCURRENTLY " if index.concurrently else ""), sql.Identifier(index.name), sql.SQL(index.relation),
        sql.Identifier(index.method), key.render(), sql.SQL(" WITH ({})").format(options) if index.parameters else sql.SQL(""),
    )  # fmt: skip
    return statement.as_string(None)


def drop(name: str, schema: str | None, *, concurrently: bool) -> str:
    """DROP INDEX, which need not be there."""
    return f"DROP INDEX {'CONCURRENTLY ' if concurrently else ''}IF EXISTS {relation(name, schema)}"


def block(body: str, **parts: object) -> str:
    """A DO block; its parts become literals, or are composed already."""
    composed = {name: part if isinstance(part, sql.Composable) else sql.Literal(part) for name, part in parts.items()}
    text = sql.SQL(body).format(**composed).as_string(None)
    return "DO " + sql.Literal(text).as_string(None)


def refresh(index: VectorIndexOperation) -> str:
    """Let schema drift, if there is one, read anew which index serves the column."""
    return block(
        """
BEGIN
    IF to_regprocedure('drift.refresh_column(regclass, name)') IS NOT NULL THEN
        PERFORM drift.refresh_column({table}::regclass, {column});
    END IF;
END
""",
        table=index.relation,
        column=index.column,
    )


FIND_PGVECTOR = """SELECT set_config('search_path', concat_ws(', ', nullif(current_setting('search_path'), ''), quote_ident(n.nspname)), false)
FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector'"""
"""Printed CREATE INDEX CONCURRENTLY cannot look for pgvector's schema; the search_path ends with it meanwhile."""


def setting(name: str, value: str) -> str:
    """Set it for the session."""
    return (
        sql.SQL("SELECT set_config({}, {}, false)").format(sql.Literal(name), sql.Literal(value)).as_string(None)
    )  # fmt: skip


def retired(index: VectorIndexOperation) -> str:
    """The name that an index has between the decision to drop it and its end."""
    return f"drift_retired_{hashlib.sha256(index.name.encode()).hexdigest()[:16]}"


def retire(index: VectorIndexOperation, condition: str, *, refuse: bool, known: bool) -> str:
    """Rename the index, if it is this table's and meets the condition, so that it can be dropped; else refuse."""
    return block(
        """
DECLARE
    held record;
BEGIN
    IF NOT {known} AND (SELECT a.atttypmod > {limit} AND t.typname = 'vector' FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
                        WHERE a.attrelid = {table}::regclass AND a.attname = {column}) THEN
        RAISE EXCEPTION USING ERRCODE = 'VD003',
            MESSAGE = format('index %I: column %I has more than {limit} dimensions', {name}, {column}),
            HINT = 'Name them in the revision, dimensions=…: without a connection they are not known.';
    END IF;
    SELECT k.oid::regclass AS index, ({condition}) AS chosen, i.indrelid = c.oid AS ours, EXISTS (
        SELECT FROM pg_stat_progress_create_index p WHERE p.index_relid = k.oid AND NOT i.indisvalid) AS building
    INTO held
    FROM pg_class c
    JOIN pg_class k ON k.relnamespace = c.relnamespace AND k.relname = {name}
    LEFT JOIN pg_index i ON i.indexrelid = k.oid
    WHERE c.oid = {table}::regclass;
    IF NOT FOUND THEN
        RETURN;
    ELSIF held.ours IS NOT TRUE OR ({refuse} AND NOT held.chosen) THEN
        RAISE EXCEPTION USING ERRCODE = 'VD020', MESSAGE = format('the name %I is taken', {name});
    ELSIF held.building THEN
        RAISE EXCEPTION USING ERRCODE = 'object_in_use', MESSAGE = format('index %I is being built at this moment', {name});
    END IF;
    EXECUTE format('ALTER INDEX %s RENAME TO %I', held.index, {retired});
END
""",
        known=known, limit=INDEXED, table=index.relation, column=index.column, name=index.name,
        condition=sql.SQL(condition), refuse=refuse, retired=retired(index),
    )  # fmt: skip
