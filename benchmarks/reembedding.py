"""What searches find, and cost, while a table is re-embedded: stage by stage, and in the course of a day.

python -m benchmarks.reembedding curve|day|filled [--json]
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from pgvector import Vector
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

import drift_pg
from benchmarks import companions, report, searches, vectors
from benchmarks.quality import data
from benchmarks.quality.data import Upgrade
from benchmarks.quality.measure import reranked
from benchmarks.searches import Connection
from benchmarks.vectors import Float32
from drift_pg.evaluation.calibration import calibrate
from drift_pg.evaluation.metrics import overlap_at, recall_at, reciprocal_rank
from drift_pg.evaluation.mixed import merged
from drift_pg.neighbours import Indices, directions, largest, nearest

K, DEPTH, EF_SEARCH, PAIRS, SEED = 10, 200, 100, 5000, 0
SHARES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.9, 1.0)
HOURS = 24
FILLED = (0, 100, 1000, 5000)
RETENTION = "of a full re-embedding's Recall@10/MRR@10, overlap"

_RAW = b"SELECT id FROM docs_new ORDER BY embedding <=> %b LIMIT 10"
_BRIDGE = (
    b"SELECT id FROM docs ORDER BY embedding <=> (SELECT drift.adapt_for(%b, 'new', 'docs', 'embedding')) LIMIT 200"
)
_RERANK = b"SELECT id FROM drift.nearest(NULL::docs, 'embedding', %b, 'new', 10, 200)"


@dataclass(frozen=True)
class Kept:
    """What a search keeps of a full re-embedding, by exact search: of Recall@10 and MRR@10, and of its first ten."""

    recall: float
    mrr: float
    overlap: float

    @classmethod
    def of(cls, found: Indices, full: Indices, labels: Indices) -> Kept:
        """From what a search and the full re-embedding find, (q, ≥ 10) each, and (q,) what queries should find."""
        recall = recall_at(found, labels, K).mean() / recall_at(full, labels, K).mean()
        ranks = reciprocal_rank(found, labels, K).mean() / reciprocal_rank(full, labels, K).mean()
        return cls(*(round(float(value), 3) for value in (recall, ranks, overlap_at(found, full, K).mean())))

    def __str__(self) -> str:
        return f"{self.recall:.2f}/{self.mrr:.2f}, {self.overlap:.2f}"


@contextmanager
def served(upgrade: Upgrade, family: str, console: Console) -> Iterator[Connection]:
    """A database whose table `docs` is searched by a bridge, and whose companion is empty."""
    with (
        tempfile.TemporaryDirectory(prefix="drift-pg-bench-") as directory,
        searches.connected(Path(directory) / "data") as conn,
    ):
        searches.install(conn)
        with console.status(f"{len(upgrade.documents_legacy):,} rows and their HNSW index"):
            companions.load(conn, "docs", upgrade.documents_legacy)
        with console.status(f"{family}, fitted on {PAIRS:,} pairs"):
            adapter = drift_pg.fit(upgrade.pairs(PAIRS, SEED), family, seed=SEED)
        rows = upgrade.held_out(PAIRS, SEED)
        companions.serve(conn, adapter, drift_pg.Pairs(upgrade.documents_new[rows], upgrade.documents_legacy[rows]))
        conn.execute("VACUUM ANALYZE")
        conn.execute(f"SET hnsw.ef_search = {EF_SEARCH}".encode())
        yield conn


def ask(conn: Connection, statement: bytes, queries: Float32, limit: int = K) -> Indices:
    """(q, limit) ids that a statement finds for each query; -1 where it finds fewer."""
    found = np.full((len(queries), limit), -1, np.int64)
    cursor = conn.cursor(binary=True)
    for i, query in enumerate(queries):
        keys = [row[0] for row in cursor.execute(statement, [Vector(query)], prepare=True)]
        found[i, : len(keys)] = keys
    return found


def orders(conn: Connection, upgrade: Upgrade) -> dict[str, Indices]:
    """The rows as they are embedded: at random, or those first that the logged queries would rerank."""
    random = np.random.default_rng(SEED).permutation(len(upgrade.documents_new))
    if upgrade.log is None:
        return {"random rows": random}
    for query in upgrade.log:
        drift_pg.log_query(conn, "docs", "embedding", query, model="new")
    keys = drift_pg.touched(conn, "docs", "embedding", model="new", n=DEPTH, queries=len(upgrade.log))
    touched = np.array([int(key) for (key,) in keys], np.int64)
    rest = random[~np.isin(random, touched)]
    return {"random rows": random, "in the order of the query log": np.concatenate([touched, rest])}


@contextmanager
def deep(conn: Connection) -> Iterator[None]:
    """An HNSW scan returns no more than ef_search rows."""
    conn.execute(f"SET hnsw.ef_search = {DEPTH}".encode())
    yield
    conn.execute(f"SET hnsw.ef_search = {EF_SEARCH}".encode())


def stages(conn: Connection, upgrade: Upgrade, rows: Indices, full: Indices, title: str) -> list[dict[str, Any]]:
    """Fill the companion in an order, and search at each stage."""
    conn.execute("TRUNCATE drift.companion_1")
    conn.execute("DROP INDEX IF EXISTS drift.companion_1_vectors")
    found, done = list[dict[str, Any]](), 0
    for share in track(SHARES, title, console=Console(stderr=True)):
        upto = round(share * len(rows))
        companions.store(conn, upgrade.documents_new, rows[done:upto])
        done = upto
        if upto:
            drift_pg.build_index(conn, "docs", "embedding")
        conn.execute("ANALYZE drift.companion_1")
        kept = Kept.of(ask(conn, _RERANK, upgrade.queries_new), full, upgrade.labels)
        found.append({"order": title, "share": share, "rerank": asdict(kept), "shown": str(kept)})
    return found


def curve(upgrade: Upgrade, family: str) -> dict[str, Any]:
    """All stages in all orders, and the bridge and a rerank of which all candidates are known."""
    full = nearest(upgrade.queries_new, upgrade.documents_new, K)
    with served(upgrade, family, Console(stderr=True)) as conn:
        with deep(conn):
            candidates = ask(conn, _BRIDGE, upgrade.queries_new, DEPTH)
        found = [
            stage for title, rows in orders(conn, upgrade).items() for stage in stages(conn, upgrade, rows, full, title)
        ]
    scores = np.einsum("qnd,qd->qn", upgrade.documents_new[candidates], upgrade.queries_new)
    best = reranked(candidates, np.where(candidates < 0, -np.inf, scores), DEPTH)[:, :K]
    known = Kept.of(best, full, upgrade.labels)
    bridge = Kept.of(candidates, full, upgrade.labels)
    return {"bridge": asdict(bridge), "rerank_known": asdict(known), "stages": found}


@dataclass(frozen=True)
class Hour:
    """One hour of the day: its searches, and what they cost beside those of a full re-embedding.

    Attributes:
        hour: from 1.
        embedded: share of the rows that have a new vector at its end.
        texts: embedded within it.
        kept: of a full re-embedding, over the hour's queries.
        median_ms, p95_ms: of drift_pg.search, embedding included.
        added_ms: median of what it takes more than the raw search of a full re-embedding, for the same query.
    """

    hour: int
    embedded: float
    texts: int
    kept: Kept
    median_ms: float
    p95_ms: float
    added_ms: float

    def line(self) -> list[str]:
        """For the table."""
        times = (f"{value:.1f}" for value in (self.median_ms, self.p95_ms, self.added_ms))
        return [str(self.hour), f"{self.embedded:.1%}", f"{self.texts:,}", str(self.kept), *times]


class Embedder:
    """Known vectors, after the time that a model of so many texts per second takes for them."""

    def __init__(self, known: Float32, rate: float) -> None:
        self.known, self.rate, self.texts = known, rate, 0

    def __call__(self, texts: list[str]) -> Float32:
        """(n, d) for n texts of `companions.text_of`."""
        self.texts += len(texts)
        time.sleep(len(texts) / self.rate)
        return self.known[[companions.row_of(text) for text in texts]]


def drawn(queries: int, of: int) -> NDArray[np.int64]:
    """(queries,) numbers below `of`, by Zipf's law with exponent 1: the r-th most frequent 1/r as often as the first."""
    rng = np.random.default_rng(SEED)
    weights = 1 / np.arange(1, of + 1)
    return rng.permutation(of)[rng.choice(of, queries, p=weights / weights.sum())]


def day(upgrade: Upgrade, family: str, queries: int, at_most: int, rate: float) -> list[Hour]:
    """Search all day with `embed`, beginning with an empty companion."""
    full = nearest(upgrade.queries_new, upgrade.documents_new, K)
    embed = Embedder(upgrade.documents_new, rate)
    console = Console(stderr=True)
    with served(upgrade, family, console) as conn:
        companions.load(conn, "docs_new", upgrade.documents_new)
        drift_pg.build_index(conn, "docs", "embedding")
        parts = np.array_split(drawn(queries, len(upgrade.queries_new)), HOURS)
        return [
            _hour(conn, upgrade, embed, number, asked, full, at_most)
            for number, asked in enumerate(track(parts, "hours", console=console), 1)
        ]


def _hour(
    conn: Connection, upgrade: Upgrade, embed: Embedder, hour: int, asked: Indices, full: Indices, at_most: int
) -> Hour:
    before, found = embed.texts, np.full((len(asked), K), -1, np.int64)
    mixed, raw = np.zeros(len(asked)), np.zeros(len(asked))
    patience = 2 * at_most / embed.rate
    for i, number in enumerate(asked):
        query = upgrade.queries_new[number]
        started = time.perf_counter()
        rows = drift_pg.search(
            conn, "docs", "embedding", query, query_model="new", embed=embed, at_most=at_most, within=patience
        )
        mixed[i] = time.perf_counter() - started
        found[i, : len(rows)] = [row[0] for row in rows]
        started = time.perf_counter()
        conn.execute(_RAW, [Vector(query)], prepare=True).fetchall()
        raw[i] = time.perf_counter() - started
    conn.execute("VACUUM ANALYZE drift.companion_1")
    share = drift_pg.coverage(conn, "docs", "embedding").share
    median, late = 1e3 * np.median(mixed), 1e3 * np.quantile(mixed, 0.95)
    kept = Kept.of(found, full[asked], upgrade.labels[asked])
    added = 1e3 * np.median(mixed - raw)
    return Hour(
        hour, round(share, 4), embed.texts - before, kept, *(round(float(ms), 2) for ms in (median, late, added))
    )


def filled(upgrade: Upgrade, family: str) -> list[dict[str, Any]]:
    """Exact searches while ever more rows have an adapted vector in place of a real legacy one, and are known to a companion."""
    adapter = drift_pg.fit(upgrade.pairs(PAIRS, SEED), family, seed=SEED)
    rows = upgrade.held_out(PAIRS, SEED)
    line = calibrate(adapter, drift_pg.Pairs(upgrade.documents_new[rows], upgrade.documents_legacy[rows]))
    adapted, asked = directions(adapter.apply(upgrade.documents_new)), directions(adapter.apply(upgrade.queries_new))
    full, exact = nearest(upgrade.queries_new, upgrade.documents_new, K), upgrade.queries_new @ upgrade.documents_new.T
    order, found = np.random.default_rng(SEED).permutation(len(adapted)), list[dict[str, Any]]()
    for count in FILLED:
        known = np.isin(np.arange(len(adapted)), order[:count])
        for name, there in (("real", upgrade.documents_legacy), ("adapted", adapted)):
            scores = asked @ np.where(known[:, None], there, upgrade.documents_legacy).T
            candidates = largest(scores, DEPTH)
            expected = line.expected(np.take_along_axis(scores, candidates, 1))
            searches_of = {"bridge": candidates[:, :K], "rerank": merged(exact, candidates, expected, known, K)}
            kept = {search: Kept.of(keys, full, upgrade.labels) for search, keys in searches_of.items()}
            found.append({"rows": count, "legacy vectors": name, **{s: asdict(k) for s, k in kept.items()}})
    return found


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def main() -> None:
    """Measure searches while a table is re-embedded, on real embeddings (DRIFT_PG_QUALITY_DATA) through SQL."""


def _show(title: str, headings: Iterable[str], lines: Iterable[Iterable[str]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, title=title)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    Console(width=report.WIDTH).print(table)


def _family(command: Any) -> Any:
    return click.option("--family", default="auto", show_default=True, help="Of the adapter.")(command)


def _json(command: Any) -> Any:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON in place of the table.")(command)


@main.command("curve")
@_family
@_json
def curve_command(family: str, as_json: bool) -> None:
    """Retention of rerank 200 with ever more rows re-embedded, at random and in the order of the query log."""
    upgrade = data.read(vectors.DATA)[0]
    found = curve(upgrade, family)
    if as_json:
        print(json.dumps({"upgrade": upgrade.title, **found}, indent=2))
        return
    orders_shown = dict.fromkeys(stage["order"] for stage in found["stages"])
    _show(
        f"{upgrade.title}: {RETENTION}",
        ("rows re-embedded", *orders_shown),
        ((f"{share:.0%}", *(s["shown"] for s in found["stages"] if s["share"] == share)) for share in SHARES),
    )
    print(f"bridge {Kept(**found['bridge'])}; rerank {DEPTH}, all candidates known {Kept(**found['rerank_known'])}")


@main.command("day")
@click.option("--queries", default=20_000, show_default=True, type=click.IntRange(HOURS), help="In 24 hours.")
@click.option("--at-most", default=50, show_default=True, type=click.IntRange(1), help="Texts embedded by a search.")
@click.option("--rate", default=200.0, show_default=True, help="Texts per second that the model embeds; simulated.")
@_family
@_json
def day_command(queries: int, at_most: int, rate: float, family: str, as_json: bool) -> None:
    """A day of searches that embed what they miss, drawn with repetition by Zipf's law with exponent 1.

    The queries are the data's labelled test queries. The embedder is simulated: it returns the known vectors after
    the time that a model of --rate texts per second takes.
    """
    upgrade = data.read(vectors.DATA)[0]
    hours = day(upgrade, family, queries, at_most, rate)
    if as_json:
        print(json.dumps({"upgrade": upgrade.title, "rate": rate, "hours": [asdict(hour) for hour in hours]}, indent=2))
        return
    _show(
        f"{upgrade.title}: {queries:,} queries, at most {at_most} texts a search",
        ("hour", "embedded", "texts", "Recall/MRR, overlap", "median ms", "p95 ms", "added ms"),
        (hour.line() for hour in hours),
    )
    rows = len(upgrade.documents_new)
    print(f"Embedding all {rows:,} rows first takes {rows / rate:.0f} s at {rate:g} texts/s, before the first query.")


@main.command("filled")
@_family
@_json
def filled_command(family: str, as_json: bool) -> None:
    """What rows whose legacy vector is adapted (drift-pg follow) do to searches, beside the same rows with real ones."""
    upgrade = data.read(vectors.DATA)[0]
    found = filled(upgrade, family)
    if as_json:
        print(json.dumps({"upgrade": upgrade.title, "found": found}, indent=2))
        return
    _show(
        f"{upgrade.title}: {RETENTION}",
        ("rows", "their legacy vectors", "bridge", f"rerank {DEPTH}"),
        (
            (f"{row['rows']:,}", row["legacy vectors"], *(str(Kept(**row[search])) for search in ("bridge", "rerank")))
            for row in found
        ),
    )


if __name__ == "__main__":
    main()
