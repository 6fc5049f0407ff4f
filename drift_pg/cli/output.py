"""Printing: tables and sentences for people, JSON for machines, errors on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from drift_pg.embedding import Progress as Report

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON for machines instead of text for people."
)


def say(text: str) -> None:
    """A sentence for a person, on standard output."""
    click.echo(text)


def note(text: str) -> None:
    """A remark beside the result, on standard error."""
    click.echo(text, err=True)


def show_json(value: object) -> None:
    """One JSON document on standard output; what JSON lacks (times) as text."""
    click.echo(json.dumps(value, default=str, indent=2, ensure_ascii=False))


def show_error(message: str, detail: str | None, hint: str | None) -> None:
    """What was wrong, more of it, and what to run next."""
    click.echo(click.style("error: ", fg="red", bold=True) + message, err=True)
    for label, text in (("detail", detail), ("next", hint)):
        if text:
            click.echo(click.style(f"{label}: ", bold=True) + text, err=True)


def show_table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, title: str | None = None) -> None:
    """Rows as a table of these columns."""
    table = Table(*columns, title=title, title_justify="left", header_style="bold")
    for row in rows:
        table.add_row(*(Text(_cell(row[column]), overflow="ellipsis") for column in columns))
    # A pipe has no width of its own; 80 columns would cut what another program is to read.
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160).print(table)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M")
    return " ".join(str(value).split())


class _Rate(ProgressColumn):
    """Items per second."""

    def render(self, task: Task) -> Text:
        """The rate so far."""
        return Text(f"{task.speed:,.0f}/s" if task.speed else "–/s", style="dim")


@contextmanager
def progress(what: str) -> Iterator[Report]:
    """A bar with rate and time left, on standard error, from the first report on; yields the function to tell."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=False) as bar:
        task = bar.add_task(what, total=None, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)
