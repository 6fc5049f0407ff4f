"""Errors of schema drift that reach an application through SQLAlchemy: drift_pg's class, naming class and column.

Each is an error of SQLAlchemy's as well, of the class that it would have been: an application that knows only
`except SQLAlchemyError` handles it as before, and `.orig`, `.statement` and `.params` are there.
Errors that are not schema drift's are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

from sqlalchemy import event
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import StatementError

from drift_pg.database.connection import as_drift_error
from drift_pg.errors import DriftError
from drift_pg.sqlalchemy.expressions import SEARCHED, Searched

_OF_DRIFT = re.compile(r"\bdrift\b")


class InStatement(Exception):
    """What an error of drift_pg takes from SQLAlchemy's error, which it stands for and is as well."""

    detail: str | None
    kinds: ClassVar[tuple[type[DriftError], type[StatementError]]]

    def add_detail(self, text: str) -> None:
        """SQLAlchemy says here that an automatic flush ran the statement."""
        self.detail = "\n".join(part for part in (self.detail, text) if part)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (*self.kinds, self.__dict__)


@event.listens_for(PGDialect, "handle_error")
def translate(context: ExceptionContext) -> Exception | None:
    """Return the error to raise instead; None where schema drift did not raise it."""
    original, theirs = context.original_exception, context.sqlalchemy_exception
    compiled = getattr(context.execution_context, "compiled", None)
    searched: Sequence[Searched] = getattr(compiled, SEARCHED, ())
    ours = original if isinstance(original, DriftError) else _reported(original, adapts=bool(searched))
    if ours is None or theirs is None:
        return None
    names = [str(each) for each in dict.fromkeys(searched)]
    said = [ours.detail, f"The query was for {', '.join(names)}." if names else None]
    return _both(ours, theirs, "\n".join(part for part in said if part) or None)


def _reported(original: BaseException, *, adapts: bool) -> DriftError | None:
    sqlstate = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    message, detail, hint = _words(original)
    # A privilege or a table may be missing anywhere: it is ours only where a query is adapted, in schema drift.
    if not str(sqlstate).startswith("VD") and not (adapts and _OF_DRIFT.search(message)):
        return None
    return as_drift_error(sqlstate, message, detail, hint)


def _words(original: BaseException) -> tuple[str, str | None, str | None]:
    report = getattr(original, "diag", None)
    if report is not None:  # psycopg, psycopg2
        return report.message_primary or str(original), report.message_detail, report.message_hint
    # asyncpg's error is the cause of the one that SQLAlchemy makes of it.
    cause: Any = original.__cause__
    return getattr(cause, "message", str(original)), getattr(cause, "detail", None), getattr(cause, "hint", None)


def _both(ours: DriftError, theirs: StatementError, detail: str | None) -> Exception:
    state = {**theirs.__dict__, **ours.__dict__, "detail": detail}
    return _rebuilt(type(ours), type(theirs), state)


def _rebuilt(ours: type[DriftError], theirs: type[StatementError], state: dict[str, Any]) -> Exception:
    kind = _kind((ours, theirs))
    error = kind.__new__(kind, state["message"])
    error.__dict__.update(state)
    return error


@cache
def _kind(kinds: tuple[type[DriftError], type[StatementError]]) -> type[Exception]:
    ours = kinds[0]
    names = {"__module__": __name__, "__doc__": ours.__doc__, "kinds": kinds}
    return type(ours.__name__, (InStatement, *kinds), names)
