"""What happens in PostgreSQL. The caller owns the connection and the transaction."""

from drift_pg.database.adapters import activate, deactivate, drop_adapter, export, load, load_by_id, store, verify
from drift_pg.database.evaluations import StoredEvaluation, latest_evaluation, store_evaluation
from drift_pg.database.install import downgrade, upgrade
from drift_pg.database.registry import (
    register_column,
    register_model,
    set_query_model,
    unregister_column,
    unregister_model,
)

__all__ = [
    "StoredEvaluation",
    "activate",
    "deactivate",
    "downgrade",
    "drop_adapter",
    "export",
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
