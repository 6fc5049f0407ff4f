"""Runs one after the other, with a bar and the time left; what is there already is passed over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from benchmarks.quality import costs
from benchmarks.quality.about import machine
from benchmarks.quality.data import Upgrade
from benchmarks.quality.measure import Bench
from benchmarks.quality.methods import Refused
from benchmarks.quality.plan import Choice, Key, Run, code
from benchmarks.quality.records import Record, Records

COST_WORK = 180.0
"""Rough seconds of the part that needs a database."""

FULL = "full"
"""What the others are relative to, filed as a method."""


def measure(choice: Choice, upgrades: Sequence[Upgrade], records: Records, *, fresh: bool, console: Console) -> int:
    """Everything that is asked for and not yet there; returns how many runs failed."""
    runs = choice.runs(upgrades)
    wants_cost = "cost" in choice.parts and bool(upgrades) and not choice.methods
    if fresh:
        keys = [run.key for run in runs] + ([_cost_key(upgrades[0], choice)] if wants_cost else [])
        records.forget(lambda key: key in keys)
    missing = [run for run in runs if not records.done(run.key)]
    cost = [upgrades[0]] if wants_cost and not records.done(_cost_key(upgrades[0], choice)) else []
    console.print(f"{len(runs) - len(missing):,} of {len(runs):,} results are there already")
    benches = {run.upgrade.title: Bench(run.upgrade) for run in missing}
    work = sum(run.work for run in missing) + COST_WORK * len(cost)
    with _bar(console, work, len(missing) + len(cost)) as bar:
        quick = [run for run in missing if run.work <= 15]
        failed = sum(bar.failed(run, benches[run.upgrade.title], records) for run in quick)
        failed += sum(bar.failed_cost(upgrade, choice, records) for upgrade in cost)
        return failed + sum(bar.failed(run, benches[run.upgrade.title], records) for run in missing[len(quick) :])


class _Bar:
    """The progress, and what went wrong."""

    def __init__(self, progress: Progress, work: float, count: int) -> None:
        self.progress, self.count, self.done = progress, count, 0
        self.task = progress.add_task("", total=work, number=f"0/{count}")

    def failed(self, run: Run, bench: Bench, records: Records) -> bool:
        """Do one run; an error of one must not end a night's work."""
        self._say(str(run))
        try:
            self._full(run, bench, records)
            records.add(_result(run, bench))
        except Exception as error:
            self.progress.console.print(f"[red]failed[/] {run}: {type(error).__name__}: {error}", soft_wrap=True)
            return True
        finally:
            self._advance(run.work)
        return False

    def failed_cost(self, upgrade: Upgrade, choice: Choice, records: Records) -> bool:
        """The part that needs a database."""
        try:
            found = costs.measure(upgrade, choice.drift_pairs, choice.cost_methods, self._say)
            records.add(_record(_cost_key(upgrade, choice), found))
        except Exception as error:
            self.progress.console.print(f"[red]failed[/] cost: {type(error).__name__}: {error}", soft_wrap=True)
            return True
        finally:
            self._advance(COST_WORK)
        return False

    def _full(self, run: Run, bench: Bench, records: Records) -> None:
        key = {name: run.key[name] for name in ("part", "data", "digest", "upgrade", "noise")} | {"method": FULL}
        if not records.done(key):
            records.add(_record(key, bench.full_ranks()))

    def _say(self, what: str) -> None:
        self.progress.update(self.task, description=what)

    def _advance(self, work: float) -> None:
        self.done += 1
        self.progress.update(self.task, advance=work, number=f"{self.done}/{self.count}")


@contextmanager
def _bar(console: Console, work: float, count: int) -> Iterator[_Bar]:
    """The bar counts expected seconds rather than runs, which take from one to three hundred."""
    columns = (
        TextColumn("{task.fields[number]}"),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
    )
    with Progress(*columns, console=console, expand=True, speed_estimate_period=1800) as progress:
        try:
            yield _Bar(progress, work, count)
        except KeyboardInterrupt:
            console.print("interrupted: all results so far are kept; the same command goes on from here")
            raise


def _result(run: Run, bench: Bench) -> Record:
    try:
        return _record(run.key, bench.run(run.method, run.pairs, run.seed))
    except Refused as refusal:
        return _record(run.key, {"refused": str(refusal)})


def _record(key: Key, found: Record) -> Record:
    return {"key": key, "code": code(), "machine": machine()} | found


def _cost_key(upgrade: Upgrade, choice: Choice) -> Key:
    """Of the first upgrade: the costs are those of its dimensions and rows."""
    return {
        "part": "cost",
        "data": upgrade.data,
        "digest": upgrade.digest,
        "upgrade": upgrade.name,
        "pairs": choice.drift_pairs,
        "methods": list(choice.cost_methods),
    }
