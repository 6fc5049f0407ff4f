"""The report's plain words for what the evaluation names."""

from __future__ import annotations

from dataclasses import dataclass

from drift_pg.evaluation import Evaluation
from drift_pg.evaluation.advice import NO_GAIN, REEMBED, RERANK, SWITCH
from drift_pg.evaluation.labelled import BRIDGE, FULL, STAY, UNADAPTED


@dataclass(frozen=True)
class Verdict:
    """The advice in one sentence.

    Attributes:
        text: for someone who reads nothing else.
        tone: its colour: good, fair, bad, or calm.
        sign: the same for those who see no colours.
    """

    text: str
    tone: str
    sign: str


VERDICTS = {
    SWITCH: Verdict("Switch now: through this adapter the old index serves the new model’s queries.", "good", "✓"),
    RERANK: Verdict("Switch now, but let the new model put what the old index finds in order.", "fair", "✓"),
    REEMBED: Verdict("Do not switch yet: re-embed the rows first.", "bad", "✕"),
    NO_GAIN: Verdict("Stay with the old model: the new one shows no gain on your queries.", "calm", "="),
}

SEARCHES = {
    STAY: "Stay: old model, old index",
    UNADAPTED: "New model’s queries, unadapted",
    BRIDGE: "Bridge: adapted queries, old index",
    FULL: "Re-embed everything",
}

AGREEMENT = {
    "self_retrieval@1": "An item finds itself first",
    "self_retrieval@10": "An item finds itself among ten",
    "first_kept@10": "The new model’s first is among ten",
    "overlap@10": "Shared with the new model’s ten",
    "overlap_old@10": "Shared with the old model’s ten",
    "models_overlap@10": "The two models’ tens share",
}

METRICS = {
    "recall@10": "Recall@10",
    "recall@1": "Recall@1",
    "mrr@10": "MRR@10",
    "ndcg@10": "nDCG@10",
    "overlap@10": "Overlap@10",
    "self_retrieval@10": "Finds itself in ten",
    "retention_recall@10": "Retention (Recall)",
    "retention_mrr@10": "Retention (MRR)",
}
"""Columns of the table of searches, in order."""


def verdict(evaluation: Evaluation) -> Verdict:
    """The advice in one sentence; an advice that the report does not know speaks for itself."""
    kind = evaluation.advice.kind
    return VERDICTS.get(kind, Verdict(f"Advice: {kind}.", "calm", "="))


def search_name(name: str) -> str:
    """A search in words."""
    if name.startswith(f"{BRIDGE} + rerank "):
        return f"Bridge, first {name.rsplit(' ', 1)[1]} reordered"
    return SEARCHES.get(name, name)


def duration(hours: float) -> str:
    """Hours as a person would say them."""
    if hours >= 48:
        return f"{hours / 24:,.0f} days"
    if hours >= 2:
        return f"{hours:.0f} hours"
    minutes = hours * 60
    return f"{minutes:.0f} minutes" if minutes >= 2 else f"{hours * 3600:.0f} seconds"


def size(octets: float) -> str:
    """Bytes as a person would say them."""
    units = ("B", "kB", "MB", "GB", "TB")
    power = 0
    while octets >= 1000 and power < len(units) - 1:
        octets, power = octets / 1000, power + 1
    return f"{octets:,.0f} {units[power]}" if octets >= 10 or not power else f"{octets:.1f} {units[power]}"
