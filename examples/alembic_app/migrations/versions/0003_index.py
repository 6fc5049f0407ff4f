"""an HNSW index, built without blocking writes"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_vector_index("document_embedding", "document", "embedding", metric="cosine", m=16, ef_construction=64)


def downgrade() -> None:
    op.drop_vector_index("document_embedding", "document", "embedding", metric="cosine", m=16, ef_construction=64)
