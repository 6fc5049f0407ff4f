"""Mixed search: the bridge's candidates ordered anew by the new model's vectors, where they are known."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import psycopg
import pytest
from psycopg import sql

import drift_pg
from drift_pg import errors
from drift_pg.database.connection import translated
from tests.tables import linear, make_docs, vector

LINE = {"slope": 0.8, "intercept": 0.1, "residual": 0.1, "margin": 0.05}
OPCLASS = {"cosine": "cosine", "inner_product": "ip", "l2": "l2", "l1": "l1"}
EXACT = "SET enable_indexscan = off"
THROUGH_INDEX = "SET enable_seqscan = off; SET hnsw.ef_search = 400"


class Mixed:
    """A table `docs` whose legacy vectors are a rotation of noisy new ones, with its companion and its calibration.

    The bridge does not find what the new model finds: `new` and what the adapter is right about differ.
    """

    def __init__(self, conn: psycopg.Connection, rng: np.random.Generator, metric: str = "cosine", **options) -> None:
        dimensions, rows = options.pop("dimensions", 16), options.pop("rows", 400)
        self.conn, self.metric = conn, metric
        self.new = _unit(rng.standard_normal((rows, dimensions)))
        legacy_dimensions = options.pop("legacy_dimensions", dimensions)
        wide, narrow = max(dimensions, legacy_dimensions), min(dimensions, legacy_dimensions)
        orthogonal = np.linalg.qr(rng.standard_normal((wide, narrow)))[0]
        self.matrix = orthogonal if dimensions == wide else orthogonal.T
        self.legacy = _unit((self.new + 0.6 * _unit(rng.standard_normal(self.new.shape))) @ self.matrix)
        kind = options.get("kind") or "vector"
        opclass = f"{kind.split('(')[0]}_{OPCLASS[metric]}_ops"
        make_docs(conn, self.legacy, **{"opclass": opclass, **options})
        drift_pg.register_model(conn, "legacy", dimensions=legacy_dimensions)
        drift_pg.register_model(conn, "new", dimensions=dimensions)
        drift_pg.register_column(conn, "public.docs", "embedding", model="legacy", metric=metric)
        self.adapter = linear(self.matrix)
        self.adapter_id = drift_pg.store(conn, self.adapter, source="new", target="legacy")
        drift_pg.activate(conn, self.adapter_id, force=True)
        drift_pg.create_companion(conn, "docs", "embedding", model="new", text="body")
        conn.execute("SELECT drift.store_calibration(%s, %s)", [self.adapter_id, json.dumps({metric: LINE})])
        self.known: dict[int, np.ndarray] = {}

    def fill(self, rows: np.ndarray, *, index: bool = True) -> "Mixed":
        for part in np.array_split(rows, max(1, len(rows) // 100)):
            self.conn.execute(
                "SELECT drift.store_vectors('docs', 'embedding', %s, %s, %s)",
                [json.dumps([[str(i)] for i in part]), [f"text {i}" for i in part], [vector(self.new[i]) for i in part]],
            )  # fmt: skip
        self.known |= {int(i): self.new[i] for i in rows}
        if index:
            drift_pg.build_index(self.conn, "docs", "embedding")
        self.conn.execute("ANALYZE drift.companion_1")
        return self

    def search(
        self, query: np.ndarray, k: int = 10, rerank: int | None = None, matching: dict | None = None
    ) -> list[int]:
        with translated():
            found = self.conn.execute(
                "SELECT id FROM drift.nearest(NULL::docs, 'embedding', %s, 'new', %s, %s, %s)",
                [vector(query), k, rerank, json.dumps(matching) if matching else None],
            )
            return [row[0] for row in found]

    def reference(self, query: np.ndarray, k: int, rerank: int, allowed: np.ndarray | None = None) -> list[int]:
        """The merge rule of DESIGN.md, in numpy."""
        allowed = np.arange(len(self.legacy)) if allowed is None else allowed
        old = _scores(self.legacy[allowed], self.adapter.apply(query.astype(np.float32)), self.metric)
        bridge = {int(allowed[i]): float(old[i]) for i in np.argsort(-old, kind="stable")[:rerank]}
        exact = {i: float(_scores(v[None], query, self.metric)[0]) for i, v in self.known.items() if i in set(allowed)}
        first = sorted(exact, key=lambda i: -exact[i])[:k]
        line = LINE["intercept"] + LINE["margin"]
        scored = {i: exact.get(i, line + LINE["slope"] * bridge.get(i, 0.0)) for i in {*bridge, *first}}
        return sorted(scored, key=lambda i: -scored[i])[:k]


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _scores(vectors: np.ndarray, query: np.ndarray, metric: str) -> np.ndarray:
    if metric == "cosine":
        return vectors @ query / np.linalg.norm(query) / np.linalg.norm(vectors, axis=1)
    if metric == "inner_product":
        return vectors @ query
    return -np.linalg.norm(vectors - query, ord=2 if metric == "l2" else 1, axis=1)


@pytest.fixture
def mixed(conn: psycopg.Connection, rng: np.random.Generator) -> Mixed:
    return Mixed(conn, rng)


@pytest.fixture
def queries(rng: np.random.Generator) -> np.ndarray:
    return _unit(np.random.default_rng(3).standard_normal((6, 16)))


@pytest.mark.parametrize("how", [EXACT, THROUGH_INDEX], ids=["exact", "index"])
@pytest.mark.parametrize("metric", OPCLASS)
def test_the_order_is_the_bridges_at_no_coverage_the_rules_between_and_the_new_models_at_full(
    conn: psycopg.Connection, rng: np.random.Generator, queries: np.ndarray, metric: str, how: str
) -> None:
    mixed = Mixed(conn, rng, metric)
    conn.execute(how)
    for query in queries:
        assert mixed.search(query, rerank=60) == mixed.search(query) == mixed.reference(query, 10, 60)
    mixed.fill(rng.permutation(400)[:100])
    some = [mixed.search(query, rerank=60) for query in queries]
    assert some == [mixed.reference(query, 10, 60) for query in queries]
    mixed.fill(np.arange(400))
    full = [mixed.search(query, rerank=60) for query in queries]
    assert full == [np.argsort(-_scores(mixed.new, query, metric), kind="stable")[:10].tolist() for query in queries]
    assert full != some != [mixed.search(query) for query in queries]


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "halfvec(16)"},
        {"kind": "vector", "expression": "{column}::{vector}.vector(16)"},
        {
            "legacy_dimensions": 3072,
            "rows": 60,
            "opclass": "halfvec_cosine_ops",
            "expression": "{column}::{vector}.halfvec(3072)",
        },
        {"dimensions": 3072, "rows": 60, "legacy_dimensions": 16},
        {"dimensions": 64, "legacy_dimensions": 16},
    ],
    ids=["halfvec", "cast", "16 to 3072", "3072 to 16", "64 to 16"],
)  # fmt: skip
@pytest.mark.parametrize("how", [EXACT, THROUGH_INDEX], ids=["exact", "index"])
def test_types_and_dimensions(conn: psycopg.Connection, rng: np.random.Generator, options: dict, how: str) -> None:
    mixed = Mixed(conn, rng, **options).fill(np.arange(0, options.get("rows", 400), 3))
    conn.execute(how)
    for query in _unit(rng.standard_normal((4, mixed.new.shape[1]))):
        assert mixed.search(query, 5, 40) == mixed.reference(query, 5, 40)


def test_a_row_that_only_the_companion_finds_is_found(mixed: Mixed, conn: psycopg.Connection) -> None:
    """The bridge's first N do not hold it, or the legacy vector is NULL and no bridge could."""
    conn.execute("UPDATE docs SET embedding = NULL WHERE id = 7")
    mixed.fill(np.array([7, 11]))
    mixed.legacy[7] = -mixed.new[7] @ mixed.matrix
    assert mixed.search(mixed.new[7], 1, 1) == [7]
    assert 7 not in mixed.search(mixed.new[7], 5)


def test_a_changed_text_makes_a_vector_count_as_missing_until_it_is_embedded_again(
    mixed: Mixed, conn: psycopg.Connection, queries: np.ndarray
) -> None:
    mixed.fill(np.arange(400))
    full = [mixed.search(query, rerank=60) for query in queries]
    conn.execute("UPDATE docs SET body = 'another'")
    assert [mixed.search(query, rerank=60) for query in queries] == [mixed.search(query) for query in queries] != full
    conn.execute("UPDATE docs SET body = 'text ' || id WHERE id < 50")
    mixed.known = {i: mixed.new[i] for i in range(50)}
    assert [mixed.search(q, rerank=60) for q in queries] == [mixed.reference(q, 10, 60) for q in queries]


def test_filters_hold_on_both_sides(mixed: Mixed, conn: psycopg.Connection, queries: np.ndarray) -> None:
    conn.execute("ALTER TABLE docs ADD language text; UPDATE docs SET language = (ARRAY['en', 'de', NULL])[1 + id % 3]")
    conn.execute("SET hnsw.ef_search = 400")
    mixed.fill(np.arange(0, 400, 2))
    for wanted, value in (({"language": "en"}, 0), ({"language": None}, 2), ({"language": ["de"], "id": [1, 4, 7]}, 1)):
        allowed = np.array([1, 4, 7]) if "id" in wanted else np.arange(400)[np.arange(400) % 3 == value]
        for query in queries:
            assert mixed.search(query, 5, 40, wanted) == mixed.reference(query, 5, 40, allowed)[: len(allowed)]


def test_deleted_rows_are_gone_with_their_vectors(mixed: Mixed, conn: psycopg.Connection, queries: np.ndarray) -> None:
    mixed.fill(np.arange(400))
    gone = mixed.search(queries[0], rerank=60)
    conn.execute("DELETE FROM docs WHERE id = ANY (%s)", [gone])
    assert not set(gone) & set(mixed.search(queries[0], rerank=60))
    assert conn.execute("SELECT count(*) FROM drift.companion_1").fetchone() == (390,)
    conn.execute("TRUNCATE docs")
    assert mixed.search(queries[0], rerank=60) == []
    assert conn.execute("SELECT count(*) FROM drift.companion_1").fetchone() == (0,)


KEYS = {
    "composite": ("tenant integer, part text COLLATE \"C\"", "id % 3, 'part ' || id", "tenant, part"),
    "text": ("slug text", "'a''b%s \"' || id", "slug"),
    "varchar in its own collation": ('slug varchar(40) COLLATE "C"', "'K' || id", "slug"),
    "odd names": ('"Key %s" uuid, "key1" date', "md5(id::text)::uuid, date '2026-01-01' + id::integer", '"key1", "Key %s"'),
    "time": ('"when" timestamptz', "timestamptz '2026-01-01 12:00:00.123456Z' + id * interval '1 s'", '"when"'),
}  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_keys_of_every_kind(conn: psycopg.Connection, rng: np.random.Generator, key: str) -> None:
    columns, values, primary = KEYS[key]
    make_docs(conn, (legacy := _unit(rng.standard_normal((80, 8)))), table="plain", opclass=None)
    conn.execute(f"""CREATE SCHEMA "Odd %s"; CREATE TABLE "Odd %s"."Weird ""Docs" (number bigint, {columns}, "Te'xt" text, "Vec Col" extensions.vector(8),
                     PRIMARY KEY ({primary}));
                     INSERT INTO "Odd %s"."Weird ""Docs" SELECT id, {values}, body, embedding FROM plain""".encode())  # fmt: skip
    relation = '"Odd %s"."Weird ""Docs"'
    for name in ("old", "new"):
        drift_pg.register_model(conn, name, dimensions=8)
    drift_pg.register_column(conn, relation, "Vec Col", model="old", metric="cosine")
    adapter = drift_pg.store(conn, linear(np.eye(8)), source="new", target="old")
    drift_pg.activate(conn, adapter, force=True)
    conn.execute("SELECT drift.store_calibration(%s, %s)", [adapter, json.dumps({"cosine": LINE})])
    drift_pg.create_companion(conn, relation, "Vec Col", model="new", text="Te'xt")
    new = _unit(rng.standard_normal((80, 8)))
    embedded: list[str] = []

    def embed(texts: list[str]) -> np.ndarray:
        embedded.extend(texts)
        return np.array([new[int(text.split()[1])] for text in texts])

    for query in legacy[:3]:
        found = drift_pg.search(
            conn, relation, "Vec Col", query, query_model="new", k=5, rerank=80, embed=embed, at_most=80, within=30
        )  # fmt: skip
        assert [row[0] for row in found] == np.argsort(-new @ query)[:5].tolist()
    assert sorted(embedded) == sorted(f"text {i}" for i in range(80))
    assert drift_pg.coverage(conn, relation, "Vec Col").known == 80
    conn.execute(f"DELETE FROM {relation} WHERE number >= 10".encode())
    assert conn.execute("SELECT count(*) FROM drift.companion_1").fetchone() == (10,)


@contextmanager
def as_role(conn: psycopg.Connection, *grants: str) -> Iterator[str]:
    """Another role for the block; roles belong to the server, so its name is the database's."""
    role = f"reader of {conn.info.dbname}"
    conn.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(role)))
    try:
        for grant in grants:
            conn.execute(sql.SQL(grant).format(role=sql.Identifier(role)))
        conn.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        yield role
    finally:
        conn.execute("RESET ROLE")
        conn.execute(sql.SQL("DROP OWNED BY {}; DROP ROLE {}").format(sql.Identifier(role), sql.Identifier(role)))


READER = (
    "GRANT USAGE ON SCHEMA drift, extensions TO {role}",
    "GRANT SELECT ON drift.model, drift.embedding_column, drift.adapter, drift.adapter_layer, drift.adapter_weight, drift.companion, drift.calibration TO {role}",
)  # fmt: skip


@pytest.mark.parametrize("how", [EXACT, THROUGH_INDEX], ids=["exact", "index"])
def test_row_level_security_holds_on_both_sides_and_on_the_companion_itself(
    mixed: Mixed, conn: psycopg.Connection, queries: np.ndarray, how: str
) -> None:
    conn.execute(
        "ALTER TABLE docs ADD owner text; UPDATE docs SET owner = CASE id % 4 WHEN 0 THEN 'mine' ELSE 'other' END"
    )
    conn.execute("ALTER TABLE docs ENABLE ROW LEVEL SECURITY; CREATE POLICY mine ON docs USING (owner = 'mine')")
    mixed.fill(np.arange(0, 400, 8))
    mixed.fill(np.arange(1, 400, 8))
    made = "SELECT drift.create_companion('docs', 'embedding', 'new', '{{body}}')"  # again, for what it now has
    with as_role(conn, *READER, "GRANT SELECT, DELETE ON docs TO {role}", made):
        conn.execute(how)
        for query in queries:
            assert mixed.search(query, 10, 40) == mixed.reference(query, 10, 40, np.arange(0, 400, 4))
        seen = [row[0] for row in conn.execute("SELECT key1 FROM drift.companion_1 ORDER BY 1")]
        assert seen == list(range(0, 400, 8))
        conn.execute("DELETE FROM docs WHERE id < 100")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="does not see all rows"):
            conn.execute("SELECT drift.sweep_companion('docs', 'embedding')")
    assert conn.execute("SELECT count(*) FROM docs").fetchone() == (375,)
    left = [row[0] for row in conn.execute("SELECT key1 FROM drift.companion_1 ORDER BY 1")]
    assert left == sorted([*range(104, 400, 8), *range(1, 400, 8)])


def test_each_missing_privilege_is_named_with_its_grant(mixed: Mixed, conn: psycopg.Connection) -> None:
    mixed.fill(np.arange(100))
    grants = [
        "GRANT SELECT ON drift.companion TO {role}",
        "GRANT SELECT ON drift.companion_1 TO {role}",
        "GRANT SELECT ON drift.calibration TO {role}",
    ]
    reading = "GRANT SELECT ON drift.model, drift.embedding_column, drift.adapter, drift.adapter_layer, drift.adapter_weight, docs TO {role}"
    with as_role(conn, READER[0], reading) as role:
        for grant in grants:
            with pytest.raises(errors.PermissionDenied) as refused:
                mixed.search(mixed.new[0], 5, 20)
            assert "GRANT" in (refused.value.hint or "")
            conn.execute("RESET ROLE")
            conn.execute(sql.SQL(grant).format(role=sql.Identifier(role)))
            conn.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        assert len(mixed.search(mixed.new[0], 5, 20)) == 5


def test_who_may_delete_a_row_can_whatever_they_may_in_schema_drift(mixed: Mixed, conn: psycopg.Connection) -> None:
    mixed.fill(np.arange(400))
    with as_role(conn, "GRANT SELECT, DELETE, TRUNCATE ON docs TO {role}"):
        conn.execute("DELETE FROM docs WHERE id < 10")
        assert conn.execute("SELECT count(*) FROM docs").fetchone() == (390,)
    assert 5 not in mixed.search(mixed.new[5], rerank=60)
    assert drift_pg.coverage(conn, "docs", "embedding").orphaned == 10
    assert conn.execute("SELECT drift.sweep_companion('docs', 'embedding')").fetchone() == (10,)


def test_it_runs_in_a_read_only_transaction_and_puts_the_settings_back(mixed: Mixed, conn: psycopg.Connection) -> None:
    mixed.fill(np.arange(200))
    conn.execute("SET hnsw.ef_search = 33; SET hnsw.iterative_scan = relaxed_order")
    with conn.transaction():
        conn.execute("SET TRANSACTION READ ONLY")
        assert mixed.search(mixed.new[3], 5, 50) == mixed.reference(mixed.new[3], 5, 50)
        found = conn.execute("SELECT current_setting('hnsw.ef_search'), current_setting('hnsw.iterative_scan')")
        assert found.fetchone() == ("33", "relaxed_order")
    with conn.transaction(), pytest.raises(errors.WrongDimensions), conn.transaction():
        mixed.search(np.ones(3), 5, 50)
    assert conn.execute("SHOW hnsw.ef_search").fetchone() == ("33",)


def test_both_indexes_are_scanned_and_the_adapter_runs_once(
    conn: psycopg.Connection, rng: np.random.Generator, queries: np.ndarray
) -> None:
    mixed = Mixed(conn, rng, rows=3000).fill(np.arange(2000))
    for table in ("docs", "drift.companion_1"):
        conn.execute(f"VACUUM ANALYZE {table}".encode())
    conn.execute("SET track_functions = 'all'")
    statement = conn.execute("SELECT drift.reranked_sql(h, 'new', NULL) FROM drift.embedding_column h").fetchone()[0]
    conn.execute("SET search_path = pg_catalog, drift, extensions")
    adapted = mixed.adapter.apply(queries[0].astype(np.float32))
    for number, value in enumerate([vector(adapted), vector(queries[0]), "10", "200", "200", "40"], 1):
        cast = {1: "::vector", 2: "::vector", 3: "::integer", 4: "::integer"}.get(number, "")
        statement = statement.replace(f"${number}", f"'{value}'{cast}")
    plan = "\n".join(line for (line,) in conn.execute(b"EXPLAIN " + statement.encode()))
    assert "Index Scan using docs_embedding_idx" in plan
    assert "Index Scan using companion_1_vectors" in plan
    assert plan.count("Seq Scan") == 0, plan
    conn.execute("RESET search_path")
    mixed.search(queries[0], rerank=200)
    conn.execute("SELECT pg_stat_force_next_flush()")
    calls = conn.execute(
        "SELECT calls FROM pg_stat_user_functions WHERE schemaname = 'drift' AND funcname = 'multiply'"
    )
    assert calls.fetchone() == (1,)


def test_what_cannot_be_searched_says_why(mixed: Mixed, conn: psycopg.Connection) -> None:
    with pytest.raises(errors.InvalidDefinition, match="rerank not less than k"):
        mixed.search(mixed.new[0], 10, 5)
    conn.execute("DELETE FROM drift.calibration")
    with pytest.raises(errors.NotCalibrated, match="not calibrated for metric cosine") as refused:
        mixed.search(mixed.new[0], 10, 50)
    assert "drift-pg evaluate" in (refused.value.hint or "")
    drift_pg.drop_companion(conn, "docs", "embedding")
    with pytest.raises(errors.NoCompanion, match="no companion table") as refused:
        mixed.search(mixed.new[0], 10, 50)
    assert "drift.create_companion" in (refused.value.hint or "")
    assert len(mixed.search(mixed.new[0])) == 10


def test_a_query_of_the_columns_own_model_needs_no_companion(mixed: Mixed, conn: psycopg.Connection) -> None:
    drift_pg.drop_companion(conn, "docs", "embedding")
    found = conn.execute(
        "SELECT id FROM drift.nearest(NULL::docs, 'embedding', %s, 'legacy', 1, 50)", [vector(mixed.legacy[9])]
    )
    assert found.fetchall() == [(9,)]


def test_how_many_candidates_lack_a_vector_is_left_in_a_setting(
    mixed: Mixed, conn: psycopg.Connection, queries: np.ndarray
) -> None:
    def missing(rerank: int | None) -> str:
        with conn.transaction():
            mixed.search(queries[0], rerank=rerank)
            return conn.execute("SELECT current_setting('drift.missing')").fetchone()[0]

    assert missing(60) == "60"
    conn.execute("UPDATE docs SET body = NULL WHERE id = %s", [mixed.search(queries[0])[0]])
    assert missing(60) == "59"  # what has no text lacks nothing
    mixed.fill(np.array(mixed.search(queries[0], k=60)[30:60]))
    assert missing(60) == "29"
    assert missing(None) == "0"


@pytest.mark.parametrize("column", ["id", "body"])
def test_a_renamed_column_is_named_and_the_hint_helps(
    mixed: Mixed, conn: psycopg.Connection, queries: np.ndarray, column: str
) -> None:
    mixed.fill(np.arange(100))
    before = mixed.search(queries[0], rerank=50)
    conn.execute(f"ALTER TABLE docs RENAME {column} TO \"the 'new'\"".encode())
    find = "SELECT * FROM drift.nearest(NULL::docs, 'embedding', %s, 'new', 10, 50)"
    with pytest.raises(errors.ColumnMissing, match=f"no column {column} any more") as refused, translated():
        conn.execute(find, [vector(queries[0])])
    hint = (refused.value.hint or "").partition(": ")[2].partition(";")[0]
    hint = hint.replace(f"'{{{column}}}'", """'{"the ''new''"}'""")
    conn.execute(hint.encode())
    assert [row[0] for row in conn.execute(find, [vector(queries[0])])] == before
    drift_pg.drop_companion(conn, "docs", "embedding")
