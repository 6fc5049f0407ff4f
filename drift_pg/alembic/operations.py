"""Operations on models, embedding columns and adapters, each with its reverse.

All can be run twice: what is as the operation would leave it is left alone. All work online, by any driver, and
with --sql, which prints what would be run.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields, replace
from typing import Any

from alembic.operations import MigrateOperation, Operations
from psycopg.types.json import Jsonb

from drift_pg.alembic.artifacts import Artifact, directory
from drift_pg.alembic.run import call, execute, relation
from drift_pg.database import adapters, scripts, unattended
from drift_pg.gate import DEFAULT_MINIMUM

log = logging.getLogger("alembic.runtime.migration")


class ModelOperation(MigrateOperation):
    """An operation of drift_pg: a dataclass of its arguments."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """In the order of its fields; an operation and its reverse mostly have the same."""
        return tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]  # each is a dataclass

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """Its name and arguments, for `alembic.autogenerate.compare_metadata` and `alembic check`."""
        return (type(self).__name__, *self.arguments)


@Operations.register_operation("install_drift")
@dataclass
class InstallDriftOp(ModelOperation):
    """Bring schema drift to this package's revision, from whatever it is at.

    Attributes:
        start: the revision it is expected to leave; only the downgrade looks at it.
    """

    start: str = scripts.BASE

    @classmethod
    def install_drift(cls, operations: Operations, start: str = scripts.BASE) -> None:
        """Install schema drift, or upgrade it; no second migration environment is needed."""
        operations.invoke(cls(start))

    def reverse(self) -> UninstallDriftOp:
        """Remove it, if this operation installed it."""
        return UninstallDriftOp(self.start)


@Operations.register_operation("uninstall_drift")
@dataclass
class UninstallDriftOp(ModelOperation):
    """Remove schema drift, which must hold no adapter.

    Attributes:
        to: "base"; for any other revision nothing happens, since the package in use needs its own.
    """

    to: str = scripts.BASE

    @classmethod
    def uninstall_drift(cls, operations: Operations, to: str = scripts.BASE) -> None:
        """Remove schema drift; your tables and their vectors are not touched."""
        operations.invoke(cls(to))

    def reverse(self) -> InstallDriftOp:
        """Install it."""
        return InstallDriftOp(self.to)


@Operations.register_operation("register_embedding_model")
@dataclass
class RegisterEmbeddingModelOp(ModelOperation):
    """Register an embedding model: its name, its dimensions, whether its vectors have unit length."""

    name: str
    dimensions: int
    normalized: bool = True

    @classmethod
    def register_embedding_model(
        cls, operations: Operations, name: str, dimensions: int, normalized: bool = True
    ) -> None:
        """Register an embedding model; a name that is registered otherwise is refused (AlreadyRegistered)."""
        operations.invoke(cls(name, dimensions, normalized))

    def reverse(self) -> UnregisterEmbeddingModelOp:
        """Forget it."""
        return UnregisterEmbeddingModelOp(*self.arguments)


@Operations.register_operation("unregister_embedding_model")
@dataclass
class UnregisterEmbeddingModelOp(ModelOperation):
    """Forget an embedding model that no column and no adapter uses; its definition is for the reverse."""

    name: str
    dimensions: int
    normalized: bool = True

    @classmethod
    def unregister_embedding_model(
        cls, operations: Operations, name: str, dimensions: int, normalized: bool = True
    ) -> None:
        """Forget an embedding model; refused (StillInUse) while a column or an adapter needs it."""
        operations.invoke(cls(name, dimensions, normalized))

    def reverse(self) -> RegisterEmbeddingModelOp:
        """Register it again."""
        return RegisterEmbeddingModelOp(*self.arguments)


@Operations.register_operation("set_embedding_model")
@dataclass
class SetEmbeddingModelOp(ModelOperation):
    """Say which model a column's vectors are of; None: it is no embedding column (any more)."""

    table: str
    column: str
    model: str | None
    metric: str = "cosine"
    existing_model: str | None = None
    schema: str | None = None

    @classmethod
    def set_embedding_model(
        cls,
        operations: Operations,
        table: str,
        column: str,
        model: str | None,
        *,
        metric: str = "cosine",
        existing_model: str | None = None,
        schema: str | None = None,
    ) -> None:
        """Register a column's model. With existing_model: only if every vector really was replaced."""
        operations.invoke(cls(table, column, model, metric, existing_model, schema))

    def reverse(self) -> SetEmbeddingModelOp:
        """Back to the existing model."""
        return replace(self, model=self.existing_model, existing_model=self.model)


@Operations.register_operation("set_query_model")
@dataclass
class SetQueryModelOp(ModelOperation):
    """Say which model a column's queries come from; None: the column's own."""

    table: str
    column: str
    query_model: str | None
    existing_query_model: str | None = None
    schema: str | None = None

    @classmethod
    def set_query_model(
        cls,
        operations: Operations,
        table: str,
        column: str,
        query_model: str | None,
        *,
        existing_query_model: str | None = None,
        schema: str | None = None,
    ) -> None:
        """Record the model of a column's queries; refused (NoActiveAdapter) if no adapter leads from it."""
        operations.invoke(cls(table, column, query_model, existing_query_model, schema))

    def reverse(self) -> SetQueryModelOp:
        """Back to the existing query model."""
        return replace(self, query_model=self.existing_query_model, existing_query_model=self.query_model)


@dataclass
class AdapterOperation(ModelOperation):
    """An adapter file and how it is activated.

    Attributes:
        source: the new model, whose queries are mapped.
        target: the legacy model.
        artifact: the file from `drift-pg export`, relative to the directory that has env.py.
        sha256: of the file.
        replaces: checksum of the adapter that is active before, as drift.adapters shows it; None: none is.
        force: activate it whatever the quality gate says.
        minimum: what the quality gate asks for.
    """

    source: str
    target: str
    artifact: str
    sha256: str
    replaces: str | None = None
    force: bool = False
    minimum: float = DEFAULT_MINIMUM

    def open(self, operations: Operations) -> Artifact:
        """The file; raises InvalidArtifact if it is missing, another one, damaged, or for other models."""
        found = Artifact.pinned(directory(operations.migration_context) / self.artifact, self.sha256)
        found.require_models(self.source, self.target)
        return found


@Operations.register_operation("activate_adapter")
class ActivateAdapterOp(AdapterOperation):
    """Store an adapter from its file and make it the one that serves its two models."""

    @classmethod
    def activate_adapter(
        cls,
        operations: Operations,
        source: str,
        target: str,
        artifact: str,
        sha256: str,
        *,
        replaces: str | None = None,
        force: bool = False,
        minimum: float = DEFAULT_MINIMUM,
    ) -> None:
        """Activate the adapter of a file; takes effect when the migration commits, for every client.

        The quality gate judges it by the evaluation that the file carries. Refused (AnotherIsActive) if the
        active adapter is not the one that it `replaces`.
        """
        operations.invoke(cls(source, target, artifact, sha256, replaces, force, minimum))

    def reverse(self) -> DeactivateAdapterOp:
        """Back to what was active before."""
        return DeactivateAdapterOp(*self.arguments)


@Operations.register_operation("deactivate_adapter")
class DeactivateAdapterOp(AdapterOperation):
    """Take an activation back: what it replaced serves again, and the adapter is left to its file."""

    @classmethod
    def deactivate_adapter(
        cls,
        operations: Operations,
        source: str,
        target: str,
        artifact: str,
        sha256: str,
        *,
        replaces: str | None = None,
        force: bool = False,
        minimum: float = DEFAULT_MINIMUM,
    ) -> None:
        """Undo `activate_adapter` of the same arguments; refused (AnotherIsActive) if another serves by now."""
        operations.invoke(cls(source, target, artifact, sha256, replaces, force, minimum))

    def reverse(self) -> ActivateAdapterOp:
        """Activate it again."""
        return ActivateAdapterOp(*self.arguments)


@Operations.implementation_for(InstallDriftOp)
def _install(operations: Operations, _: InstallDriftOp) -> None:
    execute(operations, unattended.install_statement())


@Operations.implementation_for(UninstallDriftOp)
def _uninstall(operations: Operations, operation: UninstallDriftOp) -> None:
    if operation.to == scripts.BASE:
        execute(operations, unattended.remove_statement())
    else:
        log.info(
            "schema drift stays at this package's revision; to take it back: drift-pg downgrade --to %s", operation.to
        )


@Operations.implementation_for(RegisterEmbeddingModelOp)
def _register(operations: Operations, operation: RegisterEmbeddingModelOp) -> None:
    call(operations, "register_model", operation.name, operation.dimensions, operation.normalized)


@Operations.implementation_for(UnregisterEmbeddingModelOp)
def _unregister(operations: Operations, operation: UnregisterEmbeddingModelOp) -> None:
    call(operations, "unregister_model", operation.name)


@Operations.implementation_for(SetEmbeddingModelOp)
def _set_model(operations: Operations, operation: SetEmbeddingModelOp) -> None:
    table = relation(operation.table, operation.schema)
    call(operations, "set_column_model", table, operation.column, operation.model, operation.existing_model, operation.metric)  # fmt: skip


@Operations.implementation_for(SetQueryModelOp)
def _set_query_model(operations: Operations, operation: SetQueryModelOp) -> None:
    table = relation(operation.table, operation.schema)
    call(operations, "set_query_model", table, operation.column, operation.query_model)


@Operations.implementation_for(ActivateAdapterOp)
def _activate(operations: Operations, operation: ActivateAdapterOp) -> None:
    found = operation.open(operations)
    models = operation.source, operation.target
    inputs = adapters.probe_inputs(found.adapter)
    call(
        operations, "store_adapter", *models, Jsonb(found.description()), found.weights(),
        adapters.texts(inputs), adapters.texts(found.adapter.apply(inputs)),
    )  # fmt: skip
    call(operations, "switch_adapter", *models, found.adapter.checksum, operation.replaces, operation.force, operation.minimum)  # fmt: skip


@Operations.implementation_for(DeactivateAdapterOp)
def _deactivate(operations: Operations, operation: DeactivateAdapterOp) -> None:
    checksum = operation.open(operations).adapter.checksum
    call(operations, "switch_adapter", operation.source, operation.target, operation.replaces, checksum)
    call(operations, "forget_artifact", operation.source, operation.target, checksum)
