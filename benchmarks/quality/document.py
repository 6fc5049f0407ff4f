"""docs/quality.md: every figure in it, those in sentences too, comes from the records."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.quality import analyses, experts, figures, labelfree, retention, rivals, switching
from benchmarks.quality.about import PACKAGES
from benchmarks.quality.markdown import count, listed
from benchmarks.quality.plan import code
from benchmarks.quality.records import Record
from benchmarks.quality.results import Results

INTRODUCTION = """# Quality: what an upgrade keeps

{made}

An upgrade leaves the index of the *legacy* model in place and maps queries of the *new* model into its space. **Retention**
is a search's Recall@10 (or MRR@10) divided by that of a full re-embedding, on labelled test queries; *overlap* is
the share of the full re-embedding's first ten that the search finds. *stay* asks old queries of the old index, which is what
there was before; *unadapted* asks new queries of the old index, which is what an adapter prevents. *Rerank N* orders
the bridge's first N rows by the new model's own vectors, for which these rows, and no others, must have been embedded.

Search is exact, over all documents; documents that answer a query are never among the pairs. ± is half the width of the
95 % bootstrap interval over queries, of the mean over the draws of pairs. {draws}"""


def write(records: Iterable[Record], out: Path) -> None:
    """The document, and its figures beside it."""
    results = Results(records)
    out.parent.mkdir(parents=True, exist_ok=True)
    drawn = figures.draw(results, out.parent)
    sections = (
        _introduction(results),
        retention.section(results),
        rivals.section(results),
        analyses.section(results, drawn),
        switching.section(results),
        labelfree.section(results, drawn),
        experts.section(results, drawn),
        _refusals(results),
    )
    out.write_text("\n\n".join(section for section in sections if section) + "\n", encoding="utf-8")


def _introduction(results: Results) -> str:
    sizes = {f"{len(full):,}" for full in results.full.values()}
    seeds = {record["key"].get("seed", 0) for record in results.records}
    draws = f"Test queries: {listed(sorted(sizes))}; draws of pairs: up to {len(seeds)}." if sizes else ""
    return INTRODUCTION.format(made=_made(results), draws=draws)


def _made(results: Results) -> str:
    """By which command, on what, by which code."""
    machines = {tuple(sorted(record["machine"].items())) for record in results.records}
    about = dict(next(iter(machines), ()))
    versions = [f"{name} {about[name]}" for name in PACKAGES if name in about]
    lines = [
        "Made by `make quality` (`python -m benchmarks.quality`; `--render` writes it anew from what was measured), from "
        f"{count(len(results.records))} results on {about.get('cores', '?')} cores ({about.get('processor', '?')}), "
        f"Python {about.get('python', '?')}: {', '.join(versions)}."
    ]
    if len(machines) > 1:
        lines.append(f"**The results come from {len(machines)} machines or sets of versions; named is one of them.**")
    stale = sum(record["code"] != code() for record in results.records)
    if stale:
        lines.append(
            f"**{count(stale)} of the results were measured with another state of the code that fits and evaluates "
            "than the one that wrote this.** `--fresh` measures them again."
        )
    return "\n\n".join(lines)


def _refusals(results: Results) -> str:
    if not results.refused:
        return ""
    reasons: dict[tuple[str, str], list[str]] = {}
    for (title, method), why in results.refused.items():
        reasons.setdefault((method, why), []).append(title)
    lines = [f"- {method}: {why} ({listed(titles)})" for (method, why), titles in reasons.items()]
    return "## What was refused\n\nWhere a table has –, the method does not do this, or was not run:\n\n" + "\n".join(
        lines
    )
