"""Adapter files that a history keeps beside its revisions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drift_pg import artifact
from drift_pg.adapter import Adapter
from drift_pg.database import adapters
from drift_pg.database.weights import BLOCK, blocks_of
from drift_pg.errors import InvalidArtifact

if TYPE_CHECKING:  # not there yet while Alembic imports its plugins
    from alembic.runtime.migration import MigrationContext

FOLDER = "adapters"
"""Where autogenerate looks for them, in the directory that has env.py."""


def directory(context: MigrationContext) -> Path:
    """The directory that has env.py; the working directory if Alembic runs without one."""
    script = context.opts.get("script")
    return Path(script.dir) if script else Path.cwd()


@dataclass(frozen=True)
class Artifact:
    """An adapter file, its SHA-256 and what it holds."""

    path: Path
    sha256: str

    @classmethod
    def find(cls, path: Path) -> Artifact:
        """Take a file as it is; raises InvalidArtifact if it is missing."""
        return cls(path, artifact.sha256(path))

    @classmethod
    def pinned(cls, path: Path, sha256: str) -> Artifact:
        """Take a file that a revision names by its SHA-256.

        Raises:
            InvalidArtifact: it is missing, or another file.
        """
        found = cls.find(path)
        if found.sha256 != sha256.lower():
            raise InvalidArtifact(
                f"{str(path)!r} has SHA-256 {found.sha256}, the revision says {sha256 or 'nothing'}",
                hint="put back the file that was reviewed, or review this one and write its SHA-256 into the revision",
            )
        return found

    @cached_property
    def adapter(self) -> Adapter:
        """The adapter; raises InvalidArtifact if the file is damaged."""
        return Adapter.load(self.path)

    @property
    def models(self) -> tuple[str | None, str | None]:
        """Its source and target model, None where the file does not say."""
        return self.adapter.details.get(adapters.SOURCE), self.adapter.details.get(adapters.TARGET)

    def require_models(self, source: str, target: str) -> None:
        """Refuse a file that was exported for other models; raises InvalidArtifact."""
        wrong = [f"{found!r}, not {named!r}" for found, named in zip(self.models, (source, target), strict=True)
                 if found not in (None, named)]  # fmt: skip
        if wrong:
            raise InvalidArtifact(
                f"{str(self.path)!r} holds an adapter from {self.models[0]!r} to {self.models[1]!r}: {'; '.join(wrong)}",
                hint="name the models it was fitted for, or export the adapter that is meant: drift-pg export ID FILE",
            )

    def description(self) -> dict[str, Any]:
        """What `drift.store_adapter` stores beside the weights, the file's evaluation and SHA-256 with it."""
        described = adapters.describe(self.adapter)
        described["details"]["artifact"] = self.sha256
        if adapters.EVALUATION in self.adapter.details:
            described[adapters.EVALUATION] = self.adapter.details[adapters.EVALUATION]
        return described

    def weights(self) -> list[str]:
        """One vector per output as text, by layer, block and output."""
        return [
            text
            for layer in self.adapter.layers
            for block in range(blocks_of(layer))
            for text in adapters.texts(layer.weights[:, block * BLOCK : (block + 1) * BLOCK])
        ]
