"""What the upgrade cost, beside what a full re-embedding costs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from drift_pg.embedding import Embedder

SAMPLES, SAMPLE = 4, 64
MILLION = 1_000_000


@dataclass(frozen=True)
class Cost:
    """Counts and seconds.

    Embeddings that an earlier run left in the cache take no time, so the seconds of embedding are counts
    divided by a speed that each run measures.

    Attributes:
        pairs: texts embedded to fit the adapter.
        documents: rows of the table.
        speed: texts that the new model embeds per second.
        fit: seconds of fitting.
        store: seconds of storing the adapter, its verification included.
        commands: seconds of installing, registering, activating and checking.
        index: seconds of building the second index.
    """

    pairs: int
    documents: int
    speed: float
    fit: float
    store: float
    commands: float
    index: float

    @property
    def seconds(self) -> dict[str, float]:
        """As build/demo.json has them."""
        return {
            "embed_pairs": self.pairs / self.speed,
            "fit": self.fit,
            "store": self.store,
            "commands": self.commands,
            "embed_all": self.documents / self.speed,
            "index": self.index,
        }

    def table(self) -> Table:
        """The upgrade and the full re-embedding side by side."""
        table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
        for heading in ("", "texts embedded", "embedding", "then"):
            table.add_column(heading)
        adapter = f"fit {self.fit:.2f} s, store {self.store:.2f} s"
        for name, texts, then in (
            ("adapter", self.pairs, adapter),
            ("re-embedding", self.documents, f"index {self.index:.1f} s"),
        ):
            share = f"{texts:,} of {self.documents:,} ({texts / self.documents:.0%})"
            table.add_row(name, share, f"{texts / self.speed:.0f} s", then)
        return table

    def reading(self) -> str:
        """What the same means for a large table."""
        hours = MILLION / self.speed / 3600
        return (
            f"At {self.speed:.0f} texts/s, as measured now. The pairs do not grow with the table: of a million "
            f"rows they are {self.pairs / MILLION:.1%}, and a full re-embedding takes {hours:.1f} hours."
        )


def speed(embedder: Embedder, texts: Sequence[str]) -> float:
    """Texts embedded per second: the best of a few samples, which other programs disturbed least."""
    samples = [list(texts[start : start + SAMPLE]) for start in range(0, SAMPLES * SAMPLE, SAMPLE)]
    return max(len(sample) / _seconds(embedder, sample) for sample in samples if sample)


def _seconds(embedder: Embedder, sample: list[str]) -> float:
    started = time.perf_counter()
    embedder(sample)
    return time.perf_counter() - started
