"""Printing an evaluation for people."""

from __future__ import annotations

from collections.abc import Mapping

from drift_pg.cli.output import say, show_table
from drift_pg.evaluation import Evaluation, Figure
from drift_pg.evaluation.labelled import STAY

_MEANING = {
    "self_retrieval@1": "an item's adapted vector finds the item first",
    "self_retrieval@10": "… among the first ten",
    "first_kept@10": "the new model's nearest is among the adapted ten",
    "overlap@10": "share of the new model's ten among the adapted ten",
    "overlap_old@10": "share of the old model's ten among the adapted ten",
    "models_overlap@10": "share of the new model's ten among the old model's",
}
# Recall@1 is in the JSON: with it the table is wider than a page.
_HEADS = {
    "recall@10": "Recall@10",
    "mrr@10": "MRR@10",
    "ndcg@10": "nDCG@10",
    "overlap@10": "overlap@10",
    "retention_recall@10": "Recall, of full",
    "retention_mrr@10": "MRR, of full",
    "self_retrieval@10": "self-retrieval@10",
}


def show_evaluation(evaluation: Evaluation) -> None:
    """Tables of figures with 95 % intervals, the advice and why, and what is odd about the pairs."""
    _show_agreement(evaluation)
    for title, searches in (
        (f"Labelled queries, exact search among {evaluation.documents:,} items", evaluation.searches),
        ("Through the real index, over the whole table", evaluation.through_index),
    ):
        if searches:
            _show_searches(title, searches)
    if evaluation.searches and STAY not in evaluation.searches:
        say("What staying with the old model is worth is unknown: give the same queries by it (--legacy-embed).")
    _show_touched(evaluation)
    for finding in evaluation.findings:
        say(f"Note: {finding}")
    verdict = "passes" if evaluation.passes else "does not pass"
    say(f"Score {evaluation.score}: {verdict} the gate, whose minimum is {evaluation.minimum:g}.")
    say(f"Advice: {evaluation.advice}.")
    for reason in evaluation.advice.reasons:
        say(f"  {reason}")


def _show_agreement(evaluation: Evaluation) -> None:
    columns = {f"{evaluation.pairs:,} test pairs": evaluation.agreement}
    if evaluation.log:
        columns[f"{next(iter(evaluation.log.values())).queries:,} queries"] = evaluation.log
    rows = [
        {"without labels": name, **{c: figures.get(name) for c, figures in columns.items()}, "": meaning}
        for name, meaning in _MEANING.items()
    ]
    show_table(rows, ["without labels", *columns, ""], title=f"Among {evaluation.documents:,} items, 95 % intervals")


def _show_touched(evaluation: Evaluation) -> None:
    """What has to be embedded before a rerank knows all candidates of such queries."""
    if evaluation.touched:
        say(f"Among the searched items {evaluation.touched}.")
    if evaluation.touched_through_index:
        say(f"In the whole table, through its index, {evaluation.touched_through_index}.")


def _show_searches(title: str, searches: Mapping[str, Mapping[str, Figure]]) -> None:
    metrics = [m for m in _HEADS if any(m in figures for figures in searches.values())]
    rows = [{"search": name, **{_HEADS[m]: f.get(m) for m in metrics}} for name, f in searches.items()]
    show_table(rows, ["search", *(_HEADS[m] for m in metrics)], title=title)
