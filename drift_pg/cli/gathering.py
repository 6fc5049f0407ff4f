"""What `fit` works on: pairs drawn from the table and embedded, or read from a file; and a query log."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from drift_pg.adapter import Float32
from drift_pg.cli.cache import embedded, loaded
from drift_pg.cli.connect import connected
from drift_pg.cli.output import note
from drift_pg.cli.query_log import logged_queries
from drift_pg.database.connection import one
from drift_pg.database.registry import EmbeddingColumn
from drift_pg.database.sampling import Sample, draw, table_size
from drift_pg.errors import InvalidInput, WrongDimensions
from drift_pg.evaluation.query_file import QueryFile
from drift_pg.pairs import MINIMUM, Pairs


@dataclass(frozen=True)
class Request:
    """What was asked for."""

    dsn: str
    column: str
    text: tuple[str, ...]
    query_model: str
    embed: str | None
    pairs: int
    pairs_file: Path | None
    query_log: Path | None
    logged_queries: int | None
    test_pairs: int
    seconds: float | None
    force_training: bool
    seed: int
    batch: int
    cache: Path
    fresh: bool


@dataclass(frozen=True, eq=False)
class Gathered:
    """What there is to fit.

    Attributes:
        target: the legacy model's name.
        pairs: to fit.
        test: that fitting never sees, None if there are too few pairs to spare any.
        query_log: (q, m) vectors of real queries, or None.
        rows: of the table, as PostgreSQL estimates; 0 if nothing was embedded.
        rate: texts per second that the new model embedded here, None if all were known.
    """

    target: str
    pairs: Pairs
    test: Pairs | None
    query_log: Any
    rows: int
    rate: float | None


class Pace:
    """How fast texts are embedded: from the first report, which counts what was known before, to the last."""

    def __init__(self) -> None:
        self._reports: list[tuple[float, int]] = []

    def note(self, done: int, total: int) -> None:  # noqa: ARG002 (the signature of a progress report)
        """So many are done now."""
        self._reports.append((time.perf_counter(), done))

    @property
    def rate(self) -> float | None:
        """Texts per second, None if fewer than a hundred were embedded."""
        if len(self._reports) < 2:
            return None
        (began, known), (ended, done) = self._reports[0], self._reports[-1]
        return (done - known) / (ended - began) if done - known >= 100 else None


def gather(wanted: Request) -> Gathered:
    """Draw and embed, or read, the pairs; embed the query log.

    Raises:
        click.UsageError: neither a file of pairs nor what sampling needs is named.
        WrongDimensions: the pairs' are not the models'.
    """
    if wanted.query_log and wanted.logged_queries:
        raise click.UsageError("give --query-log or --logged-queries, not both")
    with connected(wanted.dsn) as conn:
        column = EmbeddingColumn.find(conn, wanted.column)
        dimensions = int(one(conn, "SELECT drift.model_dimensions(%s) AS n", [wanted.query_model]).n)
    if wanted.query_model == column.model:
        raise InvalidInput(
            f"column {column.name} holds vectors of {wanted.query_model!r} already, which needs no adapter"
        )
    log = _query_log(wanted, column, dimensions)  # refused before rows are drawn
    pace = Pace()
    pairs = Pairs.load(wanted.pairs_file) if wanted.pairs_file else _sampled(wanted, column, dimensions, pace)
    if (pairs.source_dimensions, pairs.target_dimensions) != (dimensions, column.dimensions):
        raise WrongDimensions(
            f"the pairs have {pairs.source_dimensions} and {pairs.target_dimensions} dimensions, "
            f"models {wanted.query_model!r} and {column.model!r} have {dimensions} and {column.dimensions}",
            hint="source is the new model, target the legacy one",
        )
    return Gathered(column.model, *_divided(pairs, wanted), log, _rows(wanted, column) if pace.rate else 0, pace.rate)


def _rows(wanted: Request, column: EmbeddingColumn) -> int:
    """Only asked of a table that was sampled: counting a view could take for ever."""
    with connected(wanted.dsn) as conn:
        return int(table_size(conn, column.name).rows)


def _sampled(wanted: Request, column: EmbeddingColumn, dimensions: int, pace: Pace) -> Pairs:
    if not (wanted.text and wanted.embed):
        raise click.UsageError("give --text and --embed, to sample the table, or --pairs-file")
    loaded(wanted.embed)  # refused before rows are drawn
    kept = _sample_file(wanted, column)
    sample = _resumed(kept) if kept.exists() and not wanted.fresh else _drawn(wanted, column, kept)
    source = _embedded(wanted, sample.texts.tolist(), dimensions, "Embedding", pace)
    kept.unlink(missing_ok=True)
    return Pairs(source, sample.vectors, sample.keys)


def _embedded(wanted: Request, texts: list[str], dimensions: int, what: str, pace: Pace) -> Float32:
    return embedded(
        texts,
        wanted.embed or "",
        model=wanted.query_model,
        cache=wanted.cache,
        dimensions=dimensions,
        batch=wanted.batch,
        what=what,
        told=pace.note,
    )


def _query_log(wanted: Request, column: EmbeddingColumn, dimensions: int) -> Any:
    """(q, m) vectors of the query log, None if none is to be used."""
    if wanted.logged_queries:
        with connected(wanted.dsn) as conn:
            return logged_queries(conn, column.name, wanted.query_model, wanted.logged_queries, "fit")
    if wanted.query_log is None:
        return None
    file = QueryFile.load(wanted.query_log)
    if file.texts is None:
        return file.vectors
    if not wanted.embed:
        raise click.UsageError(f"{wanted.query_log} holds texts: give --embed")
    return _embedded(wanted, file.texts, dimensions, "Embedding queries", Pace())


def _sample_file(wanted: Request, column: EmbeddingColumn) -> Path:
    """Where this sample waits until it is embedded: named by what was asked of which table, all of it hashed."""
    servers = [wanted.dsn, *(os.environ.get(name) for name in ("PGHOST", "PGPORT", "PGDATABASE", "PGSERVICE"))]
    asked = [*servers, column.identity, wanted.text, wanted.pairs, wanted.test_pairs, wanted.seed]
    return wanted.cache / f"sample-{hashlib.sha256(repr(asked).encode()).hexdigest()[:16]}.npz"


def _resumed(kept: Path) -> Sample:
    drawn = time.strftime("%Y-%m-%d %H:%M", time.localtime(kept.stat().st_mtime))
    note(f"Going on with the sample drawn at {drawn}; --fresh draws a new one.")
    return Sample.load(kept)


def _drawn(wanted: Request, column: EmbeddingColumn, kept: Path) -> Sample:
    with connected(wanted.dsn) as conn:
        sample = draw(conn, column, wanted.text, wanted.pairs + wanted.test_pairs, seed=wanted.seed)
    kept.parent.mkdir(parents=True, exist_ok=True)
    sample.save(kept)
    repeats = f", {sample.repeated:,} repeated texts left out" if sample.repeated else ""
    short = (
        f" (the table has no more; {wanted.pairs + wanted.test_pairs:,} were asked for)"
        if len(sample) < wanted.pairs + wanted.test_pairs
        else ""
    )
    note(f"Sampled {len(sample):,} rows{short} ({sample.method}{repeats}).")
    return sample


def _divided(drawn: Pairs, wanted: Request) -> tuple[Pairs, Pairs | None]:
    """What is fitted, and what is only tested on."""
    count = min(wanted.test_pairs, len(drawn) // 5)
    if count < MINIMUM:
        return drawn, None
    order = np.random.default_rng(wanted.seed).permutation(len(drawn))
    return drawn.take(order[count:]), drawn.take(order[:count])
