"""Mixtures beside single maps: at the same cost of a query, and at the same number of parameters."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.quality.analyses import change, signed
from benchmarks.quality.markdown import NONE, count, interval, share, table
from benchmarks.quality.methods import TRAINED_FROM
from benchmarks.quality.results import Cell, Results

SINGLE = "spectral · ranking"
COMPARED = (
    "procrustes",
    "spectral",
    SINGLE,
    "mlp · ranking",
    "mixture",
    "mixture, 4 experts",
    "mixture, expert choice",
)
KMEANS, CHOICE = "mixture", "mixture, expert choice"


def section(results: Results, drawn: Mapping[str, str]) -> str:
    """A table for each upgrade, with what the differences are worth."""
    tables = [_table(results, title, pairs) for title in results.real for pairs in results.sizes([title])[-1:]]
    found = [part for part in tables if part]
    if not found:
        return ""
    text = (
        "A mixture stores several maps and runs one, which its route layer picks: a query costs one map and a dot product per expert, "
        "while parameters, and the room in the database, grow with the number of experts. So read *same cost* across rows of like "
        "multiply–adds and *same size* across rows of like parameters. Changes are against one map with the same loss "
        f"({SINGLE}), on the same pairs."
    )
    figure = f"![Retention by cost]({drawn['cost']})" if "cost" in drawn else ""
    parts = ["## What experts cost and bring", text, figure, *found, _routing(results)]
    return "\n\n".join(part for part in parts if part)


def _table(results: Results, title: str, pairs: int) -> str:
    single = results.cell(title, SINGLE, pairs)
    cells = [(name, results.cell(title, name, pairs)) for name in COMPARED]
    if pairs < TRAINED_FROM or not any(cell for name, cell in cells if name.startswith("mixture")):
        return ""
    rows = [_row(name, cell, single) for name, cell in cells if cell]
    headings = [
        f"{title}, {pairs:,} pairs", "multiply–adds per query, mean", "parameters", "Recall@10", "MRR@10", "overlap@10", "change"
    ]  # fmt: skip
    return table(headings, rows)


def _row(name: str, cell: Cell, single: Cell | None) -> list[str]:
    costs = [count(cell.number("multiply_adds")), count(cell.number("parameters"))]
    comparable = single and name != SINGLE and cell.seeds == single.seeds
    changed = signed(change(cell, single)) if single and comparable else NONE
    return [name, *costs, interval(cell.recall), interval(cell.rank), interval(cell.overlap), changed]


def _routing(results: Results) -> str:
    """k-means regions against learned ones: the same size and the same cost."""
    changes, agreements = [], []
    for title in results.real:
        for pairs in results.sizes([title]):
            kmeans, choice = results.cell(title, KMEANS, pairs), results.cell(title, CHOICE, pairs)
            if kmeans and choice and kmeans.seeds == choice.seeds:
                changes.append(change(choice, kmeans))
                agreements += choice.details("agreement")
    if not changes:
        return ""
    better, worse = sum(each.low > 0 for each in changes), sum(each.high < 0 for each in changes)
    text = (
        f"Learned expert-choice routing beside k-means, with as many experts: beyond chance better in {better} and worse in {worse} of "
        f"{len(changes)} cells, by {share(float(np.mean([each.value for each in changes])), 3)} on average."
    )
    if agreements:
        text += f" Its serving-time argmax agrees with the experts' own choice on {share(float(np.mean(agreements)))} of held-out items."
    return text
