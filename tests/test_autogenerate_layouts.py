"""Autogenerate in other layouts: schemas, filters, indexes, branches, search paths, drivers, odd names."""

import ast
from pathlib import Path

import numpy as np
import psycopg
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from pgvector.sqlalchemy import HALFVEC, VECTOR
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from drift_pg.sqlalchemy import EmbeddingHalfVector, EmbeddingVector
from tests import servers
from tests.alembic_project import url
from tests.autogenerating import DIMENSIONS, Generated, bodies, calls, docs, hnsw

pytestmark = pytest.mark.one_postgresql

LEGACY = EmbeddingVector(DIMENSIONS, model="legacy")
UPGRADED = EmbeddingVector(DIMENSIONS, model="legacy", query_model="new")


@pytest.fixture
def project(bare_dsn: str, tmp_path: Path, rng: np.random.Generator) -> Generated:
    with psycopg.connect(bare_dsn, autocommit=True) as conn:
        servers.install_pgvector(conn)
    return Generated(tmp_path / "history", bare_dsn, rng)


def test_several_schemas_and_odd_names(project: Generated) -> None:
    schema, table, column = 'odd "schema" %s', 'Weird "50% :x" Table\'s', "Vec 'Col' :y %"

    def declare(query_model: str | None) -> sa.MetaData:
        kind = EmbeddingVector(DIMENSIONS, model="v/mödel's:1 %", query_model=query_model)
        metadata = docs(kind, hnsw())
        odd = sa.Table(table, metadata, sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False), sa.Column(column, kind, key="vectors"), schema=schema)  # fmt: skip
        sa.Index(
            'odd "index" %', odd.c.vectors, postgresql_using="hnsw", postgresql_ops={"vectors": "vector_cosine_ops"}
        )
        return metadata

    project.run(f"""CREATE SCHEMA "{schema.replace('"', '""')}" """.replace("%", "%"))
    project.options = {"include_schemas": True, "include_name": lambda name, kind, _: kind != "schema" or name in (None, schema, "drift", "extensions")}  # fmt: skip
    project.metadata = declare(None)
    upgrade, _ = project.step()
    assert calls(upgrade).count("set_embedding_model") == 2
    assert calls(upgrade).count("create_vector_index") == 2

    project.export("new", "v/mödel's:1 %", "odd")
    project.metadata = declare("new")
    upgrade, _ = project.step()
    assert calls(upgrade) == ["register_embedding_model", "activate_adapter", "set_query_model", "set_query_model"]

    project.metadata = sa.MetaData()
    upgrade, _ = project.step()
    assert calls(upgrade).count("drop_vector_index") == 2
    assert calls(upgrade)[-2:] == ["drop_table", "drop_table"]


def test_an_empty_column_of_odd_names_is_guarded(project: Generated) -> None:
    table, column = 'Weird "50% :x" Table\'s', "Vec 'Col' :y %"
    project.declare(None, sa.Column(column, LEGACY), name=table).step()
    project.declare(None, sa.Column(column, EmbeddingVector(DIMENSIONS, model="new")), name=table).step()
    with project.connection() as conn:
        conn.execute(
            f"""INSERT INTO "{table.replace('"', '""')}" (id, "{column}") VALUES (1, array_fill(1, '{{24}}')::real[])"""
        )
    with pytest.raises(sa.exc.DBAPIError, match="holds vectors, whose model cannot be changed"):
        project.downgrade()


def test_schema_drift_is_never_proposed(project: Generated) -> None:
    project.options = {"include_schemas": True}
    project.declare(LEGACY, hnsw()).step()
    assert project.operations() == []
    project.declare(None)
    upgrade, _ = project.generate()
    assert "'drift'" not in upgrade


def test_several_columns_share_a_model_and_an_adapter(project: Generated) -> None:
    project.declare(LEGACY, sa.Column("title", LEGACY)).step()
    project.export("new", "legacy")
    upgrade, _ = project.declare(UPGRADED, sa.Column("title", UPGRADED)).step()
    assert calls(upgrade) == ["register_embedding_model", "activate_adapter", "set_query_model", "set_query_model"]

    upgrade, _ = project.declare(UPGRADED, sa.Column("title", UPGRADED), sa.Column("summary", UPGRADED)).step()
    assert calls(upgrade) == ["add_column", "set_embedding_model", "set_query_model"]
    project.downgrade()
    assert project.run("SELECT count(*) FROM drift.adapters WHERE status = 'active'") == [(1,)]


def test_columns_of_one_table_are_upgraded_one_after_the_other(project: Generated) -> None:
    project.declare(LEGACY, sa.Column("title", LEGACY)).step()
    project.export("new", "legacy")
    project.declare(UPGRADED, sa.Column("title", LEGACY)).step()
    upgrade, downgrade = project.declare(UPGRADED, sa.Column("title", UPGRADED)).step()
    assert upgrade == "op.set_query_model('docs', 'title', 'new')"
    assert downgrade == "op.set_query_model('docs', 'title', None, existing_query_model='new')"
    project.downgrade()  # the first column is still searched through the adapter that the earlier revision brought
    assert project.run("SELECT column_name FROM drift.columns WHERE query_model = 'new' AND problem IS NULL") == [("embedding",)]  # fmt: skip


def test_filters_of_the_user_are_kept(project: Generated) -> None:
    project.options = {"include_object": lambda thing, name, kind, reflected, other: name not in ("docs", "hidden")}
    assert project.declare(LEGACY, hnsw()).operations() == []
    upgrade, _ = project.declare(LEGACY, sa.Column("hidden", LEGACY), name="seen").generate()
    assert calls(upgrade) == ["install_drift", "register_embedding_model", "create_table", *["set_embedding_model"] * 2]
    project.upgrade()
    project.declare(LEGACY, sa.Column("hidden", UPGRADED), name="seen").nothing_left()
    project.metadata = docs(None, name="seen")
    upgrade, _ = project.generate()
    assert calls(upgrade) == ["set_embedding_model", "drop_column"]


def test_a_name_filter_hides_tables_that_hold_registered_columns(project: Generated) -> None:
    project.declare(LEGACY).step()
    project.options = {"include_name": lambda name, kind, parents: (kind, name) != ("table", "docs")}
    project.metadata = sa.MetaData()
    project.nothing_left()


def test_several_metadata(project: Generated) -> None:
    project.metadata = [docs(LEGACY), docs(LEGACY, name="others")]  # type: ignore[assignment]
    upgrade, _ = project.step()
    assert calls(upgrade).count("create_table") == 2


@pytest.mark.parametrize("statement", [
    "CREATE INDEX by_hand ON docs USING hnsw (embedding vector_cosine_ops) WITH (m = 8)",
    "CREATE INDEX by_hand ON docs USING ivfflat (embedding vector_l2_ops) WITH (lists = 1)",
    "CREATE INDEX by_hand ON docs USING hnsw ((embedding::halfvec(24)) halfvec_cosine_ops) WHERE id > 3",
])  # fmt: skip
def test_indexes_that_no_class_declares_stay(project: Generated, statement: str) -> None:
    project.declare(LEGACY).step()
    project.run("SET search_path = public, extensions; " + statement)
    project.nothing_left()


@pytest.mark.parametrize("statement", [
    "CREATE INDEX by_hand ON docs USING hnsw (embedding vector_cosine_ops) WITH (m = 8, ef_construction = 40)",
    "CREATE INDEX by_hand ON docs USING ivfflat (embedding vector_l2_ops) WITH (lists = 1)",
])  # fmt: skip
def test_an_index_that_no_class_declares_goes_and_comes_back_with_its_column(
    project: Generated, statement: str
) -> None:
    project.declare(LEGACY).step()
    project.run("SET search_path = public, extensions; " + statement)
    before = project.run("SELECT indexdef FROM pg_indexes WHERE indexname = 'by_hand'")
    upgrade, _ = project.declare(None).step()
    assert calls(upgrade) == ["set_embedding_model", "drop_vector_index", "drop_column"]
    project.downgrade()
    assert project.run("SELECT indexdef FROM pg_indexes WHERE indexname = 'by_hand'") == before


def test_an_index_is_added_to_an_existing_table_without_blocking_it(project: Generated) -> None:
    project.declare(LEGACY).step()
    project.fill()
    upgrade, downgrade = project.declare(LEGACY, hnsw(postgresql_with={"m": 8, "ef_construction": 32})).step()
    assert calls(upgrade) == ["create_vector_index"]
    assert calls(downgrade) == ["drop_vector_index"]
    assert "concurrently" not in upgrade
    assert project.run("SELECT reloptions FROM pg_class WHERE relname = 'docs_embedding'") == [
        (["m=8", "ef_construction=32"],)
    ]


def test_an_index_that_is_declared_otherwise_is_built_anew(project: Generated) -> None:
    project.declare(LEGACY, sa.Column("title", LEGACY), hnsw()).step()
    project.fill()
    upgrade, downgrade = project.declare(LEGACY, sa.Column("title", LEGACY), hnsw(column="title")).step()
    assert calls(upgrade) == calls(downgrade) == ["drop_vector_index", "create_vector_index"]


def test_an_inner_product_index_of_half_precision(project: Generated) -> None:
    kind = EmbeddingHalfVector(DIMENSIONS, model="legacy", metric="inner_product")
    index = sa.Index("ip", "embedding", postgresql_using="ivfflat", postgresql_with={"lists": 2}, postgresql_ops={"embedding": "halfvec_ip_ops"})  # fmt: skip
    project.declare(kind, index).step()
    assert project.run("SELECT metric, indexes FROM drift.columns") == [("inner_product", 1)]


@pytest.mark.parametrize("form", ["plain", "cast", "labelled"])
def test_an_index_above_2000_dimensions_is_of_the_cast(project: Generated, form: str) -> None:
    kind = EmbeddingVector(3072, model="large")

    def index() -> sa.MetaData:
        metadata = docs(kind)
        column = metadata.tables["docs"].c.embedding
        cast = sa.cast(column, HALFVEC(3072))
        expression = {"plain": column, "cast": cast, "labelled": cast.label("half")}[form]
        ops = {"half" if form == "labelled" else "embedding": "vector_cosine_ops" if form == "plain" else "halfvec_cosine_ops"}  # fmt: skip
        sa.Index("large", expression, postgresql_using="hnsw", postgresql_ops=ops)
        return metadata

    project.metadata = index()
    upgrade, _ = project.step()
    assert calls(upgrade)[-1] == "create_vector_index"
    assert project.run("SELECT indexes, index_cast FROM drift.columns") == [(1, "halfvec")]


def test_a_partial_index_is_created_by_alembic_itself(project: Generated) -> None:
    upgrade, _ = project.declare(LEGACY, hnsw(postgresql_where=sa.text("id > 3"))).step()
    assert "create_index" in calls(upgrade)
    assert "create_vector_index" not in calls(upgrade)


def test_other_indexes_are_alembics(project: Generated) -> None:
    upgrade, _ = project.declare(LEGACY, sa.Index("by_body", "body")).step()
    assert "create_index" in calls(upgrade)
    upgrade, _ = project.declare(LEGACY).step()
    assert calls(upgrade) == ["drop_index"]


@pytest.mark.parametrize("search_path", ["public", "public,extensions"])
def test_pgvector_need_not_be_on_the_search_path(project: Generated, search_path: str) -> None:
    project.declare(LEGACY, sa.Column("plain", VECTOR(3)), sa.Column("half", HALFVEC(5)), hnsw()).step()
    project.search_path = search_path
    assert project.operations() == []
    project.declare(
        EmbeddingVector(32, model="new"), sa.Column("plain", VECTOR(4)), sa.Column("half", HALFVEC(5)), hnsw()
    )
    altered = [op for table in project.operations() for op in getattr(table, "ops", [])]
    assert [(op.column_name, op.existing_type.dim) for op in altered] == [("embedding", DIMENSIONS), ("plain", 3)]


def test_a_column_named_otherwise_in_the_class(project: Generated) -> None:
    def classes(kind: object) -> sa.MetaData:
        class Base(DeclarativeBase):
            pass

        class Doc(Base):
            __tablename__ = "docs"
            id: Mapped[int] = mapped_column(primary_key=True)
            vectors: Mapped[object] = mapped_column("embedding", kind)
            __table_args__ = (hnsw(),)

        return Base.metadata

    project.metadata = classes(LEGACY)
    project.step()
    project.export("new", "legacy")
    project.metadata = classes(UPGRADED)
    upgrade, _ = project.step()
    assert "op.set_query_model('docs', 'embedding', 'new')" in upgrade


def test_a_type_within_a_decorator_or_a_variant(project: Generated) -> None:
    class Decorated(sa.types.TypeDecorator):
        impl = EmbeddingVector
        cache_ok = True

    project.options = {"render_item": lambda kind, thing, context: False}
    project.declare(
        sa.Text().with_variant(LEGACY, "postgresql"),
        sa.Column("decorated", Decorated(DIMENSIONS, model="legacy")),
    )
    assert [type(each).__name__ for each in project.operations()].count("SetEmbeddingModelOp") == 2


def test_tables_may_name_the_default_schema(project: Generated) -> None:
    upgrade, _ = project.declare(LEGACY, hnsw(), schema="public").step()
    assert "concurrently=False" in upgrade
    project.export("new", "legacy")
    project.declare(UPGRADED, hnsw(), schema="public").step()


def test_two_branches(project: Generated) -> None:
    project.declare(LEGACY).step()
    start = ScriptDirectory.from_config(project.config()).get_current_head()
    project.write("left", "pass", "pass", start)
    project.write("right", "pass", "pass", start)
    project.upgrade("heads")
    project.export("new", "legacy")
    project.declare(UPGRADED)
    script = command.revision(project.config(), message="on the left", autogenerate=True, head="left")
    assert calls(bodies(Path(script.path))[0]) == ["register_embedding_model", "activate_adapter", "set_query_model"]
    project.upgrade("heads")
    script = command.revision(project.config(), message="on the right", autogenerate=True, head="right")
    assert bodies(Path(script.path)) == ("pass", "pass")


def test_batch_mode(project: Generated) -> None:
    project.options = {"render_as_batch": True}
    project.declare(LEGACY).step()
    upgrade, _ = project.declare(LEGACY, sa.Column("title", LEGACY)).step()
    assert calls(upgrade) == ["set_embedding_model"]
    assert "batch_op.add_column" in upgrade


def test_an_import_only_of_what_is_rendered(project: Generated) -> None:
    project.declare(LEGACY).generate()
    assert imports(project.path) == {"drift_pg.sqlalchemy"}
    project.upgrade()
    project.export("new", "legacy")
    project.declare(UPGRADED).generate()
    assert imports(project.path) == set()
    project.upgrade()
    project.declare(UPGRADED, sa.Column("half", HALFVEC(3)), name="docs").generate()
    assert imports(project.path) == {"pgvector.sqlalchemy"}
    project.upgrade()
    project.declare(None).generate()
    assert imports(project.path) == {"pgvector.sqlalchemy"}  # for the downgrade
    project.upgrade()
    project.downgrade()


def imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    named = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return named - {"sqlalchemy"}


def test_the_template_for_async_engines(project: Generated, tmp_path: Path) -> None:
    project.run(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, extensions', current_database()); END $$"
    )
    folder = tmp_path / "asynchronous"
    config = Config(tmp_path / "alembic.ini")
    command.init(config, str(folder), template="async")
    env = folder / "env.py"
    text = env.read_text().replace("target_metadata = None", 'target_metadata = config.attributes["metadata"]')
    configured = "context.configure(connection=connection, target_metadata=target_metadata"
    assert configured in text
    text = text.replace(
        configured,
        configured + ', transaction_per_migration=True, autogenerate_plugins=["alembic.autogenerate.*", "drift_pg"]',
    )
    env.write_text(text)
    config.set_main_option(
        "sqlalchemy.url", url(project.dsn, "asyncpg").render_as_string(hide_password=False).replace("%", "%%")
    )
    config.attributes["configure_logger"] = False

    def generate(metadata: sa.MetaData) -> list[str]:
        config.attributes["metadata"] = metadata
        script = command.revision(config, message="generated", autogenerate=True)
        return calls(bodies(Path(script.path))[0])

    assert generate(docs(LEGACY, hnsw())) == [
        "install_drift", "register_embedding_model", "create_table", "set_embedding_model", "create_vector_index",
    ]  # fmt: skip
    command.upgrade(config, "head")
    project.fill()
    (folder / "adapters").symlink_to(project.folder / "adapters")
    project.export("new", "legacy")
    assert generate(docs(UPGRADED, hnsw())) == ["register_embedding_model", "activate_adapter", "set_query_model"]
    command.upgrade(config, "head")
    assert generate(docs(UPGRADED, hnsw())) == []
    command.downgrade(config, "base")
    assert project.run("SELECT to_regnamespace('drift')") == [(None,)]
