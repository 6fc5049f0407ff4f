"""Searching the legacy index with adapted queries: right rows, the index, and the adapter run once."""

import json

import numpy as np
import psycopg
import pytest
from psycopg import sql

import drift_pg
from drift_pg import errors
from drift_pg.adapter import Adapter, Layer
from drift_pg.database.connection import translated
from tests.tables import Upgrade, linear, make_docs, rotation, vector

FORMS = {
    "adapt": "SELECT id FROM docs ORDER BY embedding OPERATOR(extensions.<=>) (SELECT drift.adapt($1, 'new', 'legacy')) LIMIT 10",
    "adapt by id": "SELECT id FROM docs ORDER BY embedding OPERATOR(extensions.<=>) (SELECT drift.adapt($1, 1::bigint)) LIMIT 10",
    "adapt_for": "SELECT id FROM docs ORDER BY embedding OPERATOR(extensions.<=>) (SELECT drift.adapt_for($1, 'new', 'public.docs', 'embedding')) LIMIT 10",
    "nearest": "SELECT id FROM drift.nearest(NULL::docs, 'embedding', $1, 'new', 10)",
}


@pytest.fixture
def upgrade(conn: psycopg.Connection, rng: np.random.Generator) -> Upgrade:
    """A table of 500 rows in a rotated space, its adapter active."""
    return Upgrade(conn, rng).activate()


def run(conn: psycopg.Connection, statement: str, query: np.ndarray) -> list[tuple]:
    with translated():
        return conn.execute(statement.replace("$1", "%s::extensions.vector"), [vector(query)]).fetchall()


@pytest.mark.parametrize("form", FORMS)
def test_an_adapted_query_finds_what_the_new_model_would(upgrade: Upgrade, form: str) -> None:
    upgrade.conn.execute("SET hnsw.ef_search = 200")
    for query in upgrade.new[:5]:
        expected = np.argsort(-upgrade.new @ query)[:10]
        assert [row[0] for row in run(upgrade.conn, FORMS[form], query)] == expected.tolist()


@pytest.mark.parametrize("form", ["adapt", "adapt by id", "adapt_for"])
def test_the_index_is_scanned_and_the_adapter_runs_once(upgrade: Upgrade, form: str) -> None:
    upgrade.conn.execute("SET enable_seqscan = off; SET track_functions = 'all'")
    statement = "EXPLAIN (ANALYZE, FORMAT JSON) " + FORMS[form].replace("$1", "%s::extensions.vector")
    ((plan,),) = upgrade.conn.execute(statement, [vector(upgrade.new[0])]).fetchall()
    nodes = {node["Node Type"]: node for node in walk(plan[0]["Plan"])}
    assert nodes["Index Scan"]["Index Name"] == "docs_embedding_idx"
    assert nodes["Result"]["Parent Relationship"] == "InitPlan"
    assert nodes["Result"]["Actual Loops"] == 1
    assert calls(upgrade.conn, "multiply") == 1


def walk(node: dict) -> list[dict]:
    return [node, *(inner for child in node.get("Plans", []) for inner in walk(child))]


def calls(conn: psycopg.Connection, function: str) -> int:
    conn.execute("SELECT pg_stat_force_next_flush()")
    return conn.execute(
        "SELECT calls FROM pg_stat_user_functions WHERE schemaname = 'drift' AND funcname = %s", [function]
    ).fetchone()[0]


def test_nearest_scans_the_index_and_adapts_once(upgrade: Upgrade) -> None:
    try:
        upgrade.conn.execute("LOAD 'auto_explain'")
    except psycopg.errors.UndefinedFile:
        pytest.skip("this server lacks auto_explain, which alone shows the plan inside a function")
    plans: list[str] = []
    upgrade.conn.add_notice_handler(lambda notice: plans.append(notice.message_primary or ""))
    upgrade.conn.execute("SET enable_seqscan = off; SET track_functions = 'all'; SET client_min_messages = log")
    upgrade.conn.execute(
        "SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on; SET auto_explain.log_format = json"
    )
    run(upgrade.conn, FORMS["nearest"], upgrade.new[0])
    upgrade.conn.execute("SET client_min_messages = warning")
    inner = [json.loads(plan[plan.index("{") :]) for plan in plans if "FROM public.docs" in plan.split("LIMIT")[0]]
    (found,) = [
        node["Index Name"] for plan in inner for node in walk(plan["Plan"]) if node["Node Type"] == "Index Scan"
    ]
    assert found == "docs_embedding_idx"
    assert calls(upgrade.conn, "multiply") == 1


@pytest.mark.parametrize(
    ("kind", "opclass", "expression", "score"),
    [
        ("vector(24)", "vector_cosine_ops", "{column}", lambda rows, q: -(rows @ q) / np.linalg.norm(rows, axis=1)),
        ("vector(24)", "vector_ip_ops", "{column}", lambda rows, q: -(rows @ q)),
        ("vector(24)", "vector_l2_ops", "{column}", lambda rows, q: np.linalg.norm(rows - q, axis=1)),
        ("vector(24)", "vector_l1_ops", "{column}", lambda rows, q: np.abs(rows - q).sum(axis=1)),
        ("halfvec(24)", "halfvec_cosine_ops", "{column}", lambda rows, q: -(rows @ q) / np.linalg.norm(rows, axis=1)),
        ("halfvec(24)", "halfvec_l1_ops", "{column}", lambda rows, q: np.abs(rows - q).sum(axis=1)),
        (
            "vector(24)",
            "halfvec_l2_ops",
            "{column}::{vector}.halfvec(24)",
            lambda rows, q: np.linalg.norm(rows - q, axis=1),
        ),
        ("vector", "vector_ip_ops", "{column}::{vector}.vector(24)", lambda rows, q: -(rows @ q)),
    ],
)
def test_nearest_follows_the_columns_metric_type_and_index(conn, rng, kind, opclass, expression, score) -> None:
    rows = rng.standard_normal((300, 24)) * rng.uniform(0.5, 2, (300, 1))
    make_docs(
        conn,
        rows,
        schema="Odd Schema",
        table='Weird "Table"',
        column="Vec Col",
        kind=kind,
        opclass=opclass,
        expression=expression,
    )
    for name in ("legacy", "new"):
        drift_pg.register_model(conn, name, dimensions=24, normalized=False)
    drift_pg.register_column(conn, '"Odd Schema"."Weird ""Table"""', "Vec Col", model="legacy")
    matrix = rotation(rng, 24)
    adapter = Adapter((Layer(np.column_stack([matrix.T, np.zeros(24)])),), 24, 24, normalize_input=False)
    drift_pg.activate(conn, drift_pg.store(conn, adapter, source="new", target="legacy"), force=True)
    query = rng.standard_normal(24)
    conn.execute("SET enable_seqscan = off; SET hnsw.ef_search = 300")
    found = conn.execute(
        """SELECT id FROM drift.nearest(NULL::"Odd Schema"."Weird ""Table""\", 'Vec Col', %s, 'new', 8)""",
        [vector(query)],
    ).fetchall()
    exact = np.argsort(score(rows, query @ matrix))
    assert {row[0] for row in found[:5]} <= set(exact[:8].tolist())  # half precision may swap neighbours
    assert len(found) == 8


def test_more_rows_than_ef_search_are_found_and_the_setting_comes_back(upgrade: Upgrade) -> None:
    upgrade.conn.execute("SET hnsw.ef_search = 40; SET enable_seqscan = off")
    with upgrade.conn.transaction():
        assert len(run(upgrade.conn, FORMS["nearest"].replace("10)", "200)"), upgrade.new[0])) == 200
        assert upgrade.conn.execute("SHOW hnsw.ef_search").fetchone() == ("40",)
        assert upgrade.conn.execute("SHOW hnsw.iterative_scan").fetchone() == ("off",)


def test_row_level_security_holds_and_hidden_rows_are_made_up_for(upgrade: Upgrade) -> None:
    conn, role = upgrade.conn, f"reader_{upgrade.conn.info.dbname[-8:]}"
    identifier = sql.Identifier(role)
    conn.execute(sql.SQL("CREATE ROLE {}").format(identifier))
    try:
        conn.execute("ALTER TABLE docs ENABLE ROW LEVEL SECURITY; CREATE POLICY visible ON docs USING (id % 10 = 3)")
        conn.execute(
            sql.SQL(
                "GRANT USAGE ON SCHEMA drift, extensions TO {0}; GRANT SELECT ON ALL TABLES IN SCHEMA drift TO {0}; GRANT SELECT ON docs TO {0}"
            ).format(identifier)
        )
        conn.execute(sql.SQL("SET ROLE {}; SET enable_seqscan = off").format(identifier))
        found = [row[0] for row in run(conn, FORMS["nearest"], upgrade.new[0])]
        assert len(found) == 10
        assert {i % 10 for i in found} == {3}
    finally:
        conn.execute(sql.SQL("RESET ROLE; DROP OWNED BY {0}; DROP ROLE {0}").format(identifier))


def test_a_role_without_privileges_is_told_which_grant(upgrade: Upgrade) -> None:
    conn, role = upgrade.conn, f"nobody_{upgrade.conn.info.dbname[-8:]}"
    identifier = sql.Identifier(role)
    conn.execute(sql.SQL("CREATE ROLE {0}; GRANT USAGE ON SCHEMA extensions TO {0}").format(identifier))
    try:
        conn.execute(sql.SQL("SET ROLE {}").format(identifier))
        with pytest.raises(errors.PermissionDenied) as refused:
            run(conn, FORMS["nearest"], upgrade.new[0])
        assert "GRANT USAGE ON SCHEMA drift" in (refused.value.hint or "")
        conn.execute("RESET ROLE")
        conn.execute(sql.SQL("GRANT USAGE ON SCHEMA drift TO {}").format(identifier))
        conn.execute(sql.SQL("SET ROLE {}").format(identifier))
        for form in FORMS:
            statement = (
                FORMS[form]
                .replace("FROM docs ORDER BY embedding OPERATOR(extensions.<=>)", ", ")
                .replace(" LIMIT 10", "")
                .replace("id ,", "")
            )
            with pytest.raises(errors.PermissionDenied) as refused:
                run(conn, statement, upgrade.new[0])
            assert f"GRANT SELECT ON ALL TABLES IN SCHEMA drift TO {role}" in (refused.value.hint or "")
        with pytest.raises(errors.PermissionDenied) as refused:
            drift_pg.activate(conn, 1, force=True)
        assert f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA drift TO {role}" in (
            refused.value.hint or ""
        )
    finally:
        conn.execute(sql.SQL("RESET ROLE; DROP OWNED BY {0}; DROP ROLE {0}").format(identifier))


@pytest.mark.parametrize(
    ("statement", "error", "says"),
    [
        ("SELECT drift.adapt('[1,2]'::extensions.vector, 'new', 'legacy')", errors.WrongDimensions, "query has 2 dimensions, model 'new' has 24"),
        ("SELECT drift.adapt('[1,2]'::extensions.vector, 'new', 'new')", errors.WrongDimensions, "query has 2 dimensions, model 'new' has 24"),
        ("SELECT drift.adapt('[1,2]'::extensions.vector, 1)", errors.WrongDimensions, "query has 2 dimensions"),
        ("SELECT drift.adapt($1, 'nope', 'legacy')", errors.UnknownModel, "model 'nope' is not registered"),
        ("SELECT drift.adapt($1, 'new', 'nope')", errors.UnknownModel, "model 'nope' is not registered"),
        ("SELECT drift.adapt($1, 'legacy', 'new')", errors.NoActiveAdapter, "from model 'legacy' to model 'new'"),
        ("SELECT drift.adapt($1, 77)", errors.UnknownAdapter, "no adapter 77"),
        ("SELECT drift.adapt(extensions.subvector(array_fill(0, ARRAY[24])::extensions.vector, 1, 24), 'new', 'legacy')", errors.InvalidVector, "zero length"),
        ("SELECT drift.adapt_for($1, 'new', 'docs', 'nope')", errors.UnknownColumn, "column nope of public.docs is not registered"),
        ("SELECT * FROM drift.nearest(NULL::docs, 'nope', $1, 'new')", errors.UnknownColumn, "column nope of public.docs"),
        ("SELECT drift.nearest(1, 'embedding', $1, 'new')", errors.InvalidDefinition, "expected a table's row"),
        ("SELECT * FROM drift.nearest(NULL::docs, 'embedding', NULL, 'new')", errors.InvalidDefinition, "must not be NULL"),
        ("SELECT * FROM drift.nearest(NULL::docs, 'embedding', $1, 'new', -1)", errors.InvalidDefinition, "k not negative"),
    ],
)  # fmt: skip
def test_bad_input_is_named(upgrade: Upgrade, statement: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says), translated():
        upgrade.conn.execute(statement.replace("$1", f"'{vector(upgrade.new[0])}'::extensions.vector"))


def test_a_deactivated_adapter_fails_loudly_and_hints_at_the_way_back(upgrade: Upgrade) -> None:
    drift_pg.deactivate(upgrade.conn, source="new", target="legacy")
    with pytest.raises(errors.NoActiveAdapter) as refused:
        run(upgrade.conn, FORMS["adapt_for"], upgrade.new[0])
    assert refused.value.hint == "SELECT drift.activate(1);"


def test_a_dropped_column_is_named(upgrade: Upgrade) -> None:
    upgrade.conn.execute("ALTER TABLE docs DROP embedding")
    with pytest.raises(errors.ColumnMissing, match="has no column embedding"):
        run(upgrade.conn, FORMS["nearest"], upgrade.new[0])


def test_rows_of_a_table_with_dropped_columns_come_back_whole(upgrade: Upgrade) -> None:
    upgrade.conn.execute("ALTER TABLE docs DROP body; ALTER TABLE docs ADD note text DEFAULT 'n'")
    found = upgrade.conn.execute(
        "SELECT * FROM drift.nearest(NULL::docs, 'embedding', %s, 'new', 1)", [vector(upgrade.new[3])]
    ).fetchone()
    assert (found[0], found[2]) == (3, "n")


def test_queries_of_the_columns_own_model_pass_unchanged(upgrade: Upgrade) -> None:
    query = vector(upgrade.legacy[7])
    found = upgrade.conn.execute("SELECT drift.adapt_for(%s, 'legacy', 'docs', 'embedding')::text", [query]).fetchone()
    assert np.allclose(json.loads(found[0]), upgrade.legacy[7], atol=1e-6)


def test_half_precision_queries_are_adapted_to_half_precision(upgrade: Upgrade) -> None:
    query = upgrade.new[7]
    found = upgrade.conn.execute(
        "SELECT drift.adapt(%s::extensions.halfvec, 'new', 'legacy')::text, pg_typeof(drift.adapt(%s::extensions.halfvec, 'new', 'legacy'))::text",
        [vector(query), vector(query)],
    ).fetchone()
    assert found[1].endswith("halfvec")
    assert np.allclose(json.loads(found[0]), upgrade.legacy[7], atol=2e-3)


def test_searches_work_whatever_the_callers_search_path(upgrade: Upgrade) -> None:
    upgrade.conn.execute("SET search_path = pg_catalog")
    found = upgrade.conn.execute(
        "SELECT id FROM drift.nearest(NULL::public.docs, 'embedding', %s, 'new', 1)", [vector(upgrade.new[3])]
    )
    assert found.fetchall() == [(3,)]


def test_partitions_are_searched_as_one_table(conn: psycopg.Connection, rng: np.random.Generator) -> None:
    rows = rng.standard_normal((200, 6))
    conn.execute("CREATE TABLE docs (id int, embedding extensions.vector(6)) PARTITION BY RANGE (id)")
    conn.execute(
        "CREATE TABLE low PARTITION OF docs FOR VALUES FROM (0) TO (100); CREATE TABLE high PARTITION OF docs FOR VALUES FROM (100) TO (200)"
    )
    with conn.cursor() as cursor:
        cursor.executemany("INSERT INTO docs VALUES (%s, %s)", [(i, vector(row)) for i, row in enumerate(rows)])
    conn.execute("CREATE INDEX ON docs USING hnsw (embedding extensions.vector_cosine_ops)")
    for name in ("legacy", "new"):
        drift_pg.register_model(conn, name, dimensions=6)
    drift_pg.register_column(conn, "docs", "embedding", model="legacy")
    matrix = rotation(rng, 6)
    drift_pg.activate(conn, drift_pg.store(conn, linear(matrix), source="new", target="legacy"), force=True)
    for i in (5, 150):
        found = conn.execute(
            "SELECT id FROM drift.nearest(NULL::docs, 'embedding', %s, 'new', 1)", [vector(rows[i] @ matrix.T)]
        )
        assert found.fetchall() == [(i,)]
