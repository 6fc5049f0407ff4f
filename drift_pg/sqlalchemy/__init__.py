"""SQLAlchemy types for embedding columns, whose distances adapt queries of a newer model."""

from drift_pg.sqlalchemy.expressions import adapted, raw
from drift_pg.sqlalchemy.types import EmbeddingHalfVector, EmbeddingVector

__all__ = ["EmbeddingHalfVector", "EmbeddingVector", "adapted", "raw"]
