"""From what the searches found to figures, and how they are shown and read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from drift_pg.evaluation.metrics import bootstrap_interval, overlap_at, recall_at, reciprocal_rank
from examples.demo.documents import Document
from examples.demo.searches import EF_SEARCH, LIMIT, SEARCHES, Answers

SHOWN = 3
_CAPTION = (
    f"Second lines: 95 % bootstrap intervals. Of full: Recall@10 / MRR@10 as shares of full's. Overlap: how much of "
    f"full's top 10 is found. Median: of a query; hnsw.ef_search = {EF_SEARCH}."
)


@dataclass(frozen=True, eq=False)
class Figures:
    """One search's quality, a value per query (q,), and its speed.

    Attributes:
        recall: whether the query's document is in the first 10.
        reciprocal_rank: 1 / its rank, 0 if it is not.
        overlap: the share of the full re-embedding's first 10 that this search finds too.
        median_ms: of a query, in milliseconds.
    """

    recall: NDArray[np.float64]
    reciprocal_rank: NDArray[np.float64]
    overlap: NDArray[np.float64]
    median_ms: float

    def as_dict(self) -> dict[str, Any]:
        """What build/demo.json holds."""
        return {
            "recall_at_10": round(float(self.recall.mean()), 4),
            "recall_at_10_interval": _rounded(bootstrap_interval(self.recall)),
            "mrr": round(float(self.reciprocal_rank.mean()), 4),
            "mrr_interval": _rounded(bootstrap_interval(self.reciprocal_rank)),
            "overlap_with_full_at_10": round(float(self.overlap.mean()), 4),
            "median_ms": round(self.median_ms, 3),
        }


def _rounded(interval: tuple[float, float]) -> list[float]:
    return [round(end, 4) for end in interval]


def measure(answers: Mapping[str, Answers], relevant: NDArray[np.int64]) -> dict[str, Figures]:
    """Figures of each search, for queries whose documents are `relevant` (q,)."""
    full = answers["full"].keys
    return {
        name: Figures(
            recall_at(found.keys, relevant, LIMIT),
            reciprocal_rank(found.keys, relevant, LIMIT),
            overlap_at(found.keys, full, LIMIT),
            float(np.median(found.seconds) * 1000),
        )
        for name, found in answers.items()
    }


def retention(figures: Mapping[str, Figures], name: str) -> tuple[float, float]:
    """A search's Recall@10 and MRR@10 relative to those of the full re-embedding."""
    this, full = figures[name], figures["full"]
    ranks = float(this.reciprocal_rank.mean() / full.reciprocal_rank.mean())
    return float(this.recall.mean() / full.recall.mean()), ranks


def quality_table(figures: Mapping[str, Figures]) -> Table:
    """The searches side by side; second lines are 95 % intervals."""
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, caption=_CAPTION, caption_justify="left")
    for heading in ("search", "Recall@10", "MRR@10", "of full", "overlap", "median"):
        table.add_column(heading, justify="left" if heading == "search" else "right", no_wrap=True)
    for search in SEARCHES:
        this = figures[search.name]
        kept = "/".join(f"{100 * share:.0f}" for share in retention(figures, search.name)) + " %"
        quality = [_with_interval(values) for values in (this.recall, this.reciprocal_rank)]
        name = Text.assemble((search.name, "bold"), "\n", (search.meaning, "dim"))
        table.add_row(name, *quality, kept, f"{this.overlap.mean():.0%}", f"{this.median_ms:.1f} ms")
    return table


def _with_interval(values: NDArray[np.float64]) -> Text:
    low, high = bootstrap_interval(values)
    return Text.assemble(f"{values.mean():.3f}", "\n", (f"{low:.2f}–{high:.2f}", "dim"))


def example_tables(
    documents: Sequence[Document], relevant: NDArray[np.int64], answers: Mapping[str, Answers]
) -> Iterator[tuple[str, Table]]:
    """The first few queries that the full re-embedding answers in its first rows, and what each search finds."""
    answered = np.flatnonzero(recall_at(answers["full"].keys, relevant, SHOWN))
    for i in answered[:SHOWN]:
        keys = {name: found.keys[i] for name, found in answers.items()}
        yield documents[relevant[i] - 1].summary, _example(documents, int(relevant[i]), keys)


def _example(documents: Sequence[Document], wanted: int, keys: Mapping[str, NDArray[np.int64]]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 1))
    table.add_column(no_wrap=True, min_width=len("✓ is number 10"))
    table.add_column(no_wrap=True)
    for name, found in keys.items():
        lines = [_marked(documents[key - 1].title, right=key == wanted) for key in found[:SHOWN] if key]
        table.add_row(Text.assemble((name, "bold"), "\n", (_place(found, wanted), "dim")), Text("\n").join(lines))
    return table


def _place(found: NDArray[np.int64], wanted: int) -> str:
    places = np.flatnonzero(found == wanted)
    return f"✓ is number {places[0] + 1}" if len(places) else f"✓ not in {len(found)}"


def _marked(title: str, *, right: bool) -> Text:
    return Text(f"✓ {title}", "green") if right else Text(f"  {title}")


def reading(figures: Mapping[str, Figures], pairs: int, documents: int) -> list[str]:
    """What the figures say, in sentences."""
    return [_on_unadapted(figures), _on_bridge(figures, pairs, documents), _advice(figures)]


def _on_unadapted(figures: Mapping[str, Figures]) -> str:
    recall, _ = retention(figures, "unadapted")
    if recall > 0.9:
        return f"Without an adapter the new model's queries still keep {recall:.0%} of the recall: these two models hardly differ."
    return (
        f"Sending the new model's queries to the old index raises no error, since the dimensions agree, and keeps "
        f"{recall:.0%} of the recall of a full re-embedding: it fails silently."
    )


def _on_bridge(figures: Mapping[str, Figures], pairs: int, documents: int) -> str:
    recall, ranks = retention(figures, "bridge")
    return (
        f"The bridge, after embedding {pairs:,} texts for a table of {documents:,} rows, keeps {recall:.0%} of "
        f"its Recall@10 and {ranks:.0%} of its MRR, and finds {figures['bridge'].overlap.mean():.0%} of its top 10."
    )


def _advice(figures: Mapping[str, Figures]) -> str:
    """Compare with staying query by query, in recall and in rank: only a difference beyond chance is called one."""
    bridge, stay = figures["bridge"], figures["stay"]
    gains = [
        bootstrap_interval(bridge.recall - stay.recall),
        bootstrap_interval(bridge.reciprocal_rank - stay.reciprocal_rank),
    ]
    spans = (
        f"{_points(gains[0])} points of Recall@10 and {_points(gains[1])} of MRR against the old model's own queries"
    )
    if all(low > 0 for low, _ in gains):
        return f"That is {spans}: more than the old model finds. Switch queries over, and re-embed when it suits you."
    if all(high >= 0 for _, high in gains):
        return (
            f"That is {spans}: not told apart by these queries. When the old model is switched off, the bridge stands in "
            "for it; what the new model is better at comes with re-embedding, during which the bridge serves."
        )
    return (
        f"That is {spans}: while the old model can still be called, stay with it. Once it is switched off, "
        "the bridge is what keeps search working until the rows are re-embedded, which is what brings the rest."
    )


def _points(interval: tuple[float, float]) -> str:
    low, high = (100 * end for end in interval)
    return f"{low:+.1f} to {high:+.1f}"
