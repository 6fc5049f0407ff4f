"""Mixed search: the bridge's candidates ordered anew by the new model's vectors, where they are known."""

import numpy as np
import psycopg
import pytest

import drift_pg
from drift_pg import errors
from tests.tables import Upgrade, vector


@pytest.fixture
def upgrade(conn: psycopg.Connection, rng: np.random.Generator) -> Upgrade:
    """An upgrade whose legacy vectors are noisy, so that the bridge does not find what the new model finds."""
    made = Upgrade(conn, rng).activate()
    conn.execute("SELECT drift.create_companion('docs', 'embedding', 'new', '{body}')")
    conn.execute(
        """SELECT drift.store_calibration(%s, '{"cosine": {"slope": 0.8, "intercept": 0.1, "residual": 0.1, "margin": 0.05}}')""",
        [made.adapter],
    )
    return made


def search(conn: psycopg.Connection, query: np.ndarray, k: int = 10, rerank: int | None = None) -> list[int]:
    found = conn.execute(
        "SELECT id FROM drift.nearest(NULL::docs, 'embedding', %s, 'new', %s, %s)", [vector(query), k, rerank]
    )
    return [row[0] for row in found]


def fill(upgrade: Upgrade, rows: np.ndarray, vectors: np.ndarray) -> None:
    import json

    upgrade.conn.execute(
        "SELECT drift.store_vectors('docs', 'embedding', %s, %s, %s)",
        [json.dumps([[str(i)] for i in rows]), [f"text {i}" for i in rows], [vector(v) for v in vectors]],
    )


def test_at_no_coverage_the_order_is_the_bridges_and_at_full_coverage_the_new_models(
    upgrade: Upgrade, rng: np.random.Generator
) -> None:
    other = rng.standard_normal(upgrade.new.shape)
    query = rng.standard_normal(upgrade.new.shape[1])
    assert search(upgrade.conn, query, rerank=100) == search(upgrade.conn, query)
    fill(upgrade, np.arange(len(other)), other)
    exact = np.argsort(-(other / np.linalg.norm(other, axis=1, keepdims=True)) @ query)[:10]
    assert search(upgrade.conn, query, rerank=100) == exact.tolist()
