"""Model versions in a user's Alembic history: operations, and autogenerate that writes them.

Alembic loads this module by its entry point `alembic.plugins`; `op.register_embedding_model` and the others are
there in every revision. Autogenerate has to be told, in env.py:

    context.configure(..., autogenerate_plugins=["alembic.autogenerate.*", "drift_pg"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Alembic imports this module while it is itself being imported
    from alembic.runtime.plugins import Plugin


def setup(plugin: Plugin) -> None:
    """Register the operations and the comparators; called by Alembic."""
    from drift_pg.alembic import comparing, indexes, operations  # noqa: F401 (operations register on import)

    comparing.register(plugin)


# Now, so that a submodule which is imported first finds Alembic complete, and does not call setup half imported.
import alembic  # noqa: E402, F401
