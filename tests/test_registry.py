"""Registering models and columns: what the catalog tells, and what is refused."""

import numpy as np
import psycopg
import pytest

import drift_pg
from drift_pg import errors
from drift_pg.database.connection import one
from drift_pg.database.registry import ColumnName
from tests.tables import Upgrade, make_docs

VECTORS = np.eye(3)


@pytest.fixture
def model(conn: psycopg.Connection) -> psycopg.Connection:
    """A connection to a database that knows the model `three`, of 3 dimensions."""
    drift_pg.register_model(conn, "three", dimensions=3)
    return conn


def test_a_model_is_registered_once(conn: psycopg.Connection) -> None:
    for _ in range(2):
        drift_pg.register_model(conn, "m", dimensions=3, normalized=False)
    assert conn.execute("SELECT name, dimensions, normalized FROM drift.models").fetchall() == [("m", 3, False)]
    assert conn.execute("SELECT action, subject FROM drift.event").fetchall() == [("register_model", "m")]


@pytest.mark.parametrize(("dimensions", "normalized"), [(4, False), (3, True)])
def test_a_model_defined_otherwise_is_refused(conn: psycopg.Connection, dimensions: int, normalized: bool) -> None:
    drift_pg.register_model(conn, "m", dimensions=3, normalized=False)
    with pytest.raises(errors.AlreadyRegistered, match="'m' is registered with 3 dimensions"):
        drift_pg.register_model(conn, "m", dimensions=dimensions, normalized=normalized)


@pytest.mark.parametrize(("name", "dimensions"), [("", 3), ("m", 0), ("m", 4001), ("m", -1)])
def test_a_model_outside_the_limits_is_refused(conn: psycopg.Connection, name: str, dimensions: int) -> None:
    with pytest.raises(errors.InvalidDefinition, match="1 to 4000"):
        drift_pg.register_model(conn, name, dimensions=dimensions)


@pytest.mark.parametrize(
    ("kind", "opclass", "expression", "metric", "cast"),
    [
        ("vector(3)", "vector_cosine_ops", "{column}", "cosine", None),
        ("vector(3)", "vector_ip_ops", "{column}", "inner_product", None),
        ("vector(3)", "vector_l2_ops", "{column}", "l2", None),
        ("vector(3)", "vector_l1_ops", "{column}", "l1", None),
        ("halfvec(3)", "halfvec_cosine_ops", "{column}", "cosine", None),
        ("halfvec(3)", "halfvec_l1_ops", "{column}", "l1", None),
        ("vector(3)", "halfvec_ip_ops", "{column}::{vector}.halfvec(3)", "inner_product", "halfvec"),
        ("vector", "vector_l2_ops", "{column}::{vector}.vector(3)", "l2", "vector"),
        ("halfvec", "halfvec_cosine_ops", "{column}::{vector}.halfvec(3)", "cosine", "halfvec"),
    ],
)
def test_the_metric_is_that_of_the_index(
    model: psycopg.Connection, kind: str, opclass: str, expression: str, metric: str, cast: str | None
) -> None:
    make_docs(model, VECTORS, column="Vec Col", kind=kind, opclass=opclass, expression=expression)
    drift_pg.register_column(model, "docs", "Vec Col", model="three")
    found = one(model, "SELECT metric, index_cast, indexes, problem FROM drift.columns")
    assert (found.metric, found.index_cast, found.indexes, found.problem) == (metric, cast, 1, None)


def test_without_an_index_the_metric_is_named(model: psycopg.Connection) -> None:
    make_docs(model, VECTORS, opclass=None)
    with pytest.raises(errors.MetricUnknown, match="no HNSW or IVFFlat index") as refused:
        drift_pg.register_column(model, "docs", "embedding", model="three")
    assert "--metric" in (refused.value.hint or "")
    with pytest.raises(errors.InvalidDefinition, match="'hamming'"):
        drift_pg.register_column(model, "docs", "embedding", model="three", metric="hamming")
    drift_pg.register_column(model, "docs", "embedding", model="three", metric="l2")
    assert one(model, "SELECT problem FROM drift.status").problem.startswith("no index serves metric l2")


def test_indexes_that_disagree_need_a_name(model: psycopg.Connection) -> None:
    make_docs(model, VECTORS)
    model.execute("CREATE INDEX ON docs USING ivfflat (embedding extensions.vector_l2_ops) WITH (lists = 1)")
    with pytest.raises(errors.MetricUnknown, match="cosine, l2"):
        drift_pg.register_column(model, "docs", "embedding", model="three")
    drift_pg.register_column(model, "docs", "embedding", model="three", metric="l2")


def test_a_metric_that_no_index_serves_warns(model: psycopg.Connection) -> None:
    make_docs(model, VECTORS)
    notices: list[str] = []
    model.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
    drift_pg.register_column(model, "docs", "embedding", model="three", metric="l1")
    assert "no index of column embedding of public.docs serves metric l1 (indexed: cosine)" in notices[0]


def test_an_index_of_another_expression_or_column_does_not_count(model: psycopg.Connection) -> None:
    make_docs(model, VECTORS, opclass=None)
    model.execute("ALTER TABLE docs ADD other extensions.vector(3)")
    model.execute("CREATE INDEX ON docs USING hnsw (other extensions.vector_l2_ops)")
    model.execute(
        "CREATE INDEX ON docs USING hnsw ((extensions.subvector(embedding, 1, 2)::extensions.vector(2)) extensions.vector_l2_ops)"
    )
    model.execute(
        "CREATE INDEX ON docs USING hnsw ((extensions.binary_quantize(embedding)::bit(3)) extensions.bit_hamming_ops)"
    )
    with pytest.raises(errors.MetricUnknown):
        drift_pg.register_column(model, "docs", "embedding", model="three")


def test_registering_again_follows_a_new_index(model: psycopg.Connection) -> None:
    make_docs(model, VECTORS)
    drift_pg.register_column(model, "docs", "embedding", model="three")
    model.execute(
        "DROP INDEX docs_embedding_idx; CREATE INDEX ON docs USING hnsw ((embedding::extensions.halfvec(3)) extensions.halfvec_l2_ops)"
    )
    drift_pg.register_column(model, "docs", "embedding", model="three")
    found = one(model, "SELECT metric, index_cast FROM drift.columns")
    assert (found.metric, found.index_cast) == ("l2", "halfvec")


def test_a_column_of_another_kind_is_refused(model: psycopg.Connection) -> None:
    make_docs(model, VECTORS)
    with pytest.raises(errors.ColumnMissing, match="has type text"):
        drift_pg.register_column(model, "docs", "body", model="three")
    with pytest.raises(errors.ColumnMissing, match="has no column nope"):
        drift_pg.register_column(model, "docs", "nope", model="three")
    with pytest.raises(errors.ColumnMissing, match="there is no table nope"):
        drift_pg.register_column(model, "nope", "embedding", model="three")
    with pytest.raises(errors.ColumnMissing):
        drift_pg.register_column(model, 'docs"; DROP TABLE docs; --', "embedding", model="three")
    with pytest.raises(errors.UnknownModel, match="'four'"):
        drift_pg.register_column(model, "docs", "embedding", model="four")
    assert one(model, "SELECT count(*) AS n FROM drift.columns").n == 0


@pytest.mark.parametrize("kind", ["vector(4)", "vector"])
def test_other_dimensions_are_refused_whether_declared_or_held(model: psycopg.Connection, kind: str) -> None:
    make_docs(model, np.eye(4), kind=kind, opclass=None)
    with pytest.raises(errors.WrongDimensions, match="4 dimensions"):
        drift_pg.register_column(model, "docs", "embedding", model="three", metric="cosine")


def test_another_model_is_refused_until_the_column_is_unregistered(model: psycopg.Connection) -> None:
    drift_pg.register_model(model, "drei", dimensions=3)
    make_docs(model, VECTORS)
    drift_pg.register_column(model, "docs", "embedding", model="three")
    with pytest.raises(errors.AlreadyRegistered, match="registered with model 'three', not 'drei'"):
        drift_pg.register_column(model, "docs", "embedding", model="drei")
    drift_pg.unregister_column(model, "docs", "embedding")
    drift_pg.register_column(model, "docs", "embedding", model="drei")


def test_models_in_use_stay(model: psycopg.Connection) -> None:
    make_docs(model, VECTORS)
    drift_pg.register_column(model, "docs", "embedding", model="three")
    with pytest.raises(errors.StillInUse, match=r"column public\.docs\.embedding"):
        drift_pg.unregister_model(model, "three")
    drift_pg.unregister_column(model, "docs", "embedding")
    drift_pg.unregister_model(model, "three")
    with pytest.raises(errors.UnknownModel):
        drift_pg.unregister_model(model, "three")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("ALTER TABLE docs DROP embedding", "has no column embedding"),
        ("ALTER TABLE docs RENAME embedding TO e", "has no column embedding"),
        (
            "DROP INDEX docs_embedding_idx; ALTER TABLE docs ALTER embedding TYPE text USING embedding::text",
            "has type text",
        ),
        ("DROP TABLE docs", "the table has been dropped"),
        ("DROP INDEX docs_embedding_idx", "no index serves metric cosine"),
        (
            "DROP INDEX docs_embedding_idx; TRUNCATE docs; ALTER TABLE docs ALTER embedding TYPE extensions.vector(2)",
            "has 2 dimensions, its model 3",
        ),
    ],
)
def test_status_says_what_became_of_a_column(model: psycopg.Connection, change: str, problem: str) -> None:
    make_docs(model, VECTORS, kind="vector(3)")
    drift_pg.register_column(model, "docs", "embedding", model="three")
    model.execute("SET search_path = public, extensions")
    model.execute(change)
    assert problem in one(model, "SELECT problem FROM drift.status").problem


def test_a_dropped_table_is_forgotten_by_its_number(model: psycopg.Connection) -> None:
    make_docs(model, VECTORS)
    drift_pg.register_column(model, "docs", "embedding", model="three")
    model.execute("DROP TABLE docs")
    number = one(model, "SELECT relation::text AS relation FROM drift.columns").relation
    drift_pg.unregister_column(model, number, "embedding")
    assert one(model, "SELECT count(*) AS n FROM drift.columns").n == 0


def test_a_renamed_table_is_still_registered(model: psycopg.Connection) -> None:
    make_docs(model, VECTORS)
    drift_pg.register_column(model, "docs", "embedding", model="three")
    model.execute('ALTER TABLE docs RENAME TO "Other Docs"')
    drift_pg.register_column(model, '"Other Docs"', "embedding", model="three")
    assert one(model, "SELECT count(*) AS n FROM drift.columns").n == 1


@pytest.mark.parametrize(
    ("text", "schema", "table", "column"),
    [
        ("public.docs.embedding", "public", "docs", "embedding"),
        ("docs.embedding", "public", "docs", "embedding"),
        ("DOCS.Embedding", "public", "docs", "embedding"),
        ('"Odd.Schema"."We""ird"."Vec.Col"', "Odd.Schema", 'We"ird', "Vec.Col"),
    ],
)
def test_a_columns_name_is_read_as_sql_reads_it(
    conn: psycopg.Connection, text: str, schema: str, table: str, column: str
) -> None:
    make_docs(conn, VECTORS)
    make_docs(conn, VECTORS, schema="Odd.Schema", table='We"ird', column="Vec.Col")
    assert ColumnName.resolve(conn, text) == ColumnName(schema, table, column)


@pytest.mark.parametrize("text", ["docs", "a.b.c.d", "docs.", "", 'docs."x', "docs..embedding"])
def test_what_is_no_columns_name_is_refused(conn: psycopg.Connection, text: str) -> None:
    make_docs(conn, VECTORS)
    with pytest.raises(errors.DriftError):
        ColumnName.resolve(conn, text)


def test_a_columns_query_model_needs_an_adapter_that_serves(conn: psycopg.Connection, rng: np.random.Generator) -> None:
    upgrade = Upgrade(conn, rng)
    with pytest.raises(errors.NoActiveAdapter, match="cannot come from model 'new'"):
        drift_pg.set_query_model(conn, "docs", "embedding", "new")
    upgrade.activate()
    drift_pg.set_query_model(conn, "docs", "embedding", "new")
    assert conn.execute("SELECT query_model, problem FROM drift.status").fetchall() == [("new", None)]
    drift_pg.deactivate(conn, source="new", target="legacy")
    assert "queries come from model 'new'" in conn.execute("SELECT problem FROM drift.status").fetchone()[0]
    conn.execute("DELETE FROM drift.adapter")
    with pytest.raises(errors.StillInUse, match=r"in use by column public\.docs\.embedding"):
        drift_pg.unregister_model(conn, "new")
    drift_pg.set_query_model(conn, "docs", "embedding", None)
    drift_pg.set_query_model(conn, "docs", "embedding", "legacy")
    assert conn.execute("SELECT query_model FROM drift.columns").fetchall() == [(None,)]


@pytest.mark.parametrize(
    ("column", "model", "error"),
    [("gone", "new", errors.UnknownColumn), ("embedding", "gone", errors.UnknownModel)],
)
def test_a_query_model_of_what_is_not_there(
    conn: psycopg.Connection, rng: np.random.Generator, column: str, model: str, error: type[errors.DriftError]
) -> None:
    Upgrade(conn, rng).activate()
    with pytest.raises(error, match="not registered"):
        drift_pg.set_query_model(conn, "docs", column, model)
