"""From what classes declare and what a database has to the operations that lead from one to the other."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from alembic.operations import MigrateOperation

from drift_pg.alembic import artifacts
from drift_pg.alembic.artifacts import Artifact
from drift_pg.alembic.catalog import Active, Database, Registered, Vectors
from drift_pg.alembic.declared import Declared
from drift_pg.alembic.operations import (
    ActivateAdapterOp,
    InstallDriftOp,
    RegisterEmbeddingModelOp,
    SetEmbeddingModelOp,
    SetQueryModelOp,
)
from drift_pg.alembic.rendering import ChangeMetricOp, CommentOp, StillEmptyOp
from drift_pg.database import scripts
from drift_pg.errors import InvalidArtifact, InvalidDefinition

if TYPE_CHECKING:  # not there yet while Alembic imports its plugins
    from alembic.runtime.migration import MigrationContext

log = logging.getLogger("alembic.autogenerate.drift_pg")

_KEPT = """\
{declared} holds vectors of {held!r} ({dimensions} dimensions) and keeps them; queries of {wanted!r} are adapted.
Write the class so: {written}
Only if every vector has really been replaced by one of {model!r}, write this instead of what concerns the column:
    op.set_embedding_model({place}, {model!r}, existing_model={held!r})"""

_UNKNOWN = """\
{declared} holds vectors of {dimensions} dimensions, so not of {model!r}, and which model they are of is not
registered: this fails and changes nothing. Write the class so, with the name of that model, and generate again:
    {written}"""

_NO_ARTIFACT = """\
No file in {folder}/ holds an adapter from {source!r} to {target!r}: this fails until there is one.
{how}
Then write the SHA-256 that it prints below, in the downgrade too."""

_FIT = """\
    drift-pg register-model, if {source!r} is not yet registered where you fit
    drift-pg fit …             stores an adapter and says its ID
    drift-pg evaluate ID …     says whether it is good enough
    drift-pg export ID {path}"""

_STAYS = """\
The adapter from {source!r} to {target!r} stays active. To take it back as well: op.deactivate_adapter with the
arguments of the op.activate_adapter that brought it, or drift-pg deactivate."""

_SEVERAL = "{count} files hold an adapter from {source!r} to {target!r}; this one is {why}."


class Plan:
    """Operations in the order in which they run: `before` those of Alembic itself, and `after` them."""

    def __init__(self, database: Database, context: MigrationContext) -> None:
        self.database = database
        self.script = context.opts.get("script")
        self.folder = artifacts.directory(context) / artifacts.FOLDER
        self.declares = False
        self.models: dict[str, int] = {}
        self.removed: list[MigrateOperation] = []
        self.columns: list[MigrateOperation] = []
        self.indexes: list[MigrateOperation] = []
        self.adapters: dict[tuple[str, str], list[MigrateOperation]] = {}
        self.queries: list[MigrateOperation] = []

    @property
    def before(self) -> list[MigrateOperation]:
        """What must be there, then what goes."""
        behind = self.declares and self.database.revision != scripts.head()
        install: list[MigrateOperation] = [InstallDriftOp(self.database.revision)] if behind else []
        return [*install, *(RegisterEmbeddingModelOp(*model) for model in self.models.items()), *self.removed]

    @property
    def after(self) -> list[MigrateOperation]:
        """What needs tables and columns."""
        activations = [operation for each in self.adapters.values() for operation in each]
        return [*self.columns, *self.indexes, *activations, *self.queries]

    def remove(self, schema: str | None, table: str, column: str) -> None:
        """Forget a column that is about to be dropped."""
        held = self.database.registered.get(self.database.place(schema, table, column))
        if held is not None:
            self._forget(schema, table, column, held)

    def _forget(self, schema: str | None, table: str, column: str, held: Registered) -> None:
        if held.query_model is not None:  # forgotten with the column, so the downgrade has to set it
            self.removed.append(SetQueryModelOp(table, column, None, held.query_model, schema))
        self.removed.append(SetEmbeddingModelOp(table, column, None, held.metric, held.model, schema))

    def declare(self, declared: Declared, *, new: bool) -> None:
        """Bring a column to what its class says.

        Args:
            declared: the column.
            new: whether this revision creates it.

        Raises:
            InvalidDefinition: a model is declared with other dimensions than it is known with.
        """
        self.declares = True
        place = self.database.of(declared)
        held = None if new else self.database.registered.get(place)
        vectors = Vectors() if new else self.database.vectors(place)
        self._require_known_dimensions(declared)
        if held is not None and (held.model == declared.model or vectors.filled):
            self._keep(declared, held, vectors)
        else:
            self._take(declared, held, vectors)

    def _require_known_dimensions(self, declared: Declared) -> None:
        known = self.models.get(declared.model) or self.database.models.get(declared.model)
        if None not in (known, declared.dimensions) and known != declared.dimensions:
            renamed = f"{declared.model}-{declared.dimensions}"
            raise InvalidDefinition(
                f"{declared} declares model {declared.model!r} with {declared.dimensions} dimensions, it has {known}",
                hint=f"a changed model is another model, under a name of its own: {declared.written(known, declared.model, renamed)}",
            )

    def _take(self, declared: Declared, held: Registered | None, vectors: Vectors) -> None:
        self._register(declared.model, declared.dimensions or vectors.dimensions)
        arguments = declared.table, declared.column
        if held is not None:
            if not vectors.differ(declared):  # no ALTER, which would fail by itself if the column held vectors
                self.removed.append(StillEmptyOp(*arguments, declared.model, declared.schema))
            self._forget(declared.schema, *arguments, held)
        elif vectors.filled and vectors.differ(declared):
            written = declared.written(vectors.dimensions, "…", declared.query_model)
            self.columns.append(CommentOp(_UNKNOWN.format(
                declared=declared, dimensions=vectors.dimensions, model=declared.model, written=written,
            )))  # fmt: skip
        self.columns.append(SetEmbeddingModelOp(*arguments, declared.model, declared.metric, schema=declared.schema))
        self._set_query_model(declared, declared.model, None)

    def _keep(self, declared: Declared, held: Registered, vectors: Vectors) -> None:
        if held.model == declared.model and held.metric != declared.metric:
            self.columns.append(ChangeMetricOp(
                declared.table, declared.column, held.model, declared.metric, held.model, declared.schema, held.metric
            ))  # fmt: skip
        if held.model != declared.model:
            explained = self._explain(declared, held, vectors)
            if held.query_model == declared.query_model:
                log.warning("%s", explained)
            else:
                self._register(declared.model, declared.dimensions)
                self.queries.append(CommentOp(explained))
        self._set_query_model(declared, held.model, held.query_model)

    def _explain(self, declared: Declared, held: Registered, vectors: Vectors) -> str:
        place = ", ".join(repr(part) for part in (declared.table, declared.column))
        written = declared.written(vectors.dimensions, held.model, declared.query_model)
        return _KEPT.format(
            declared=declared, held=held.model, dimensions=vectors.dimensions, wanted=declared.query_model,
            written=written, model=declared.model,
            place=place if declared.schema is None else f"{place}, schema={declared.schema!r}",
        )  # fmt: skip

    def _register(self, model: str, dimensions: int | None) -> None:
        if model not in self.database.models and not self.models.get(model):
            self.models[model] = dimensions or 0  # no model has 0: it is refused with the limits

    def _set_query_model(self, declared: Declared, model: str, existing: str | None) -> None:
        wanted = None if declared.query_model == model else declared.query_model
        if wanted == existing:
            return
        if wanted is not None:
            self._activate(wanted, model)
        elif existing is not None:
            self.queries.append(CommentOp(_STAYS.format(source=existing, target=model)))
        self.queries.append(SetQueryModelOp(declared.table, declared.column, wanted, existing, declared.schema))

    def _activate(self, source: str, target: str) -> None:
        if (source, target) in self.adapters:
            return
        active = self.database.adapters.get((source, target))
        matching = list(self._matching(source, target))
        found = self._choose(matching, active, source, target)
        self._register(source, found and found.adapter.source_dimensions)
        if found is None:
            self.adapters[source, target] = self._without_artifact(source, target, active)
        elif active and found.adapter.checksum == active.checksum and self._relied_on(found, source, target):
            self.adapters[source, target] = []
        else:
            self.adapters[source, target] = self._with_artifact(found, source, target, active, len(matching))

    def _matching(self, source: str, target: str) -> Iterator[Artifact]:
        """Adapter files of these models, the newest first."""
        files = sorted(self.folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in files:
            try:
                found = Artifact.find(path)
                if found.models == (source, target):
                    yield found
            except InvalidArtifact as error:
                log.warning("%s", error)

    def _used(self, source: str, target: str) -> bool:
        """Whether a column's queries go through the active adapter already."""
        return any((held.query_model, held.model) == (source, target) for held in self.database.registered.values())

    def _choose(self, matching: list[Artifact], active: Active | None, source: str, target: str) -> Artifact | None:
        if active and self._used(source, target):  # another column's results are not changed on the way
            serving = [each for each in matching if each.adapter.checksum == active.checksum]
            return (serving or matching or [None])[0]
        return matching[0] if matching else None

    def _relied_on(self, found: Artifact, source: str, target: str) -> bool:
        """Whether an earlier revision brought the adapter: a downgrade of this one must not take it away."""
        if self._used(source, target) or self.script is None:
            return self._used(source, target)
        paths = (Path(str(revision.path)) for revision in self.script.walk_revisions())
        return any(found.sha256 in path.read_text("utf-8") for path in paths)

    def _with_artifact(
        self, found: Artifact, source: str, target: str, active: Active | None, count: int
    ) -> list[MigrateOperation]:
        serving = active is not None and found.adapter.checksum == active.checksum
        why = "the one that is active" if serving and self._used(source, target) else "the newest"
        said = [CommentOp(_SEVERAL.format(count=count, source=source, target=target, why=why))] if count > 1 else []
        path = f"{artifacts.FOLDER}/{found.path.name}"
        replaces = active.checksum if active and not serving else None
        return [*said, ActivateAdapterOp(source, target, path, found.sha256, replaces)]

    def _without_artifact(self, source: str, target: str, active: Active | None) -> list[MigrateOperation]:
        path = f"{artifacts.FOLDER}/{_file_name(source)}-to-{_file_name(target)}.safetensors"
        how = f"    drift-pg export {active.id} {path}" if active else _FIT.format(source=source, path=path)
        comment = _NO_ARTIFACT.format(folder=artifacts.FOLDER, source=source, target=target, how=how)
        # What is active is what the command exports: it replaces nothing then.
        return [CommentOp(comment), ActivateAdapterOp(source, target, path, "")]


def _file_name(model: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", model).strip("-.") or "model"
