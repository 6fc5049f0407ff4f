"""The tree of errors: every error that drift_pg raises on purpose is a `DriftError`.

    DriftError
    ├── InvalidInput            values the caller gave
    │   ├── WrongDimensions     VD001
    │   ├── InvalidVector       VD002   NaN, infinity, zero length
    │   ├── InvalidDefinition   VD003   a name, metric, option or structure outside its limits
    │   └── TooFewPairs
    ├── NotFound                something named that is not there
    │   ├── UnknownModel        VD010
    │   ├── UnknownAdapter      VD011
    │   ├── NoActiveAdapter     VD012
    │   ├── UnknownColumn       VD013   not registered
    │   ├── ColumnMissing       VD014   registered, but gone from the table or changed
    │   ├── MetricUnknown       VD015   no index tells the metric
    │   ├── NoCompanion         VD016   no table holds the new model's vectors of a column
    │   └── NotCalibrated       VD017   scores of two models cannot be compared yet
    ├── Conflict                the database's state forbids it
    │   ├── AlreadyRegistered   VD020
    │   ├── ActivationRunning   VD021
    │   ├── StillInUse          VD022
    │   ├── NotEvaluated        VD023   the quality gate has nothing to judge an adapter by
    │   ├── BelowMinimum        VD024   the quality gate refuses an adapter's score
    │   └── AnotherIsActive     VD025   not the adapter that a switch expects to replace
    ├── Broken                  something stored is not what was written
    │   ├── VerificationFailed  VD030
    │   ├── WrongRevision       VD031   schema drift is not at the revision expected
    │   ├── InvalidArtifact
    │   └── InstallationBroken
    ├── NotInstalled            no schema drift, or no pgvector, in this database
    ├── PermissionDenied        42501
    ├── ConnectionLost
    ├── EmbedderFailed
    └── MissingExtra            an optional dependency is not installed

The database raises the classes that have an SQLSTATE; `drift_pg.database` maps them back by that
SQLSTATE, never by message text. Each error says what was wrong, and its `hint` what to run next.
"""

from __future__ import annotations


class DriftError(Exception):
    """Base of all errors of drift_pg.

    `message` names the values, `detail` adds facts, `hint` says what to do next.
    """

    sqlstate: str | None = None

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.message]
        if self.detail:
            lines.append(f"DETAIL: {self.detail}")
        if self.hint:
            lines.append(f"HINT: {self.hint}")
        return "\n".join(lines)


class InvalidInput(DriftError, ValueError):
    """A value that the caller gave is outside its limits."""


class WrongDimensions(InvalidInput):
    """A vector's dimensions are not those of its model."""

    sqlstate = "VD001"


class InvalidVector(InvalidInput):
    """A vector holds NaN or infinity, or has zero length where a direction is needed."""

    sqlstate = "VD002"


class InvalidDefinition(InvalidInput):
    """A name, metric, option or structure is outside its limits."""

    sqlstate = "VD003"


class TooFewPairs(InvalidInput):
    """The sample is too small to fit an adapter from."""


class NotFound(DriftError, LookupError):
    """Something that was named does not exist."""


class UnknownModel(NotFound):
    """The model is not registered."""

    sqlstate = "VD010"


class UnknownAdapter(NotFound):
    """No adapter has that id."""

    sqlstate = "VD011"


class NoActiveAdapter(NotFound):
    """No adapter between the two models is active."""

    sqlstate = "VD012"


class UnknownColumn(NotFound):
    """The column is not registered as an embedding column."""

    sqlstate = "VD013"


class ColumnMissing(NotFound):
    """A registered column has been dropped, renamed or changed."""

    sqlstate = "VD014"


class MetricUnknown(NotFound):
    """No index of the column, or several that disagree, tell its metric."""

    sqlstate = "VD015"


class NoCompanion(NotFound):
    """The embedding column has no companion table for vectors of that model."""

    sqlstate = "VD016"


class NotCalibrated(NotFound):
    """Nothing tells what the active adapter's scores say of the new model's."""

    sqlstate = "VD017"


class Conflict(DriftError):
    """The present state of the database forbids the operation."""


class AlreadyRegistered(Conflict):
    """The name is taken by something that is defined differently."""

    sqlstate = "VD020"


class ActivationRunning(Conflict):
    """Another transaction is changing the active adapter of the same two models."""

    sqlstate = "VD021"


class StillInUse(Conflict):
    """Something else depends on what was to be removed."""

    sqlstate = "VD022"


class NotEvaluated(Conflict):
    """The adapter has no evaluation, so the quality gate does not let it serve."""

    sqlstate = "VD023"


class BelowMinimum(Conflict):
    """The adapter's latest evaluation is below the minimum that the quality gate asks for."""

    sqlstate = "VD024"


class AnotherIsActive(Conflict):
    """The active adapter is not the one that a switch expects to replace."""

    sqlstate = "VD025"


class Broken(DriftError):
    """Something stored is not what was written."""


class VerificationFailed(Broken):
    """A stored adapter does not reproduce its probes or its checksum."""

    sqlstate = "VD030"


class WrongRevision(Broken):
    """Schema drift is not at the revision that this step expects."""

    sqlstate = "VD031"


class InvalidArtifact(Broken):
    """An adapter file is damaged, was tampered with, or is no adapter file."""


class InstallationBroken(Broken):
    """The package's own SQL or migrations cannot be found."""


class NotInstalled(DriftError):
    """The database lacks schema drift or pgvector."""


class PermissionDenied(DriftError):
    """The role lacks a privilege; the hint has the GRANT."""

    sqlstate = "42501"


class ConnectionLost(DriftError):
    """The connection failed or broke; what was not committed was rolled back."""


class EmbedderFailed(DriftError):
    """The embedder raised, or returned something that is not a batch of vectors."""


class MissingExtra(DriftError, ImportError):
    """An optional dependency is not installed."""
