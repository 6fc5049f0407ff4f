"""Operations as the Python of a revision, comments among them, and the imports that its types need."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from alembic.autogenerate.render import renderers
from alembic.operations import MigrateOperation, Operations, ops
from psycopg import sql

from drift_pg.alembic import indexes, operations
from drift_pg.alembic.index_definition import block
from drift_pg.alembic.run import qualified

if TYPE_CHECKING:  # not there yet while Alembic imports its plugins
    from alembic.autogenerate.api import AutogenContext

WIDTH = 100
"""A longer call is written with one argument a line, as a reviewer wants to see a checksum."""

# What is written without its name, being plain from its place.
_POSITIONAL: dict[type[MigrateOperation], tuple[str, ...]] = {
    operations.InstallDriftOp: (),
    operations.UninstallDriftOp: (),
    operations.RegisterEmbeddingModelOp: ("name",),
    operations.UnregisterEmbeddingModelOp: ("name",),
    operations.SetEmbeddingModelOp: ("table", "column", "model"),
    operations.SetQueryModelOp: ("table", "column", "query_model"),
    operations.ActivateAdapterOp: ("source", "target", "artifact"),
    operations.DeactivateAdapterOp: ("source", "target", "artifact"),
    indexes.CreateVectorIndexOp: ("name", "table", "column"),
    indexes.DropVectorIndexOp: ("name", "table", "column"),
}

# Defaults that are written all the same: what an activation replaces is for a reviewer to see.
_ALWAYS = ("replaces",)

_MODULES = re.compile(r"\b(drift_pg\.sqlalchemy|pgvector\.sqlalchemy)\.")


@dataclass
class CommentOp(MigrateOperation):
    """Lines for the reader of a revision, above the operation that follows; nothing when run."""

    text: str

    def reverse(self) -> CommentOp:
        """A downgrade explains nothing."""
        return CommentOp("")

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """Its text, for `alembic check`."""
        return ("comment", self.text)


@dataclass
class ChangeMetricOp(operations.SetEmbeddingModelOp):
    """The same model by another metric, written as op.set_embedding_model."""

    existing_metric: str = "cosine"

    def reverse(self) -> ChangeMetricOp:
        """Back to the existing metric."""
        return replace(self, metric=self.existing_metric, existing_metric=self.metric)


class StillEmptyOp(ops.ExecuteSQLOp):
    """Refuses to go on if the column holds vectors, in either direction; written as op.execute."""

    def __init__(self, table: str, column: str, model: str, schema: str | None) -> None:
        self.arguments = table, column, model, schema
        super().__init__(_refuse_vectors(table, column, model, schema))

    def reverse(self) -> StillEmptyOp:
        """The same: vectors that came meanwhile are not of the earlier model."""
        return StillEmptyOp(*self.arguments)


def _refuse_vectors(table: str, column: str, model: str, schema: str | None) -> str:
    name = ".".join(part for part in (schema, table, column) if part)
    statement = block(
        "BEGIN IF EXISTS (SELECT FROM {relation} WHERE {column} IS NOT NULL) THEN RAISE EXCEPTION USING MESSAGE = {message}, HINT = {hint}; END IF; END",
        relation=qualified(table, schema),
        column=sql.Identifier(column),
        message=f"{name} holds vectors, whose model cannot be changed to {model!r} and back by a revision",
        hint="Keep the model of the column and set its query_model: op.activate_adapter, op.set_query_model.",
    )
    # op.execute reads :name as a parameter.
    return statement.replace(":", "\\:")


@Operations.implementation_for(CommentOp)
def _nothing(_: Operations, __: CommentOp) -> None:
    """A comment that is invoked, by a program that runs what autogenerate found."""


@renderers.dispatch_for(CommentOp)
def _comment(_: AutogenContext, operation: CommentOp) -> list[str]:
    # By every kind of line break, so that no name with one in it becomes code.
    return [f"# {line}".rstrip() for line in operation.text.splitlines()]


def _call(context: AutogenContext, operation: MigrateOperation) -> str:
    kind = next(known for known in type(operation).__mro__ if known in _POSITIONAL)
    arguments = [
        text for name in inspect.signature(kind).parameters.values() if (text := _argument(kind, name, operation))
    ]
    start = f"{context.opts['alembic_module_prefix'] or ''}{_function(kind)}("
    line = f"{start}{', '.join(arguments)})"
    return line if len(line) <= WIDTH else start + "".join(f"\n    {argument}," for argument in arguments) + "\n)"


def _argument(kind: type[MigrateOperation], parameter: inspect.Parameter, operation: MigrateOperation) -> str | None:
    name, value = parameter.name, getattr(operation, parameter.name)
    if name in _POSITIONAL[kind]:
        return repr(value)
    return None if value == parameter.default and name not in _ALWAYS else f"{name}={value!r}"


def _function(kind: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__.removesuffix("Op")).lower()


for _kind in _POSITIONAL:
    renderers.dispatch_for(_kind)(_call)


def _with_imports(render: Callable[[AutogenContext, Any], str | list[str]]) -> Callable[[AutogenContext, Any], Any]:
    def rendered(context: AutogenContext, operation: Any) -> str | list[str]:
        lines = render(context, operation)
        context.imports.update(f"import {module}" for module in _MODULES.findall(str(lines)))
        return lines

    return rendered


# Alembic names a type by its module and leaves the import to the user.
for _typed in (ops.CreateTableOp, ops.AddColumnOp, ops.AlterColumnOp):
    renderers.dispatch_for(_typed, replace=True)(_with_imports(renderers.dispatch(_typed)))
