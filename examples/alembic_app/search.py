"""The application's queries: what an upgrade of the embedding model leaves as it is."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from drift_pg.sqlalchemy import nearest, raw
from examples.alembic_app.models import Document


def search(session: Session, query: Sequence[float], k: int = 10) -> list[int]:
    """Ids of the documents nearest to a query of the new model."""
    return [document.id for document in nearest(session, Document.embedding, query, k=k)]


def search_in_a_statement(session: Session, query: Sequence[float], k: int = 10) -> list[int]:
    """The same, where a statement of one's own is wanted."""
    distance = Document.embedding.cosine_distance(query)
    return list(session.scalars(select(Document.id).order_by(distance).limit(k)))


def search_unadapted(session: Session, query: Sequence[float], k: int = 10) -> list[int]:
    """What the same query finds if nobody adapts it: no error, wrong rows."""
    distance = Document.embedding.cosine_distance(raw(query))
    return list(session.scalars(select(Document.id).order_by(distance).limit(k)))
