"""drift-pg evaluate, and the gate on the command line."""

import json
from pathlib import Path

import numpy as np
import psycopg
import pytest

import drift_pg
from drift_pg import Pairs
from tests import embedders
from tests.tables import linear, make_docs, rotation

TEXTS = [f"text {i}" for i in range(300)]
COLUMN = '"Odd"."Weird Table"."Vec Col"'
EMBED = ("--embed", "tests.embedders:hashed")
LEGACY = ("--legacy-embed", "tests.embedders:hashed_legacy")


class Evaluated:
    """A table, an exact adapter stored as 1 and in a file, test pairs, and queries in files."""

    def __init__(self, conn: psycopg.Connection, rng: np.random.Generator, folder: Path) -> None:
        self.folder = folder
        new = embedders.hashed(TEXTS)
        turn = rotation(rng, embedders.DIMENSIONS)
        embedders.hashed_legacy = lambda texts: embedders.hashed(texts) @ turn  # type: ignore[attr-defined]
        make_docs(conn, new @ turn, schema="Odd", table="Weird Table", column="Vec Col")
        for model in ("legacy", "new"):
            drift_pg.register_model(conn, model, dimensions=embedders.DIMENSIONS)
        drift_pg.register_column(conn, '"Odd"."Weird Table"', "Vec Col", model="legacy")
        adapter = linear(turn)
        drift_pg.store(conn, adapter, source="new", target="legacy")
        adapter.save(folder / "adapter")
        keys = np.arange(300).astype(str)
        Pairs(new[:200], new[:200] @ turn, keys[:200]).save(folder / "test.npz")
        Pairs(new, new @ turn, keys).save(folder / "corpus.npz")
        Pairs(rng.permutation(new), new @ turn).save(folder / "shuffled.npz")
        self.lines("texts", [{"query": TEXTS[i], "relevant": [i]} for i in range(40)])
        self.lines("vectors", [{"vector": v.tolist(), "relevant": {str(i): 1}} for i, v in enumerate(new[:40])])
        self.lines("log", [{"query": text} for text in TEXTS[:40]])

    def lines(self, name: str, queries: list[dict]) -> None:
        (self.folder / name).write_text("\n".join(map(json.dumps, queries)))

    def path(self, name: str) -> str:
        return str(self.folder / name)


@pytest.fixture
def files(conn: psycopg.Connection, rng: np.random.Generator, tmp_path: Path) -> Evaluated:
    yield Evaluated(conn, rng, tmp_path)
    del embedders.hashed_legacy


def test_everything_at_once(cli, files: Evaluated, conn: psycopg.Connection) -> None:
    arguments = [
        "evaluate", "1", "--test-pairs", files.path("test.npz"), "--corpus", files.path("corpus.npz"),
        "--queries", files.path("texts"), *EMBED, *LEGACY, "--column", COLUMN,
    ]  # fmt: skip
    told = json.loads(cli(*arguments, "--json").stdout)
    assert (told["adapter"], told["evaluation"], told["passes"]) == (1, 1, True)
    assert (told["pairs"], told["documents"]) == (200, 300)
    assert list(told["searches"])[:3] == ["stay", "unadapted", "bridge"]
    index = told["through_index"]
    assert set(index) == {"bridge", "unadapted", "stay"}
    assert index["bridge"]["self_retrieval@10"]["value"] > 0.95
    assert index["bridge"]["recall@10"]["value"] == pytest.approx(
        told["searches"]["bridge"]["recall@10"]["value"], abs=0.05
    )
    assert index["bridge"] | {"self_retrieval@10": 0} == index["stay"] | {"self_retrieval@10": 0}
    stored = drift_pg.latest_evaluation(conn, 1)
    assert stored.figures | {"adapter": 1, "evaluation": 1} == told
    text = cli(*arguments).output
    for part in ("Through the real index", "Labelled queries", "Advice:", "Score 1.000 (1.00–1.00): passes", "bridge",
                 "Kept as evaluation 2. Serve it: drift-pg activate 1"):  # fmt: skip
        assert part in text
    assert "now maps" in cli("activate", "1").output


def test_shuffled_pairs_end_at_the_gate(cli, files: Evaluated) -> None:
    text = cli("evaluate", "1", "--test-pairs", files.path("shuffled.npz")).output
    assert "does not pass the gate" in text
    assert "do not seem to be the same items" in " ".join(text.split())
    assert "drift-pg activate 1 --force" in text
    refused = cli("activate", "1", exits=1).output
    assert "the minimum is 0.8" in refused
    assert "--force" in refused
    adapters = json.loads(cli("adapters", "--json").stdout)
    assert adapters[0]["advice"] == "re-embed before switching"
    cli("activate", "1", "--force")


def test_what_was_not_evaluated_is_refused_with_the_next_command(cli, files: Evaluated) -> None:
    assert "next: drift-pg evaluate 1 --test-pairs FILE" in cli("activate", "1", exits=1).output
    cli("evaluate", "1", "--test-pairs", files.path("test.npz"), "--minimum", "0.2")
    cli("activate", "1", "--minimum", "1.1", exits=2)
    cli("activate", "1", "--minimum", "0.2")


def test_an_adapter_in_a_file_needs_no_database(cli, files: Evaluated) -> None:
    text = cli(
        "evaluate", "--adapter-file", files.path("adapter"), "--test-pairs", files.path("test.npz"),
        "--queries", files.path("vectors"), "--dsn", "host=/nowhere",
    ).output  # fmt: skip
    assert "Kept as" not in text
    assert "What staying with the old model is worth is unknown" in text
    assert "Recall@10" in text


def test_a_query_log_without_labels(cli, files: Evaluated) -> None:
    arguments = ["evaluate", "1", "--test-pairs", files.path("test.npz"), "--queries", files.path("log"), *EMBED]
    told = json.loads(cli(*arguments, "--column", COLUMN, "--json").stdout)
    assert told["log"]["overlap@10"]["queries"] == 40
    assert told["searches"] == {}
    assert told["touched"] == {"queries": 40, "depth": 200, "rows": 200, "among": 200, "share": 1.0}
    assert told["touched_through_index"] == {"queries": 40, "depth": 200, "rows": 300, "among": 300, "share": 1.0}
    text = " ".join(cli(*arguments).output.split())
    assert "Among the searched items 40 queries touch 200 of 200 rows (100.0%)" in text


@pytest.mark.parametrize(
    ("arguments", "exits", "says"),
    [
        ([], 2, "ADAPTER by its id or --adapter-file"),
        (["1", "--adapter-file", "{adapter}"], 2, "ADAPTER by its id or --adapter-file"),
        (["9"], 1, "there is no adapter 9"),
        (["1", *EMBED], 2, "give --queries"),
        (["1", "--queries", "{texts}"], 2, "holds texts: give --embed"),
        (["1", "--queries", "{vectors}", *EMBED], 2, "holds vectors"),
        (["1", "--queries", "{bad}", *EMBED], 1, "line 2: it is not JSON"),
        (["1", "--queries", "{far}", *EMBED], 1, "1 labelled keys are not among the 200 searched items; the first is '299'"),
        (["1", "--queries", "{texts}", "--embed", "tests.embedders:narrow"], 1, "gives 7 dimensions, the model has 24"),
        (["1", "--column", "public.nope.embedding"], 1, "there is no table"),
        (["--adapter-file", "{none}"], 1, "there is no adapter file"),
    ],
)  # fmt: skip
def test_what_is_refused(cli, files: Evaluated, arguments: list[str], exits: int, says: str) -> None:
    (files.folder / "bad").write_text('{"query": "x"}\n{')
    files.lines("far", [{"query": "x", "relevant": [299]}])
    named = [files.path(a[1:-1]) if a.startswith("{") else a for a in arguments]
    output = cli("evaluate", *named, "--test-pairs", files.path("test.npz"), exits=exits).output
    assert says in " ".join(output.split())
    assert "Traceback" not in output
    assert json.loads(cli("adapters", "--json").stdout)[0]["score"] is None


def test_a_column_that_the_adapter_does_not_serve(cli, files: Evaluated, conn: psycopg.Connection) -> None:
    evaluate = ["evaluate", "1", "--column", COLUMN]
    assert "have no keys" in cli(*evaluate, "--test-pairs", files.path("shuffled.npz"), exits=1).output
    drift_pg.register_model(conn, "other", dimensions=embedders.DIMENSIONS)
    conn.execute('ALTER TABLE "Odd"."Weird Table" DROP CONSTRAINT "Weird Table_pkey"')
    assert "has no primary key" in cli(*evaluate, "--test-pairs", files.path("test.npz"), exits=1).output
    drift_pg.unregister_column(conn, '"Odd"."Weird Table"', "Vec Col")
    drift_pg.register_column(conn, '"Odd"."Weird Table"', "Vec Col", model="other")
    text = cli(*evaluate, "--test-pairs", files.path("test.npz"), exits=1).output
    assert "holds vectors of 'other', adapter 1 maps to 'legacy'" in text
