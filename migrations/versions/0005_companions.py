"""Companion tables and calibrations, which searching in two models' vectors at once needs; and a log of queries."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
CREATE TABLE drift.companion (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    relation regclass NOT NULL,
    column_name name NOT NULL,
    model text NOT NULL REFERENCES drift.model ON UPDATE CASCADE,
    text_columns name[] NOT NULL CHECK (cardinality(text_columns) > 0),
    key_columns name[] NOT NULL CHECK (cardinality(key_columns) > 0),
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (relation, column_name),
    FOREIGN KEY (relation, column_name) REFERENCES drift.embedding_column
);
COMMENT ON TABLE drift.companion IS
    'Embedding columns that are being re-embedded: table drift.companion_<id> holds the new model''s vectors, by the user''s primary key';
COMMENT ON COLUMN drift.companion.text_columns IS 'The columns that the embedded text is made of, joined by a line break';

CREATE TABLE drift.calibration (
    adapter_id bigint NOT NULL REFERENCES drift.adapter ON DELETE CASCADE,
    metric text NOT NULL CHECK (metric IN ('cosine', 'inner_product', 'l2', 'l1')),
    slope double precision NOT NULL CHECK (slope > 0 AND slope < 'infinity'),
    intercept double precision NOT NULL CHECK (abs(intercept) < 'infinity'),
    residual double precision NOT NULL CHECK (residual >= 0 AND residual < 'infinity'),
    margin double precision NOT NULL CHECK (margin >= 0 AND margin < 'infinity'),
    PRIMARY KEY (adapter_id, metric)
);
COMMENT ON TABLE drift.calibration IS 'What a bridge''s score says of the new model''s: new score = intercept + slope * bridge score, fitted on held-out pairs';
COMMENT ON COLUMN drift.calibration.residual IS 'Standard deviation of what the line leaves unexplained';
COMMENT ON COLUMN drift.calibration.margin IS
    'Added to calibrated scores where exact ones stand beside them, so that a few rows with new vectors do not crowd out better rows without';

CREATE TABLE drift.query_log (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    logged_at timestamptz NOT NULL DEFAULT now(),
    model text NOT NULL REFERENCES drift.model ON UPDATE CASCADE ON DELETE CASCADE,
    relation regclass NOT NULL,
    column_name name NOT NULL,
    query vector NOT NULL,
    FOREIGN KEY (relation, column_name) REFERENCES drift.embedding_column ON DELETE CASCADE
);
COMMENT ON TABLE drift.query_log IS
    'A sample of real queries, as vectors alone: to fit and to evaluate by, and to choose what is re-embedded first. drift.log_query writes it and keeps it small';
CREATE INDEX query_log_newest ON drift.query_log (relation, column_name, model, id);

-- Who could look at adapters can look at these. (No format(): Alembic doubles its percent signs.)
DO $$ DECLARE command text; BEGIN
    FOR command IN
        SELECT 'GRANT ' || a.privilege_type || ' ON ' || t || ' TO '
               || CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM pg_class c, aclexplode(c.relacl) a, unnest(ARRAY['drift.companion', 'drift.calibration', 'drift.query_log']) AS t
        WHERE c.oid = 'drift.adapter'::regclass AND a.grantee <> c.relowner
    LOOP
        EXECUTE command;
    END LOOP;
END $$;

-- Replaced by a drift.nearest that also reranks, which functions re-created beside it would leave in place.
DROP FUNCTION IF EXISTS drift.nearest(anyelement, name, vector, text, integer);
    """)


def downgrade() -> None:
    op.execute("""
DROP TABLE drift.query_log;
DROP TABLE drift.calibration;
DROP TABLE drift.companion;
    """)
