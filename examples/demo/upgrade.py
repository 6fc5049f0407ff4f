"""The upgrade as a user does it: the commands of drift-pg, run in this process by its own code."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import psycopg
from rich.console import Console

import drift_pg
from drift_pg import cli

_BEFORE = (
    "upgrade",
    "register-model minilm-l3 --dimensions 384",
    "register-model minilm-l6 --dimensions 384",
    "register-column public.docs.embedding --model minilm-l3",
)
_FIT = """fit --column public.docs.embedding --text body \\
      --query-model minilm-l6 --embed examples.demo.models:new \\
      --pairs {pairs} --test-pairs 500 --save-pairs {file} --cache {cache}"""
_AFTER = ("activate 1", "status")
COMPANION = "companion create public.docs.embedding --model minilm-l6 --text body"


def upgrade(console: Console, pairs: int, file: Path, cache: Path) -> float:
    """Install, register, fit, activate; returns the seconds of all but the fit.

    Raises:
        SystemExit: a command refused, and has said why.
    """
    fit = _FIT.format(pairs=pairs, file=file, cache=cache)
    seconds = [command(console, line) for line in (*_BEFORE, fit, *_AFTER)]
    return sum(seconds) - seconds[len(_BEFORE)]


def command(console: Console, line: str) -> float:
    """Show a command line and run it; returns the seconds it took."""
    console.print(f"$ drift-pg {line}", style="bold", markup=False, highlight=False)
    started = time.perf_counter()
    arguments = shlex.split(line.replace("\\\n", " "))
    if code := cli.main(arguments, prog_name="drift-pg", standalone_mode=False):
        raise SystemExit(code)
    return time.perf_counter() - started


def fit_and_store_seconds(conn: psycopg.Connection) -> tuple[float, float]:
    """The two parts of `fit` after the embedding: fitting, as the adapter records it, and storing.

    Storing is timed by doing it again, in a transaction that is rolled back.
    """
    adapter = drift_pg.load(conn, source="minilm-l6", target="minilm-l3")
    started = time.perf_counter()
    with conn.transaction(force_rollback=True):
        drift_pg.store(conn, adapter, source="minilm-l6", target="minilm-l3")
    return float(adapter.details["seconds"]), time.perf_counter() - started
