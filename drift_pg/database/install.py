"""Installs, upgrades and removes schema drift, in one transaction and under an advisory lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from drift_pg.database import scripts
from drift_pg.database.connection import GRANT_HINT, Connection, one, rows, translated, vector_schema
from drift_pg.errors import InvalidInput, NotInstalled, PermissionDenied, WrongRevision


def installed_revision(conn: Connection) -> str:
    """The revision of schema drift in this database; "base" if there is none."""
    if one(conn, "SELECT to_regclass('drift.alembic_version') AS versions").versions is None:
        return scripts.BASE
    found = rows(conn, "SELECT version_num FROM drift.alembic_version")
    return str(found[0].version_num) if found else scripts.BASE


def upgrade(conn: Connection, *, to: str | None = None) -> tuple[str, str]:
    """Install schema drift, or bring it to this package's revision and functions.

    Safe to call at every start of an application: one caller works, others wait for it, and where
    nothing is out of date only the functions are re-created.

    Args:
        conn: a connection; in autocommit mode the upgrade is a transaction of its own, otherwise part
            of the caller's.
        to: a revision before the newest, for tests of upgrade paths; its functions are not created.

    Returns:
        The revisions before and after.

    Raises:
        NotInstalled: pgvector is missing.
        WrongRevision: the database is newer than this package.
    """
    vector = vector_schema(conn)
    with translated(), conn.transaction(), _settings_kept(conn):
        conn.execute("SELECT pg_catalog.pg_advisory_xact_lock(%s)", [scripts.LOCK])
        start, end = _known(installed_revision(conn)), to or scripts.head()
        _run(conn, scripts.upgrade_script(vector, start, end))
    return start, end


def downgrade(conn: Connection, *, to: str = scripts.BASE, destroy_adapters: bool = False) -> tuple[str, str]:
    """Take schema drift back to a revision, or remove it. Users' tables are not touched.

    Raises:
        StillInUse: adapters are stored and `destroy_adapters` is not set.
        NotInstalled: there is no schema drift.
        InvalidInput: `to` is not an earlier revision.
    """
    vector = vector_schema(conn)
    with translated(), conn.transaction(), _settings_kept(conn):
        conn.execute("SELECT pg_catalog.pg_advisory_xact_lock(%s)", [scripts.LOCK])
        start = _known(installed_revision(conn))
        if start == scripts.BASE:
            raise NotInstalled("this database has no schema drift", hint="drift-pg upgrade")
        earlier = [scripts.BASE, *scripts.revisions()[: scripts.revisions().index(start)]]
        if to not in earlier:
            raise InvalidInput(
                f"schema drift is at revision {start}, {to!r} is not before it; earlier: {', '.join(earlier)}"
            )
        _run(conn, scripts.downgrade_script(vector, start, to, destroy_adapters=destroy_adapters))
    return start, to


def _known(revision: str) -> str:
    if revision not in [scripts.BASE, *scripts.revisions()]:
        raise WrongRevision(
            f"schema drift is at revision {revision}, which this package does not know (newest: {scripts.head()})",
            hint="pip install --upgrade drift-pg",
        )
    return revision


def _run(conn: Connection, script: str) -> None:
    """Run many statements in one round trip; the script holds no parameters."""
    try:
        with translated():
            conn.execute(script.encode())
    except PermissionDenied as error:
        hint = "run it as the role that owns schema drift" if error.hint == GRANT_HINT else error.hint
        raise PermissionDenied(error.message, detail=error.detail, hint=hint) from error


@contextmanager
def _settings_kept(conn: Connection) -> Iterator[None]:
    """Put back the settings that a script changes, since its transaction may be the caller's."""
    names = ["search_path", "client_min_messages"]
    before = [one(conn, "SELECT pg_catalog.current_setting(%s) AS value", [name]).value for name in names]
    yield
    for name, value in zip(names, before, strict=True):
        conn.execute("SELECT pg_catalog.set_config(%s, %s, true)", [name, value])
