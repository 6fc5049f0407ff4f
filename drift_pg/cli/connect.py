"""Connecting: the DSN's sources, and no password in what is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
import psycopg
from psycopg.conninfo import conninfo_to_dict

from drift_pg.cli.output import note
from drift_pg.database.connection import Connection
from drift_pg.errors import ConnectionLost, InvalidInput

F = TypeVar("F", bound=Callable[..., Any])


def dsn_option(function: F) -> F:
    """Give a command --dsn."""
    return click.option(
        "--dsn",
        envvar="DRIFT_PG_DSN",
        default="",
        metavar="DSN",
        help="Which database, e.g. postgresql://user@host/name. Default: DRIFT_PG_DSN, then libpq's PGHOST, PGDATABASE, …",
    )(function)


@contextmanager
def connected(dsn: str) -> Iterator[Connection]:
    """An autocommit connection: each operation is a transaction of its own.

    Raises:
        InvalidInput: the DSN cannot be parsed; it is not repeated, since it may hold a password.
        ConnectionLost: no connection, with libpq's reason.
    """
    try:
        parameters = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        raise InvalidInput(
            "the DSN is not a connection string",
            hint="write it as postgresql://user@host:5432/database, or as host=… dbname=…",
        ) from None
    parameters.setdefault("application_name", "drift-pg")
    try:
        connection = psycopg.connect(**parameters, autocommit=True)  # type: ignore[arg-type]  # libpq's own names
    except psycopg.OperationalError as error:
        raise ConnectionLost(
            f"no connection to the database: {_without(parameters.get('password'), str(error).strip())}",
            hint="check --dsn, DRIFT_PG_DSN or PGHOST, PGPORT, PGDATABASE, PGUSER",
        ) from None
    with connection:
        connection.add_notice_handler(_show_notice)
        yield connection


def _show_notice(notice: psycopg.errors.Diagnostic) -> None:
    note(f"{(notice.severity or 'notice').lower()}: {notice.message_primary}")
    if notice.message_hint:
        note(f"next: {notice.message_hint}")


def _without(password: object, text: str) -> str:
    return text.replace(str(password), "***") if password else text
