"""The quality measured in numpy is the quality that the database gives."""

import numpy as np
import psycopg
import pytest

import drift_pg
from tests.tables import make_docs, vector


def recall(found: np.ndarray, labels: np.ndarray) -> float:
    return float((found == labels[:, None]).any(axis=1).mean())


def test_exact_search_through_sql_keeps_the_recall_of_numpy(conn: psycopg.Connection, postgresql: str, pydocs) -> None:
    if postgresql == "16":
        pytest.skip("once is enough: numpy and SQL are compared on every version elsewhere")
    new, legacy = pydocs["documents_minilm_l6"], pydocs["documents_minilm_l3"]
    queries, labels = pydocs["queries_minilm_l6"][:500], pydocs["labels"][:500]
    free = np.setdiff1d(np.arange(len(new)), np.union1d(pydocs["labels"], pydocs["log_labels"]))
    chosen = np.random.default_rng(0).permutation(free)[:5000]
    adapter = drift_pg.fit(drift_pg.Pairs(new[chosen], legacy[chosen]), "procrustes")
    make_docs(conn, legacy, opclass=None)
    for name in ("l3", "l6"):
        drift_pg.register_model(conn, name, dimensions=384)
    drift_pg.register_column(conn, "docs", "embedding", model="l3", metric="cosine")
    drift_pg.activate(conn, drift_pg.store(conn, adapter, source="l6", target="l3"), force=True)
    found = [
        [
            row[0]
            for row in conn.execute("SELECT id FROM drift.nearest(NULL::docs, 'embedding', %s, 'l6', 10)", [vector(q)])
        ]
        for q in queries
    ]
    in_numpy = np.argsort(-adapter.apply(queries) @ legacy.T, axis=1, kind="stable")[:, :10]
    assert abs(recall(np.array(found), labels) - recall(in_numpy, labels)) <= 0.005
