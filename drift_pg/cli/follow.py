"""follow, unfollow: new rows without the old model."""

from __future__ import annotations

import click

from drift_pg.cli.connect import connected, dsn_option
from drift_pg.cli.output import json_option, progress, say, show_json
from drift_pg.database.registry import ColumnName
from drift_pg.reembedding.follow import catch_up as fill_missed
from drift_pg.reembedding.follow import follow as start
from drift_pg.reembedding.follow import followed as followed_from
from drift_pg.reembedding.follow import unfollow as stop


@click.command()
@click.argument("column")
@click.option(
    "--source",
    metavar="SOURCE_COLUMN",
    help="The column of the same table that your application writes the new model's vectors to. Default: none, only the companion.",
)
@click.option("--catch-up", is_flag=True, help="Then fill the rows that were missed; resumable.")
@json_option
@dsn_option
def follow(column: str, source: str | None, catch_up: bool, as_json: bool, dsn: str) -> None:
    """Fill COLUMN, the old model's, when a vector of the new model is written.

    New rows then need no old model: the active adapter maps their new vector into the old model's space, so that
    your present index, and searches through it, find them. It is done by triggers on your table.

    \b
    The new vectors come from
      --source new_embedding    a column of the same table that your application writes to, by INSERT,
                                UPDATE, COPY or ON CONFLICT. Its model is that which it is registered
                                with, else the companion's, else drift-pg set-query-model's
      the column's companion    if there is one (drift-pg companion create): drift.store_vectors and
                                drift_pg.search fill it. Rows whose text is new or changes are queued in it.

    \b
    What happens to the old model's vector of a row
      the statement writes it               it stays as written
      the source vector changes             it is made anew
      a row gets its first source vector    it stays (a real one is better), unless its text changes in the
                                            same statement and the companion knows of that text. If your
                                            application embeds later than it writes the text, let it say
                                            UPDATE … SET new_embedding = …, embedding = NULL
      the text alone changes                it stays until the companion has a vector of the new text

    Know its limit: in a bridge search filled rows come before rows with a vector of the old model itself, since adapted
    vectors are nearer to adapted queries than real ones are. Few filled rows then take most of the answers. Rows whose
    vectors are in the companion do no such harm to a search that reranks (drift-pg nearest --rerank 200), which scores
    them by these: follow the companion, and rerank, unless nearly all rows are new.

    Your writes do not fail because of it: without an active adapter, or without privileges on schema drift, a row
    keeps a NULL and brings a warning, and --catch-up fills it later. Only a NOT NULL column refuses such a row.

    Creating the triggers waits at most 5 s for your writers (PGOPTIONS='-c lock_timeout=…' says otherwise). Run it
    again after you created a companion, or to catch up; what is there alike is left as it is. Unfollow before you
    rename one of these columns or change its type.

    \b
      drift-pg follow public.docs.embedding --source new_embedding --catch-up
      drift-pg unfollow public.docs.embedding               the way back
    """
    with connected(dsn) as conn, progress("rows filled") as report:
        name = ColumnName.resolve(conn, column)
        start(conn, name.relation_text, name.column, source=source)
        filled = fill_missed(conn, name.relation_text, name.column, progress=report) if catch_up else None
        found = followed_from(conn, name.relation_text, name.column)
    if as_json:
        show_json({"column": str(name), "followed": found, "filled": filled})
        return
    say(f"Column {name} is filled from {' and '.join(found)}, as vectors of the new model are written.")
    if filled is not None:
        say(f"{filled:,} rows that were missed are filled.")


@click.command()
@click.argument("column")
@json_option
@dsn_option
def unfollow(column: str, as_json: bool, dsn: str) -> None:
    """Stop filling COLUMN: removes the triggers that `follow` created.

    Vectors that were filled in stay. Rows that are written from now on have the vectors that your application
    writes. Dropping the triggers waits at most 5 s for whoever uses the table.
    """
    with connected(dsn) as conn:
        name = ColumnName.resolve(conn, column)
        removed = stop(conn, name.relation_text, name.column)
    if as_json:
        show_json({"column": str(name), "removed": removed})
    else:
        say(f"Column {name} is filled no more." if removed else f"Column {name} was not followed.")


COMMANDS = [follow, unfollow]
