"""Which model a column's queries come from, so that an upgrade is a state of the database, not of one client."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
ALTER TABLE drift.embedding_column ADD COLUMN query_model text REFERENCES drift.model ON UPDATE CASCADE;
COMMENT ON COLUMN drift.embedding_column.query_model IS
    'The model that the application''s queries come from; NULL while it is the column''s own';
CREATE INDEX embedding_column_query_model ON drift.embedding_column (query_model);
    """)


def downgrade() -> None:
    op.execute("ALTER TABLE drift.embedding_column DROP COLUMN query_model")
