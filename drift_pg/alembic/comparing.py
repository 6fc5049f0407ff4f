"""Comparators of autogenerate: they hear what Alembic compares, keep it from false differences, and add the plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from alembic.operations import MigrateOperation, ops
from alembic.util import DispatchPriority, PriorityDispatchResult
from pgvector.sqlalchemy import HALFVEC, SPARSEVEC, VECTOR
from sqlalchemy import Column, Connection

from drift_pg.alembic import declared
from drift_pg.alembic.catalog import Database, VectorIndex
from drift_pg.alembic.declared import Declared
from drift_pg.alembic.indexes import CreateVectorIndexOp
from drift_pg.alembic.planning import Plan

if TYPE_CHECKING:  # not there yet while Alembic imports its plugins
    from alembic.autogenerate.api import AutogenContext
    from alembic.runtime.plugins import Plugin

SCHEMA = "drift"
"""Whose tables are migrated by op.install_drift alone."""

_TYPES = {"vector": VECTOR, "halfvec": HALFVEC, "sparsevec": SPARSEVEC}


def register(plugin: Plugin) -> None:
    """Add the comparators; called by Alembic through `drift_pg.alembic.setup`."""
    # Subgroup "types" is Alembic's own: what stops it there stops its comparison of this column's type.
    for compare, target, element, priority in (
        (_begin, "schema", "drift_pg", DispatchPriority.FIRST),
        (_compare_column, "column", "types", DispatchPriority.FIRST),
        (_finish, "schema", "drift_pg", DispatchPriority.LAST),
    ):
        plugin.add_autogenerate_comparator(compare, target, element, qualifier="postgresql", priority=priority)


class Comparison:
    """One run of autogenerate.

    Attributes:
        database: what is there.
        columns: declared columns that exist, in Alembic's order and by its filters.
    """

    def __init__(self, context: AutogenContext) -> None:
        self.context = context
        self.database = Database(cast(Connection, context.connection))  # there is one: autogenerate is not for --sql
        self.columns: list[Declared] = []

    def recognise_types(self) -> None:
        """Let SQLAlchemy reflect pgvector's types where their schema is not on the search_path."""
        dialect: Any = self.context.dialect
        if self.database.pgvector is not None:
            _, schema = self.database.pgvector
            named = {f"{schema}.{name}".lower(): kind for name, kind in _TYPES.items()}
            dialect.ischema_names = {**dialect.ischema_names, **named}  # this engine's, not every dialect's

    def found(self, column: Declared) -> bool:
        """Note a declared column that exists; whether its type has to be left as it is."""
        self.columns.append(column)
        vectors, held = self.database.vectors(column), self.database.registered.get(self.database.of(column))
        return vectors.filled and (vectors.differ(column) or (held is not None and held.model != column.model))

    def rewrite(self, upgrade: ops.UpgradeOps) -> None:
        """Add what models and adapters need around Alembic's operations."""
        theirs = [operation for operation in upgrade.ops if getattr(operation, "schema", None) != SCHEMA]
        plan = Plan(self.database, self.context.migration_context)
        for schema, table, column in _dropped(theirs, self.database):
            plan.remove(schema, table, column)
        for each, new in [*((each, False) for each in self.columns), *((each, True) for each in self._new(theirs))]:
            plan.declare(each, new=new)
        for operation in theirs:
            if isinstance(operation, ops.ModifyTableOps):
                operation.ops[:] = Indexes(self, operation, theirs, plan).kept
        kept = [each for each in theirs if not (isinstance(each, ops.ModifyTableOps) and each.is_empty())]
        upgrade.ops[:] = [*plan.before, *kept, *plan.after]

    def _new(self, operations: list[MigrateOperation]) -> Iterator[Declared]:
        for table in operations:
            if isinstance(table, ops.CreateTableOp):
                added = [(table.schema, table.table_name, column) for column in declared.columns(table.columns)]
            else:
                each = getattr(table, "ops", [])
                added = [(op.schema, op.table_name, op.column) for op in each if isinstance(op, ops.AddColumnOp)]
            found = (Declared.by(schema, name, column, self.context.dialect) for schema, name, column in added)
            yield from (column for column in found if column is not None)


def _dropped(operations: list[MigrateOperation], database: Database) -> Iterator[tuple[str | None, str, str]]:
    """Registered columns that Alembic drops, as its operations name them."""
    for table in operations:
        if isinstance(table, ops.DropTableOp):
            schema = table.schema or database.default_schema
            gone = [place[2] for place in database.registered if place[:2] == (schema, table.table_name)]
            yield from ((table.schema, table.table_name, column) for column in gone)
        for each in getattr(table, "ops", []):
            if isinstance(each, ops.DropColumnOp):
                yield each.schema, each.table_name, each.column_name


class Indexes:
    """Alembic's operations on one table, without those on vector indexes, which go to the plan.

    Attributes:
        kept: what Alembic does itself.
    """

    def __init__(
        self, comparison: Comparison, table: ops.ModifyTableOps, operations: list[MigrateOperation], plan: Plan
    ) -> None:
        self.database, self.dialect = comparison.database, comparison.context.dialect
        self.schema, self.plan = table.schema, plan
        self.place = self.database.place(table.schema, table.table_name, "")[:2]
        self.new = self.place in {
            self.database.place(each.schema, each.table_name, "")[:2]
            for each in operations
            if isinstance(each, ops.CreateTableOp)
        }
        declared_here = (self.database.of(column) for column in comparison.columns)
        self.embeddings = {place[2] for place in (*self.database.registered, *declared_here) if place[:2] == self.place}
        gone = (self.database.place(*place) for place in _dropped(operations, self.database))
        self.dropped = {place[2] for place in gone if place[:2] == self.place}
        self.wanted = {str(op.index_name): self._wanted(op) for op in table.ops if isinstance(op, ops.CreateIndexOp)}
        self.kept = [each for each in table.ops if not self._taken(each)]

    def _wanted(self, operation: ops.CreateIndexOp) -> CreateVectorIndexOp | None:
        return declared.vector_index(operation, self.schema, self.dialect, concurrently=not self.new)

    def _existing(self, name: str) -> VectorIndex | None:
        return None if self.new else self.database.indexes.get((self.place[0], name))

    def _taken(self, operation: MigrateOperation) -> bool:
        if isinstance(operation, ops.DropIndexOp):
            return self._drop(str(operation.index_name))
        return isinstance(operation, ops.CreateIndexOp) and self._create(str(operation.index_name))

    def _drop(self, name: str) -> bool:
        """Take the drop of an embedding column's index: it goes only with its column, or to be built otherwise."""
        index = self._existing(name)
        if index is None or index.column not in self.embeddings:
            return False
        if index.column not in self.dropped:
            return self.wanted.get(name, name) is not None  # what Alembic builds anew it has to drop
        dropped = index.drop(name, self.schema, concurrently=False)
        self.plan.removed.extend([dropped] if dropped else [])
        return dropped is not None

    def _create(self, name: str) -> bool:
        wanted, existing = self.wanted[name], self._existing(name)
        if wanted is not None and (existing is None or not existing.serves(wanted)):
            dropped = existing and existing.drop(name, self.schema, concurrently=True)
            self.plan.indexes.extend([dropped, wanted] if dropped else [wanted])
        return wanted is not None


_running: WeakKeyDictionary[AutogenContext, Comparison] = WeakKeyDictionary()


def _begin(context: AutogenContext, _: ops.UpgradeOps, schemas: set[str | None]) -> PriorityDispatchResult:
    _running[context] = Comparison(context)
    _running[context].recognise_types()
    schemas.discard(SCHEMA)
    return PriorityDispatchResult.CONTINUE


def _compare_column(
    context: AutogenContext,
    operation: ops.AlterColumnOp,
    schema: str | None,
    table: str,
    _: str,
    existing: Column[Any],
    column: Column[Any],
) -> PriorityDispatchResult:
    found = Declared.by(schema, str(table), column, context.dialect)
    if found is None or not _running[context].found(found):
        return PriorityDispatchResult.CONTINUE
    operation.existing_type = existing.type
    return PriorityDispatchResult.STOP


def _finish(context: AutogenContext, upgrade: ops.UpgradeOps, _: set[str | None]) -> PriorityDispatchResult:
    _running.pop(context).rewrite(upgrade)
    return PriorityDispatchResult.CONTINUE
