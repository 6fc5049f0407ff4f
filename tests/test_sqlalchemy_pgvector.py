"""pgvector-python's own tests of its SQLAlchemy types, with drift_pg's types in their place.

A copy of tests/test_sqlalchemy.py of https://github.com/pgvector/pgvector-python at commit 33293bfd7e.
Changed for this suite: VECTOR and HALFVEC are EmbeddingVector and EmbeddingHalfVector without a model; the engines
are fixtures on this suite's servers, of the drivers that are installed, and pg8000 is left out; tables and indexes are
made by a fixture; the coroutines are run by `asyncio.run`, not by a plugin; a reflected column is asserted to be
pgvector's own type, which is what reflection goes on returning; bit strings of asyncpg are compared as
text, since SQLAlchemy 2.1 wraps them; NumPy is always there. And it is formatted as the rest of this suite.

The MIT License (MIT)

Copyright (c) 2021-2026 Andrew Kane

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in
all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN
THE SOFTWARE."""

# ruff: noqa: A004, N814, PT018, SIM117 (as the original is written)
from __future__ import annotations

import asyncio
import functools
import importlib.util
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import asyncpg
import numpy as np
import psycopg
import pytest
from pgvector import SparseVector
from pgvector.sqlalchemy import BIT, SPARSEVEC, avg, sum
from pgvector.sqlalchemy import VECTOR as REFLECTED
from sqlalchemy import (
    ARRAY,
    Column,
    Engine,
    Index,
    Integer,
    MetaData,
    NullPool,
    Table,
    create_engine,
    event,
    insert,
    inspect,
    select,
)
from sqlalchemy.exc import StatementError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.ext.automap import automap_base
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.sql import func

from drift_pg.sqlalchemy import EmbeddingHalfVector as HALFVEC
from drift_pg.sqlalchemy import EmbeddingVector as VECTOR
from tests import servers
from tests.orm import Database

pytestmark = pytest.mark.one_postgresql

PSYCOPG2 = ["psycopg2", "psycopg2 registered"] if importlib.util.find_spec("psycopg2") else []
engines = ["psycopg", "psycopg registered", *PSYCOPG2]
array_engines = ["psycopg registered", *PSYCOPG2[1:]]
async_engines = ["psycopg", "psycopg registered", "asyncpg"]
async_array_engines = ["psycopg registered", "asyncpg"]


def register(dbapi_connection: Any, driver: str, is_async: bool) -> None:
    if driver == "psycopg2":
        from pgvector.psycopg2 import register_vector as register_psycopg2

        register_psycopg2(dbapi_connection)
    elif is_async:
        from pgvector.psycopg import register_vector_async

        dbapi_connection.run_async(register_vector_async)
    else:
        from pgvector.psycopg import register_vector

        register_vector(dbapi_connection)


@pytest.fixture(scope="module", autouse=True)
def dsn(server: str) -> Iterator[str]:
    """A database with pgvector and without drift_pg, and the tables and indexes of the original."""
    global setup_engine
    with servers.database(server) as name:
        with psycopg.connect(name, autocommit=True) as conn:
            servers.install_pgvector(conn, "public")
        setup_engine = create_engine(Database(name, "psycopg").url, poolclass=NullPool)
        Base.metadata.create_all(setup_engine)
        yield name


@pytest.fixture
def engine(dsn: str, request: pytest.FixtureRequest) -> Any:
    """Of the driver that the test's class names."""
    driver, *registered = request.param.split()
    is_async = "Async" in request.cls.__name__
    made = (create_async_engine if is_async else create_engine)(Database(dsn, driver).url, poolclass=NullPool)
    if registered:

        @event.listens_for(getattr(made, "sync_engine", made), "connect")
        def connect(dbapi_connection: Any, connection_record: Any) -> None:
            register(dbapi_connection, driver, is_async)

    return made


def str_of(bits: Any) -> str:
    """SQLAlchemy 2.1 gives asyncpg's bit strings as its own."""
    return bits.as_string() if isinstance(bits, asyncpg.BitString) else str(bits)


def coroutine(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test without a plugin for coroutines."""

    @functools.wraps(test)
    def run(*args: Any, **arguments: Any) -> None:
        asyncio.run(test(*args, **arguments))

    return run


class Base(DeclarativeBase):
    pass


class Item(Base):
    __tablename__ = "sqlalchemy_orm_item"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    embedding: Mapped[list[float] | None] = mapped_column(VECTOR(3))
    half_embedding: Mapped[list[float] | None] = mapped_column(HALFVEC(3))
    binary_embedding: Mapped[Any | None] = mapped_column(BIT(3))
    sparse_embedding: Mapped[SparseVector | None] = mapped_column(SPARSEVEC(3))
    embeddings: Mapped[list[list[float]] | None] = mapped_column(ARRAY(VECTOR(3), dimensions=1))
    half_embeddings: Mapped[list[list[float]] | None] = mapped_column(ARRAY(HALFVEC(3), dimensions=1))


index = Index(
    "sqlalchemy_orm_index",
    Item.embedding,
    postgresql_using="hnsw",
    postgresql_with={"m": 16, "ef_construction": 64},
    postgresql_ops={"embedding": "vector_l2_ops"},
)

half_precision_index = Index(
    "sqlalchemy_orm_half_precision_index",
    func.cast(Item.embedding, HALFVEC(3)).label("embedding"),
    postgresql_using="hnsw",
    postgresql_ops={"embedding": "halfvec_l2_ops"},
)

binary_quantize_index = Index(
    "sqlalchemy_orm_binary_quantize_index",
    func.cast(func.binary_quantize(Item.embedding), BIT(3)).label("embedding"),
    postgresql_using="hnsw",
    postgresql_ops={"embedding": "bit_hamming_ops"},
)


def create_items() -> None:
    with Session(setup_engine) as session:
        session.add(
            Item(
                id=1,
                embedding=[1, 1, 1],
                half_embedding=[1, 1, 1],
                binary_embedding="000",
                sparse_embedding=SparseVector([1, 1, 1]),
            )
        )
        session.add(
            Item(
                id=2,
                embedding=[2, 2, 2],
                half_embedding=[2, 2, 2],
                binary_embedding="101",
                sparse_embedding=SparseVector([2, 2, 2]),
            )
        )
        session.add(
            Item(
                id=3,
                embedding=[1, 1, 2],
                half_embedding=[1, 1, 2],
                binary_embedding="111",
                sparse_embedding=SparseVector([1, 1, 2]),
            )
        )
        session.commit()


def delete_items() -> None:
    with Session(setup_engine) as session:
        session.query(Item).delete()
        session.commit()


@pytest.mark.parametrize("engine", engines, indirect=True)
class TestSqlalchemy:
    def setup_method(self) -> None:
        delete_items()

    def test_core(self, engine: Engine) -> None:
        metadata = MetaData()

        item_table = Table(
            "sqlalchemy_core_item",
            metadata,
            Column("id", Integer, primary_key=True),
            Column("embedding", VECTOR(3)),
            Column("half_embedding", HALFVEC(3)),
            Column("binary_embedding", BIT(3)),
            Column("sparse_embedding", SPARSEVEC(3)),
            Column("embeddings", ARRAY(VECTOR(3))),
        )

        metadata.drop_all(engine)
        metadata.create_all(engine)

        ivfflat_index = Index(
            "sqlalchemy_core_ivfflat_index",
            item_table.c.embedding,
            postgresql_using="ivfflat",
            postgresql_with={"lists": 1},
            postgresql_ops={"embedding": "vector_l2_ops"},
        )
        ivfflat_index.create(engine)

        hnsw_index = Index(
            "sqlalchemy_core_hnsw_index",
            item_table.c.embedding,
            postgresql_using="hnsw",
            postgresql_with={"m": 16, "ef_construction": 64},
            postgresql_ops={"embedding": "vector_l2_ops"},
        )
        hnsw_index.create(engine)

    def test_orm(self, engine: Engine) -> None:
        item = Item(embedding=[1.5, 2, 3])
        item2 = Item(embedding=[4, 5, 6])
        item3 = Item()

        with Session(engine) as session:
            session.add(item)
            session.add(item2)
            session.add(item3)
            session.commit()

        stmt = select(Item)
        with Session(engine) as session:
            items = [v[0] for v in session.execute(stmt).all()]
            # TODO improve
            assert items[0].id % 3 == 1
            assert items[1].id % 3 == 2
            assert items[2].id % 3 == 0
            assert items[0].embedding == [1.5, 2, 3]
            assert items[1].embedding == [4, 5, 6]
            assert items[2].embedding is None

    def test_vector(self, engine: Engine) -> None:
        with Session(engine) as session:
            session.add(Item(id=1, embedding=[1, 2, 3]))
            session.commit()
            item = session.get_one(Item, 1)
            assert item.embedding == [1, 2, 3]

    def test_vector_l2_distance(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.query(Item).order_by(Item.embedding.l2_distance([1, 1, 1])).all()
            assert [v.id for v in items] == [1, 3, 2]

    def test_vector_l2_distance_orm(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.scalars(select(Item).order_by(Item.embedding.l2_distance([1, 1, 1])))
            assert [v.id for v in items] == [1, 3, 2]

    def test_vector_max_inner_product(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.query(Item).order_by(Item.embedding.max_inner_product([1, 1, 1])).all()
            assert [v.id for v in items] == [2, 3, 1]

    def test_vector_max_inner_product_orm(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.scalars(select(Item).order_by(Item.embedding.max_inner_product([1, 1, 1])))
            assert [v.id for v in items] == [2, 3, 1]

    def test_vector_cosine_distance(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.query(Item).order_by(Item.embedding.cosine_distance([1, 1, 1])).all()
            assert [v.id for v in items] == [1, 2, 3]

    def test_vector_cosine_distance_orm(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.scalars(select(Item).order_by(Item.embedding.cosine_distance([1, 1, 1])))
            assert [v.id for v in items] == [1, 2, 3]

    def test_vector_l1_distance(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.query(Item).order_by(Item.embedding.l1_distance([1, 1, 1])).all()
            assert [v.id for v in items] == [1, 3, 2]

    def test_vector_l1_distance_orm(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.scalars(select(Item).order_by(Item.embedding.l1_distance([1, 1, 1])))
            assert [v.id for v in items] == [1, 3, 2]

    def test_halfvec(self, engine: Engine) -> None:
        with Session(engine) as session:
            session.add(Item(id=1, half_embedding=[1, 2, 3]))
            session.commit()
            item = session.get_one(Item, 1)
            assert item.half_embedding == [1, 2, 3]

    def test_halfvec_l2_distance(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.query(Item).order_by(Item.half_embedding.l2_distance([1, 1, 1])).all()
            assert [v.id for v in items] == [1, 3, 2]

    def test_halfvec_l2_distance_orm(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.scalars(select(Item).order_by(Item.half_embedding.l2_distance([1, 1, 1])))
            assert [v.id for v in items] == [1, 3, 2]

    def test_halfvec_max_inner_product(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.query(Item).order_by(Item.half_embedding.max_inner_product([1, 1, 1])).all()
            assert [v.id for v in items] == [2, 3, 1]

    def test_halfvec_max_inner_product_orm(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.scalars(select(Item).order_by(Item.half_embedding.max_inner_product([1, 1, 1])))
            assert [v.id for v in items] == [2, 3, 1]

    def test_halfvec_cosine_distance(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.query(Item).order_by(Item.half_embedding.cosine_distance([1, 1, 1])).all()
            assert [v.id for v in items] == [1, 2, 3]

    def test_halfvec_cosine_distance_orm(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.scalars(select(Item).order_by(Item.half_embedding.cosine_distance([1, 1, 1])))
            assert [v.id for v in items] == [1, 2, 3]

    def test_halfvec_l1_distance(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.query(Item).order_by(Item.half_embedding.l1_distance([1, 1, 1])).all()
            assert [v.id for v in items] == [1, 3, 2]

    def test_halfvec_l1_distance_orm(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.scalars(select(Item).order_by(Item.half_embedding.l1_distance([1, 1, 1])))
            assert [v.id for v in items] == [1, 3, 2]

    def test_bit(self, engine: Engine) -> None:
        with Session(engine) as session:
            session.add(Item(id=1, binary_embedding="101"))
            session.commit()
            item = session.get_one(Item, 1)
            assert item.binary_embedding == "101"

    def test_bit_hamming_distance(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.query(Item).order_by(Item.binary_embedding.hamming_distance("101")).all()
            assert [v.id for v in items] == [2, 3, 1]

    def test_bit_hamming_distance_orm(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.scalars(select(Item).order_by(Item.binary_embedding.hamming_distance("101")))
            assert [v.id for v in items] == [2, 3, 1]

    def test_bit_jaccard_distance(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.query(Item).order_by(Item.binary_embedding.jaccard_distance("101")).all()
            assert [v.id for v in items] == [2, 3, 1]

    def test_bit_jaccard_distance_orm(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.scalars(select(Item).order_by(Item.binary_embedding.jaccard_distance("101")))
            assert [v.id for v in items] == [2, 3, 1]

    def test_sparsevec(self, engine: Engine) -> None:
        with Session(engine) as session:
            session.add(Item(id=1, sparse_embedding=[1, 2, 3]))
            session.commit()
            item = session.get_one(Item, 1)
            assert item.sparse_embedding == SparseVector([1, 2, 3])

    def test_sparsevec_l2_distance(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.query(Item).order_by(Item.sparse_embedding.l2_distance([1, 1, 1])).all()
            assert [v.id for v in items] == [1, 3, 2]

    def test_sparsevec_l2_distance_orm(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.scalars(select(Item).order_by(Item.sparse_embedding.l2_distance([1, 1, 1])))
            assert [v.id for v in items] == [1, 3, 2]

    def test_sparsevec_max_inner_product(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.query(Item).order_by(Item.sparse_embedding.max_inner_product([1, 1, 1])).all()
            assert [v.id for v in items] == [2, 3, 1]

    def test_sparsevec_max_inner_product_orm(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.scalars(select(Item).order_by(Item.sparse_embedding.max_inner_product([1, 1, 1])))
            assert [v.id for v in items] == [2, 3, 1]

    def test_sparsevec_cosine_distance(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.query(Item).order_by(Item.sparse_embedding.cosine_distance([1, 1, 1])).all()
            assert [v.id for v in items] == [1, 2, 3]

    def test_sparsevec_cosine_distance_orm(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.scalars(select(Item).order_by(Item.sparse_embedding.cosine_distance([1, 1, 1])))
            assert [v.id for v in items] == [1, 2, 3]

    def test_sparsevec_l1_distance(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.query(Item).order_by(Item.sparse_embedding.l1_distance([1, 1, 1])).all()
            assert [v.id for v in items] == [1, 3, 2]

    def test_sparsevec_l1_distance_orm(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.scalars(select(Item).order_by(Item.sparse_embedding.l1_distance([1, 1, 1])))
            assert [v.id for v in items] == [1, 3, 2]

    def test_subquery(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            subquery = select(Item.embedding).filter_by(id=1).scalar_subquery()
            items = session.query(Item).order_by(Item.embedding.l2_distance(subquery)).all()
            assert [v.id for v in items] == [1, 3, 2]

    def test_subquery_orm(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            subquery = select(Item.embedding).filter_by(id=1).scalar_subquery()
            items = session.scalars(select(Item).order_by(Item.embedding.l2_distance(subquery)))
            assert [v.id for v in items] == [1, 3, 2]

    def test_filter(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.query(Item).filter(Item.embedding.l2_distance([1, 1, 1]) < 1).all()
            assert [v.id for v in items] == [1]

    def test_filter_orm(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.scalars(select(Item).filter(Item.embedding.l2_distance([1, 1, 1]) < 1))
            assert [v.id for v in items] == [1]

    def test_select(self, engine: Engine) -> None:
        with Session(engine) as session:
            session.add(Item(embedding=[2, 3, 3]))
            items = session.query(Item.embedding.l2_distance([1, 1, 1])).first()
            assert items == (3,)

    def test_select_orm(self, engine: Engine) -> None:
        with Session(engine) as session:
            session.add(Item(embedding=[2, 3, 3]))
            items = session.scalars(select(Item.embedding.l2_distance([1, 1, 1]))).all()
            assert items == [3]

    def test_avg(self, engine: Engine) -> None:
        with Session(engine) as session:
            res = session.query(avg(Item.embedding)).one()[0]
            assert res is None
            session.add(Item(embedding=[1, 2, 3]))
            session.add(Item(embedding=[4, 5, 6]))
            res = session.query(avg(Item.embedding)).one()[0]
            assert res == [2.5, 3.5, 4.5]

    def test_avg_orm(self, engine: Engine) -> None:
        with Session(engine) as session:
            res = session.scalars(select(avg(Item.embedding))).first()
            assert res is None
            session.add(Item(embedding=[1, 2, 3]))
            session.add(Item(embedding=[4, 5, 6]))
            res = session.scalars(select(avg(Item.embedding))).one()
            assert res == [2.5, 3.5, 4.5]

    def test_sum(self, engine: Engine) -> None:
        with Session(engine) as session:
            res = session.query(sum(Item.embedding)).one()[0]
            assert res is None
            session.add(Item(embedding=[1, 2, 3]))
            session.add(Item(embedding=[4, 5, 6]))
            res = session.query(sum(Item.embedding)).one()[0]
            assert res == [5, 7, 9]

    def test_sum_orm(self, engine: Engine) -> None:
        with Session(engine) as session:
            res = session.scalars(select(sum(Item.embedding))).first()
            assert res is None
            session.add(Item(embedding=[1, 2, 3]))
            session.add(Item(embedding=[4, 5, 6]))
            res = session.scalars(select(sum(Item.embedding))).one()
            assert res == [5, 7, 9]

    def test_bad_dimensions(self, engine: Engine) -> None:
        item = Item(embedding=[1, 2])
        with Session(engine) as session:
            session.add(item)
            with pytest.raises(StatementError, match="expected 3 dimensions, not 2"):
                session.commit()

    def test_bad_ndim(self, engine: Engine) -> None:
        item = Item(embedding=np.array([[1, 2, 3]]))
        with Session(engine) as session:
            session.add(item)
            with pytest.raises(StatementError, match="expected ndim to be 1"):
                session.commit()

    def test_bad_dtype(self, engine: Engine) -> None:
        item = Item(embedding=np.array(["one", "two", "three"]))
        with Session(engine) as session:
            session.add(item)
            with pytest.raises(StatementError, match="could not convert string to float"):
                session.commit()

    def test_inspect(self, engine: Engine) -> None:
        columns = inspect(engine).get_columns("sqlalchemy_orm_item")
        assert isinstance(columns[1]["type"], REFLECTED)

    def test_literal_binds(self, engine: Engine) -> None:
        sql = (
            select(Item)
            .order_by(Item.embedding.l2_distance([1, 2, 3]))
            .compile(engine, compile_kwargs={"literal_binds": True})
        )
        assert "embedding <-> '[1.0,2.0,3.0]'" in str(sql)

    def test_insert(self, engine: Engine) -> None:
        with Session(engine) as session:
            session.execute(insert(Item).values(embedding=[1, 2, 3]))

    def test_insert_bulk(self, engine: Engine) -> None:
        with Session(engine) as session:
            session.execute(insert(Item), [{"embedding": [1, 2, 3]}])

    def test_automap(self, engine: Engine) -> None:
        metadata = MetaData()
        metadata.reflect(engine, only=["sqlalchemy_orm_item"])
        AutoBase = automap_base(metadata=metadata)
        AutoBase.prepare()
        AutoItem = AutoBase.classes.sqlalchemy_orm_item
        with Session(engine) as session:
            session.execute(insert(AutoItem), [{"embedding": [1, 2, 3]}])
            item = session.query(AutoItem).first()
            assert item is not None and item.embedding == [1, 2, 3]

    def test_half_precision(self, engine: Engine) -> None:
        create_items()
        with Session(engine) as session:
            items = session.query(Item).order_by(func.cast(Item.embedding, HALFVEC(3)).l2_distance([1, 1, 1])).all()
            assert [v.id for v in items] == [1, 3, 2]

    def test_binary_quantize(self, engine: Engine) -> None:
        with Session(engine) as session:
            session.add(Item(id=1, embedding=[-1, -2, -3]))
            session.add(Item(id=2, embedding=[1, -2, 3]))
            session.add(Item(id=3, embedding=[1, 2, 3]))
            session.commit()

            distance = func.cast(func.binary_quantize(Item.embedding), BIT(3)).hamming_distance(
                func.binary_quantize(func.cast([3, -1, 2], VECTOR(3)))
            )
            items = session.query(Item).order_by(distance).all()
            assert [v.id for v in items] == [2, 3, 1]

    def test_binary_quantize_reranking(self, engine: Engine) -> None:
        # recreate index (could also vacuum table)
        binary_quantize_index.drop(setup_engine)
        binary_quantize_index.create(setup_engine)

        with Session(engine) as session:
            session.add(Item(id=1, embedding=[-1, -2, -3]))
            session.add(Item(id=2, embedding=[1, -2, 3]))
            session.add(Item(id=3, embedding=[1, 2, 3]))
            session.commit()

            distance = func.cast(func.binary_quantize(Item.embedding), BIT(3)).hamming_distance(
                func.binary_quantize(func.cast([3, -1, 2], VECTOR(3)))
            )
            subquery = session.query(Item).order_by(distance).limit(20).subquery()
            items = session.query(subquery).order_by(subquery.c.embedding.cosine_distance([3, -1, 2])).limit(5).all()
            assert [v.id for v in items] == [2, 3, 1]


@pytest.mark.parametrize("engine", array_engines, indirect=True)
class TestSqlalchemyArray:
    def setup_method(self) -> None:
        delete_items()

    def test_vector_array(self, engine: Engine) -> None:
        with Session(engine) as session:
            session.add(Item(id=1, embeddings=[[1, 2, 3], [4, 5, 6]]))
            session.commit()

            # this fails if the driver does not cast arrays
            item = session.get_one(Item, 1)
            assert item.embeddings == [[1, 2, 3], [4, 5, 6]]

    def test_halfvec_array(self, engine: Engine) -> None:
        with Session(engine) as session:
            session.add(Item(id=1, half_embeddings=[[1, 2, 3], [4, 5, 6]]))
            session.commit()

            # this fails if the driver does not cast arrays
            item = session.get_one(Item, 1)
            assert item.half_embeddings == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("engine", async_engines, indirect=True)
class TestSqlalchemyAsync:
    def setup_method(self) -> None:
        delete_items()

    @coroutine
    async def test_vector(self, engine: AsyncEngine) -> None:
        async_session = async_sessionmaker(engine, expire_on_commit=False)

        async with async_session() as session:
            async with session.begin():
                embedding = [1, 2, 3]
                session.add(Item(id=1, embedding=embedding))
                item = await session.get_one(Item, 1)
                assert item.embedding == embedding

        await engine.dispose()

    @coroutine
    async def test_halfvec(self, engine: AsyncEngine) -> None:
        async_session = async_sessionmaker(engine, expire_on_commit=False)

        async with async_session() as session:
            async with session.begin():
                embedding = [1, 2, 3]
                session.add(Item(id=1, half_embedding=embedding))
                item = await session.get_one(Item, 1)
                assert item.half_embedding == embedding

        await engine.dispose()

    @coroutine
    async def test_bit(self, engine: AsyncEngine) -> None:
        async_session = async_sessionmaker(engine, expire_on_commit=False)

        async with async_session() as session:
            async with session.begin():
                embedding = asyncpg.BitString("101") if engine.driver == "asyncpg" else "101"
                session.add(Item(id=1, binary_embedding=embedding))
                item = await session.get_one(Item, 1)
                assert str_of(item.binary_embedding) == str_of(embedding)

                if engine.driver == "asyncpg":
                    session.add(Item(id=2, binary_embedding="101"))
                    item = await session.get_one(Item, 2)
                    assert str_of(item.binary_embedding) == str_of(embedding)

        await engine.dispose()

    @coroutine
    async def test_sparsevec(self, engine: AsyncEngine) -> None:
        async_session = async_sessionmaker(engine, expire_on_commit=False)

        async with async_session() as session:
            async with session.begin():
                embedding = SparseVector([1, 2, 3])
                session.add(Item(id=1, sparse_embedding=embedding))
                item = await session.get_one(Item, 1)
                assert item.sparse_embedding == embedding

        await engine.dispose()

    @coroutine
    async def test_avg(self, engine: AsyncEngine) -> None:
        async_session = async_sessionmaker(engine, expire_on_commit=False)

        async with async_session() as session:
            async with session.begin():
                session.add(Item(embedding=[1, 2, 3]))
                session.add(Item(embedding=[4, 5, 6]))
                res = await session.scalars(select(avg(Item.embedding)))
                assert res.first() == [2.5, 3.5, 4.5]

        await engine.dispose()


@pytest.mark.parametrize("engine", async_array_engines, indirect=True)
class TestSqlalchemyAsyncArray:
    def setup_method(self) -> None:
        delete_items()

    @coroutine
    async def test_vector_array(self, engine: AsyncEngine) -> None:
        async_session = async_sessionmaker(engine, expire_on_commit=False)

        async with async_session() as session:
            async with session.begin():
                session.add(Item(id=1, embeddings=[[1, 2, 3], [4, 5, 6]]))
                item = await session.get_one(Item, 1)
                assert item.embeddings == [[1, 2, 3], [4, 5, 6]]

                session.add(Item(id=2, embeddings=[np.array([1, 2, 3]), np.array([4, 5, 6])]))
                item = await session.get_one(Item, 2)
                assert item.embeddings == [[1, 2, 3], [4, 5, 6]]

        await engine.dispose()
