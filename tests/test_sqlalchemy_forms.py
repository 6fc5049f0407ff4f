"""Every form in which an ORM or Core query may ask for the nearest rows, on every driver: the same rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pgvector.sqlalchemy import VECTOR
from sqlalchemy import (
    ColumnElement,
    bindparam,
    cast,
    exists,
    func,
    lambda_stmt,
    literal,
    select,
    text,
    true,
    union_all,
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
from tests.orm import DIMENSIONS, ROWS, Article, Author, Database, Doc, Odd, World

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
