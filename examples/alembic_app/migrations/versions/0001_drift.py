"""pgvector and schema drift"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("CREATE EXTENSION IF NOT EXISTS vector")
    op.install_drift()


def downgrade() -> None:
    op.uninstall_drift()
