"""Builds and drops a vector index online, or prints what would."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.exc import DBAPIError

from drift_pg.alembic import index_definition as definition
from drift_pg.alembic.index_definition import DEFAULTS, Key, VectorIndexOperation
from drift_pg.alembic.run import execute
from drift_pg.database.index_building import BUILT_SERIALLY, SHARED_MEMORY
from drift_pg.errors import AlreadyRegistered, ColumnMissing, Conflict, InvalidDefinition, NotInstalled

log = logging.getLogger("alembic.runtime.migration")

WORKERS = "max_parallel_maintenance_workers"
MEMORY = "maintenance_work_mem"

_COLUMN = """
SELECT a.attname, t.typname AS kind, a.atttypmod AS dimensions, n.nspname AS place, k.nspname AS schema
FROM pg_extension e
JOIN pg_namespace n ON n.oid = e.extnamespace
JOIN pg_class c ON c.oid = CAST(:table AS regclass)
JOIN pg_namespace k ON k.oid = c.relnamespace
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = :column AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_type t ON t.oid = a.atttypid
WHERE e.extname = 'vector'
"""

_EXISTING = """
SELECT i.indrelid = c.oid AS ours, i.indisvalid AS valid, m.amname AS method, o.opcname AS operator_class, k.reloptions AS options,
       i.indnkeyatts = 1 AND i.indpred IS NULL AND NOT i.indisunique AS plain, a.attname AS attribute,
       pg_get_indexdef(k.oid, 1, true) AS expression,
       (SELECT format('(%I::%s)', CAST(:column AS text), format_type(t.oid, :cast)) FROM pg_type t
        WHERE t.typname = 'halfvec' AND t.typnamespace = o.opcnamespace) AS expected,
       (SELECT p.pid FROM pg_stat_progress_create_index p WHERE p.index_relid = k.oid LIMIT 1) AS builder
FROM pg_class c
JOIN pg_class k ON k.relnamespace = c.relnamespace AND k.relname = :name
LEFT JOIN pg_index i ON i.indexrelid = k.oid
LEFT JOIN pg_am m ON m.oid = k.relam
LEFT JOIN pg_opclass o ON o.oid = i.indclass[0]
LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] AND a.attnum > 0
WHERE c.oid = CAST(:table AS regclass)
"""


def create(operations: Operations, index: VectorIndexOperation) -> None:
    """Build it, unless it is there."""
    with _where(operations, index):
        if operations.migration_context.as_sql:
            _print_create(operations, index)
        else:
            _create_online(operations, index)
        execute(operations, definition.refresh(index))


def drop(operations: Operations, index: VectorIndexOperation) -> None:
    """Drop it, if it is there."""
    with _where(operations, index):
        if operations.migration_context.as_sql:
            _print_drop(operations, index)
        else:
            _drop_online(operations, index)
        execute(operations, definition.refresh(index))


@contextmanager
def _where(operations: Operations, index: VectorIndexOperation) -> Iterator[None]:
    context = operations.migration_context
    if index.concurrently and context._in_external_transaction:
        raise InvalidDefinition(
            f"index {index.name!r} cannot be built or dropped CONCURRENTLY: env.py runs migrations in a transaction of its own",
            hint="connect with engine.connect(), not engine.begin(), in env.py; or concurrently=False, which blocks writes",
        )
    with context.autocommit_block() if index.concurrently else nullcontext():
        yield


def _row(operations: Operations, query: str, **values: object) -> Any:
    return operations.get_bind().execute(sa.text(query), values).one_or_none()


def _look(operations: Operations, index: VectorIndexOperation) -> tuple[str, Key]:
    """The table's schema, and the key as the catalog has the column."""
    found = _row(operations, _COLUMN, table=index.relation, column=index.column)
    if found is None:
        raise NotInstalled("this database has no pgvector", hint="CREATE EXTENSION vector;")
    if found.kind not in ("vector", "halfvec"):
        what = "does not exist" if found.kind is None else f"has type {found.kind}, not vector or halfvec"
        raise ColumnMissing(f"column {index.column!r} of {index.relation} {what}")
    held = found.dimensions if found.dimensions > 0 else None
    if None not in (held, index.dimensions) and held != index.dimensions:
        raise InvalidDefinition(
            f"index {index.name!r}: column {index.column!r} of {index.relation} has {held} dimensions, not {index.dimensions}"
        )
    if index.column_type == "halfvec" and found.kind == "vector":
        raise InvalidDefinition(
            f"index {index.name!r}: column {index.column!r} of {index.relation} is a vector, not a halfvec"
        )
    return found.schema, Key.of(index, found.kind, held or index.dimensions, found.place)


def _existing(operations: Operations, index: VectorIndexOperation, key: Key) -> Any:
    found = _row(
        operations, _EXISTING, table=index.relation, column=index.column, name=index.name, cast=key.cast or -1
    )  # fmt: skip
    if found is not None and not found.ours:
        raise AlreadyRegistered(f"the name {index.name!r} is taken: it is no index of {index.relation}")
    if found is not None and found.builder is not None and not found.valid:
        raise Conflict(
            f"index {index.name!r} is being built at this moment by process {found.builder}",
            hint="wait for it, then run the migration again; pg_stat_progress_create_index shows how far it is",
        )
    return found


def _same(found: Any, index: VectorIndexOperation, key: Key) -> bool:
    options = {name: int(value) for name, value in (option.split("=", 1) for option in found.options or [])}
    defaults = DEFAULTS[index.method]
    keyed = found.expression == found.expected if key.cast else found.attribute == index.column
    return bool(
        found.plain and keyed and (found.method, found.operator_class) == (index.method, key.operator_class)
        and {**defaults, **options} == {**defaults, **index.parameters}
    )  # fmt: skip


def _create_online(operations: Operations, index: VectorIndexOperation) -> None:
    schema, key = _look(operations, index)
    found = _existing(operations, index, key)
    if found is not None and found.valid:
        if not _same(found, index, key):
            raise AlreadyRegistered(
                f"index {index.name!r} of {index.relation} exists with another definition",
                detail=f"{found.method} ({found.expression} {found.operator_class}) {found.options or ''}".strip(),
                hint="drop it, or give this one another name",
            )
        log.info("index %s of %s is there already", index.name, index.relation)
        return
    gone = definition.drop(index.name, schema, concurrently=index.concurrently)
    if found is not None:
        log.info("index %s was left invalid by an interrupted build; it is dropped and built again", index.name)
        execute(operations, gone)
    statement = definition.create(index, key)
    log.info("building index: %s", statement)
    with _settings(operations, index):
        _build(operations, index, statement, gone)


def _build(operations: Operations, index: VectorIndexOperation, statement: str, gone: str) -> None:
    try:
        with nullcontext() if index.concurrently else operations.get_bind().begin_nested():
            execute(operations, statement)
    except DBAPIError as error:
        if index.parallel_workers is not None or not SHARED_MEMORY.search(str(error.orig)):
            raise
        log.warning(f"index %s is {BUILT_SERIALLY}", index.name, str(error.orig).strip())
        if index.concurrently:
            execute(operations, gone)
        execute(operations, definition.setting(WORKERS, "0"))
        execute(operations, statement)


@contextmanager
def _settings(operations: Operations, index: VectorIndexOperation) -> Iterator[None]:
    """The memory and the workers of this build, put back after it; a transaction that fails puts them back itself."""
    bind = operations.get_bind()
    wanted = {MEMORY: index.maintenance_work_mem, WORKERS: index.parallel_workers}
    before = {name: bind.execute(sa.text("SELECT current_setting(:n)"), {"n": name}).scalar_one() for name in wanted}
    try:
        for name, value in wanted.items():
            if value is not None:
                execute(operations, definition.setting(name, str(value)))
        yield
    finally:
        if index.concurrently or not _failed(operations):
            for name, value in before.items():
                execute(operations, definition.setting(name, value))


def _failed(operations: Operations) -> bool:
    try:
        operations.get_bind().execute(sa.text("SELECT"))
    except DBAPIError:
        return True
    return False


def _drop_online(operations: Operations, index: VectorIndexOperation) -> None:
    schema, key = _look(operations, index)
    if _existing(operations, index, key) is not None:
        execute(operations, definition.drop(index.name, schema, concurrently=index.concurrently))


def _print_create(operations: Operations, index: VectorIndexOperation) -> None:
    key = Key.of(index, index.column_type, index.dimensions)
    _retire(operations, index, "NOT i.indisvalid", refuse=True, known=key.cast is not None)
    wanted = {MEMORY: index.maintenance_work_mem, WORKERS: str(index.parallel_workers or 0)}
    for name in (*wanted, "search_path"):
        execute(operations, f"SELECT set_config('drift_pg.{name}', current_setting('{name}'), false)")
    execute(operations, definition.FIND_PGVECTOR)
    for name, value in wanted.items():
        if value is not None:
            execute(operations, definition.setting(name, value))
    execute(operations, definition.create(index, key))
    for name in (*wanted, "search_path"):
        execute(operations, f"SELECT set_config('{name}', current_setting('drift_pg.{name}'), false)")


def _print_drop(operations: Operations, index: VectorIndexOperation) -> None:
    _retire(operations, index, "true", refuse=False, known=True)


def _retire(operations: Operations, index: VectorIndexOperation, condition: str, *, refuse: bool, known: bool) -> None:
    # psql goes on after an error unless ON_ERROR_STOP is set: what is dropped has a name that no valid index keeps.
    execute(operations, definition.retire(index, condition, refuse=refuse, known=known))
    execute(operations, definition.drop(definition.retired(index), index.schema, concurrently=index.concurrently))
