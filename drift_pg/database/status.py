"""Whether everything that serves is in order: for people, and for a deployment to gate on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from drift_pg.database import scripts
from drift_pg.database.adapters import verify
from drift_pg.database.connection import Connection, one, rows
from drift_pg.database.install import installed_revision


@dataclass(frozen=True)
class Status:
    """What was found.

    Attributes:
        server: PostgreSQL's version.
        pgvector: its version, None if it is missing.
        revision: of schema drift in the database, "base" if there is none.
        package_revision: what this package installs.
        functions: what `drift.version()` says, None if it cannot be called.
        package_functions: what it should say.
        columns: rows of drift.status.
        adapters: rows of drift.adapters.
        problems: each a sentence that ends in what to run; empty if all is well.
    """

    server: str
    pgvector: str | None
    revision: str
    package_revision: str
    functions: str | None
    package_functions: str
    columns: list[dict[str, Any]] = field(default_factory=list)
    adapters: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether nothing is out of date or broken."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"healthy": self.healthy}


def status(conn: Connection) -> Status:
    """Look at the installation, the registered columns and the active adapters; changes nothing."""
    basics = one(
        conn,
        "SELECT current_setting('server_version') AS server, (SELECT extversion FROM pg_extension WHERE extname = 'vector') AS pgvector, "
        "to_regprocedure('drift.version()') IS NOT NULL AS callable",
    )
    revision = installed_revision(conn)
    functions = one(conn, "SELECT drift.version() AS v").v if basics.callable else None
    current = Status(basics.server, basics.pgvector, revision, scripts.head(), functions, scripts.functions_version())
    current.problems.extend(_installation_problems(current))
    if revision == scripts.head() and functions is not None:
        current.columns.extend(
            row._asdict()
            for row in rows(
                conn,
                "SELECT relation::text, column_name::text, model, query_model, also_serves, problem, "
                "(SELECT array_remove(ARRAY[f.source_column::text, drift.companion_table(f.companion)], NULL) "
                "FROM drift.following(relation, column_name) f) AS followed FROM drift.status",
            )
        )
        current.adapters.extend(row._asdict() for row in rows(conn, "SELECT * FROM drift.adapters"))
        current.problems.extend(_column_problems(current.columns))
        current.problems.extend(_adapter_problems(conn, current.adapters))
    return current


def _installation_problems(found: Status) -> list[str]:
    if found.pgvector is None:
        return ["pgvector is not installed in this database: CREATE EXTENSION vector;"]
    if found.revision == scripts.BASE:
        return ["schema drift is not installed in this database: drift-pg upgrade"]
    if found.revision not in scripts.revisions():
        return [
            f"schema drift is at revision {found.revision}, newer than this package: pip install --upgrade drift-pg"
        ]
    if found.revision != found.package_revision or found.functions != found.package_functions:
        return [
            f"schema drift is out of date (revision {found.revision}, functions {found.functions}; "
            f"this package has {found.package_revision}, {found.package_functions}): drift-pg upgrade"
        ]
    return []


def _column_problems(columns: list[dict[str, Any]]) -> list[str]:
    return [f"column {c['column_name']} of {c['relation']}: {c['problem']}" for c in columns if c["problem"]]


def _adapter_problems(conn: Connection, adapters: list[dict[str, Any]]) -> list[str]:
    active = [a for a in adapters if a["status"] == "active"]
    checked = [(a, verify(conn, a["id"])) for a in active]
    return [
        f"active adapter {a['id']} ({a['source']} → {a['target']}) is broken: {found.problem}: "
        f"drift-pg deactivate --source {a['source']} --target {a['target']}"
        for a, found in checked
        if not found.ok
    ]
