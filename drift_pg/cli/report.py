"""report: an evaluation as a page for people who decide."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from drift_pg.artifact import write_atomically
from drift_pg.cli import evaluate as evaluating
from drift_pg.cli.output import note, progress, say
from drift_pg.errors import InvalidInput
from drift_pg.evaluation import evaluate
from drift_pg.evaluation.query_file import QueryFile
from drift_pg.pairs import Pairs

if TYPE_CHECKING:
    from drift_pg.report.curve import Point
    from drift_pg.report.page import Plan, Queries


@dataclass(frozen=True)
class Request:
    """What the page is to hold besides an evaluation."""

    pairs: Path | None
    rows: int | None
    rate: float | None
    output: Path
    force: bool


_OPTIONS = [
    click.Option(
        ["--pairs"],
        type=click.Path(path_type=Path),
        help="The pairs it was fitted on, for the learning curve; none of them a test pair.",
    ),
    click.Option(["--rows"], type=click.IntRange(1), help="The table's rows, for what re-embedding would take."),
    click.Option(
        ["--rate"],
        type=click.FloatRange(0, min_open=True),
        metavar="ROWS_PER_SECOND",
        help="How many rows the new model embeds in a second.",
    ),
    click.Option(
        ["--output"],
        required=True,
        type=click.Path(path_type=Path, dir_okay=False),
        help="The HTML file to write.",
    ),
    click.Option(["--force"], is_flag=True, help="Replace the file if it exists."),
]
# What is evaluated is said as in `drift-pg evaluate`, which alone stores and prints.
_EVALUATED = [p for p in evaluating.evaluate.params if p.name != "as_json"]


@click.command(params=[*_EVALUATED, *_OPTIONS])
def report(**given: Any) -> None:
    """Write what ADAPTER (its id) is worth as one HTML file, for people who decide.

    Measures as `drift-pg evaluate` does and stores nothing. The file needs no network and no script; it holds
    figures, keys of test pairs and the texts of queries, so give it only to those who may read these.

    \b
    Example:
      drift-pg report 1 --test-pairs test.npz --pairs pairs.npz --queries queries.jsonl \\
                      --embed my_models:embed_new --legacy-embed my_models:embed_old \\
                      --rows 20000000 --rate 350 --output report.html
    """
    own = {field.name for field in fields(Request)}
    wanted = Request(**{name: value for name, value in given.items() if name in own})
    subject = evaluating.Request(**{name: value for name, value in given.items() if name not in own})
    _check(wanted, subject)
    page = _page(wanted, subject)
    write_atomically(wanted.output, page.encode())
    say(f"The report is written to {wanted.output} ({len(page) / 1000:,.0f} kB); open it in a browser.")


def _check(wanted: Request, subject: evaluating.Request) -> None:
    if (subject.adapter is None) == (subject.adapter_file is None):
        raise click.UsageError("name either an ADAPTER by its id or --adapter-file")
    if (wanted.rows is None) != (wanted.rate is None):
        raise click.UsageError("the cost of re-embedding needs both --rows and --rate")
    if wanted.output.exists() and not wanted.force:
        raise InvalidInput(f"{str(wanted.output)!r} exists", hint="name another file, or add --force")
    if not wanted.output.absolute().parent.is_dir():
        raise InvalidInput(f"there is no folder {str(wanted.output.parent)!r} to write the report to")


def _page(wanted: Request, asked_for: evaluating.Request) -> str:
    from drift_pg.report.page import Subject, render  # matplotlib is an extra, and slow to import

    subject = evaluating.subject_of(asked_for)
    test = Pairs.load(asked_for.test_pairs)
    corpus = Pairs.load(asked_for.corpus) if asked_for.corpus else None
    pairs = _fit_pairs(wanted.pairs, test)
    asked = evaluating.asked_of(asked_for, subject)
    note(f"Searching with {len(test):,} test pairs …")
    evaluation = evaluate(
        subject.adapter, test, corpus=corpus, minimum=asked_for.minimum, seed=asked_for.seed, **vars(asked)
    )  # fmt: skip
    if asked_for.column:
        evaluation = evaluating.searched_through_index(evaluation, asked_for, subject, test, asked)
    note("Drawing …")
    return render(
        Subject(
            _name(asked_for, subject), subject.adapter, evaluation, test, corpus,
            queries=_queries(asked_for, asked),
            curve=_curve(pairs, subject, test, corpus, asked, asked_for.seed) if pairs else (),
            plan=_plan(wanted), day=date.today(),
        )
    )  # fmt: skip


def _fit_pairs(file: Path | None, test: Pairs) -> Pairs | None:
    """The pairs of the learning curve, of which none may be a test pair."""
    if file is None:
        return None
    pairs = Pairs.load(file)
    seen = {row.tobytes() for row in pairs.source}
    if shared := sum(row.tobytes() in seen for row in test.source):
        # Equal texts have equal vectors, so a few are to be expected.
        note(
            f"warning: {shared:,} of {len(test):,} test vectors are among the pairs too; what was fitted on looks too good"
        )
    return pairs


def _name(wanted: evaluating.Request, subject: evaluating.Subject) -> str:
    if wanted.adapter_file:
        return f"Adapter {wanted.adapter_file.name}"
    return f"Adapter {wanted.adapter}: {subject.source} → {subject.target}"


def _queries(wanted: evaluating.Request, asked: evaluating.Asked) -> Queries | None:
    from drift_pg.report.page import Queries

    if asked.queries is None:
        return None
    return Queries(asked.queries, QueryFile.load(wanted.queries).texts if wanted.queries else None)


def _curve(
    pairs: Pairs,
    subject: evaluating.Subject,
    test: Pairs,
    corpus: Pairs | None,
    asked: evaluating.Asked,
    seed: int,
) -> list[Point]:
    from drift_pg.report.curve import Yardstick, learning_curve

    yardstick = Yardstick.of(
        subject.adapter, test, corpus=corpus, queries=asked.queries, labels=asked.labels, seed=seed
    )
    with progress("Fitting ever more pairs") as told:
        return learning_curve(pairs, yardstick, told, seed)


def _plan(wanted: Request) -> Plan | None:
    from drift_pg.report.page import Plan

    return Plan(wanted.rows, wanted.rate) if wanted.rows and wanted.rate else None


COMMANDS = [report]
