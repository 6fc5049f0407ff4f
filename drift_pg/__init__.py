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
    build_index,
    catch_up,
    coverage,
    create_companion,
    drop_companion,
    follow,
    search,
    search_async,
    unfollow,
)

__all__ = [
    "Adapter",
    "DriftError",
    "Evaluation",
    "Layer",
    "Pairs",
    "activate",
    "build_index",
    "catch_up",
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
    "follow",
    "latest_evaluation",
    "load",
    "load_by_id",
    "register_column",
    "register_model",
    "search",
    "search_async",
    "set_query_model",
    "store",
    "store_evaluation",
    "unfollow",
    "unregister_column",
    "unregister_model",
    "upgrade",
    "verify",
]
