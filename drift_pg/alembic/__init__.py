"""Model versions in a user's Alembic history: operations, and autogenerate that writes them.

Alembic loads this module by its entry point `alembic.plugins`; `op.register_embedding_model` and the others are
there in every revision. Autogenerate has to be told, in env.py:

    context.configure(..., autogenerate_plugins=["alembic.autogenerate.*", "drift_pg"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Alembic imports this module while it is itself being imported
    from alembic.runtime.plugins import Plugin


def setup(plugin: Plugin) -> None:  # noqa: ARG001
    """Register the operations and the comparators; called by Alembic."""
    from drift_pg.alembic import operations  # noqa: F401 (registers on import)
