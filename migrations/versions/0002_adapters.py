"""Adapters: their layers, weights and probes."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
CREATE TABLE drift.adapter (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source text NOT NULL REFERENCES drift.model ON UPDATE CASCADE,
    target text NOT NULL REFERENCES drift.model ON UPDATE CASCADE,
    status text NOT NULL DEFAULT 'candidate' CHECK (status IN ('candidate', 'active', 'retired')),
    family text NOT NULL,
    normalize_input boolean NOT NULL,
    checksum bytea NOT NULL CHECK (octet_length(checksum) = 32),
    details jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL DEFAULT session_user,
    activated_at timestamptz,
    CHECK (source <> target)
);
COMMENT ON TABLE drift.adapter IS 'Trained maps from a source model''s space to a target model''s';
COMMENT ON COLUMN drift.adapter.checksum IS 'SHA-256 of the canonical bytes, see drift.checksum';
CREATE UNIQUE INDEX adapter_one_active ON drift.adapter (source, target) WHERE status = 'active';
CREATE INDEX adapter_target ON drift.adapter (target);

CREATE TABLE drift.adapter_layer (
    adapter_id bigint NOT NULL REFERENCES drift.adapter ON DELETE CASCADE,
    position integer NOT NULL CHECK (position >= 0),
    outputs integer NOT NULL CHECK (outputs > 0),
    inputs integer NOT NULL CHECK (inputs > 0),
    blocks integer NOT NULL CHECK (blocks > 0),
    block_columns integer NOT NULL CHECK (block_columns > 0),
    activation text NOT NULL CHECK (activation IN ('identity', 'gelu')),
    takes_input boolean NOT NULL,
    normalize boolean NOT NULL,
    is_route boolean NOT NULL,
    expert integer CHECK (expert >= 0),
    PRIMARY KEY (adapter_id, position)
);
COMMENT ON TABLE drift.adapter_layer IS 'One affine step of an adapter in canonical form';
COMMENT ON COLUMN drift.adapter_layer.inputs IS 'Values the layer sees, the appended 1 not counted';
COMMENT ON COLUMN drift.adapter_layer.blocks IS 'Into how many rows the weights of one output are split, since a row must fit a page';
COMMENT ON COLUMN drift.adapter_layer.block_columns IS 'Weights per row; the last block of an output may have fewer';

CREATE TABLE drift.adapter_weight (
    adapter_id bigint NOT NULL,
    layer integer NOT NULL,
    block integer NOT NULL,
    output integer NOT NULL,
    weights vector NOT NULL,
    PRIMARY KEY (adapter_id, layer, block, output),
    FOREIGN KEY (adapter_id, layer) REFERENCES drift.adapter_layer ON DELETE CASCADE
);
-- In the row itself: out of line, the evaluator would fetch each output's weights by a second look-up.
ALTER TABLE drift.adapter_weight ALTER COLUMN weights SET STORAGE PLAIN;
COMMENT ON TABLE drift.adapter_weight IS 'Weights, one row per output unit and block; the bias is the last weight of an output';

CREATE TABLE drift.adapter_probe (
    adapter_id bigint NOT NULL REFERENCES drift.adapter ON DELETE CASCADE,
    position integer NOT NULL,
    input vector NOT NULL,
    expected vector NOT NULL,
    PRIMARY KEY (adapter_id, position)
);
COMMENT ON TABLE drift.adapter_probe IS 'Inputs with the outputs that drift.adapt must give, replayed by drift.verify';
    """)


def downgrade() -> None:
    op.execute("""
DROP TABLE drift.adapter_probe;
DROP TABLE drift.adapter_weight;
DROP TABLE drift.adapter_layer;
DROP TABLE drift.adapter;
    """)
