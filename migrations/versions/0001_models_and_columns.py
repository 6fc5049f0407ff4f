"""Models, embedding columns, and the audit trail."""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
CREATE TABLE drift.model (
    name text PRIMARY KEY CHECK (name <> ''),
    dimensions integer NOT NULL CHECK (dimensions BETWEEN 1 AND 4000),
    normalized boolean NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE drift.model IS 'Embedding model versions';
COMMENT ON COLUMN drift.model.normalized IS 'Whether the model''s vectors have unit length';

CREATE TABLE drift.embedding_column (
    relation regclass NOT NULL,
    column_name name NOT NULL,
    model text NOT NULL REFERENCES drift.model ON UPDATE CASCADE,
    metric text NOT NULL CHECK (metric IN ('cosine', 'inner_product', 'l2', 'l1')),
    index_cast text CHECK (index_cast IN ('vector', 'halfvec')),
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (relation, column_name)
);
COMMENT ON TABLE drift.embedding_column IS 'Columns of users'' tables that hold embeddings of one model';
COMMENT ON COLUMN drift.embedding_column.index_cast IS
    'The type that the column''s index casts it to, as in ((embedding::halfvec(3072)) halfvec_cosine_ops); a search must cast likewise to use it';
CREATE INDEX embedding_column_model ON drift.embedding_column (model);

CREATE TABLE drift.event (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    happened_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor text NOT NULL DEFAULT session_user,
    action text NOT NULL,
    subject text NOT NULL,
    details jsonb NOT NULL DEFAULT '{}'
);
COMMENT ON TABLE drift.event IS 'The audit trail: one row per administrative call';
    """)


def downgrade() -> None:
    op.execute("""
DROP TABLE drift.event;
DROP TABLE drift.embedding_column;
DROP TABLE drift.model;
    """)
