"""Keeps evaluations of adapters, and searches an embedding column for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import sql
from psycopg.types.json import Jsonb

from drift_pg.adapter import Float32
from drift_pg.database.connection import Connection, one, rows
from drift_pg.database.registry import EmbeddingColumn
from drift_pg.database.sampling import key_text, primary_key
from drift_pg.embedding import Progress
from drift_pg.errors import InvalidDefinition


@dataclass(frozen=True)
class StoredEvaluation:
    """What was measured of an adapter.

    Attributes:
        id: of the evaluation.
        adapter_id: of the adapter.
        created_at: when it was stored.
        created_by: the role that stored it.
        score, score_low, score_high: what the quality gate judges, with its 95 % interval.
        items: test pairs that the score is a mean over.
        advice: what to do with the adapter.
        figures: everything else, as `Evaluation.as_dict()` gave it.
    """

    id: int
    adapter_id: int
    created_at: datetime
    created_by: str
    score: float
    score_low: float
    score_high: float
    items: int
    advice: str
    figures: dict[str, Any]


def store_evaluation(conn: Connection, adapter_id: int, evaluation: Mapping[str, Any]) -> int:
    """Keep an evaluation of a stored adapter; the latest is what `activate` judges by.

    Its calibration becomes the adapter's, by which `drift.nearest` merges scores of both models.

    Args:
        conn: a connection.
        adapter_id: of the adapter that was evaluated.
        evaluation: `Evaluation.as_dict()`.

    Returns:
        Its id.

    Raises:
        UnknownAdapter: no adapter has that id.
        InvalidDefinition: the mapping lacks the score, the number of pairs or the advice.
    """
    found = one(conn, "SELECT drift.store_evaluation(%s::bigint, %s) AS id", [adapter_id, Jsonb(dict(evaluation))])
    return int(found.id)


def latest_evaluation(conn: Connection, adapter_id: int) -> StoredEvaluation | None:
    """The evaluation of an adapter that counts, None if there is none."""
    found = rows(conn, "SELECT * FROM drift.latest_evaluation(%s::bigint)", [adapter_id])
    return StoredEvaluation(**found[0]._asdict()) if found else None


def stored_calibration(conn: Connection, adapter_id: int) -> dict[str, dict[str, float]]:
    """Per metric the slope, intercept, residual and margin of an adapter; empty if it is not calibrated."""
    found = rows(
        conn,
        "SELECT metric, slope, intercept, residual, margin FROM drift.calibration WHERE adapter_id = %s ORDER BY metric",
        [adapter_id],
    )
    return {str(row.metric): {name: v for name, v in row._asdict().items() if name != "metric"} for row in found}


def search_keys(
    conn: Connection, column: EmbeddingColumn, vectors: Float32, k: int, progress: Progress | None = None
) -> list[list[str]]:
    """The primary keys that the real index finds for vectors of the column's own model, nearest first.

    An application's search: the column's metric, its index with what that loses, row-level security.

    Args:
        conn: a connection.
        column: the embedding column.
        vectors: (q, k) legacy or adapted vectors.
        k: how many keys for each, fewer where the table has fewer.
        progress: told after each search.

    Raises:
        InvalidDefinition: the table has no primary key to name its rows by.
    """
    # A percent sign in a name would be read as a parameter's.
    key, table = (
        [part.replace("%", "%%") for part in names]
        for names in (_primary_key(conn, column), (column.name.schema, column.name.table))
    )
    statement = sql.SQL("SELECT {} AS key FROM drift.nearest(NULL::{}, %s::name, %s, %s, %s::integer) t").format(
        key_text(key), sql.Identifier(*table)
    )
    found = []
    for done, vector in enumerate(vectors.tolist(), 1):
        parameters = [column.name.column, str(vector), column.model, k]
        found.append([row.key for row in rows(conn, statement, parameters)])
        if progress:
            progress(done, len(vectors))
    return found


def _primary_key(conn: Connection, column: EmbeddingColumn) -> Sequence[str]:
    found = primary_key(conn, column.name)
    if not found:
        raise InvalidDefinition(
            f"{column.name.schema}.{column.name.table} has no primary key, so what a search finds cannot be compared",
            hint="evaluate without --column: exact search among the test pairs needs no table",
        )
    return found
