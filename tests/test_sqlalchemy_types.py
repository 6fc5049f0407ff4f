"""What the types declare, what they compile to, and when a compiled statement is used again."""

from __future__ import annotations

import copy
import logging
import pickle
from typing import Any

import numpy as np
import psycopg
import pytest
from pgvector.sqlalchemy import HALFVEC, VECTOR
from psycopg import sql
from sqlalchemy import (
    BigInteger,
    Column,
    MetaData,
    Table,
    TypeDecorator,
    bindparam,
    cast,
    column,
    func,
    insert,
    literal,
    select,
    table,
    text,
    type_coerce,
    union_all,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import StatementError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, aliased, mapped_column

import drift_pg
from drift_pg.errors import InvalidDefinition, InvalidVector
from drift_pg.sqlalchemy import EmbeddingHalfVector, EmbeddingVector, adapted, nearest, raw
from tests.orm import DRIVERS, Database, activate, unit
from tests.servers import PGVECTOR_SCHEMA
from tests.tables import rotation

Q = [1.0, 2.0, 3.0]


class Base(DeclarativeBase):
    pass


class Doc(Base):
    __tablename__ = "docs"

    id: Mapped[int] = mapped_column(primary_key=True)
    embedding: Mapped[Any] = mapped_column(EmbeddingVector(3, model="old", query_model="new"))
    half: Mapped[Any] = mapped_column(EmbeddingHalfVector(3, model="old", query_model="new", metric="l2"))
    large: Mapped[Any] = mapped_column(EmbeddingVector(3072, model="old", query_model="new"))
    same: Mapped[Any] = mapped_column(EmbeddingVector(3, model="old"))
    plain: Mapped[Any] = mapped_column(EmbeddingVector(3))
    plain_half: Mapped[Any] = mapped_column(EmbeddingHalfVector(3))


class Tenant(Base):
    __tablename__ = "docs"
    __table_args__ = {"schema": "tenant"}

    id: Mapped[int] = mapped_column(primary_key=True)
    embedding: Mapped[Any] = mapped_column(EmbeddingVector(3, model="old", query_model="new"))


def compiled(expression: Any, **options: Any) -> str:
    return " ".join(str(expression.compile(dialect=postgresql.dialect(), **options)).split())


CONSTRUCTORS = [
    "EmbeddingVector()",
    "EmbeddingVector(384)",
    "EmbeddingVector(384, model='minilm-l3', query_model='minilm-l6')",
    "EmbeddingHalfVector(3072, model=\"it's\", query_model='new', metric='l1', adapt='client')",
    "EmbeddingVector(model='old', metric='inner_product')",
]


@pytest.mark.parametrize("written", CONSTRUCTORS)
def test_a_type_shows_itself_as_it_is_constructed(written: str) -> None:
    kind = eval(written)  # as in a revision
    assert repr(kind) == written
    for same in (
        kind.copy(),
        copy.copy(kind),
        pickle.loads(pickle.dumps(kind)),
        kind.with_variant(VECTOR(3), "sqlite"),
    ):
        assert repr(same) == written
        assert (same.dim, same.model, same.adapt_in) == (kind.dim, kind.model, kind.adapt_in)
    assert type(kind).__module__ == "drift_pg.sqlalchemy"


def test_types_that_differ_do_not_share_compiled_statements() -> None:
    kinds = [eval(written) for written in CONSTRUCTORS]
    kinds += [EmbeddingVector(385), EmbeddingVector(384, model="minilm-l3", query_model="other")]
    assert len({kind._static_cache_key for kind in kinds}) == len(kinds)
    assert EmbeddingVector(3)._static_cache_key == EmbeddingVector(3)._static_cache_key


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query_model": "new"}, "query_model 'new' is given, but not the model"),
        ({"dimensions": "minilm"}, "dimensions are 'minilm', expected a number"),
        ({"model": "old", "metric": "euclidean"}, "metric 'euclidean' is not one of cosine, inner_product, l2, l1"),
        ({"model": "old", "adapt": "server"}, "adapt 'server' is not one of database, client"),
    ],
)
@pytest.mark.parametrize("kind", [EmbeddingVector, EmbeddingHalfVector])
def test_a_definition_outside_its_limits_is_refused(kind: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidDefinition, match=message):
        kind(**arguments)


def test_columns_are_created_as_pgvectors() -> None:
    assert [compiled(kind) for kind in (EmbeddingVector(3, model="m"), EmbeddingHalfVector(3), EmbeddingVector())] == [
        "VECTOR(3)",
        "HALFVEC(3)",
        "VECTOR",
    ]


SIGNS = {"l2_distance": "<->", "max_inner_product": "<#>", "cosine_distance": "<=>", "l1_distance": "<+>"}
ADAPTED = "(SELECT drift.adapt_for(%(param_1)s, 'new', 'docs'::regclass, '{}'){})"


@pytest.mark.parametrize("method", SIGNS)
def test_each_distance_adapts(method: str) -> None:
    distance = {
        name: compiled(getattr(getattr(Doc, name), method)(Q)) for name in ("embedding", "half", "large", "same")
    }
    sign = SIGNS[method]
    assert distance == {
        "embedding": f"docs.embedding {sign} {ADAPTED.format('embedding', '')}",
        "half": f"docs.half {sign} {ADAPTED.format('half', '::halfvec')}",
        "large": f"CAST(docs.large AS HALFVEC(3072)) {sign} {ADAPTED.format('large', '::halfvec')}",
        "same": f"docs.same {sign} %(same_1)s".replace("same_1", "param_1"),
    }


@pytest.mark.parametrize("method", SIGNS)
def test_without_a_model_everything_is_pgvectors_own(method: str) -> None:
    docs = Table("docs", MetaData(), Column("plain", VECTOR(3)), Column("plain_half", HALFVEC(3)))
    for name in ("plain", "plain_half"):
        for value in (Q, None, bindparam("q"), docs.c.plain):
            ours, theirs = (getattr(entity, method)(value) for entity in (getattr(Doc, name), docs.c[name]))
            assert compiled(ours) == compiled(theirs)
            assert type(ours.type) is type(theirs.type)


def test_a_query_says_otherwise_explicitly() -> None:
    assert "'other', 'docs'::regclass" in compiled(Doc.embedding.cosine_distance(adapted(Q, model="other")))
    assert "'new', 'docs'::regclass" in compiled(Doc.embedding.cosine_distance(adapted(Doc.plain)))
    assert "drift.adapt_for(docs.plain, 'm'" in compiled(Doc.plain.cosine_distance(adapted(Doc.plain, model="m")))
    assert compiled(Doc.embedding.cosine_distance(raw(Q))) == "docs.embedding <=> %(param_1)s"
    assert compiled(Doc.embedding.cosine_distance(Doc.same)) == "docs.embedding <=> docs.same"
    assert compiled(Doc.embedding.cosine_distance(func.f(Q))).startswith("docs.embedding <=> f(")
    for value in (bindparam("q"), literal(Q), literal(Q, VECTOR()), type_coerce(Q, VECTOR()), cast(Q, VECTOR(3))):
        assert compiled(Doc.embedding.cosine_distance(value)).startswith("docs.embedding <=> (SELECT drift.adapt_for(")
        assert "drift" not in compiled(Doc.embedding.cosine_distance(raw(value)))


def test_expressions_are_put_in_parentheses_where_sql_needs_them() -> None:
    one = select(Doc.plain).where(Doc.id == 1)
    for expression in (Doc.plain + Doc.same, Doc.plain.op("!!")(Doc.same), Doc.plain == Doc.same):
        with_raw, bare = (compiled(Doc.embedding.cosine_distance(each)) for each in (raw(expression), expression))
        assert with_raw == bare
    for query in (one, one.scalar_subquery()):
        assert "<=> (SELECT docs.plain" in compiled(Doc.embedding.cosine_distance(raw(query)))
        assert "<=> (SELECT docs.plain" in compiled(Doc.embedding.cosine_distance(query))
        assert "drift.adapt_for((SELECT docs.plain" in compiled(Doc.embedding.cosine_distance(adapted(query)))


@pytest.mark.parametrize("sign", SIGNS.values())
def test_an_operator_written_by_hand_adapts_too(sign: str) -> None:
    assert compiled(Doc.embedding.op(sign)(Q)) == f"docs.embedding {sign} {ADAPTED.format('embedding', '')}"


def test_an_adapted_query_without_its_column_is_refused() -> None:
    with pytest.raises(InvalidDefinition, match="no embedding column"):
        compiled(select(adapted(Q, model="new")))
    with pytest.raises(InvalidDefinition, match="no embedding column"):
        compiled(column("embedding", VECTOR(3)).cosine_distance(adapted(Q, model="new")))
    with pytest.raises(InvalidDefinition, match="its model is not known"):
        compiled(Doc.same.cosine_distance(adapted(Q)))


def test_a_column_of_no_single_table_is_refused() -> None:
    both = union_all(select(Doc.embedding), select(Tenant.embedding)).subquery()
    with pytest.raises(InvalidDefinition, match="not one column of one table"):
        compiled(both.c.embedding.cosine_distance(Q))
    computed = type_coerce(func.coalesce(Doc.embedding, Doc.same), EmbeddingVector(3, model="old", query_model="new"))
    with pytest.raises(InvalidDefinition, match="not one column of one table"):
        compiled(computed.cosine_distance(Q))


def test_lightweight_tables_and_decorated_types_adapt() -> None:
    docs = table("docs", column("embedding", EmbeddingVector(3, model="old", query_model="new")), schema="s")
    assert "'s.docs'::regclass, 'embedding'" in compiled(docs.c.embedding.cosine_distance(Q))

    class Decorated(TypeDecorator[Any]):
        impl = EmbeddingVector(3, model="old", query_model="new")
        cache_ok = True

    other = Table("docs", MetaData(), Column("embedding", Decorated()))
    assert compiled(other.c.embedding.cosine_distance(Q)) == f"docs.embedding <=> {ADAPTED.format('embedding', '')}"


def test_a_cast_or_reflected_column_adapts_when_its_type_says_so() -> None:
    half = cast(Doc.embedding, EmbeddingHalfVector(3, model="old", query_model="new"))
    assert (
        compiled(half.l2_distance(Q))
        == f"CAST(docs.embedding AS HALFVEC(3)) <-> {ADAPTED.format('embedding', '::halfvec')}"
    )
    docs = Table("docs", MetaData(), Column("embedding", VECTOR(3)))
    coerced = type_coerce(docs.c.embedding, EmbeddingVector(3, model="old", query_model="new"))
    assert compiled(coerced.l2_distance(Q)) == f"docs.embedding <-> {ADAPTED.format('embedding', '')}"


def statement(q: Any, entity: Any = Doc) -> Any:
    return select(entity.id).order_by(entity.embedding.cosine_distance(q)).limit(3)


def test_no_value_is_baked_into_the_cache_key() -> None:
    key = statement(Q)._generate_cache_key()
    assert key == statement([4.0, 5.0, 6.0])._generate_cache_key()
    assert key == statement(np.ones(3))._generate_cache_key()
    assert [bind.value for bind in key.bindparams if isinstance(bind.value, list)] == [Q]
    others = [adapted(Q, model="other"), raw(Q), Doc.same, bindparam("q")]
    keys = [
        key,
        *(statement(q)._generate_cache_key() for q in others),
        statement(Q, aliased(Doc))._generate_cache_key(),
    ]
    assert all(keys)
    assert len({each.key for each in keys}) == len(keys)
    assert statement(adapted(Q, model="new"))._generate_cache_key() == key


def test_literal_binds() -> None:
    shown = compiled(statement(Q), compile_kwargs={"literal_binds": True})
    assert "docs.embedding <=> (SELECT drift.adapt_for('[1,2,3]', 'new', 'docs'::regclass, 'embedding'))" in shown


def test_other_dialects_can_show_it() -> None:
    assert "drift.adapt_for(:param_1, 'new', 'docs'::regclass, 'embedding')" in str(statement(Q))


class Tables:
    """A table in each of several schemas, all with the same vectors."""

    def __init__(self, dsn: str, schemas: list[str], models: dict[str, str]) -> None:
        rng = np.random.default_rng(7)
        self.new, self.matrix = unit(rng.standard_normal((30, 3))), rotation(rng, 3)
        with psycopg.connect(dsn, autocommit=True) as conn:
            name, extension = sql.Identifier(conn.info.dbname), sql.Identifier(PGVECTOR_SCHEMA)
            conn.execute(sql.SQL("ALTER DATABASE {} SET search_path = public, {}").format(name, extension))
            conn.execute(sql.SQL("SET search_path = public, {}").format(extension))
            for model in {"new", *models.values()}:
                drift_pg.register_model(conn, model, dimensions=3)
            for model in set(models.values()) - {"new"}:
                activate(conn, self.matrix if model == "old" else -self.matrix, "new", model)
            for schema in schemas:
                conn.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
                relation = sql.Identifier(schema, "docs")
                conn.execute(sql.SQL("CREATE TABLE {} (id bigint PRIMARY KEY, embedding vector(3))").format(relation))
                drift_pg.register_column(
                    conn, relation.as_string(None), "embedding", model=models[schema], metric="cosine"
                )

    def load(self, session: Session, docs: Any = Doc, **options: Any) -> None:
        rows = [{"id": i, "embedding": v @ self.matrix} for i, v in enumerate(self.new)]
        session.execute(insert(docs), rows, execution_options=options)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_second_execution_uses_the_compiled_statement(
    dsn: str, driver: str, caplog: pytest.LogCaptureFixture
) -> None:
    tables = Tables(dsn, ["public"], {"public": "old"})

    def ask(session: Session) -> list[list[int]]:
        tables.load(session)
        caplog.clear()
        return [list(session.scalars(statement(q))) for q in tables.new[:3]]

    with caplog.at_level(logging.INFO, logger="sqlalchemy.engine.Engine"):
        found = Database(dsn, driver).run(ask)
    assert [ids[0] for ids in found] == [0, 1, 2]
    reports = [message for message in caplog.messages if message.startswith(("[generated", "[cached", "[no key"))]
    assert [report.split()[0] for report in reports] == ["[generated", "[cached", "[cached"]
    assert "cached since" in reports[1]


@pytest.mark.parametrize("driver", DRIVERS)
def test_schema_translate_map_reaches_each_tenants_column(dsn: str, driver: str) -> None:
    odd = """it's "50%" \\ $$tenant"""
    tables = Tables(dsn, ["first", odd, "public"], {"first": "old", odd: "turned", "public": "old"})
    maps = [{"tenant": schema} for schema in ("first", odd, "public", None, "first")]

    def ask(session: Session) -> list[list[int]]:
        for each in maps[:3]:
            tables.load(session, Tenant, schema_translate_map=each)
        return [
            list(session.scalars(statement(tables.new[5], Tenant), execution_options={"schema_translate_map": each}))
            for each in maps
        ]

    nearest_ids = np.argsort(-tables.new @ tables.new[5])[:3].tolist()
    farthest = np.argsort(tables.new @ tables.new[5])[:3].tolist()
    assert Database(dsn, driver).run(ask) == [nearest_ids, farthest, nearest_ids, nearest_ids, nearest_ids]


def test_a_query_of_none_is_refused(dsn: str) -> None:
    Tables(dsn, ["public"], {"public": "old"})
    database = Database(dsn, "psycopg")
    for ask in (
        lambda s: s.scalars(statement(None)).all(),
        lambda s: s.scalars(statement(bindparam("q")), {"q": None}).all(),
        lambda s: nearest(s.connection(), Doc.embedding, None),
    ):
        with pytest.raises(InvalidVector, match="a query is None") as caught:
            database.run(ask)
        assert isinstance(caught.value, StatementError)


def test_two_columns_of_a_table_adapt_to_their_own_models(dsn: str) -> None:
    tables = Tables(dsn, ["public"], {"public": "old"})
    with psycopg.connect(dsn, autocommit=True) as conn:
        drift_pg.register_model(conn, "turned", dimensions=3)
        activate(conn, -tables.matrix, "new", "turned")
        conn.execute("ALTER TABLE docs ADD half halfvec(3)")
        drift_pg.register_column(conn, "docs", "half", model="turned", metric="cosine")

    def ask(session: Session) -> Any:
        tables.load(session)
        session.execute(text("UPDATE docs SET half = ((embedding::real[])::vector * '[-1,-1,-1]')::halfvec"))
        distances = [getattr(Doc, name).cosine_distance(tables.new[4]).label(name) for name in ("embedding", "half")]
        return session.execute(select(*distances).where(Doc.id == 4)).one()

    assert list(Database(dsn, "psycopg").run(ask)) == pytest.approx([0, 0], abs=1e-3)


def test_a_query_model_that_is_the_columns_own_needs_no_adapter(dsn: str) -> None:
    tables = Tables(dsn, ["public"], {"public": "new"})

    class Same(DeclarativeBase):
        pass

    class Item(Same):
        __tablename__ = "docs"
        id: Mapped[int] = mapped_column(primary_key=True)
        embedding: Mapped[Any] = mapped_column(EmbeddingVector(3, model="new", query_model="new"))

    def ask(session: Session) -> Any:
        session.execute(insert(Item), [{"id": i, "embedding": v} for i, v in enumerate(tables.new)])
        return session.scalars(statement(tables.new[6], Item)).first()

    assert Database(dsn, "psycopg").run(ask) == 6


def test_big_integers_and_other_columns_are_left_alone() -> None:
    docs = Table("docs", MetaData(), Column("id", BigInteger), Column("embedding", EmbeddingVector(3, model="old")))
    assert compiled(docs.c.embedding == raw(Q)) == "docs.embedding = %(param_1)s"
    assert compiled(docs.c.embedding.is_(None)) == "docs.embedding IS NULL"
