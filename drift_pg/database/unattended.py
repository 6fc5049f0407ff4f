"""One statement that installs or removes schema drift, whatever revision it finds and whichever schema has pgvector.

`drift-pg upgrade` looks first and runs what is needed; a revision of a user's history may be printed (`--sql`) for a
database that nobody has looked at, so here the statement does the looking.
"""

from __future__ import annotations

from itertools import pairwise

from psycopg import sql

from drift_pg.database import scripts

_VECTOR = "the schema of pgvector"
"""Stands for that schema in what is rendered; no identifier of ours reads so."""

_PROLOGUE = """
DECLARE
    vector text;
    held text := 'base';
    at integer;
    known CONSTANT text[] := {known};
    steps CONSTANT text[] := {steps};
    path CONSTANT text := pg_catalog.current_setting('search_path');
    messages CONSTANT text := pg_catalog.current_setting('client_min_messages');
BEGIN
    SELECT pg_catalog.quote_ident(n.nspname) INTO vector
    FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector';
    IF vector IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'undefined_object',
            MESSAGE = pg_catalog.format('database %I has no pgvector', pg_catalog.current_database()),
            HINT = 'CREATE EXTENSION vector;';
    END IF;
    PERFORM pg_catalog.pg_advisory_xact_lock({lock});
    IF pg_catalog.to_regclass('drift.alembic_version') IS NOT NULL THEN
        EXECUTE 'SELECT version_num FROM drift.alembic_version' INTO held;
    END IF;
    at := pg_catalog.array_position(known, held);
    IF at IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'VD031',
            MESSAGE = pg_catalog.format('schema drift is at revision %L, which this package does not know', held),
            HINT = 'pip install --upgrade drift-pg';
    END IF;
"""

_SETTINGS = """
    PERFORM pg_catalog.set_config('search_path', pg_catalog.format('pg_catalog, drift, %s, pg_temp', vector), true),
            pg_catalog.set_config('client_min_messages', 'warning', true);
"""

_EPILOGUE = """
    PERFORM pg_catalog.set_config('search_path', path, true), pg_catalog.set_config('client_min_messages', messages, true);
END
"""

_INSTALL = """
    IF held = 'base' THEN
        EXECUTE {expect_nothing};
    END IF;
    FOR step IN at .. pg_catalog.cardinality(steps) LOOP
        EXECUTE pg_catalog.replace(steps[step], {placeholder}, vector);
    END LOOP;
    EXECUTE pg_catalog.replace({functions}, {placeholder}, vector);
"""

_REMOVE = """
    IF held <> 'base' THEN
        IF pg_catalog.to_regclass('drift.adapter') IS NOT NULL THEN
            EXECUTE {keep_adapters};
        END IF;
        EXECUTE {keep_companions};
        EXECUTE {drop_functions};
        FOR step IN REVERSE at - 1 .. 1 LOOP
            EXECUTE steps[step];
        END LOOP;
        EXECUTE {drop_schema};
    END IF;
"""


def install_statement() -> str:
    """Brings schema drift from whatever revision to this package's, with its functions.

    Errors of the database: VD031 for a revision of a newer package, VD020 for a schema drift of something else,
    42704 without pgvector.
    """
    known = [scripts.BASE, *scripts.revisions()]
    steps = [scripts.migrations(before, after) for before, after in pairwise(known)]
    return _statement(
        _INSTALL,
        steps,
        expect_nothing=scripts.EXPECT_NOTHING,
        functions=scripts.functions_sql(_VECTOR),
        placeholder=sql.Identifier(_VECTOR).as_string(None),
    )


def remove_statement() -> str:
    """Removes schema drift from whatever revision; VD022 while adapters are stored."""
    known = [scripts.BASE, *scripts.revisions()]
    steps = [scripts.migrations(after, before, down=True) for before, after in pairwise(known)]
    return _statement(
        _REMOVE,
        steps,
        keep_adapters=scripts.KEEP_ADAPTERS,
        keep_companions=scripts.KEEP_COMPANIONS,
        drop_functions=scripts.DROP_FUNCTIONS,
        drop_schema=scripts.DROP_SCHEMA,
    )


def _statement(action: str, steps: list[str], **texts: str) -> str:
    values = {name: _quoted(name, text) for name, text in texts.items()}
    body = sql.SQL(_PROLOGUE + _SETTINGS + action + _EPILOGUE).format(
        known=sql.Literal([scripts.BASE, *scripts.revisions()]),
        steps=sql.SQL("ARRAY[{}]").format(sql.SQL(", ").join(_quoted("step", step) for step in steps)),
        lock=sql.Literal(scripts.LOCK),
        **values,
    )
    return "DO " + _quoted("drift_pg", body.as_string(None)).as_string(None)


def _quoted(tag: str, text: str) -> sql.SQL:
    """In dollar quotes, so that who reviews it reads the SQL as it is; doubled quotes would be doubled thrice."""
    mark = f"${tag}$"
    if mark in text:
        raise ValueError(f"{mark} stands in the text that it quotes")
    return sql.SQL(mark + text + mark)
