"""query-log status, trim; and what fit and evaluate take from the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Literal, TypeVar

import click

from drift_pg.adapter import Float32
from drift_pg.cli.connect import connected, dsn_option
from drift_pg.cli.output import json_option, note, say, show_json, show_table
from drift_pg.database.connection import Connection, one
from drift_pg.database.registry import ColumnName
from drift_pg.errors import InvalidInput
from drift_pg.reembedding.query_log import DAYS, KEEP, query_log_status, read_query_log, trim_query_log

F = TypeVar("F", bound=Callable[..., Any])

FILL = "in the application: drift_pg.sqlalchemy.log_queries(engine), drift_pg.QueryLog(dsn).log(…), or SELECT drift.log_query(…)"


def logged_option(function: F) -> F:
    """Give a command --logged-queries."""
    return click.option(
        "--logged-queries",
        type=click.IntRange(1),
        metavar="N",
        help="Take the newest N queries that were logged in the database for this column; drift-pg query-log tells of them.",
    )(function)


def logged_queries(
    conn: Connection, column: ColumnName, model: str, limit: int, part: Literal["fit", "evaluate"]
) -> Float32:
    """(q, m) logged queries of a part, q ≥ 1; says how many there are.

    Raises:
        InvalidInput: there are none.
    """
    found = read_query_log(conn, column.relation_text, column.column, model=model, limit=limit, part=part)
    share = {"fit": "the four fifths to learn from", "evaluate": "the fifth that no fit has seen"}[part]
    if not len(found):
        raise InvalidInput(f"no queries of model {model!r} are logged for column {column}, of {share}", hint=FILL)
    note(f"Taking {len(found):,} logged queries of model {model} for {column}, of {share}.")
    return found


@click.group("query-log")
def query_log() -> None:
    """Keep a small sample of real queries, as vectors, in the database.

    drift-pg fit learns from them (--logged-queries), evaluate searches with them, and what they find is re-embedded
    first. Kept are the vector, its model, its column and the time: no text and no user. Vectors tell something of
    their text all the same: who may read drift.query_log is yours to grant.

    \b
    What fills it, with 1 % of the queries unless told otherwise, never waiting for the database:
      query_log = drift_pg.sqlalchemy.log_queries(engine)      every adapted query of an engine
      query_log = drift_pg.QueryLog("postgresql:///app")       in Python
      query_log.log(vector, model="new", relation="public.docs", column="embedding")
      SELECT drift.log_query('[0.1, …]', 'new', 'public.docs', 'embedding')     in SQL, every one of them

    It trims itself: to the newest 10,000 of each column and model, none older than 30 days, as long as a role that logs may
    also SELECT, UPDATE and DELETE. Unregistering a column or a model forgets its queries.

    Each takes --dsn, as all commands do.
    """


@query_log.command()
@json_option
@dsn_option
def status(as_json: bool, dsn: str) -> None:
    """How many queries are logged for each column and model, since when, and how much room they take.

    A column of a table that was dropped has only the table's number left: drift-pg unregister-column forgets it.
    """
    with connected(dsn) as conn:
        found = query_log_status(conn)
        size = int(one(conn, "SELECT pg_total_relation_size('drift.query_log') AS size").size)
    if as_json:
        show_json({"bytes": size, "columns": [asdict(each) for each in found]})
    elif not found:
        say(f"No queries are logged. To fill the log: {FILL}")
    else:
        rows = [{**asdict(each), "queries": f"{each.queries:,}", "kB": f"{each.bytes / 1000:,.0f}"} for each in found]
        show_table(rows, ["relation", "column", "model", "queries", "oldest", "newest", "kB"])
        say(f"The log with its indexes takes {size / 1000:,.0f} kB.")


@query_log.command()
@click.option(
    "--keep", default=KEEP, show_default=True, type=click.IntRange(0), help="Per column and model, the newest."
)
@click.option("--days", default=DAYS, show_default=True, type=click.FloatRange(0), help="Older ones go.")
@dsn_option
def trim(keep: int, days: float, dsn: str) -> None:
    """Delete what is beyond these limits; --keep 0 deletes everything.

    Logging trims to the same limits by itself if its role may; this is for logs that only insert, and for the day on
    which the queries shall be gone.
    """
    with connected(dsn) as conn:
        gone = trim_query_log(conn, keep=keep, days=days)
    say(f"{gone:,} logged queries are deleted.")


COMMANDS = [query_log]
