"""queries come from minilm-l6"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

ADAPTER = {
    "artifact": "adapters/minilm-l6-to-minilm-l3.safetensors",
    "sha256": "3047e4a3253aeeb2ecd42bce81adfac5385be295910ae1a4749fa95ce788755b",
}


def upgrade() -> None:
    op.register_embedding_model("minilm-l6", 384)
    op.activate_adapter("minilm-l6", "minilm-l3", **ADAPTER)
    op.set_query_model("document", "embedding", "minilm-l6")


def downgrade() -> None:
    op.set_query_model("document", "embedding", None, existing_query_model="minilm-l6")
    op.deactivate_adapter("minilm-l6", "minilm-l3", **ADAPTER)
    op.unregister_embedding_model("minilm-l6", 384)
