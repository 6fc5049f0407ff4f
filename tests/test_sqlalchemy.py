"""The types and expressions of drift_pg.sqlalchemy on real databases: every form of query, every driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psycopg
import pytest
from pgvector import HalfVector, Vector
from pgvector.sqlalchemy import VECTOR
from sqlalchemy import (
    ColumnElement,
    bindparam,
    cast,
    event,
    exists,
    func,
    lambda_stmt,
    literal,
    select,
    text,
    true,
    union_all,
    update,
)
from sqlalchemy.orm import (
    Session,
    aliased,
    contains_eager,
    joinedload,
    selectinload,
    with_expression,
    with_loader_criteria,
)

from drift_pg.sqlalchemy import EmbeddingHalfVector, adapted, nearest, raw
from tests import servers
from tests.orm import DIMENSIONS, DRIVERS, LARGE, ROWS, Article, Author, Database, Doc, Large, Odd, Question, World
from tests.tables import vector


@pytest.fixture(scope="module")
def world(server: str, template: str) -> Iterator[World]:
    """A database that the tests of this module only read."""
    with servers.database(server, template) as dsn:
        yield World(dsn)


@pytest.fixture(params=DRIVERS)
def database(world: World, request: pytest.FixtureRequest) -> Database:
    """It, through each driver."""
    return Database(world.dsn, request.param)


Work = Callable[[Session, Any], list[int]]
FORMS: dict[str, Work] = {}


def form(work: Work) -> Work:
    """A way to ask for the ids of the ten documents nearest to a query."""
    FORMS[work.__name__] = work
    return work


@form
def order_by(session: Session, q: Any) -> list[int]:
    return [d.id for d in session.scalars(select(Doc).order_by(Doc.embedding.cosine_distance(q)).limit(10))]


@form
def legacy_query(session: Session, q: Any) -> list[int]:
    return [d.id for d in session.query(Doc).order_by(Doc.embedding.cosine_distance(q)).limit(10)]


@form
def core(session: Session, q: Any) -> list[int]:
    docs = Doc.__table__
    return list(session.connection().scalars(select(docs.c.id).order_by(docs.c.embedding.cosine_distance(q)).limit(10)))


@form
def core_alias(session: Session, q: Any) -> list[int]:
    docs = Doc.__table__.alias("Other Name")
    return list(session.scalars(select(docs.c.id).order_by(docs.c.embedding.cosine_distance(q)).limit(10)))


@form
def labelled(session: Session, q: Any) -> list[int]:
    distance = Doc.embedding.cosine_distance(q).label("distance")
    rows = session.execute(select(Doc.id, distance).order_by("distance").limit(10)).all()
    assert [row.distance for row in rows] == sorted(row.distance for row in rows)
    return [row.id for row in rows]


@form
def euclidean(session: Session, q: Any) -> list[int]:
    return list(session.scalars(select(Doc.id).order_by(Doc.embedding.l2_distance(q)).limit(10)))


@form
def inner_product(session: Session, q: Any) -> list[int]:
    return list(session.scalars(select(Doc.id).order_by(Doc.embedding.max_inner_product(q)).limit(10)))


@form
def half(session: Session, q: Any) -> list[int]:
    # Rounded to half precision neighbours may change places: ordered by what the other column says.
    ids = session.scalars(select(Doc.id).order_by(Doc.half.cosine_distance(q)).limit(14)).all()
    return order_by_of(session, q, Doc.id.in_(ids))


@form
def cast_to_half(session: Session, q: Any) -> list[int]:
    near = cast(Doc.embedding, EmbeddingHalfVector(DIMENSIONS, model="legacy", query_model="new")).cosine_distance(q)
    return order_by_of(session, q, Doc.id.in_(session.scalars(select(Doc.id).order_by(near).limit(14)).all()))


@form
def where_distance(session: Session, q: Any) -> list[int]:
    tenth = select(Doc.embedding.cosine_distance(q)).order_by(Doc.embedding.cosine_distance(q)).offset(9).limit(1)
    limit = session.scalars(tenth).one() + 1e-6
    near = select(Doc).where(Doc.embedding.cosine_distance(q) < limit).order_by(Doc.embedding.cosine_distance(q))
    return [d.id for d in session.scalars(near)]


@form
def aliased_class(session: Session, q: Any) -> list[int]:
    other = aliased(Doc, name="other doc")
    return [d.id for d in session.scalars(select(other).order_by(other.embedding.cosine_distance(q)).limit(10))]


@form
def self_join(session: Session, q: Any) -> list[int]:
    other = aliased(Doc)
    joined = select(Doc.id).join(other, other.id == Doc.id).order_by(other.embedding.cosine_distance(q)).limit(10)
    return list(session.scalars(joined))


@form
def subquery(session: Session, q: Any) -> list[int]:
    near = select(Doc.id, Doc.embedding.cosine_distance(q).label("d")).order_by("d").limit(10).subquery()
    return list(session.scalars(select(near.c.id).order_by(near.c.d)))


@form
def column_of_a_subquery(session: Session, q: Any) -> list[int]:
    some = select(Doc.id, Doc.embedding.label("renamed")).where(Doc.id >= 0).subquery()
    return list(session.scalars(select(some.c.id).order_by(some.c.renamed.cosine_distance(q)).limit(10)))


@form
def aliased_subquery(session: Session, q: Any) -> list[int]:
    other = aliased(Doc, select(Doc).where(Doc.id >= 0).subquery())
    return [d.id for d in session.scalars(select(other).order_by(other.embedding.cosine_distance(q)).limit(10))]


@form
def common_table_expression(session: Session, q: Any) -> list[int]:
    some = select(Doc.id, Doc.embedding).cte("some")
    return list(session.scalars(select(some.c.id).order_by(some.c.embedding.cosine_distance(q)).limit(10)))


@form
def scalar_subquery_in_where(session: Session, q: Any) -> list[int]:
    near = select(Doc.id).order_by(Doc.embedding.cosine_distance(q)).limit(10)
    return order_by_of(session, q, Doc.id.in_(near))


@form
def union_of_parts(session: Session, q: Any) -> list[int]:
    distance = Doc.embedding.cosine_distance(q).label("d")
    parts = union_all(select(Doc.id, distance).where(Doc.id % 2 == 0), select(Doc.id, distance).where(Doc.id % 2 == 1))
    rows = parts.subquery()
    return list(session.scalars(select(rows.c.id).order_by(rows.c.d).limit(10)))


@form
def lateral(session: Session, q: Any) -> list[int]:
    per_author = (
        select(Doc.id, Doc.embedding.cosine_distance(q).label("d"))
        .where(Doc.author_id == Author.id)
        .order_by("d")
        .limit(10)
        .lateral()
    )
    rows = select(per_author.c.id).select_from(Author).join(per_author, true()).order_by(per_author.c.d).limit(10)
    return list(session.scalars(rows))


@form
def joinedload_with_limit(session: Session, q: Any) -> list[int]:
    near = select(Doc).options(joinedload(Doc.author)).order_by(Doc.embedding.cosine_distance(q)).limit(10)
    found = session.scalars(near).all()
    assert all("author" in d.__dict__ and d.author.id == d.author_id for d in found)
    return [d.id for d in found]


@form
def joinedload_of_a_collection_with_limit(session: Session, q: Any) -> list[int]:
    # Wrapped in a subquery by SQLAlchemy, whose ORDER BY is then of the subquery's column.
    near = (
        select(Doc)
        .options(joinedload(Doc.author).joinedload(Author.docs))
        .order_by(Doc.embedding.cosine_distance(q))
        .limit(10)
    )
    found = session.scalars(near).unique().all()
    assert all(len(d.author.docs) == 30 for d in found)
    return [d.id for d in found]


@form
def contains_eager_join(session: Session, q: Any) -> list[int]:
    near = (
        select(Doc)
        .join(Doc.author)
        .options(contains_eager(Doc.author))
        .order_by(Doc.embedding.cosine_distance(q))
        .limit(10)
    )
    return [d.id for d in session.scalars(near)]


@form
def relationship_load(session: Session, q: Any) -> list[int]:
    authors = session.scalars(select(Author).options(selectinload(Author.docs.and_(_near(q, 0.95)))))
    docs = [doc for author in authors for doc in author.docs]
    assert 10 <= len(docs) < 300
    return order_by_of(session, q, Doc.id.in_([d.id for d in docs]))


@form
def related_exists(session: Session, q: Any) -> list[int]:
    near = session.scalars(select(Author.id).where(Author.docs.any(_near(q, 0.5)))).all()
    same = session.scalars(select(Author.id).where(exists().where(Doc.author_id == Author.id, _near(q, 0.5)))).all()
    assert set(near) == set(same)
    return order_by(session, q)


@form
def bound_later(session: Session, q: Any) -> list[int]:
    statement = select(Doc.id).order_by(Doc.embedding.cosine_distance(bindparam("q"))).limit(10)
    return list(session.scalars(statement, {"q": q}))


@form
def literal_value(session: Session, q: Any) -> list[int]:
    return list(session.scalars(select(Doc.id).order_by(Doc.embedding.cosine_distance(literal(q))).limit(10)))


@form
def named_model(session: Session, q: Any) -> list[int]:
    return list(
        session.scalars(select(Doc.id).order_by(Doc.embedding.cosine_distance(adapted(q, model="new"))).limit(10))
    )


@form
def adapted_by_hand(session: Session, q: Any) -> list[int]:
    given = cast(literal(q, VECTOR()), VECTOR())
    moved = session.scalar(select(func.drift.adapt(given, "new", "legacy", type_=VECTOR())))
    return list(session.scalars(select(Doc.id).order_by(Doc.embedding.cosine_distance(raw(moved))).limit(10)))


@form
def operator_by_hand(session: Session, q: Any) -> list[int]:
    return list(session.scalars(select(Doc.id).order_by(Doc.embedding.op("<=>")(q)).limit(10)))


@form
def lambda_statement(session: Session, q: Any) -> list[int]:
    return list(
        session.scalars(lambda_stmt(lambda: select(Doc.id).order_by(Doc.embedding.cosine_distance(q)).limit(10)))
    )


@form
def loader_criteria(session: Session, q: Any) -> list[int]:
    near = with_loader_criteria(Doc, lambda cls: cls.embedding.cosine_distance(q) < 0.95, track_closure_variables=True)
    return [
        doc.id
        for doc in session.scalars(select(Doc).options(near).order_by(Doc.embedding.cosine_distance(q)).limit(10))
    ]


@form
def distance_on_the_entity(session: Session, q: Any) -> list[int]:
    distance = Doc.embedding.cosine_distance(q)
    found = session.scalars(
        select(Doc).options(with_expression(Doc.distance, distance)).order_by(distance).limit(10)
    ).all()
    assert [doc.distance for doc in found] == sorted(doc.distance for doc in found)
    return [doc.id for doc in found]


@form
def inherited_column(session: Session, q: Any) -> list[int]:
    near = select(Article).order_by(Article.embedding.cosine_distance(q)).where(Article.id.in_(range(ROWS))).limit(10)
    found = session.scalars(near).all()
    assert all(isinstance(each, Article) for each in found)
    return [each.id for each in found]


@form
def nearest_entities(session: Session, q: Any) -> list[int]:
    return [d.id for d in nearest(session, Doc.embedding, q)]


@form
def nearest_rows(session: Session, q: Any) -> list[int]:
    return [row.id for row in nearest(session.connection(), Doc.__table__.c.embedding, q, k=10)]


@form
def odd_identifiers(session: Session, q: Any) -> list[int]:
    return [d.id for d in session.scalars(select(Odd).order_by(Odd.vec.cosine_distance(q)).limit(10))]


@form
def odd_alias(session: Session, q: Any) -> list[int]:
    other = aliased(Odd, name="""an "odd" 100% 'name'""")
    return [d.id for d in session.scalars(select(other).order_by(other.vec.l1_distance(q)).where(_near_id(other, q)))]


def _near_id(entity: Any, q: Any) -> ColumnElement[bool]:
    return entity.id.in_(select(Doc.id).order_by(Doc.embedding.cosine_distance(q)).limit(10))


def _near(q: Any, distance: float) -> ColumnElement[bool]:
    return Doc.embedding.cosine_distance(q) < distance


def order_by_of(session: Session, q: Any, where: ColumnElement[bool]) -> list[int]:
    return list(session.scalars(select(Doc.id).where(where).order_by(Doc.embedding.cosine_distance(q)).limit(10)))


@pytest.mark.parametrize("name", FORMS)
def test_every_form_finds_what_the_new_model_would(world: World, database: Database, name: str) -> None:
    def ask(session: Session) -> list[list[int]]:
        session.execute(text("SET hnsw.ef_search = 400"))
        return [FORMS[name](session, world.queries[i]) for i in range(3)]

    found, expected = database.run(ask), [world.expected(i) for i in range(3)]
    if name == "odd_alias":  # of the ten nearest, ordered by another metric
        found, expected = [sorted(ids) for ids in found], [sorted(ids) for ids in expected]
    assert found == expected


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
