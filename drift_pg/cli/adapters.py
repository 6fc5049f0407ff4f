"""adapters, activate, deactivate, verify, export, import."""

from __future__ import annotations

from pathlib import Path

import click

from drift_pg import artifact
from drift_pg.adapter import Adapter
from drift_pg.cli.connect import connected, dsn_option
from drift_pg.cli.output import json_option, say, show_json, show_table
from drift_pg.database import adapters as stored_adapters
from drift_pg.database.connection import one, rows
from drift_pg.errors import InvalidInput
from drift_pg.gate import DEFAULT_MINIMUM

adapter_argument = click.argument("adapter", type=click.IntRange(1))
minimum_option = click.option(
    "--minimum",
    default=DEFAULT_MINIMUM,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="What the lower end of the score's interval must reach.",
)


@click.command("adapters")
@json_option
@dsn_option
def list_adapters(as_json: bool, dsn: str) -> None:
    """List stored adapters: between which models, and which serve."""
    with connected(dsn) as conn:
        found = [row._asdict() for row in rows(conn, "SELECT * FROM drift.adapters")]
    if as_json:
        show_json(found)
    elif found:
        show_table(
            found,
            ["id", "source", "target", "status", "family", "pairs", "score", "advice", "created_at", "activated_at"],
        )
    else:
        say("No adapter is stored. Fit one: drift-pg fit --help")


@click.command()
@adapter_argument
@click.option("--force", is_flag=True, help="Activate it whatever the quality gate says; the event keeps that.")
@minimum_option
@dsn_option
def activate(adapter: int, force: bool, minimum: float, dsn: str) -> None:
    """Make an ADAPTER (its id) the one that serves its two models, for every client at once.

    Its checksum is recomputed and its probes are replayed first; one that fails is refused. So is a
    candidate that was not evaluated, or whose score may lie below the minimum. The adapter that served
    before is retired and can be activated again: that is the way back.
    """
    with connected(dsn) as conn:
        stored_adapters.activate(conn, adapter, force=force, minimum=minimum)
        models = one(conn, "SELECT source, target FROM drift.adapter WHERE id = %s", [adapter])
    say(f"Adapter {adapter} now maps queries of {models.source} into the space of {models.target}.")
    say(f"The way back: drift-pg deactivate --source {models.source} --target {models.target}, or activate another.")


@click.command()
@click.option("--source", required=True, help="The new model, whose queries are mapped.")
@click.option("--target", required=True, help="The legacy model, which the column holds.")
@dsn_option
def deactivate(source: str, target: str, dsn: str) -> None:
    """Retire the active adapter of two models.

    Searches by the new model then fail with a clear error (VD012) instead of finding wrong rows;
    `drift-pg activate` brings the adapter back.
    """
    with connected(dsn) as conn:
        stored_adapters.deactivate(conn, source=source, target=target)
    say(f"No adapter maps queries of {source} into the space of {target} any more.")


@click.command("drop-adapter")
@adapter_argument
@click.confirmation_option(prompt="The adapter and its weights are deleted. Go on?")
@dsn_option
def drop_adapter(adapter: int, dsn: str) -> None:
    """Delete an ADAPTER that is not active. `export` it first if it may be wanted again."""
    with connected(dsn) as conn:
        stored_adapters.drop_adapter(conn, adapter)
    say(f"Adapter {adapter} is deleted.")


@click.command()
@adapter_argument
@json_option
@dsn_option
@click.pass_context
def verify(ctx: click.Context, adapter: int, as_json: bool, dsn: str) -> None:
    """Check that an ADAPTER is what was stored; exit 1 if not.

    Recomputes its checksum from the stored weights and replays its probes through the SQL evaluator.
    """
    with connected(dsn) as conn:
        found = stored_adapters.verify(conn, adapter)
    if as_json:
        show_json({"adapter": adapter, **vars(found)})
    elif found.ok:
        say(
            f"Adapter {adapter} is what was stored: checksum right, {found.probes} probes off by at most {found.worst_error:.1e} of their length."
        )
    else:
        say(f"Adapter {adapter} is broken: {found.problem}.")
    ctx.exit(0 if found.ok else 1)


@click.command("export")
@adapter_argument
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@dsn_option
def export_adapter(adapter: int, file: Path, force: bool, dsn: str) -> None:
    """Write an ADAPTER to a safetensors FILE, with its models' names and its latest evaluation.

    The file can be imported into another database, or activated by a revision of your Alembic history,
    which names it by the SHA-256 that is printed.
    """
    if file.exists() and not force:
        raise InvalidInput(f"{str(file)!r} exists", hint="name another file, or add --force")
    with connected(dsn) as conn:
        stored_adapters.export(conn, adapter, file)
    say(f"Adapter {adapter} is written to {file}, with its models' names and its latest evaluation.")
    say(f"sha256 of the file: {artifact.sha256(file)}")


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--source", required=True, help="The registered model whose queries it maps.")
@click.option("--target", required=True, help="The registered model whose space it maps them into.")
@dsn_option
def import_adapter(file: Path, source: str, target: str, dsn: str) -> None:
    """Store the adapter of a safetensors FILE as a candidate, with the evaluation that it carries.

    A file that was changed after it was written is refused.
    """
    loaded = Adapter.load(file)
    with connected(dsn) as conn:
        stored = stored_adapters.store(conn, loaded, source=source, target=target)
    say(
        f"Adapter {stored} ({source} → {target}) is stored as a candidate. Is it good enough? drift-pg evaluate {stored} --help"
    )


COMMANDS = [list_adapters, activate, deactivate, drop_adapter, verify, export_adapter, import_adapter]
