"""Runs one SQL statement of an operation, by whichever driver, or prints it with --sql."""

from __future__ import annotations

from typing import Any

from alembic.operations import Operations
from psycopg import sql
from sqlalchemy.exc import DBAPIError

import drift_pg.sqlalchemy.errors  # noqa: F401 (makes the database's errors drift_pg's)

_SHOWN = 500
"""Characters of a statement that an error repeats; one that stores an adapter has millions."""


def execute(operations: Operations, statement: str) -> None:
    """Run one statement as it is written, without parameters, or print it in --sql mode.

    Raises:
        DriftError: the database refuses; nothing of the statement is done.
    """
    context = operations.migration_context
    if context.as_sql:
        context.impl.static_output(statement.strip().rstrip(";") + ";")
        return
    try:
        operations.get_bind().exec_driver_sql(statement, execution_options={"no_parameters": True})
    except DBAPIError as error:
        error.statement = error.statement and error.statement[:_SHOWN]
        raise


def call(operations: Operations, function: str, *arguments: Any) -> None:
    """Run `SELECT drift.function(arguments)`, each argument a literal."""
    literals = sql.SQL(", ").join(sql.Literal(argument) for argument in arguments)
    execute(operations, sql.SQL("SELECT {}({})").format(sql.Identifier("drift", function), literals).as_string(None))


def qualified(name: str, schema: str | None) -> sql.Identifier:
    """A name in its schema; None: wherever the search_path finds it."""
    return sql.Identifier(*([schema] if schema else []), name)


def relation(table: str, schema: str | None) -> str:
    """A table as SQL names it, to be read as a regclass."""
    return qualified(table, schema).as_string(None)
