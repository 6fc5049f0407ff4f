"""fit: sample rows, embed them by the new model, fit an adapter, store it as a candidate."""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from drift_pg import families
from drift_pg.adapter import Adapter
from drift_pg.cli.cache import cache_option
from drift_pg.cli.connect import connected, dsn_option
from drift_pg.cli.figures import show_evaluation
from drift_pg.cli.output import json_option, note, progress, say, show_json, show_table
from drift_pg.database import adapters
from drift_pg.database.connection import one
from drift_pg.database.evaluations import store_evaluation
from drift_pg.database.registry import EmbeddingColumn
from drift_pg.database.sampling import Sample, draw
from drift_pg.embedding import EmbeddingCache, embed_all, load_embedder
from drift_pg.errors import InvalidInput, WrongDimensions
from drift_pg.evaluation import evaluate
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
    test_pairs: int
    seconds: float | None
    force_training: bool
    seed: int
    batch: int
    cache: Path
    fresh: bool


@click.command()
@click.option("--column", required=True, help="The registered embedding column, e.g. public.docs.embedding.")
@click.option("--text", multiple=True, help="The column whose text was embedded; several are joined by a line break.")
@click.option("--query-model", required=True, help="The registered new model.")
@click.option(
    "--embed",
    metavar="MODULE:FUNCTION",
    help="The new model: a function of a list of n texts that returns (n, d) vectors.",
)
@click.option(
    "--pairs",
    default=5000,
    show_default=True,
    type=click.IntRange(2),
    help="How many rows to sample and embed.",
)
@click.option(
    "--pairs-file",
    type=click.Path(path_type=Path),
    help="Use these pairs (.npz or .parquet: source, target) instead of sampling.",
)
@click.option(
    "--test-pairs",
    default=1000,
    show_default=True,
    type=click.IntRange(0),
    help="How many more to draw that fitting never sees, to evaluate on; of a file or a small table at most a fifth.",
)
@click.option("--save-pairs", type=click.Path(path_type=Path), help="Keep the pairs in this .npz file.")
@click.option("--save-test-pairs", type=click.Path(path_type=Path), help="Keep the test pairs in this .npz file.")
@click.option(
    "--family",
    type=click.Choice(list(families.FAMILIES)),
    default="auto",
    show_default=True,
    help="The kind of adapter; auto compares several on your pairs and takes the best.",
)
@click.option("--seconds", type=click.FloatRange(0), help="Train no longer than this; the best so far is taken.")
@click.option("--force-training", is_flag=True, help="Train although so few pairs will be learnt by heart.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the family, e.g. rank=128, centre=false.",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    help="The same seed draws the same rows and fits the same adapter.",
)
@click.option("--batch", default=64, show_default=True, type=click.IntRange(1), help="Texts per call of the embedder.")
@cache_option
@click.option("--fresh", is_flag=True, help="Draw a new sample although an interrupted run left one.")
@json_option
@dsn_option
def fit(
    save_pairs: Path | None,
    save_test_pairs: Path | None,
    family: str,
    options: tuple[str, ...],
    as_json: bool,
    **request: Any,
) -> None:
    """Fit an adapter on a sample of your table, evaluate it, and store it as a candidate.

    Draws rows at random, embeds their text by the new model, fits, evaluates on rows that fitting never
    saw, and stores. Nothing changes for any search until `drift-pg activate`. Each batch of embeddings is kept on disk as it comes (vectors
    by the hash of their text): interrupt it at any time and run it again, and no text is paid for twice.

    \b
    Example:
      drift-pg fit --column public.docs.embedding --text body \\
                   --query-model minilm-l6 --embed my_models:embed_new
    """
    wanted = Request(**request)
    chosen = families.create(family, **_parsed(options))
    started = time.perf_counter()
    target, drawn = _pairs(wanted)
    pairs, test = _divided(drawn, wanted)
    embedded = time.perf_counter()
    for part, file in ((pairs, save_pairs), (test, save_test_pairs)):
        if file and part:
            part.save(file)
    adapter = _fitted(pairs, family, chosen, wanted)
    evaluation = evaluate(adapter, test) if test else None
    with connected(wanted.dsn) as conn, conn.transaction():
        stored = adapters.store(conn, adapter, source=wanted.query_model, target=target)
        if evaluation:
            store_evaluation(conn, stored, evaluation.as_dict())
    seconds = {"pairs": round(embedded - started, 1), "fit": adapter.details["seconds"]}
    if as_json:
        show_json(
            {
                "adapter": stored,
                "source": wanted.query_model,
                "target": target,
                "family": family,
                "pairs": len(pairs),
                "seconds": seconds,
                "candidates": adapter.details.get("candidates"),
                "evaluation": evaluation and evaluation.as_dict(),
            }
        )
        return
    _show_candidates(adapter)
    if evaluation:
        show_evaluation(evaluation)
    say(
        f"Adapter {stored} ({wanted.query_model} → {target}) is stored as a candidate: {family}, {len(pairs):,} pairs, fitted in {seconds['fit']} s."
    )
    say(f"Try it:   SELECT … ORDER BY embedding <=> (SELECT drift.adapt(query, {stored})) LIMIT 10;")
    if evaluation is None:
        say(f"Evaluate it before it may serve: drift-pg evaluate {stored} --test-pairs FILE")
    elif evaluation.passes:
        say(f"Serve it: drift-pg activate {stored}")


def _show_candidates(adapter: Adapter) -> None:
    """What auto compared, if it did."""
    table = adapter.details.get("candidates")
    if not table:
        return
    if why := adapter.details["not_trained"]:
        note(f"warning: only closed-form families were tried, which find less: {why}")
    rows = [{**row, "": "taken" if row["chosen"] else "", "family": row["name"]} for row in table]
    columns = [
        "family",
        "score",
        "self_retrieval",
        "first_kept",
        "overlap",
        "multiply_adds",
        "parameters",
        "seconds",
        "",
    ]
    show_table(rows, columns, title="Compared on pairs that none of them was fitted on")


def _divided(drawn: Pairs, wanted: Request) -> tuple[Pairs, Pairs | None]:
    """What is fitted, and what is only tested on."""
    count = min(wanted.test_pairs, len(drawn) // 5)
    if count < MINIMUM:
        return drawn, None
    order = np.random.default_rng(wanted.seed).permutation(len(drawn))
    return drawn.take(order[count:]), drawn.take(order[:count])


def _parsed(options: tuple[str, ...]) -> dict[str, Any]:
    pairs = [option.partition("=") for option in options]
    if bad := [name for name, equals, _ in pairs if not equals]:
        raise click.BadParameter(f"{bad[0]!r} is not NAME=VALUE", param_hint="--option")
    try:
        return {name.replace("-", "_"): json.loads(value.lower()) for name, _, value in pairs}
    except json.JSONDecodeError as error:
        raise click.BadParameter(f"{error.doc!r} is not a number, true or false", param_hint="--option") from None


def _fitted(pairs: Pairs, family: str, chosen: families.Family, wanted: Request) -> Adapter:
    note(f"Fitting {family} on {len(pairs):,} pairs …")
    with warnings.catch_warnings(record=True) as caught, progress("Training") as report:
        warnings.simplefilter("always", families.SmallSample)
        adapter = families.fit(
            pairs,
            family,
            seed=wanted.seed,
            seconds=wanted.seconds,
            force=wanted.force_training,
            progress=report,
            **vars(chosen),
        )
    for warning in caught:
        note(f"warning: {warning.message}")
    return replace(adapter, details={**adapter.details, "column": wanted.column})


def _pairs(wanted: Request) -> tuple[str, Pairs]:
    """The legacy model's name, and the pairs, whose dimensions are those of both models."""
    with connected(wanted.dsn) as conn:
        column = EmbeddingColumn.find(conn, wanted.column)
        dimensions = int(one(conn, "SELECT drift.model_dimensions(%s) AS n", [wanted.query_model]).n)
    if wanted.query_model == column.model:
        raise InvalidInput(
            f"column {column.name} holds vectors of {wanted.query_model!r} already, which needs no adapter"
        )
    pairs = Pairs.load(wanted.pairs_file) if wanted.pairs_file else _sampled(wanted, column, dimensions)
    if (pairs.source_dimensions, pairs.target_dimensions) != (dimensions, column.dimensions):
        raise WrongDimensions(
            f"the pairs have {pairs.source_dimensions} and {pairs.target_dimensions} dimensions, "
            f"models {wanted.query_model!r} and {column.model!r} have {dimensions} and {column.dimensions}",
            hint="source is the new model, target the legacy one",
        )
    return column.model, pairs


def _sampled(wanted: Request, column: EmbeddingColumn, dimensions: int) -> Pairs:
    if not (wanted.text and wanted.embed):
        raise click.UsageError("give --text and --embed, to sample the table, or --pairs-file")
    embedder = load_embedder(wanted.embed)
    kept = _sample_file(wanted, column)
    sample = _resumed(kept) if kept.exists() and not wanted.fresh else _drawn(wanted, column, kept)
    with (
        EmbeddingCache.of(wanted.cache, wanted.query_model, wanted.embed) as cache,
        progress("Embedding") as report,
    ):
        source = embed_all(
            embedder, sample.texts.tolist(), cache, dimensions=dimensions, batch=wanted.batch, progress=report
        )
    kept.unlink(missing_ok=True)
    return Pairs(source, sample.vectors, sample.keys)


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


COMMANDS = [fit]
