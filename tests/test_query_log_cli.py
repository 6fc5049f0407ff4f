"""drift-pg query-log, and fit and evaluate --logged-queries."""

import json
from pathlib import Path

import numpy as np
import psycopg
import pytest

import drift_pg
from drift_pg import Pairs
from tests import embedders
from tests.tables import linear, make_docs, rotation

COLUMN = '"Odd %s"."Weird ""Table"."Vec Col"'
RELATION = '"Odd %s"."Weird ""Table"'
WHERE = (RELATION, "Vec Col")


@pytest.fixture
def pairs(conn: psycopg.Connection, rng: np.random.Generator, tmp_path: Path) -> str:
    """A table with odd names, an exact adapter stored as 1, and a file of pairs."""
    new = embedders.hashed([f"text {i}" for i in range(300)])
    turn = rotation(rng, embedders.DIMENSIONS)
    make_docs(conn, new @ turn, schema="Odd %s", table='Weird "Table', column="Vec Col")
    for model in ("legacy", "new"):
        drift_pg.register_model(conn, model, dimensions=embedders.DIMENSIONS)
    drift_pg.register_column(conn, *WHERE, model="legacy")
    drift_pg.store(conn, linear(turn), source="new", target="legacy")
    Pairs(new, new @ turn, np.arange(300).astype(str)).save(tmp_path / "pairs.npz")
    return str(tmp_path / "pairs.npz")


def fill(conn: psycopg.Connection, count: int) -> None:
    for vector in embedders.hashed([f"query {i}" for i in range(count)]):
        drift_pg.log_query(conn, *WHERE, vector, model="new")


def test_the_life_of_a_log(cli, conn: psycopg.Connection, pairs: str) -> None:
    assert "No queries are logged" in cli("query-log", "status").output
    assert json.loads(cli("query-log", "status", "--json").output)["columns"] == []
    fill(conn, 30)
    told = json.loads(cli("query-log", "status", "--json").output)
    (column,) = told["columns"]
    assert (column["relation"], column["column"], column["model"], column["queries"]) == (*WHERE, "new", 30)
    assert 30 * 4 * embedders.DIMENSIONS < column["bytes"] < told["bytes"]
    assert column["oldest"] <= column["newest"]
    text = cli("query-log", "status").output
    assert "Vec Col" in text
    assert "30" in text
    assert "20 logged queries are deleted" in cli("query-log", "trim", "--keep", "10").output
    assert "0 logged queries are deleted" in cli("query-log", "trim").output
    assert "10 logged queries are deleted" in cli("query-log", "trim", "--days", "0").output


def test_an_empty_log_says_how_to_fill_it(cli, conn: psycopg.Connection, pairs: str) -> None:
    for command in (("fit", "--query-model", "new", "--pairs-file", pairs), ("evaluate", "1", "--test-pairs", pairs)):
        refused = cli(*command, "--column", COLUMN, "--logged-queries", "100", exits=1).stderr
        assert "no queries of model 'new' are logged" in refused
        assert "drift_pg.sqlalchemy.log_queries(engine)" in refused


def test_evaluate_and_report_search_with_the_fifth_that_no_fit_has_seen(
    cli, conn: psycopg.Connection, pairs: str, tmp_path: Path
) -> None:
    fill(conn, 60)
    held_out = len(drift_pg.read_query_log(conn, *WHERE, model="new", part="evaluate"))
    arguments = ("--test-pairs", pairs, "--column", COLUMN, "--logged-queries")
    found = cli("evaluate", "1", *arguments, "1000", "--json")
    told = json.loads(found.stdout)
    assert f"Taking {held_out} logged queries of model new for {COLUMN}, of the fifth" in found.stderr
    assert told["log"]["overlap@10"]["queries"] == held_out
    assert told["touched_through_index"]["queries"] == held_out
    assert json.loads(cli("evaluate", "1", *arguments, "3", "--json").stdout)["log"]["overlap@10"]["queries"] == 3
    page = tmp_path / "page.html"
    cli("report", "1", *arguments, "1000", "--output", str(page))
    assert f"{held_out} queries" in page.read_text()


def test_fit_takes_the_other_four_fifths(cli, conn: psycopg.Connection, pairs: str, monkeypatch) -> None:
    fill(conn, 60)
    arguments = ("fit", "--column", COLUMN, "--query-model", "new", "--pairs-file", pairs, "--family", "ridge")
    taken = cli(*arguments, "--logged-queries", "1000", exits=1).stderr
    assert "no use of a query log" in taken  # which training takes: tests/test_cli.py fits with one
    shown = drift_pg.read_query_log(conn, *WHERE, model="new", part="fit")
    assert f"Taking {len(shown)} logged queries" in taken
    assert 40 < len(shown) < 60
    learnt = {}
    monkeypatch.setattr("drift_pg.families.fit", lambda *_, query_log, **__: learnt.update(log=query_log))
    cli(*arguments, "--logged-queries", "1000", exits=1)  # there is no adapter to go on with
    assert np.array_equal(learnt["log"], shown)
    assert "not both" in cli(*arguments, "--logged-queries", "10", "--query-log", pairs, exits=2).output


def test_what_evaluate_refuses(cli, conn: psycopg.Connection, pairs: str, tmp_path: Path) -> None:
    drift_pg.load_by_id(conn, 1).save(tmp_path / "adapter")
    for more, says in (
        (("1",), "needs an ADAPTER by its id, and --column"),
        (("1", "--column", COLUMN, "--queries", "file"), "take the place of --queries"),
        (("--adapter-file", str(tmp_path / "adapter"), "--column", COLUMN), "needs an ADAPTER by its id"),
    ):
        output = cli("evaluate", *more, "--test-pairs", pairs, "--logged-queries", "9", exits=2).output
        assert says in " ".join(output.split())
