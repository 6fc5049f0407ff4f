"""fit: sample rows, embed them by the new model, fit an adapter, store it as a candidate."""

from __future__ import annotations

import json
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from drift_pg import families
from drift_pg.adapter import Adapter
from drift_pg.cli.cache import EMBEDDER, cache_option
from drift_pg.cli.connect import connected, dsn_option
from drift_pg.cli.figures import show_evaluation
from drift_pg.cli.gathering import Gathered, Request, gather
from drift_pg.cli.output import json_option, note, progress, say, show_json, show_table
from drift_pg.cli.query_log import logged_option
from drift_pg.database import adapters
from drift_pg.database.evaluations import store_evaluation
from drift_pg.evaluation import ReembeddingCost, evaluate, reembedding_cost


@click.command()
@click.option("--column", required=True, help="The registered embedding column, e.g. public.docs.embedding.")
@click.option("--text", multiple=True, help="The column whose text was embedded; several are joined by a line break.")
@click.option("--query-model", required=True, help="The registered new model.")
@click.option(
    "--embed",
    metavar="EMBEDDER",
    help=f"The new model: {EMBEDDER}, a function of a list of n texts that returns (n, d) vectors.",
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
    "--query-log",
    type=click.Path(path_type=Path),
    help='Real queries to learn from, as JSON lines: {"query": text} or {"vector": […]}, by the new model alone.',
)
@logged_option
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
    saw, and stores. Nothing changes for any search until `drift-pg activate`. Each batch of embeddings is
    kept on disk as it comes (vectors by the hash of their text): interrupt it at any time and run it
    again, and no text is paid for twice.

    \b
    Example:
      drift-pg fit --column public.docs.embedding --text body \\
                   --query-model minilm-l6 --embed my_models:embed_new

    \b
    Common models need no function of yours, only the extra of their name (pip install 'drift-pg[openai]'):
      --embed openai:text-embedding-3-small               OPENAI_API_KEY, and OPENAI_BASE_URL for other servers
      --embed openai:text-embedding-3-large,dimensions=1024
      --embed sentence-transformers:all-MiniLM-L6-v2      a name on the hub or a folder; ,prompt_name= ,dimensions=
      --embed onnx:models/minilm                          a folder: model.onnx, tokenizer.json; ,pooling= ,max_tokens=
    """
    wanted = Request(**request)
    chosen = families.create(family, **_parsed(options))
    started = time.perf_counter()
    gathered = gather(wanted)
    pairs, test, target = gathered.pairs, gathered.test, gathered.target
    embedded = time.perf_counter()
    for part, file in ((pairs, save_pairs), (test, save_test_pairs)):
        if file and part:
            part.save(file)
    adapter = _fitted(gathered, family, chosen, wanted)
    evaluation = evaluate(adapter, test) if test else None
    cost = _cost(gathered)
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
                "queries": adapter.details["queries"],
                "seconds": seconds,
                "candidates": adapter.details.get("candidates"),
                "evaluation": evaluation and evaluation.as_dict(),
                "reembedding_hours": cost and vars(cost),
            }
        )
        return
    _show_candidates(adapter)
    if evaluation:
        show_evaluation(evaluation)
    if cost:
        say(
            f"Re-embedding all of about {gathered.rows:,} rows would take {_hours(cost.embedding_hours)} at the "
            f"{gathered.rate:,.0f} texts/s measured here, and about {_hours(cost.index_hours)} for the new index."
        )
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


def _parsed(options: tuple[str, ...]) -> dict[str, Any]:
    pairs = [option.partition("=") for option in options]
    if bad := [name for name, equals, _ in pairs if not equals]:
        raise click.BadParameter(f"{bad[0]!r} is not NAME=VALUE", param_hint="--option")
    try:
        return {name.replace("-", "_"): json.loads(value.lower()) for name, _, value in pairs}
    except json.JSONDecodeError as error:
        raise click.BadParameter(f"{error.doc!r} is not a number, true or false", param_hint="--option") from None


def _cost(gathered: Gathered) -> ReembeddingCost | None:
    """What re-embedding the table would take, None if too little was embedded to tell."""
    if gathered.rate is None or gathered.rows < 1:
        return None
    return reembedding_cost(gathered.rows, gathered.rate, gathered.pairs.source_dimensions)


def _hours(hours: float) -> str:
    """A duration as a person says it."""
    if hours < 2 / 60:
        return f"{3600 * hours:.0f} seconds"
    return f"{60 * hours:.0f} minutes" if hours < 2 else f"{hours:,.0f} hours"


def _fitted(gathered: Gathered, family: str, chosen: families.Family, wanted: Request) -> Adapter:
    note(f"Fitting {family} on {len(gathered.pairs):,} pairs …")
    with warnings.catch_warnings(record=True) as caught, progress("Training") as report:
        warnings.simplefilter("always", families.SmallSample)
        adapter = families.fit(
            gathered.pairs,
            family,
            query_log=gathered.query_log,
            seed=wanted.seed,
            seconds=wanted.seconds,
            force=wanted.force_training,
            progress=report,
            **vars(chosen),
        )
    for warning in caught:
        note(f"warning: {warning.message}")
    return replace(adapter, details={**adapter.details, "column": wanted.column})


COMMANDS = [fit]
