"""drift-pg follow and unfollow."""

import json
from pathlib import Path

import psycopg
import pytest

import drift_pg
from tests.servers import PGVECTOR_SCHEMA
from tests.tables import linear, make_docs, rotation, vector

COLUMN = '"Odd %s"."Weird ""Table"."Vec Col"'
RELATION = '"Odd %s"."Weird ""Table"'


@pytest.fixture
def table(conn: psycopg.Connection, rng) -> psycopg.Connection:
    """A table with odd names, of which five rows have a new vector and no legacy one."""
    make_docs(conn, rng.standard_normal((10, 8)), schema="Odd %s", table='Weird "Table', column="Vec Col")
    for model in ("legacy", "new"):
        drift_pg.register_model(conn, model, dimensions=8)
    drift_pg.register_column(conn, RELATION, "Vec Col", model="legacy")
    drift_pg.activate(conn, drift_pg.store(conn, linear(rotation(rng, 8)), source="new", target="legacy"), force=True)
    drift_pg.set_query_model(conn, RELATION, "Vec Col", "new")
    conn.execute(f'ALTER TABLE {RELATION} ADD "New %" {PGVECTOR_SCHEMA}.vector(8)'.encode())
    insert = f'INSERT INTO {RELATION} (id, "New %") SELECT 100 + i, $1 FROM generate_series(1, 5) i'
    psycopg.RawCursor(conn).execute(insert.encode(), [vector(rng.standard_normal(8))])
    return conn


def test_following_catching_up_and_back(cli, table: psycopg.Connection, tmp_path: Path) -> None:
    made = cli("follow", COLUMN, "--source", "New %")
    assert "is filled from New %" in made.output
    assert "warning: rows of" in made.stderr
    assert "search with drift.nearest(…, rerank => 200)" in made.stderr
    found = json.loads(cli("follow", COLUMN, "--source", "New %", "--catch-up", "--json").stdout)
    assert found == {"column": COLUMN, "followed": ["New %"], "filled": 5}
    assert "0 rows that were missed" in cli("follow", COLUMN, "--source", "New %", "--catch-up").output
    assert json.loads(cli("status", "--json").stdout)["columns"][0]["followed"] == ["New %"]
    cli("companion", "create", COLUMN, "--model", "new", "--text", "body")
    cli("follow", COLUMN)
    assert "the column is filled from drift.companion_1" in cli("companion", "status", COLUMN).output
    assert "is filled no more" in cli("unfollow", COLUMN).output
    assert json.loads(cli("unfollow", COLUMN, "--json").stdout) == {"column": COLUMN, "removed": False}
    assert json.loads(cli("status", "--json").stdout)["columns"][0]["followed"] is None


def test_refusals_are_sentences_with_what_to_run(cli, table: psycopg.Connection) -> None:
    assert "has no companion table" in cli("follow", COLUMN, exits=1).stderr
    drift_pg.deactivate(table, source="new", target="legacy")
    refused = cli("follow", COLUMN, "--source", "New %", exits=1)
    assert "no adapter from model 'new' to model 'legacy' is active" in refused.stderr
    assert "drift-pg activate" in refused.stderr


def test_the_help_teaches(cli) -> None:
    text = cli("follow", "--help").output
    assert "the way back" in text
    assert "embedding = NULL" in text
    assert "drift-pg follow" in cli("--help").output
