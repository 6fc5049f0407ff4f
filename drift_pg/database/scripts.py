"""Renders sql/ and migrations/ as one SQL script; what is printed for review is what is run."""

from __future__ import annotations

import hashlib
import io
import re
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg import sql

from drift_pg import _assets
from drift_pg.gate import DEFAULT_MINIMUM

# Alembic is imported where it is used: it imports its plugins, drift_pg.alembic among them, which import this package.
if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

LOCK = 0x64726966745F7067  # "drift_pg"
BASE = "base"

_PROLOGUE = """\
-- drift_pg {version}: schema drift from revision {start} to {end}.
DO $$ BEGIN PERFORM pg_advisory_xact_lock({lock}); END $$;
SET LOCAL search_path = pg_catalog, drift, {vector}, pg_temp;
SET LOCAL client_min_messages = warning;
"""

EXPECT_NOTHING = """
DO $$ BEGIN
    IF to_regclass('drift.alembic_version') IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'VD031',
            MESSAGE = 'schema drift is already installed in this database',
            HINT = 'For the SQL of an upgrade, name the revision it is at: drift-pg upgrade --sql --from REVISION';
    ELSIF EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace('drift')) THEN
        RAISE EXCEPTION USING ERRCODE = 'VD020',
            MESSAGE = 'this database has a schema drift that belongs to something else',
            HINT = 'drift_pg needs that name: ALTER SCHEMA drift RENAME TO another_name;';
    ELSIF to_regnamespace('drift') IS NULL THEN
        IF NOT has_database_privilege(current_database(), 'CREATE') THEN
            RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege',
                MESSAGE = format('role %I may not create schema drift in database %I', current_user, current_database()),
                HINT = format('GRANT CREATE ON DATABASE %I TO %I;', current_database(), current_user);
        END IF;
        CREATE SCHEMA drift;
    END IF;
END $$;
"""

_EXPECT_REVISION = """
DO $$ DECLARE found text; BEGIN
    SELECT version_num INTO found FROM drift.alembic_version;
    IF found IS DISTINCT FROM {start} THEN
        RAISE EXCEPTION USING ERRCODE = 'VD031',
            MESSAGE = format('schema drift is at revision %L, this script starts at %L', found, {start}),
            HINT = 'drift-pg status; then drift-pg upgrade --sql --from REVISION';
    END IF;
END $$;
"""

KEEP_ADAPTERS = """
DO $$ DECLARE stored bigint; BEGIN
    SELECT count(*) INTO stored FROM drift.adapter;
    IF stored > 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'VD022',
            MESSAGE = format('schema drift holds %s adapters, which this downgrade would destroy', stored),
            HINT = 'Keep them as files first: drift-pg export ID FILE; then drift-pg downgrade --destroy-adapters';
    END IF;
END $$;
"""

# Vectors that were paid for, and triggers on users' tables that call functions which the downgrade drops.
KEEP_COMPANIONS = """
DO $$ DECLARE columns text; BEGIN
    IF to_regclass('drift.companion') IS NOT NULL THEN
        SELECT string_agg(format('%s.%I', relation, column_name), ', ') INTO columns FROM drift.companion;
        IF columns IS NOT NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'VD022',
                MESSAGE = format('there are companion tables with vectors of a new model, for %s', columns),
                HINT = 'SELECT drift.drop_companion(relation, column_name) FROM drift.companion;';
        END IF;
    END IF;
END $$;
"""

KEEP_FOLLOWED = """
DO $$ DECLARE tables text; BEGIN
    SELECT string_agg(DISTINCT t.tgrelid::regclass::text, ', ') INTO tables FROM pg_trigger t
    JOIN pg_proc p ON p.oid = t.tgfoid AND p.pronamespace = to_regnamespace('drift')
    WHERE t.tgname ~ '^zz_drift_follow_' AND t.tgparentid = 0;
    IF tables IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'VD022',
            MESSAGE = format('triggers on %s fill an embedding column by functions of schema drift', tables),
            HINT = 'SELECT drift.unfollow(relation, column_name) FROM drift.embedding_column;';
    END IF;
END $$;
"""

# Newest first, since a later view is built on earlier ones; no CASCADE, which would take what a user built on them.
DROP_FUNCTIONS = """
DO $$ DECLARE command text; BEGIN
    FOR command IN
        SELECT format('DROP VIEW %s', oid::regclass) FROM pg_class
        WHERE relnamespace = to_regnamespace('drift') AND relkind = 'v' ORDER BY oid DESC
    LOOP
        EXECUTE command;
    END LOOP;
    FOR command IN
        SELECT format('DROP FUNCTION %s', oid::regprocedure) FROM pg_proc WHERE pronamespace = to_regnamespace('drift')
    LOOP
        EXECUTE command;
    END LOOP;
END $$;
"""

DROP_SCHEMA = """
DROP TABLE IF EXISTS drift.alembic_version;
DROP SCHEMA drift;
"""


@cache
def _directory() -> ScriptDirectory:
    from alembic.script import ScriptDirectory

    return ScriptDirectory(str(_assets.folder("migrations")))


def revisions() -> list[str]:
    """All revisions, oldest first."""
    return [script.revision for script in reversed(list(_directory().walk_revisions()))]


def head() -> str:
    """The revision that this package installs."""
    return revisions()[-1]


@cache
def functions_version() -> str:
    """What `drift.version()` returns: the package's version and a digest of sql/ and of what is rendered into it."""
    texts = "".join(path.read_text("utf-8") for path in _sql_files()) + str(DEFAULT_MINIMUM)
    return f"{version('drift-pg')} ({hashlib.sha256(texts.encode()).hexdigest()[:12]})"


def _sql_files() -> list[Path]:
    """views.sql comes last: views are checked when they are created, function bodies when they run."""
    return sorted(_assets.folder("sql").glob("*.sql"), key=lambda path: (path.stem == "views", path.stem))


def functions_sql(vector: str) -> str:
    """All functions and views, for a pgvector in that schema."""
    variables = {
        ':"pgvector"': sql.Identifier(vector).as_string(None),
        ":'version'": sql.Literal(functions_version()).as_string(None),
        ":'minimum'": sql.Literal(DEFAULT_MINIMUM).as_string(None),
    }
    text = "\n".join(path.read_text("utf-8") for path in _sql_files())
    return re.sub(r""":"pgvector"|:'version'|:'minimum'""", lambda match: variables[match.group()], text)


@cache
def migrations(start: str, end: str, *, down: bool = False) -> str:
    """The tables' changes alone, from one revision to another, as SQL.

    Without Alembic's commands and its process-wide `op`: a migration of the user's may be running and using them.
    """
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    directory, output = _directory(), io.StringIO()
    steps = directory._downgrade_revs if down else directory._upgrade_revs
    options = {
        "as_sql": True,
        "output_buffer": output,
        "version_table_schema": "drift",
        "transactional_ddl": False,
        "starting_rev": start,
        "fn": lambda revision, _: steps(end, revision),
    }
    context = MigrationContext.configure(dialect_name="postgresql", opts=options)
    for script in directory.walk_revisions():
        vars(script.module)["op"] = Operations(context)
    context.run_migrations()
    return output.getvalue()


def _prologue(start: str, end: str, vector: str) -> str:
    identifier = sql.Identifier(vector).as_string(None)
    return _PROLOGUE.format(version=version("drift-pg"), start=start, end=end, lock=LOCK, vector=identifier)


def _expect(start: str) -> str:
    if start == BASE:
        return EXPECT_NOTHING
    return _EXPECT_REVISION.replace("{start}", sql.Literal(start).as_string(None))


def upgrade_script(vector: str, start: str = BASE, end: str | None = None) -> str:
    """SQL that brings schema drift from revision `start` to `end` and re-creates its functions."""
    end = end or head()
    tables = "" if start == end else migrations(start, end)
    functions = functions_sql(vector) if end == head() else ""
    return _prologue(start, end, vector) + _expect(start) + tables + functions


def downgrade_script(vector: str, start: str, end: str = BASE, *, destroy_adapters: bool = False) -> str:
    """SQL that takes schema drift back from `start` to `end`; at the base nothing of it is left."""
    keeps_adapters = end in revisions() and revisions().index(end) >= revisions().index("0002")
    guard = (
        ""
        if destroy_adapters or keeps_adapters or revisions().index(start) < revisions().index("0002")
        else KEEP_ADAPTERS
    )
    schema = DROP_SCHEMA if end == BASE else ""
    return (
        _prologue(start, end, vector)
        + _expect(start)
        + guard
        + KEEP_COMPANIONS
        + KEEP_FOLLOWED
        + DROP_FUNCTIONS
        + migrations(start, end, down=True)
        + schema
    )
