"""Renders the migrations as SQL; drift_pg.database.install runs what is rendered.

There is no online mode: what `drift-pg upgrade --sql` prints is, word for word, what
`drift-pg upgrade` executes. So a revision may only emit SQL, and must not read from the database.
"""

from alembic import context

context.configure(dialect_name="postgresql", version_table_schema="drift", transactional_ddl=False)
with context.begin_transaction():
    context.run_migrations()
