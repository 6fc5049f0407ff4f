"""nearest(…, rerank=n) through SQLAlchemy: the rows that drift.nearest orders, as entities or rows of every form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, aliased

import drift_pg
from drift_pg import errors
from drift_pg.sqlalchemy import adapted, nearest, nearest_async, raw
from tests import servers
from tests.orm import Article, Database, Doc, Item, Odd, World
from tests.tables import vector
from tests.test_rerank import LINE


@pytest.fixture(scope="module")
def world(server: str, template: str) -> Iterator[World]:
    """Items, half of which have a vector of the new model: none of them what the bridge thinks it is."""
    with servers.database(server, template) as dsn:
        made = World(dsn)
        with psycopg.connect(dsn, autocommit=True) as conn:
            drift_pg.create_companion(conn, "items", "embedding", model="new", text="kind")
            conn.execute("SELECT drift.store_calibration(1, %s)", [json.dumps({"cosine": LINE})])
            conn.execute(
                "SELECT drift.store_vectors('items', 'embedding', %s, %s, %s)",
                [json.dumps([[str(i)] for i in range(0, 300, 2)]), ["article"] * 150,
                 [vector(made.new[(7 * i) % 300]) for i in range(0, 300, 2)]],
            )  # fmt: skip
            conn.execute("UPDATE items SET kind = 'item' WHERE id % 3 = 0")
        yield made


def expected(world: World, query: np.ndarray, k: int = 10, matching: dict | None = None, model: str = "new") -> list:
    with psycopg.connect(world.dsn) as conn:
        found = conn.execute(
            "SELECT id FROM drift.nearest(NULL::items, 'embedding', %s, %s, %s, 60, %s)",
            [vector(query), model, k, json.dumps(matching) if matching else None],
        )
        return [row[0] for row in found]


def test_entities_in_the_order_of_the_mixed_search(world: World, database: Database) -> None:
    def search(session: Session) -> list[int]:
        found = nearest(session, Item.embedding, world.queries[0], rerank=60)
        assert all(isinstance(item, Article if item.id % 3 else Item) and item in session for item in found)
        return [item.id for item in found]

    wanted = expected(world, world.queries[0])
    assert database.run(search) == wanted != world.expected(0)
    assert len(wanted) == 10


def test_rows_aliases_and_what_the_query_says_it_is(world: World, database: Database) -> None:
    q, items, other = world.queries[1], Item.__table__, aliased(Item)

    def search(session: Session) -> list[list[int]]:
        forms: list[tuple[Any, Any]] = [
            (Item.embedding, adapted(q, model="new")),
            (other.embedding, q),
            (items.c.embedding, q),
            (items.alias().c.embedding, q),
            (Item.embedding, raw(q @ world.matrix)),
        ]
        return [[row.id for row in nearest(session, column, query, k=7, rerank=60)] for column, query in forms]

    mixed, bridge = expected(world, q, 7), world.expected(1, 7)
    assert database.run(search) == [mixed, mixed, mixed, mixed, bridge]
    assert [row.id for row in database.connected(lambda c: nearest(c, Item.embedding, q, k=7, rerank=60))] == mixed


def test_rows_are_chosen_by_matching(world: World, database: Database) -> None:
    matching = {"kind": ["item"], "id": list(range(200))}
    q = world.queries[2]
    found = database.run(
        lambda s: [item.id for item in nearest(s, Item.embedding, q, k=5, rerank=60, matching=matching)]
    )
    assert found == expected(world, q, 5, matching)
    assert all(i % 3 == 0 and i < 200 for i in found)


def test_nearest_async(world: World) -> None:
    async def search() -> list[int]:
        engine = create_async_engine(Database(world.dsn, "asyncpg").url)
        async with AsyncSession(engine) as session:
            found = await nearest_async(session, Item.embedding, world.queries[3], k=3, rerank=60, matching={"id": [1]})
        await engine.dispose()
        return [item.id for item in found]

    assert asyncio.run(search()) == [1]


def test_settings_stay_as_they_were(world: World, database: Database) -> None:
    def search(session: Session) -> list[Any]:
        read = text("SELECT current_setting('hnsw.ef_search'), current_setting('hnsw.iterative_scan', true)")
        nearest(session, Item.embedding, world.queries[0], rerank=60)
        before = session.execute(read).one()
        nearest(session, Item.embedding, world.queries[0], rerank=200)
        return [before, session.execute(read).one()]

    first, second = database.run(search)
    assert first == second


def test_errors_are_drift_pgs_and_name_class_and_column(world: World) -> None:
    database, q = Database(world.dsn, "psycopg"), world.queries[0]
    with pytest.raises(errors.NoCompanion) as caught:
        database.run(lambda s: nearest(s, Doc.embedding, q, rerank=60))
    assert "Doc, column embedding of table docs" in (caught.value.detail or "")
    with pytest.raises(errors.NoCompanion, match="Weird"):
        database.run(lambda s: nearest(s, Odd.vec, q, rerank=60))
    for options, message in (
        ({"k": 10, "rerank": 9}, "k is 10 and rerank 9"),
        ({"rerank": 60, "where": Item.id > 1}, "with rerank by `matching`"),
        ({"matching": {"id": 1}}, "with rerank by `matching`"),
        ({"k": -1, "rerank": 5}, "k is -1"),
    ):
        with pytest.raises(errors.InvalidDefinition, match=message):
            database.run(lambda s, options=options: nearest(s, Item.embedding, q, **options))
