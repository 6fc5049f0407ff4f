"""Vector indexes in a user's Alembic history: built without blocking writes, and after an interruption built again."""

from __future__ import annotations

from typing import Any

from alembic.operations import Operations

from drift_pg.alembic import index_building
from drift_pg.alembic.index_definition import VectorIndexOperation


@Operations.register_operation("create_vector_index")
class CreateVectorIndexOp(VectorIndexOperation):
    """Build an HNSW or IVFFlat index of a column."""

    @classmethod
    def create_vector_index(cls, operations: Operations, name: str, table: str, column: str, **options: Any) -> None:
        """Build an index; what an interrupted build left is dropped first, and the same index again is left alone.

        Takes schema, method, metric, dimensions, column_type, m, ef_construction, lists, concurrently,
        maintenance_work_mem and parallel_workers: see `VectorIndexOperation`.

        Raises:
            InvalidDefinition: outside pgvector's limits.
            AlreadyRegistered: the name is that of something else; nothing is changed.
            Conflict: another process is building it at this moment.
        """
        operations.invoke(cls(name, table, column, **options))

    def reverse(self) -> DropVectorIndexOp:
        """Drop it."""
        return DropVectorIndexOp(*self.arguments)


@Operations.register_operation("drop_vector_index")
class DropVectorIndexOp(VectorIndexOperation):
    """Drop an index; its definition is for the reverse."""

    @classmethod
    def drop_vector_index(cls, operations: Operations, name: str, table: str, column: str, **options: Any) -> None:
        """Drop what `create_vector_index` of the same arguments built; one that is not there counts as dropped."""
        operations.invoke(cls(name, table, column, **options))

    def reverse(self) -> CreateVectorIndexOp:
        """Build it again."""
        return CreateVectorIndexOp(*self.arguments)


@Operations.implementation_for(CreateVectorIndexOp)
def _create(operations: Operations, operation: CreateVectorIndexOp) -> None:
    operation.validate()
    index_building.create(operations, operation)


@Operations.implementation_for(DropVectorIndexOp)
def _drop(operations: Operations, operation: DropVectorIndexOp) -> None:
    operation.validate()
    index_building.drop(operations, operation)
