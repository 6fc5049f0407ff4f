"""From what classes declare and what a database has to the operations that lead from one to the other."""

from __future__ import annotations

import logging
import re
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
Then generate this revision again, or write the SHA-256 that it prints below, in the downgrade too."""

_NO_DIMENSIONS = "The dimensions of {source!r} are not known without it: they stand as 0, which fails as well."

_FIT = """\
    drift-pg register-model, if {source!r} is not yet registered where you fit
    drift-pg fit …             stores an adapter and says its ID
    drift-pg evaluate ID …     says whether it is good enough
    drift-pg export ID {path}"""

_STAYS = """\
The adapter from {source!r} to {target!r} stays active. To take it back as well: op.deactivate_adapter with the
arguments of the op.activate_adapter that brought it, or drift-pg deactivate."""

_SEVERAL = "{count} files hold an adapter from {source!r} to {target!r}; this one is {why}."

_BY_HAND = """\
It is active in the database that this was generated from, though by no revision: there the upgrade changes
nothing, and the downgrade takes it out of service."""


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
        held = None if new else self.database.registered.get(self.database.of(declared))
        vectors = Vectors() if new else self.database.vectors(declared)
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
        matching = self._matching(source, target)
        serving = [each for each in matching if active is not None and each.adapter.checksum == active.checksum]
        if serving and self._in_history(serving):  # a downgrade of this revision must not take it away
            self.adapters[source, target] = []
            return
        self._register(source, matching[0].adapter.source_dimensions if matching else None)
        if matching:
            # Where columns are searched through the active adapter, their results are not changed on the way.
            chosen = serving[0] if serving and self._used(source, target) else matching[0]
            self.adapters[source, target] = self._with_artifact(chosen, source, target, active, len(matching))
        else:
            self.adapters[source, target] = self._without_artifact(source, target, active)

    def _matching(self, source: str, target: str) -> list[Artifact]:
        """Adapter files of these models, the newest first."""
        files = sorted(self.folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime, reverse=True)
        opened = (_open(path) for path in files)
        return [found for found in opened if found is not None and found.models == (source, target)]

    def _used(self, source: str, target: str) -> bool:
        """Whether a column's queries go through the active adapter already."""
        return any((held.query_model, held.model) == (source, target) for held in self.database.registered.values())

    def _in_history(self, files: list[Artifact]) -> bool:
        """Whether a revision names one of these files."""
        revisions = self.script.walk_revisions() if self.script else ()
        texts = [Path(str(revision.path)).read_text("utf-8") for revision in revisions]
        return any(each.sha256 in text for each in files for text in texts)

    def _with_artifact(
        self, found: Artifact, source: str, target: str, active: Active | None, count: int
    ) -> list[MigrateOperation]:
        serving = active is not None and found.adapter.checksum == active.checksum
        said = []
        if count > 1:
            why = "active" if serving else "the newest"
            said.append(_SEVERAL.format(count=count, source=source, target=target, why=why))
        if serving:
            said.append(_BY_HAND)
        path = f"{artifacts.FOLDER}/{found.path.name}"
        replaces = active.checksum if active and not serving else None
        activation = ActivateAdapterOp(source, target, path, found.sha256, replaces)
        return [CommentOp("\n".join(said)), activation] if said else [activation]

    def _without_artifact(self, source: str, target: str, active: Active | None) -> list[MigrateOperation]:
        path = f"{artifacts.FOLDER}/{_file_name(source)}-to-{_file_name(target)}.safetensors"
        how = f"    drift-pg export {active.id} {path}" if active else _FIT.format(source=source, path=path)
        said = [_NO_ARTIFACT.format(folder=artifacts.FOLDER, source=source, target=target, how=how)]
        if self.models.get(source) == 0:
            said.append(_NO_DIMENSIONS.format(source=source))
        # What is active is what the command exports: it replaces nothing then.
        return [CommentOp("\n".join(said)), ActivateAdapterOp(source, target, path, "")]


def _open(path: Path) -> Artifact | None:
    try:
        found = Artifact.find(path)
        found.adapter  # noqa: B018 (reads the file)
    except InvalidArtifact as error:
        log.warning("%s", error)
        return None
    return found


def _file_name(model: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", model).strip("-.") or "model"
