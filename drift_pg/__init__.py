"""Change your embedding model and keep your pgvector index."""

from drift_pg.adapter import Adapter, Layer
from drift_pg.composition import compose
from drift_pg.database import (
    activate,
    deactivate,
    downgrade,
    drop_adapter,
    export,
    latest_evaluation,
    load,
    load_by_id,
    register_column,
    register_model,
    set_query_model,
    store,
    store_evaluation,
    unregister_column,
    unregister_model,
    upgrade,
    verify,
)
from drift_pg.errors import DriftError
from drift_pg.evaluation import Evaluation, evaluate
from drift_pg.families import fit
from drift_pg.pairs import Pairs
from drift_pg.reembedding import (
    QueryLog,
    build_index,
    coverage,
    create_companion,
    drop_companion,
    log_query,
    read_query_log,
    search,
    search_async,
    touched,
    trim_query_log,
)

__all__ = [
    "Adapter",
    "DriftError",
    "Evaluation",
    "Layer",
    "Pairs",
    "QueryLog",
    "activate",
    "build_index",
    "compose",
    "coverage",
    "create_companion",
    "deactivate",
    "downgrade",
    "drop_adapter",
    "drop_companion",
    "evaluate",
    "export",
    "fit",
    "latest_evaluation",
    "load",
    "load_by_id",
    "log_query",
    "read_query_log",
    "register_column",
    "register_model",
    "search",
    "search_async",
    "set_query_model",
    "store",
    "store_evaluation",
    "touched",
    "trim_query_log",
    "unregister_column",
    "unregister_model",
    "upgrade",
    "verify",
]
