"""Moving a column's rows to the new model while it serves: companion vectors, searches that fill them, and the query log."""

from drift_pg.reembedding.companion import Coverage, build_index, coverage, create_companion, drop_companion
from drift_pg.reembedding.follow import catch_up, follow, unfollow
from drift_pg.reembedding.query_log import log_query, read_query_log, touched, trim_query_log
from drift_pg.reembedding.query_sampling import QueryLog
from drift_pg.reembedding.search import search, search_async

__all__ = [
    "Coverage",
    "QueryLog",
    "build_index",
    "catch_up",
    "coverage",
    "create_companion",
    "drop_companion",
    "follow",
    "log_query",
    "read_query_log",
    "search",
    "search_async",
    "touched",
    "trim_query_log",
    "unfollow",
]
