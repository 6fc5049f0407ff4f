"""The command line: the whole life of an upgrade, exit codes, JSON, and no password anywhere."""

import json
from pathlib import Path

import click
import numpy as np
import psycopg
import pytest
from click.testing import Result
from psycopg.conninfo import make_conninfo

import drift_pg
from drift_pg.cli import main
from drift_pg.pairs import Pairs
from tests import embedders
from tests.tables import make_docs, rotation

TEXTS = [f"text {i}" for i in range(300)]
EMBED = "tests.embedders:hashed"


@pytest.fixture
def table(conn: psycopg.Connection, rng: np.random.Generator) -> psycopg.Connection:
    """A table with odd names whose legacy vectors are a rotation of the embedder's."""
    legacy = embedders.hashed(TEXTS) @ rotation(rng, embedders.DIMENSIONS)
    make_docs(conn, legacy, schema="Odd", table="Weird Table", column="Vec Col")
    return conn


COLUMN = '"Odd"."Weird Table"."Vec Col"'


def prepare(cli) -> None:
    for model in ("legacy", "new"):
        cli("register-model", model, "--dimensions", str(embedders.DIMENSIONS))
    cli("register-column", COLUMN, "--model", "legacy")


def fit(cli, *more: str, exits: int = 0) -> Result:
    return cli(
        "fit", "--column", COLUMN, "--text", "body", "--query-model", "new", "--embed", EMBED, *more, exits=exits
    )


def test_the_life_of_an_upgrade(cli, table: psycopg.Connection, tmp_path: Path) -> None:
    assert "was current" in cli("upgrade").output
    prepare(cli)
    fitted = json.loads(fit(cli, "--json", "--save-pairs", str(tmp_path / "pairs.npz")).stdout)
    assert fitted | {"seconds": 0, "candidates": 0, "evaluation": 0, "reembedding_hours": 0} == {
        "adapter": 1, "source": "new", "target": "legacy", "family": "auto", "pairs": 240, "queries": 0, "seconds": 0,
        "candidates": 0, "evaluation": 0, "reembedding_hours": 0,
    }  # fmt: skip
    assert (fitted["evaluation"]["pairs"], fitted["evaluation"]["passes"]) == (60, True)
    assert len(Pairs.load(tmp_path / "pairs.npz").keys) == 240
    assert "now maps queries of new into the space of legacy" in cli("activate", "1").output
    found = json.loads(
        cli(
            "nearest", "text 42", "--column", COLUMN, "--query-model", "new", "--embed", EMBED, "-k", "3", "--json"
        ).stdout
    )
    assert found[0] == {"id": 42, "body": "text 42"}
    status = json.loads(cli("status", "--json").stdout)
    assert status["healthy"]
    assert status["columns"][0]["also_serves"] == ["new"]
    cli("export", "1", str(tmp_path / "a.safetensors"))
    cli("import", str(tmp_path / "a.safetensors"), "--source", "new", "--target", "legacy")
    assert json.loads(cli("verify", "2", "--json").stdout)["ok"]
    cli("deactivate", "--source", "new", "--target", "legacy")
    cli("drop-adapter", "1", "--yes")
    assert [a["id"] for a in json.loads(cli("adapters", "--json").stdout)] == [2]
    cli("downgrade", exits=1)
    cli("downgrade", "--destroy-adapters")
    assert "not installed" in cli("status", exits=1).output


def test_pairs_from_a_file(cli, table, tmp_path: Path) -> None:
    prepare(cli)
    vectors = embedders.hashed(TEXTS)
    Pairs(vectors, vectors).save(tmp_path / "pairs.npz")
    arguments = ["fit", "--column", COLUMN, "--query-model", "new", "--pairs-file", str(tmp_path / "pairs.npz")]
    cli(*arguments, "--family", "low_rank", "--option", "rank=3", "--option", "diagonal_scaling=true")
    assert drift_pg.load_by_id(table, 1).layers[0].outputs == 3
    assert "has no option ran" in cli(*arguments, "--family", "low_rank", "--option", "ran=3", exits=1).output
    assert "NAME=VALUE" in cli(*arguments, "--option", "rank", exits=2).output
    Pairs(vectors[:, :5], vectors).save(tmp_path / "pairs.npz")
    assert "pairs have 5 and 24 dimensions" in cli(*arguments, exits=1).output
    assert "--pairs-file" in cli(*arguments[:-2], exits=2).output


def test_an_interrupted_fit_goes_on_where_it_stopped(
    cli, table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prepare(cli)
    monkeypatch.setattr(embedders, "interrupted", embedders.Interrupted(3, KeyboardInterrupt), raising=False)
    arguments = [
        "fit",
        "--column",
        COLUMN,
        "--text",
        "body",
        "--query-model",
        "new",
        "--pairs",
        "200",
        "--batch",
        "20",
        "--embed",
        "tests.embedders:interrupted",
    ]
    assert "interrupted" in cli(*arguments, exits=130).output
    assert list((tmp_path / "cache/drift-pg").glob("sample-*"))
    monkeypatch.setattr(embedders, "interrupted", embedders.hashed)
    embedders.calls.clear()
    assert "Going on with the sample" in cli(*arguments).output
    # All 300 rows: 200 to fit, and as many as there are to test on.
    assert sum(embedders.calls) == 1 + 300 - (1 + 2 * 20)
    assert not list((tmp_path / "cache/drift-pg").glob("sample-*"))


def test_fit_says_what_re_embedding_would_take(cli, table, tmp_path: Path) -> None:
    prepare(cli)
    assert "Re-embedding all of about 300 rows would take" in fit(cli, "--cache", str(tmp_path)).output
    again = json.loads(fit(cli, "--cache", str(tmp_path), "--json").stdout)
    assert again["reembedding_hours"] is None  # all texts were known: nothing was measured


def test_fit_learns_from_a_query_log(cli, table, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    prepare(cli)
    (tmp_path / "log.jsonl").write_text("".join(f'{{"query": "query {i}"}}\n' for i in range(30)))
    given = "--query-log", str(tmp_path / "log.jsonl"), "--force-training", "--seconds", "1"
    fit(cli, *given)
    assert drift_pg.load_by_id(table, 1).details["queries"] == 30
    assert "no use of a query log" in fit(cli, *given, "--family", "ridge", exits=1).output


@pytest.mark.parametrize(
    ("embed", "says"),
    [
        ("tests.embedders:narrow", "gives 7 dimensions, the model has 24"),
        ("tests.embedders:raising", "503 service unavailable"),
        ("tests.embedders:nope", "has no attribute"),
    ],
)
def test_a_bad_embedder_stores_nothing(cli, table, embed: str, says: str) -> None:
    prepare(cli)
    result = cli("fit", "--column", COLUMN, "--text", "body", "--query-model", "new", "--embed", embed, exits=1)
    assert says in result.output
    assert "Traceback" not in result.output
    assert json.loads(cli("adapters", "--json").stdout) == []


def test_errors_name_the_value_and_the_next_command(cli, table) -> None:
    prepare(cli)
    assert (
        "next: drift-pg register-column"
        in cli(
            "fit", "--column", '"Odd"."Weird Table".body', "--query-model", "new", "--pairs-file", "x", exits=1
        ).output
    )
    assert (
        "model 'nope' is not registered"
        in cli("fit", "--column", COLUMN, "--query-model", "nope", "--pairs-file", "x", exits=1).output
    )
    assert (
        "holds vectors of 'legacy' already"
        in cli("fit", "--column", COLUMN, "--query-model", "legacy", "--pairs-file", "x", exits=1).output
    )
    assert (
        "there is no pairs file"
        in cli("fit", "--column", COLUMN, "--query-model", "new", "--pairs-file", "x", exits=1).output
    )
    assert "there is no adapter 9" in cli("activate", "9", exits=1).output
    assert "there is no adapter file" in cli("import", "nope", "--source", "new", "--target", "legacy", exits=1).output
    assert (
        "query has 2 dimensions" in cli("nearest", "[1,2]", "--column", COLUMN, "--query-model", "new", exits=1).output
    )
    cli("register-model", "m", "--dimensions", "4001", exits=2)


def test_an_export_replaces_no_file_unasked(cli, table, tmp_path: Path) -> None:
    prepare(cli)
    fit(cli)
    (tmp_path / "a").write_text("precious")
    assert "exists" in cli("export", "1", str(tmp_path / "a"), exits=1).output
    assert (tmp_path / "a").read_text() == "precious"
    cli("export", "1", str(tmp_path / "a"), "--force")


def test_status_and_verify_exit_1_when_something_is_broken(cli, table) -> None:
    prepare(cli)
    fit(cli)
    cli("activate", "1")
    assert "All is well" in cli("status").output
    table.execute("UPDATE drift.adapter SET checksum = sha256('x')")
    assert "is broken" in cli("verify", "1", exits=1).output
    assert "active adapter 1 (new → legacy) is broken" in cli("status", exits=1).output
    table.execute('ALTER TABLE "Odd"."Weird Table" DROP "Vec Col"')
    assert "has no column" in cli("status", exits=1).output
    cli("unregister-column", COLUMN)
    table.execute("CREATE OR REPLACE FUNCTION drift.version() RETURNS text LANGUAGE sql AS $$SELECT 'old'$$")
    assert "out of date" in cli("status", exits=1).output
    cli("upgrade")
    assert "out of date" not in cli("status", exits=1).output


def test_a_table_that_was_dropped_is_unregistered_by_its_number(cli, table) -> None:
    prepare(cli)
    table.execute('DROP TABLE "Odd"."Weird Table"')
    problem = json.loads(cli("status", "--json", exits=1).stdout)["columns"][0]
    cli("unregister-column", f"{problem['relation']}.{problem['column_name']}")
    cli("status")


def test_a_password_is_never_printed(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for dsn in (
        "postgresql://me:s3cr3t@127.0.0.1:1/none",
        "postgresql://me:s3cr3t@127.0.0.1:port/none",
        "host=127.0.0.1 port=1 password=s3cr3t dbname",
        "host=127.0.0.1 port=1 password=s3cr3t",
    ):
        for command in (["status"], ["status", "--json"], ["activate", "1"]):
            assert "s3cr3t" not in cli(*command, "--dsn", dsn, exits=1).output
    monkeypatch.setenv("DRIFT_PG_DSN", "postgresql://me:s3cr3t@127.0.0.1:1/none")
    assert "s3cr3t" not in cli("--help").output + cli("status", "--help").output


def test_libpqs_own_variables_name_the_database(cli, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = psycopg.conninfo.conninfo_to_dict(dsn)
    monkeypatch.delenv("DRIFT_PG_DSN")
    for variable, name in (
        ("PGHOST", "host"),
        ("PGUSER", "user"),
        ("PGDATABASE", "dbname"),
        ("PGPORT", "port"),
        ("PGPASSWORD", "password"),
    ):
        if name in parameters:
            monkeypatch.setenv(variable, str(parameters[name]))
    cli("status")
    assert "does not exist" in cli("status", "--dsn", make_conninfo(dsn, dbname="no_such_db"), exits=1).output


def test_every_command_has_help_that_says_more_than_its_name(cli) -> None:
    for name, command in main.commands.items():
        text = cli(name, "--help").output
        assert len(command.help or "") > 40, name
        assert all(p.help for p in command.params if isinstance(p, click.Option)), f"{name}: an option without help"
        assert "--dsn" in text
