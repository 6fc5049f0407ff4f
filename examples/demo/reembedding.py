"""Re-embedding bit by bit: what searches find while ever more rows have a vector of the new model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.table import Table

import drift_pg
from drift_pg.cli.output import progress
from examples.demo.documents import Document
from examples.demo.figures import Figures, measure, retention
from examples.demo.models import Vectors
from examples.demo.searches import DEPTH, FULL, RERANK, Answers, run

SHARES = (0.0, 0.05, 0.25, 0.5, 1.0)
TABLE, COLUMN, MODEL = "public.docs", "embedding", "minilm-l6"
BATCH = 500
SEED = 1


@dataclass(frozen=True, eq=False)
class Stage:
    """What searches find while a share of the rows has a vector of the new model.

    Attributes:
        share: of the rows, 0 to 1.
        rows: how many these are.
        figures: of "full", "bridge" and "rerank".
    """

    share: float
    rows: int
    figures: dict[str, Figures]

    def as_dict(self) -> dict[str, Any]:
        """What build/demo.json holds."""
        return {"share": self.share, "rows": self.rows, **{name: self._kept(name) for name in ("bridge", "rerank")}}

    def _kept(self, name: str) -> dict[str, Any]:
        recall, ranks = retention(self.figures, name)
        kept = {"retention_recall_at_10": round(recall, 4), "retention_mrr": round(ranks, 4)}
        return {**self.figures[name].as_dict(), **kept}


def order(conn: psycopg.Connection, logged: Vectors, rows: int) -> NDArray[np.int64]:
    """All ids (rows,): what the queries of the log (q, d) would rerank, whole answers in turn, then the rest at random."""
    for query in logged:
        drift_pg.log_query(conn, TABLE, COLUMN, query, model=MODEL)
    keys = drift_pg.touched(conn, TABLE, COLUMN, model=MODEL, n=DEPTH, queries=len(logged))
    touched = np.array([int(key) for (key,) in keys], np.int64)
    rest = np.setdiff1d(np.arange(1, rows + 1), touched)
    return np.concatenate([touched, np.random.default_rng(SEED).permutation(rest)])


def stages(
    conn: psycopg.Connection,
    documents: Sequence[Document],
    embedded: Vectors,
    ordered: NDArray[np.int64],
    queries: Vectors,
    relevant: NDArray[np.int64],
    known: dict[str, Answers],
) -> Iterator[Stage]:
    """Fill the companion step by step, and search at each.

    Args:
        conn: to the demo's database, whose column has an empty companion.
        documents: row i + 1 is document i.
        embedded: (n, d) theirs, by the new model.
        ordered: (n,) the ids, in the order in which they are embedded.
        queries: (q, d) by the new model.
        relevant: (q,) the id that each should find.
        known: what "full" and "bridge" found, which no re-embedding changes.
    """
    done = 0
    for share in SHARES:
        upto = round(share * len(ordered))
        _store(conn, documents, embedded, ordered[done:upto])
        done = upto
        answers = {name: known[name] for name in (FULL.name, "bridge")} | {"rerank": run(conn, RERANK, queries)}
        yield Stage(share, upto, measure(answers, relevant))


def _store(conn: psycopg.Connection, documents: Sequence[Document], embedded: Vectors, keys: NDArray[np.int64]) -> None:
    with progress("Storing new vectors") as report:
        for start in range(0, len(keys), BATCH):
            part = keys[start : start + BATCH]
            conn.execute(
                "SELECT drift.store_vectors('public.docs', 'embedding', %s, %s, %s)",
                [
                    json.dumps([[str(key)] for key in part]),
                    [documents[key - 1].body for key in part],
                    [str(embedded[key - 1].tolist()) for key in part],
                ],
            )
            report(start + len(part), len(keys))
    if len(keys):
        drift_pg.build_index(conn, TABLE, COLUMN)


def table(found: Sequence[Stage]) -> Table:
    """The stages, one a line."""
    made = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for heading in ("rows re-embedded", "bridge", f"rerank {DEPTH}", "overlap", "median"):
        made.add_column(heading, justify="right", no_wrap=True)
    for stage in found:
        kept = ["/".join(f"{100 * share:.0f}" for share in retention(stage.figures, n)) for n in ("bridge", "rerank")]
        rerank = stage.figures["rerank"]
        made.add_row(
            f"{stage.rows:,} ({stage.share:.0%})", *(f"{each} %" for each in kept),
            f"{rerank.overlap.mean():.0%}", f"{rerank.median_ms:.1f} ms",
        )  # fmt: skip
    return made


def plot(found: Sequence[Stage], known: tuple[float, float], path: Path) -> None:
    """Draw retention over the share re-embedded, as SVG; `known`: with all of a query's candidates known."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(6.4, 3.8), layout="constrained")
    axes = canvas.subplots()
    shares = [100 * stage.share for stage in found]
    for i, measure_name in enumerate(("Recall@10", "MRR@10")):
        style = "-" if i == 0 else "--"
        for name, colour in (("bridge", "#8a8f98"), ("rerank", "#1f6feb")):
            label = f"{name if name == 'bridge' else f'rerank {DEPTH}'}, {measure_name}"
            kept = [100 * retention(stage.figures, name)[i] for stage in found]
            axes.plot(shares, kept, style, color=colour, marker="o", markersize=3, label=label)
        axes.axhline(100 * known[i], linestyle=":", linewidth=1, color="#1a7f37")
    axes.set(xlabel="rows re-embedded, %", ylabel="of a full re-embedding, %", ylim=(0, 112))
    axes.annotate(f"rerank {DEPTH}, all candidates known", (0, 100 * known[0]), (0, 4), textcoords="offset points", color="#1a7f37", fontsize=8)  # fmt: skip
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, format="svg", metadata={"Date": None})
