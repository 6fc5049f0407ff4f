"""drift-pg companion create, index, status, drop, and nearest --rerank."""

import json

import psycopg
import pytest

import drift_pg
from tests import embedders
from tests.tables import make_docs, rotation, vector

COLUMN = '"Odd %s"."Weird ""Table"."Vec Col"'
RELATION = '"Odd %s"."Weird ""Table"'
EMBED = "tests.embedders:hashed"
LINE = {"slope": 0.8, "intercept": 0.1, "residual": 0.1, "margin": 0.05}


@pytest.fixture
def table(conn: psycopg.Connection, rng) -> psycopg.Connection:
    """A table with odd names whose legacy vectors are a rotation of the embedder's, and no adapter yet."""
    legacy = embedders.hashed([f"text {i}" for i in range(100)]) @ rotation(rng, embedders.DIMENSIONS)
    make_docs(conn, legacy, schema="Odd %s", table='Weird "Table', column="Vec Col")
    for model in ("legacy", "new"):
        drift_pg.register_model(conn, model, dimensions=embedders.DIMENSIONS)
    drift_pg.register_column(conn, RELATION, "Vec Col", model="legacy")
    return conn


def status(cli, *more: str, exits: int = 0) -> dict:
    return json.loads(cli("companion", "status", COLUMN, "--json", *more, exits=exits).stdout)


def test_the_life_of_a_companion(cli, table: psycopg.Connection) -> None:
    made = cli("companion", "create", COLUMN, "--model", "new", "--text", "body")
    assert (
        made.output.strip() == f"Vectors of model new for column {COLUMN} are kept in drift.companion_1."
    )  # and no notice
    assert status(cli) == {
        "column": COLUMN, "model": "new", "table": "drift.companion_1", "followed": [],
        "rows": 100, "known": 0, "stale": 0, "queued": 0, "orphaned": 0, "share": 0.0,
    }  # fmt: skip
    table.execute(
        "SELECT drift.store_vectors(%s::regclass, 'Vec Col', %s, %s, %s)",
        [RELATION, json.dumps([[str(i)] for i in range(60)]), [f"text {i}" for i in range(60)],
         [vector(v) for v in embedders.hashed([f"text {i}" for i in range(60)])]],
    )  # fmt: skip
    assert "is built" in cli("companion", "index", COLUMN, "--maintenance-work-mem", "80MB", "--workers", "0").output
    assert "is there already" in cli("companion", "index", COLUMN).output
    assert "60 of 100 rows (60.0%)" in cli("companion", "status", COLUMN, "--minimum", "0.6").output
    assert status(cli, "--minimum", "0.61", exits=1)["share"] == 0.6
    assert "Aborted" in cli("companion", "drop", COLUMN, exits=1, typed="n\n").output
    assert status(cli)["known"] == 60
    cli("companion", "drop", COLUMN, "--yes")
    refused = cli("companion", "status", COLUMN, exits=1)
    assert "no companion table" in refused.stderr
    assert "drift.create_companion" in refused.stderr


def test_refusals_are_sentences_with_what_to_run(cli, table: psycopg.Connection) -> None:
    assert "no column boddy" in cli("companion", "create", COLUMN, "--model", "new", "--text", "boddy", exits=1).stderr
    assert "not registered" in cli("companion", "create", COLUMN, "--model", "newer", "--text", "body", exits=1).stderr
    cli("companion", "create", COLUMN, "--model", "new", exits=2)
    cli("companion", "create", COLUMN, "--model", "new", "--text", "body")
    bad = cli("companion", "index", COLUMN, "--maintenance-work-mem", "plenty", exits=1)
    assert "maintenance_work_mem" in bad.stderr


def test_a_companion_of_a_dropped_table_is_dropped_by_number(cli, table: psycopg.Connection) -> None:
    cli("companion", "create", COLUMN, "--model", "new", "--text", "body")
    (number,) = table.execute("SELECT %s::regclass::oid::text", [RELATION]).fetchone()
    table.execute('DROP TABLE "Odd %s"."Weird ""Table"')
    cli("companion", "drop", f"{number}.Vec Col", "--yes")
    assert table.execute("SELECT count(*) FROM drift.companion").fetchone() == (0,)


def test_nearest_reranks(cli, table: psycopg.Connection, rng) -> None:
    from tests.tables import linear

    legacy = [row[0] for row in table.execute('SELECT "Vec Col" FROM "Odd %s"."Weird ""Table" ORDER BY id')]
    assert len(legacy) == 100
    adapter = drift_pg.store(table, linear(rotation(rng, embedders.DIMENSIONS)), source="new", target="legacy")
    drift_pg.activate(table, adapter, force=True)  # a bridge to nowhere
    search = ("nearest", "text 42", "--column", COLUMN, "--query-model", "new", "--embed", EMBED, "--json", "-k", "3")
    assert "no companion table" in cli(*search, "--rerank", "100", exits=1).stderr
    cli("companion", "create", COLUMN, "--model", "new", "--text", "body")
    assert "is not calibrated" in cli(*search, "--rerank", "100", exits=1).stderr
    table.execute("SELECT drift.store_calibration(%s, %s)", [adapter, json.dumps({"cosine": LINE})])
    bridge = json.loads(cli(*search).stdout)
    assert json.loads(cli(*search, "--rerank", "100").stdout) == bridge
    texts = [f"text {i}" for i in range(100)]
    table.execute(
        "SELECT drift.store_vectors(%s::regclass, 'Vec Col', %s, %s, %s)",
        [RELATION, json.dumps([[str(i)] for i in range(100)]), texts, [vector(v) for v in embedders.hashed(texts)]],
    )
    reranked = json.loads(cli(*search, "--rerank", "100").stdout)
    assert reranked[0]["id"] == 42 != bridge[0]["id"]
    assert "rerank not less than k" in cli(*search, "--rerank", "2", exits=1).stderr


def test_the_help_teaches(cli) -> None:
    text = cli("companion", "--help").output
    assert "The life of a companion" in text
    for command in ("create", "index", "status", "drop"):
        assert f"drift-pg companion {command}" in text
        assert len(cli("companion", command, "--help").output) > 300
    assert "--rerank" in cli("nearest", "--help").output
