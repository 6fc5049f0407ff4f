"""Moving a column's rows to the new model while it serves: companion vectors, and searches that fill them."""

from drift_pg.reembedding.companion import Coverage, build_index, coverage, create_companion, drop_companion
from drift_pg.reembedding.follow import catch_up, follow, unfollow
from drift_pg.reembedding.search import search, search_async

__all__ = [
    "Coverage",
    "build_index",
    "catch_up",
    "coverage",
    "create_companion",
    "drop_companion",
    "follow",
    "search",
    "search_async",
    "unfollow",
]
