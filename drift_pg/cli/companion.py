"""companion create, index, status, drop: the table of the new model's vectors."""

from __future__ import annotations

import click

from drift_pg.cli.connect import connected, dsn_option
from drift_pg.cli.output import json_option, progress, say, show_json
from drift_pg.database.connection import one
from drift_pg.database.registry import ColumnName, held_column
from drift_pg.reembedding import companion as companions
from drift_pg.reembedding.follow import followed as followed_from


@click.group()
def companion() -> None:
    """Keep a new model's vectors of a column's rows in a table beside yours.

    A bridge alone finds part of what a full re-embedding would; ordering its first 200 rows by the new model's own
    vectors (nearest --rerank 200) brings most of the rest, and needs only the rows that queries touch. Those vectors
    live in a companion table, drift.companion_1, by your table's primary key. Your own table gets two triggers,
    which remove a vector with its row, and nothing else.

    \b
    The life of a companion:
      drift-pg companion create public.docs.embedding --model new --text body
      … searches fill it: drift_pg.search(conn, …, embed=your_function) in Python
      drift-pg companion index public.docs.embedding       once it holds some thousands of vectors
      drift-pg companion status public.docs.embedding      how far it is
      drift-pg companion drop public.docs.embedding        the way back; its vectors are lost

    Each takes --dsn, as all commands do.
    """


@companion.command()
@click.argument("column")
@click.option("--model", required=True, help="The registered model that its vectors will be of.")
@click.option(
    "--text",
    "text",
    required=True,
    multiple=True,
    metavar="TEXT_COLUMN",
    help="The column whose text is embedded; if given several times, their texts are joined by a line break.",
)
@dsn_option
def create(column: str, model: str, text: tuple[str, ...], dsn: str) -> None:
    """Create the companion of a registered embedding COLUMN.

    Its readers and writers are your table's, and so is its row-level security. Run it again after you changed
    either: nothing else happens then. Creating the triggers waits at most 5 s for your writers (PGOPTIONS='-c
    lock_timeout=…' says otherwise), and is refused then rather than making others wait.
    """
    with connected(dsn) as conn:
        name = ColumnName.resolve(conn, column)
        made = companions.create_companion(conn, name.relation_text, name.column, model=model, text=text)
    say(f"Vectors of model {model} for column {name} are kept in {made}.")


@companion.command()
@click.argument("column")
@click.option(
    "--maintenance-work-mem", metavar="SIZE", help="For this build, such as 2GB. Default: as the server is set."
)
@click.option(
    "--workers",
    type=click.IntRange(0, 64),
    help="Parallel ones. Default: as the server is set, and none if their shared memory cannot be had.",
)
@dsn_option
def index(column: str, maintenance_work_mem: str | None, workers: int | None, dsn: str) -> None:
    """Build the vector index of a COLUMN's companion, without stopping searches or writes.

    It is built as your column's own index is: the same method, m and ef_construction; above 2,000 dimensions as
    halfvec. What an interrupted build left is dropped and built again. An index that is there costs nothing.
    """
    with connected(dsn) as conn, progress("blocks indexed") as report:
        name = ColumnName.resolve(conn, column)
        built = companions.build_index(
            conn,
            name.relation_text,
            name.column,
            maintenance_work_mem=maintenance_work_mem,
            workers=workers,
            progress=report,
        )
    say(f"The index of {name}'s companion {'is built' if built else 'is there already'}.")


@companion.command()
@click.argument("column")
@click.option(
    "--minimum",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="Exit with 1 if a smaller share of the rows is known: for a deployment to wait on.",
)
@json_option
@dsn_option
@click.pass_context
def status(ctx: click.Context, column: str, minimum: float, as_json: bool, dsn: str) -> None:
    """How many of a COLUMN's rows have a vector of the new model.

    \b
    known      with a vector of their present text
    stale      with a vector of a text that has changed since: counted as missing by every search
    queued     without a vector, and missed by a search
    orphaned   vectors whose rows are gone: deleted from one partition, by a role without privileges in schema
               drift, or while they were being embedded. No search finds them; SELECT drift.sweep_companion(…)
               removes them
    """
    with connected(dsn) as conn:
        name = ColumnName.resolve(conn, column)
        found = companions.coverage(conn, name.relation_text, name.column)
        followed = followed_from(conn, name.relation_text, name.column)
        about = one(
            conn,
            "SELECT model, array_to_string(text_columns, ', ') AS text, drift.companion_table(id) AS name "
            "FROM drift.companion_of(%s::regclass, %s)",
            [name.relation_text, name.column],
        )
    if as_json:
        show_json(
            {"column": str(name), "model": about.model, "table": about.name, "followed": followed, **found.as_dict()}
        )
    else:
        say(
            f"{name}: {found.known:,} of {found.rows:,} rows ({found.share:.1%}) have a vector of model {about.model}, in {about.name}."
        )
        say(
            f"stale {found.stale:,}, queued {found.queued:,}, orphaned {found.orphaned:,}; the text is that of {about.text}"
        )
        say(
            f"the column is filled from {' and '.join(followed)}"
            if followed
            else "the column is not followed (drift-pg follow)"
        )
    ctx.exit(0 if found.share >= minimum else 1)


@companion.command()
@click.argument("column")
@click.option("--yes", is_flag=True, help="Do not ask.")
@dsn_option
def drop(column: str, yes: bool, dsn: str) -> None:
    """Drop a COLUMN's companion with its vectors, its index and its triggers.

    Searches with --rerank are refused from then on; those without go on. A table that was dropped has only its
    number left: 16423.embedding
    """
    with connected(dsn) as conn:
        relation, name = held_column(conn, column)
        if not yes:
            click.confirm(
                f"The new model's vectors of {column} will be lost, and embedding them cost time. Go on?", abort=True
            )
        companions.drop_companion(conn, relation, name)
    say(f"The companion of {column} is dropped.")


COMMANDS = [companion]
