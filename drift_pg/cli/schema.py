"""upgrade, downgrade, status."""

from __future__ import annotations

import click

from drift_pg.cli.connect import connected, dsn_option
from drift_pg.cli.output import json_option, say, show_json, show_table
from drift_pg.database import install, scripts
from drift_pg.database import status as statuses


@click.command()
@dsn_option
@click.option("--sql", "as_sql", is_flag=True, help="Print the SQL instead of running it; needs no database.")
@click.option(
    "--from",
    "start",
    default=scripts.BASE,
    show_default=True,
    metavar="REVISION",
    help="With --sql: the revision the database is at.",
)
@click.option(
    "--vector-schema",
    default="public",
    show_default=True,
    metavar="SCHEMA",
    help="With --sql: where pgvector is installed.",
)
def upgrade(dsn: str, as_sql: bool, start: str, vector_schema: str) -> None:
    """Install schema drift, or bring it to this package's revision.

    One transaction, under an advisory lock; no table of yours is touched. It needs the privilege CREATE
    on the database (or an empty schema drift that the role owns) and pgvector 0.7 or newer; no superuser.

    \b
    For a DBA to review and run:
      drift-pg upgrade --sql | less
      drift-pg upgrade --sql | psql -v ON_ERROR_STOP=1
    """
    if as_sql:
        known = [scripts.BASE, *scripts.revisions()]
        if start not in known:
            raise click.BadParameter(f"{start!r} is none of {', '.join(known)}", param_hint="--from")
        say("BEGIN;\n" + scripts.upgrade_script(vector_schema, start) + "\nCOMMIT;")
        return
    with connected(dsn) as conn:
        before, after = install.upgrade(conn)
    done = "installed" if before == scripts.BASE else "was current" if before == after else f"upgraded from {before}"
    say(f"Schema drift {done}: revision {after}, functions {scripts.functions_version()}.")


@click.command()
@dsn_option
@click.option(
    "--to",
    default=scripts.BASE,
    show_default=True,
    metavar="REVISION",
    help="The revision to go back to; base removes schema drift.",
)
@click.option("--destroy-adapters", is_flag=True, help="Go on although stored adapters are lost.")
def downgrade(dsn: str, to: str, destroy_adapters: bool) -> None:
    """Take schema drift back to a revision, or remove it.

    Your tables and their vectors are not touched. Stored adapters would be lost, so it refuses while
    there are any: `drift-pg export` keeps them as files. Functions are removed too: to use the earlier
    revision, install the package version that brought it and run its `drift-pg upgrade`.
    """
    with connected(dsn) as conn:
        before, after = install.downgrade(conn, to=to, destroy_adapters=destroy_adapters)
    say(
        f"Schema drift went from revision {before} to {after}."
        if after != scripts.BASE
        else f"Schema drift (revision {before}) was removed."
    )


@click.command()
@dsn_option
@json_option
@click.pass_context
def status(ctx: click.Context, dsn: str, as_json: bool) -> None:
    """Show what is installed, registered and active; exit 1 if anything is wrong.

    Wrong is: pgvector or schema drift missing or out of date, a registered column dropped or changed, a
    column whose index does not serve its metric, an active adapter that fails its verification.
    """
    with connected(dsn) as conn:
        found = statuses.status(conn)
    if as_json:
        show_json(found.as_dict())
    else:
        _show(found)
    ctx.exit(0 if found.healthy else 1)


def _show(found: statuses.Status) -> None:
    say(
        f"PostgreSQL {found.server}, pgvector {found.pgvector or 'missing'}, schema drift {found.revision}, functions {found.functions or 'missing'}"
    )
    if found.columns:
        show_table(
            found.columns,
            ["relation", "column_name", "model", "query_model", "also_serves", "followed", "problem"],
            title="Embedding columns",
        )
    if found.adapters:
        show_table(
            found.adapters,
            ["id", "source", "target", "status", "family", "pairs", "activated_at"],
            title="Adapters",
        )
    for problem in found.problems:
        say(click.style("problem: ", fg="red", bold=True) + problem)
    if found.healthy:
        say("All is well.")


COMMANDS = [upgrade, downgrade, status]
