"""The peers beside drift_pg, fitted to the same pairs."""

from __future__ import annotations

from benchmarks.quality.markdown import NONE, bold, interval, listed, share, table
from benchmarks.quality.methods import BROKEN_PEER, MENDED_PEER
from benchmarks.quality.records import unpacked
from benchmarks.quality.results import METHOD_NAMES, PEER_NAMES, Cell, Results, recall
from benchmarks.quality.statistics import Estimate, ratio

LISTED = tuple(name for name in PEER_NAMES if name != BROKEN_PEER)
SEED = 0


def section(results: Results) -> str:
    """The ratio that counts, then a table for each upgrade."""
    sizes = results.peer_sizes()
    if not sizes:
        return ""
    parts = ["## Beside other packages", _introduction()]
    parts += [_ratios(results, sizes)]
    parts += [_table(results, title, sizes) for title in results.real]
    return "\n\n".join(part for part in (*parts, _footnote(results, sizes)) if part)


def _introduction() -> str:
    return (
        "Every package fits the same pairs (the first draw) as its own documentation says, without tuning "
        "(`benchmarks/peers.py`), and its queries are searched like drift_pg's. – is what a package refuses, such as "
        "models of unequal dimensions."
    )


def _ratios(results: Results, sizes: list[int]) -> str:
    rows, ratios = [], []
    for title in results.real:
        for pairs in sizes:
            auto, best = results.seed(title, "auto", pairs, SEED), _best(results, title, pairs)
            if auto and best:
                name, peer = best
                against = _against(auto, peer)
                ratios.append(against)
                recalls = [interval(auto.recall), interval(peer.recall), _name(name)]
                rows.append([title, f"{pairs:,}", *recalls, bold(f"{against.value:.2f}", True) + _range(against)])
    if not rows:
        return ""
    headings = ["Recall@10 retention", "pairs", "auto", "best peer", "which", "auto / best peer"]
    ahead = sum(estimate.low > 1 for estimate in ratios)
    worst, most = (choose(estimate.value for estimate in ratios) for choose in (min, max))
    return (
        f"{table(headings, rows)}\n\n`auto` keeps {worst:.2f} to {most:.2f} times what the best peer keeps; in {ahead} of "
        f"{len(ratios)} cells it is ahead beyond what the choice of queries explains (the interval of the paired ratio, in brackets)."
    )


def _range(estimate: Estimate) -> str:
    return f" ({estimate.low:.2f}–{estimate.high:.2f})"


def _best(results: Results, title: str, pairs: int) -> tuple[str, Cell] | None:
    cells = {name: results.seed(title, name, pairs, SEED) for name in LISTED}
    measured = [(name, cell) for name, cell in cells.items() if cell]
    return max(measured, key=lambda found: found[1].recall.value, default=None)


def _against(ours: Cell, theirs: Cell) -> Estimate:
    """Over the same queries, drawn together."""
    first, second = (recall(unpacked(cell.records[0]["ranks"]["bridge"])) for cell in (ours, theirs))
    return ratio(first, second)


def _table(results: Results, title: str, sizes: list[int]) -> str:
    """All peers, those that refuse too, and whatever drift_pg's methods were fitted to these pairs."""
    headings = ["", *(f"{pairs:,} pairs: {what}" for pairs in sizes for what in ("Recall@10", "MRR@10", "rerank 100"))]
    peers = [_row(results, title, name, sizes, _name(name)) for name in LISTED]
    if not any(_filled(row) for row in peers):
        return ""
    ours = [_row(results, title, name, sizes, f"drift_pg · {name}") for name in METHOD_NAMES]
    return f"**{title}**\n\n{table(headings, [*filter(_filled, ours), *peers])}"


def _row(results: Results, title: str, name: str, sizes: list[int], heading: str) -> list[str]:
    row = [heading]
    for pairs in sizes:
        cell = results.seed(title, name, pairs, SEED)
        row += [interval(cell.recall), interval(cell.rank), interval(cell.rerank(100))] if cell else [NONE] * 3
    return row


def _filled(row: list[str]) -> bool:
    return any(cell != NONE for cell in row[1:])


def _name(peer: str) -> str:
    """With the mark of the footnote."""
    return f"{peer} ¹" if peer == MENDED_PEER else peer


def _footnote(results: Results, sizes: list[int]) -> str:
    cells = [results.seed(title, BROKEN_PEER, pairs, SEED) for title in results.real for pairs in sizes]
    kept = [share(cell.recall.value) for cell in cells if cell]
    text = (
        "¹ Fitted from the new model to the legacy one. The package itself fits the other way and maps queries by its "
        "inverse, which for this mapping scales the columns of the inverse rotation instead of its rows"
    )
    return f"{text}; as published it keeps {listed(kept)}." if kept else f"{text}."
