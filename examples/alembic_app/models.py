"""The application's one table. The upgrade of the embedding model is the argument query_model."""

from sqlalchemy import Index
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from drift_pg.sqlalchemy import EmbeddingVector


class Base(DeclarativeBase):
    """Of all tables."""


class Document(Base):
    """A documented object, and the embedding of its text by the model that the table was filled with."""

    __tablename__ = "document"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    embedding: Mapped[list[float]] = mapped_column(
        EmbeddingVector(384, model="minilm-l3", query_model="minilm-l6"), nullable=False
    )

    __table_args__ = (
        Index(
            "document_embedding",
            embedding,
            postgresql_using="hnsw",
            postgresql_ops={"embedding": "vector_cosine_ops"},
            postgresql_with={"m": 16, "ef_construction": 64},
        ),
    )
