"""Embedding columns through SQLAlchemy on real databases: rows as SQL finds them, plans, kinds of queries, bulk loads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psycopg
import pytest
from pgvector import HalfVector, Vector
from sqlalchemy import (
    event,
    select,
    text,
    true,
    update,
)
from sqlalchemy.orm import (
    Session,
    aliased,
    joinedload,
)

from drift_pg.sqlalchemy import adapted, nearest, raw
from tests.orm import DIMENSIONS, LARGE, Author, Database, Doc, Large, Question, World
from tests.tables import vector


def test_results_are_those_of_the_sql_path(world: World, database: Database) -> None:
    inline = (
        "SELECT id FROM docs ORDER BY embedding <=> (SELECT drift.adapt_for(%s, 'new', 'docs', 'embedding')) LIMIT 25"
    )
    function = "SELECT id FROM drift.nearest(NULL::docs, 'embedding', %s, 'new', 25)"
    for query in world.queries:
        with psycopg.connect(world.dsn) as conn:
            by_sql = [[i for (i,) in conn.execute(statement, [vector(query)])] for statement in (inline, function)]
        by_orm = database.run(
            lambda s, q=query: s.scalars(select(Doc.id).order_by(Doc.embedding.cosine_distance(q)).limit(25)).all()
        )
        by_nearest = database.run(lambda s, q=query: [d.id for d in nearest(s, Doc.embedding, q, k=25)])
        assert by_sql == [by_orm, by_nearest]


QUERY_KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "list": lambda q: q.tolist(),
    "float32": lambda q: q.astype(np.float32),
    "float64": lambda q: q,
    "Vector": Vector,
    "HalfVector": HalfVector,
}


@pytest.mark.parametrize("kind", QUERY_KINDS)
@pytest.mark.parametrize("column", [Doc.embedding, Doc.half], ids=["vector", "halfvec"])
def test_a_query_may_be_of_any_kind_that_pgvector_takes(
    world: World, database: Database, column: Any, kind: str
) -> None:
    query = QUERY_KINDS[kind](world.queries[0])
    found = database.run(
        lambda s: s.execute(select(Doc.id, column.cosine_distance(query).label("d")).order_by("d").limit(1)).one()
    )
    assert found.id == world.expected(0, 1)[0]
    assert found.d == pytest.approx(1 - world.new[found.id] @ world.queries[0], abs=2e-3)


def test_a_column_on_the_right_is_taken_as_it_is(world: World, database: Database) -> None:
    other = aliased(Doc)
    one = select(Doc.embedding).where(Doc.id == 5).scalar_subquery()
    for right in (Doc.embedding, raw(Doc.embedding), one):
        pairs = select(other.id).join(Doc, true()).where(Doc.id == 5)
        near = pairs.order_by(other.embedding.cosine_distance(right)).limit(10)
        found = database.run(lambda s, near=near: s.scalars(near).all())
        assert found == np.argsort(-world.legacy @ world.legacy[5])[:10].tolist()


def test_a_column_of_queries_is_adapted_once_each(world: World, database: Database) -> None:
    near = (
        select(Doc.id, Doc.embedding.cosine_distance(adapted(Question.embedding)).label("d"))
        .order_by("d")
        .limit(3)
        .lateral()
    )
    statement = select(Question.id, near.c.id).join(near, true()).order_by(Question.id, near.c.d)
    rows = database.run(lambda s: s.execute(statement).all())
    for i in range(len(world.queries)):
        assert [doc for question, doc in rows if question == i] == world.expected(i, 3)


def plan(session: Session, statement: Any) -> list[dict[str, Any]]:
    """The nodes of the plan of a statement as it is executed, parameters included."""
    connection = session.connection()
    connection.execute(text("SET LOCAL enable_seqscan = off"))

    @event.listens_for(connection, "before_cursor_execute", retval=True)
    def explain(conn: Any, cursor: Any, sql: str, parameters: Any, context: Any, many: bool) -> tuple[str, Any]:
        return f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", parameters

    ((found,),) = connection.execute(statement).cursor.fetchall()
    return list(walk(found[0]["Plan"]))


def walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from walk(child)


INDEXED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "vector": (lambda d: select(Doc.id).order_by(d(Doc)).limit(10), "docs_hnsw"),
    "halfvec": (lambda d: select(Doc.id).order_by(d(Doc, "half")).limit(10), "docs_half"),
    "3072 dimensions": (lambda d: select(Large.id).order_by(d(Large)).limit(10), "large_hnsw"),
    "entity": (lambda d: select(Doc).order_by(d(Doc)).limit(10), "docs_hnsw"),
    "alias": (lambda d: select(OTHER).order_by(d(OTHER)).limit(10), "docs_hnsw"),
    "distance shown": (lambda d: select(Doc.id, near := d(Doc)).order_by(near).limit(10), "docs_hnsw"),
    "where": (lambda d: select(Doc.id).where((near := d(Doc)) < 0.9).order_by(near).limit(10), "docs_hnsw"),
    "joinedload": (lambda d: select(Doc).options(joinedload(Doc.author)).order_by(d(Doc)).limit(10), "docs_hnsw"),
    "joinedload of a collection": (
        lambda d: select(Doc).options(joinedload(Doc.author).joinedload(Author.docs)).order_by(d(Doc)).limit(10),
        "docs_hnsw",
    ),
    "lateral": (
        lambda d: select(Author.id, (near := select(OTHER.id).order_by(d(OTHER)).limit(3).lateral()).c.id).join(
            near, true()
        ),
        "docs_hnsw",
    ),
}
OTHER = aliased(Doc)


@pytest.mark.parametrize("name", INDEXED)
def test_the_index_is_scanned_and_the_adapter_runs_once(world: World, name: str) -> None:
    make, index = INDEXED[name]
    query = world.queries[0]
    statement = make(lambda entity, column="embedding": getattr(entity, column).cosine_distance(query))
    nodes = Database(world.dsn, "psycopg").run(lambda s: plan(s, statement))
    assert index in [node.get("Index Name") for node in nodes]
    adapting = [node for node in nodes if node.get("Parent Relationship") == "InitPlan"]
    # Within one SELECT list and its ORDER BY PostgreSQL knows a subquery again, in WHERE it does not.
    assert [node["Actual Loops"] for node in adapting] == ([1, 1] if name == "where" else [1])


def test_3072_dimensions_are_searched_by_the_cast(world: World, database: Database) -> None:
    for i, query in enumerate(world.queries[:3]):
        target = query @ world.widening
        expected = np.argsort(-world.large @ (target / np.linalg.norm(target)))[:5].tolist()
        near = select(Large.id).order_by(Large.embedding.cosine_distance(query)).limit(5)
        assert database.run(lambda s, near=near: s.scalars(near).all()) == expected, i
    row = database.run(lambda s: s.get_one(Large, 3))
    assert np.allclose(row.embedding, world.large[3], atol=1e-6)
    assert len(row.embedding) == LARGE
    # The other ways to compare are cast alike, or PostgreSQL finds no operator.
    other = aliased(Large)
    for right in (raw(row.embedding), other.embedding):
        same = (
            select(Large.id)
            .join(other, true())
            .where(other.id == 3)
            .order_by(Large.embedding.cosine_distance(right))
            .limit(1)
        )
        assert database.run(lambda s, same=same: s.scalars(same).all()) == [3]


def test_bulk_loads_and_updates(world: World, database: Database) -> None:
    def load(session: Session) -> list[Any]:
        rows = [{"id": 1000 + i, "author_id": 1, "embedding": v, "half": v} for i, v in enumerate(world.legacy)]
        session.execute(Doc.__table__.insert(), rows)
        session.add_all(Doc(id=2000 + i, author_id=1, embedding=v, half=v.tolist()) for i, v in enumerate(world.legacy))
        session.flush()
        near = Doc.embedding.cosine_distance(world.new[7]) < 1e-5
        session.execute(update(Doc).where(near).values(author_id=2))
        changed = session.scalars(select(Doc.id).where(near, Doc.author_id == 2).order_by(Doc.id)).all()
        session.rollback()
        return list(changed)

    assert database.run(load) == [7, 1007, 2007]


def test_returned_vectors_are_pgvectors(world: World, database: Database) -> None:
    row = database.run(lambda s: s.execute(select(Doc.embedding, Doc.half).where(Doc.id == 1)).one())
    assert isinstance(row.embedding, list)
    assert len(row.embedding) == len(row.half) == DIMENSIONS
    assert np.allclose(row.embedding, world.legacy[1], atol=1e-6)
