"""The group of commands, and what becomes of errors."""

from __future__ import annotations

from typing import Any

import click
import psycopg

from drift_pg.cli import adapters, companion, evaluate, fit, follow, nearest, query_log, registry, report, schema
from drift_pg.cli.output import show_error
from drift_pg.errors import DriftError


class Commands(click.Group):
    """Prints an error as what was wrong and what to run next, never as a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        """In the order of an upgrade's life, not of the alphabet."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; exit 1 if it is refused."""
        try:
            return super().invoke(ctx)
        except DriftError as error:
            show_error(error.message, error.detail, error.hint)
        except psycopg.Error as error:
            show_error(str(error).strip(), f"SQLSTATE {error.sqlstate}" if error.sqlstate else None, None)
        except KeyboardInterrupt:
            show_error("interrupted", "What was finished before is kept.", "run the same command again to go on")
            ctx.exit(130)
        return ctx.exit(1)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="drift-pg")
def main() -> None:
    """Change your embedding model and keep your pgvector index.

    \b
    The life of an upgrade:
      drift-pg upgrade                                  install schema drift
      drift-pg register-model old --dimensions 384      the model that the table's vectors are of
      drift-pg register-model new --dimensions 384      the model that queries will come from
      drift-pg register-column public.docs.embedding --model old
      drift-pg fit --column public.docs.embedding --text body \\
                   --query-model new --embed my.module:embed --save-test-pairs test.npz
      drift-pg evaluate 1 --test-pairs test.npz         what it is worth, and what to do
      drift-pg report 1 --test-pairs test.npz --output report.html
      drift-pg activate 1                               serves at once; `deactivate` is the way back
      drift-pg companion create public.docs.embedding --model new --text body
                                                        where the new model's own vectors are kept
      drift-pg query-log status                         real queries that were kept, to fit and to evaluate by
      drift-pg follow public.docs.embedding --source new_embedding
                                                        new rows without the old model; `unfollow` is the way back
      drift-pg status                                   exit code 1 if anything is wrong

    The database is named by --dsn, DRIFT_PG_DSN, or libpq's own PGHOST, PGDATABASE, … and ~/.pgpass.

    Exit codes: 0 done; 1 refused, failed, or (status, verify) something is wrong; 2 wrong usage;
    130 interrupted.
    """


for module in (schema, registry, fit, evaluate, report, adapters, companion, query_log, follow, nearest):
    for command in module.COMMANDS:
        main.add_command(command)
