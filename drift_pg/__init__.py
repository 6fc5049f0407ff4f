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

__all__ = [
    "Adapter",
    "DriftError",
    "Evaluation",
    "Layer",
    "Pairs",
    "activate",
    "compose",
    "deactivate",
    "downgrade",
    "drop_adapter",
    "evaluate",
    "export",
    "fit",
    "latest_evaluation",
    "load",
    "load_by_id",
    "register_column",
    "register_model",
    "set_query_model",
    "store",
    "store_evaluation",
    "unregister_column",
    "unregister_model",
    "upgrade",
    "verify",
]
