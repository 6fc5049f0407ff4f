"""The cost of a switch, of re-indexing and of two indexes: measured at one size, extrapolated to two more."""

from __future__ import annotations

from typing import Any

from benchmarks.quality.costs import Extrapolation
from benchmarks.quality.markdown import listed, seconds, size, table
from benchmarks.quality.records import Record
from benchmarks.quality.results import Results

LARGE = (10**6, 10**9)
DEFAULT = "auto"
"""Whose switch is extrapolated, or the last that was measured."""


def section(results: Results) -> str:
    """For the last measurement."""
    if not results.costs:
        return ""
    found = results.costs[-1]
    parts = ["## The cost of a switch", _measured(found), _switches(found), _ways(found), _searches(found)]
    return "\n\n".join(parts)


def _measured(found: Record) -> str:
    rates, versions = found["texts_per_second"], found["versions"]
    return (
        f"Measured on {found['rows']:,} rows ({found['key']['data']}: {found['key']['upgrade']}) with PostgreSQL "
        f"{versions['postgresql']} and pgvector {versions['pgvector']}: the HNSW index (pgvector's defaults) was built in "
        f"{seconds(found['new']['index_seconds'])}, table and index take {size(_extrapolation(found).bytes(found['rows']))}. The "
        f"demo's MiniLM-L6 (int8, ONNX) embeds {rates['new']:.0f} texts a second here, MiniLM-L3 {rates['legacy']:.0f}; a larger model or a vendor's "
        "interface is slower, and then embedding is all that counts."
    )


def _switches(found: Record) -> str:
    rows = [
        [name, seconds(cost["fit"]), seconds(cost["store"]), size(cost["bytes"])]
        for name, cost in found["switches"].items()
    ]
    return table([f"adapter, {found['pairs']:,} pairs", "fit", "store, verify, activate", "in the database"], rows)


def _extrapolation(found: Record) -> Extrapolation:
    new = found["new"]
    rate = found["texts_per_second"]["new"]
    return Extrapolation(found["rows"], rate, new["index_seconds"], new["table_bytes"], new["index_bytes"])


def _ways(found: Record) -> str:
    """Before new queries can be served: by an adapter, by a new index, by two."""
    model, name, cost = _extrapolation(found), *_chosen(found)
    switch = found["pairs"] / model.rate + cost["fit"] + cost["store"]
    sizes = (found["rows"], *LARGE)
    rows: list[list[str]] = []
    for rows_there in sizes:
        embedding, indexing = model.embedding(rows_there), model.indexing(rows_there)
        again, room = embedding + indexing, model.bytes(rows_there)
        rows += [
            [f"**{rows_there:,} rows**", "", "", "", ""],
            [f"adapter ({name})", f"{found['pairs']:,}", seconds(switch), size(cost["bytes"]), "1"],
            ["re-index", f"{rows_there:,}", f"{seconds(again)} ({seconds(embedding)} + {seconds(indexing)})", size(room), f"{again / switch:,.0f}"],
            ["two indexes", f"{rows_there:,}", f"{seconds(again)}, serving meanwhile", f"{size(room)}, kept", f"{again / switch:,.0f}"],
        ]  # fmt: skip
    headings = ["until new queries find all rows", "texts embedded", "time", "further bytes", "time / adapter's"]
    text = (
        f"At {listed([f'{rows_there:,}' for rows_there in LARGE])} rows nothing was measured. The figures are extrapolated from those of n = "
        f"{found['rows']:,} rows: embedding N texts takes N / rate; building the index t(n) · N ln N / (n ln n), which holds while it fits in "
        "maintenance_work_mem and is far too kind beyond; bytes grow with N / n. An adapter's cost does not depend on N. Time is that of "
        "embedding and then of fit and store, or of the index (in brackets: the two apart), on this machine's cores."
    )
    return f"{text}\n\n{table(headings, rows)}"


def _chosen(found: Record) -> tuple[str, dict[str, Any]]:
    switches = found["switches"]
    name = DEFAULT if DEFAULT in switches else list(switches)[-1]
    return name, switches[name]


def _searches(found: Record) -> str:
    timed, rates = found["searches"], found["texts_per_second"]
    new, legacy = (1000 / rates[name] for name in ("new", "legacy"))
    name, _ = _chosen(found)
    embedded = {"one index": legacy, "bridge": new, "two indexes": new + legacy}
    names = {"one index": "the legacy index alone", "bridge": f"bridge ({name})", "two indexes": "two indexes"}
    rows = [
        [names[what], f"{ms:.2f} ms", f"{embedded[what]:.1f} ms", f"{ms / timed['one index']:.2f}"]
        for what, ms in timed.items()
    ]
    text = (
        "While both indexes serve, each query is embedded by both models and searched twice, and both indexes want memory; the bridge "
        "searches once. Median of a top 10 in the database, in one connection, the two searches one after the other, and the time to embed the query at the rate above:"
    )
    return f"{text}\n\n{table(['', 'search', 'embedding', 'search, relative'], rows)}"
