"""What each method keeps, on each upgrade and at each number of pairs."""

from __future__ import annotations

from benchmarks.quality.markdown import NONE, bold, count, folded, interval, seconds, share, table
from benchmarks.quality.measure import DEPTHS
from benchmarks.quality.methods import STAY, TRAINED_FROM, UNADAPTED
from benchmarks.quality.results import BASELINE_NAMES, METHOD_NAMES, Cell, Results

SEARCHES = ["", "Recall@10", "MRR@10", "overlap@10", *(f"rerank {depth}" for depth in DEPTHS)]
COSTS = [
    "",
    "fit",
    "multiply–adds per query",
    "parameters",
    "self-retrieval@1",
    "first kept@10",
    "overlap@10",
    "chosen",
]


def section(results: Results) -> str:
    """A summary, then every table."""
    if not results.real:
        return ""
    parts = ["## What each method keeps", _summary(results)]
    parts += [_upgrade(results, title) for title in results.real]
    return "\n\n".join(part for part in parts if part)


def _summary(results: Results) -> str:
    """`auto`, which is what one gets, at the most pairs that were measured."""
    rows = []
    for title in results.real:
        pairs = max((size for size in results.sizes([title]) if results.cell(title, "auto", size)), default=0)
        cell = results.cell(title, "auto", pairs)
        if cell:
            baselines = [_recall(results.cell(title, name, 0)) for name in (STAY, UNADAPTED)]
            reranked = [interval(cell.rerank(depth)) for depth in (100, 200)]
            rows.append([title, *baselines, count(pairs), interval(cell.recall), *reranked])
    if not rows:
        return ""
    headings = ["Recall@10 retention", STAY, UNADAPTED, "pairs", "auto", "auto + rerank 100", "auto + rerank 200"]
    return "The default, `auto`, at the most pairs:\n\n" + table(headings, rows)


def _recall(cell: Cell | None) -> str:
    return interval(cell.recall) if cell else NONE


def _upgrade(results: Results, title: str) -> str:
    parts = [f"### {title}", _reading(results, title)]
    for pairs in reversed(results.sizes([title])):
        tables = _searches(results, title, pairs)
        if pairs >= TRAINED_FROM:
            costs = folded(
                f"{pairs:,} pairs: costs, and the measures that need no labels", _costs(results, title, pairs)
            )
            parts.append(f"**{pairs:,} pairs**\n\n{tables}\n\n{costs}")
        else:
            parts.append(folded(f"{pairs:,} pairs", f"{tables}\n\n{_costs(results, title, pairs)}"))
    return "\n\n".join(part for part in parts if part)


def _reading(results: Results, title: str) -> str:
    """In a sentence or two, at the most pairs."""
    sizes = results.sizes([title])
    cells = {name: results.cell(title, name, sizes[-1]) for name in METHOD_NAMES} if sizes else {}
    measured = {name: cell for name, cell in cells.items() if cell}
    if not measured:
        return ""
    best = max(measured, key=lambda name: measured[name].recall.value)
    text = (
        f"At {sizes[-1]:,} pairs {best} keeps most, {interval(measured[best].recall)} of the recall of a full "
        f"re-embedding; reranking its first {DEPTHS[-1]} keeps {interval(measured[best].rerank(DEPTHS[-1]))}."
    )
    stay, unadapted = (results.cell(title, name, 0) for name in (STAY, UNADAPTED))
    text += f" Staying with old queries keeps {interval(stay.recall)}" if stay else ""
    if stay:
        text += f", new queries unadapted {interval(unadapted.recall)}." if unadapted else "."
    return text


def _searches(results: Results, title: str, pairs: int) -> str:
    names = [name for name in METHOD_NAMES if results.cell(title, name, pairs) or (title, name) in results.refused]
    cells = {name: results.cell(title, name, pairs) for name in (*BASELINE_NAMES, *names)}
    best = max((cell.recall.value for name, cell in cells.items() if cell and name in names), default=0)
    rows = []
    for name, cell in cells.items():
        if cell is None:
            rows.append([name, *[NONE] * (len(SEARCHES) - 1)])
            continue
        first = bold(interval(cell.recall), name in names and cell.recall.value == best)
        rest = [interval(cell.rank), interval(cell.overlap)]
        reranks = [f"{interval(cell.rerank(depth))} / {share(cell.rerank_rank(depth).value)}" for depth in DEPTHS]
        rows.append([name, first, *rest, *reranks])
    note = "Rerank: Recall@10 / MRR@10 retention."
    return f"{table(SEARCHES, rows)}\n\n{note}"


def _costs(results: Results, title: str, pairs: int) -> str:
    rows = []
    for name in (UNADAPTED, *METHOD_NAMES):
        cell = results.cell(title, name, pairs)
        if cell:
            costs = [
                seconds(cell.number("seconds")),
                count(cell.number("multiply_adds")),
                count(cell.number("parameters")),
            ]
            held = [share(cell.held(measure)) for measure in ("self", "first", "overlap")]
            rows.append([name, *costs, *held, _chosen(cell)])
    return table(COSTS, rows)


def _chosen(cell: Cell) -> str:
    """What `auto` and `spectral` settled on, each once."""
    return ", ".join(dict.fromkeys(str(chosen) for chosen in cell.details("chosen")))
