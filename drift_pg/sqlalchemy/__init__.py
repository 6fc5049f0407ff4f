"""SQLAlchemy types for embedding columns, whose distances adapt queries of a newer model."""

from drift_pg.sqlalchemy import errors as _errors  # noqa: F401 (listens for the database's errors)
from drift_pg.sqlalchemy.client import adapt_in_client
from drift_pg.sqlalchemy.expressions import adapted, raw
from drift_pg.sqlalchemy.query_log import log_queries
from drift_pg.sqlalchemy.search import nearest, nearest_async
from drift_pg.sqlalchemy.types import EmbeddingHalfVector, EmbeddingVector

__all__ = [
    "EmbeddingHalfVector",
    "EmbeddingVector",
    "adapt_in_client",
    "adapted",
    "log_queries",
    "nearest",
    "nearest_async",
    "raw",
]
