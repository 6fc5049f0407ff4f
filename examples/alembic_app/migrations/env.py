"""As `alembic init` writes it, and two arguments more: autogenerate_plugins, transaction_per_migration."""

import os

from alembic import context
from sqlalchemy import create_engine, pool

from examples.alembic_app.models import Base

OPTIONS = {
    "target_metadata": Base.metadata,
    "autogenerate_plugins": ["alembic.autogenerate.*", "drift_pg"],
    "transaction_per_migration": True,
}


def run_migrations_offline() -> None:
    """Print the SQL: alembic upgrade head --sql."""
    context.configure(dialect_name="postgresql", literal_binds=True, **OPTIONS)
    with context.begin_transaction():
        context.run_migrations()


def run_migrations_online() -> None:
    """Run the revisions in the database."""
    engine = create_engine(os.environ["DATABASE_URL"], poolclass=pool.NullPool)
    with engine.connect() as connection:
        context.configure(connection=connection, **OPTIONS)
        with context.begin_transaction():
            context.run_migrations()


if context.is_offline_mode():
    run_migrations_offline()
else:
    run_migrations_online()
