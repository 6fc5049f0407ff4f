"""documents, embedded by minilm-l3"""

import sqlalchemy as sa
from alembic import op

import drift_pg.sqlalchemy

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.register_embedding_model("minilm-l3", 384)
    op.create_table(
        "document",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("embedding", drift_pg.sqlalchemy.EmbeddingVector(384, model="minilm-l3"), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.set_embedding_model("document", "embedding", "minilm-l3", metric="cosine")


def downgrade() -> None:
    op.set_embedding_model("document", "embedding", None, metric="cosine", existing_model="minilm-l3")
    op.drop_table("document")
    op.unregister_embedding_model("minilm-l3", 384)
