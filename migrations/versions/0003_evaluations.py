"""Evaluations: what was measured of an adapter, for the quality gate and for people."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
CREATE TABLE drift.evaluation (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    adapter_id bigint NOT NULL REFERENCES drift.adapter ON DELETE CASCADE,
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL DEFAULT session_user,
    score real NOT NULL CHECK (score BETWEEN 0 AND 1),
    score_low real NOT NULL CHECK (score_low BETWEEN 0 AND score),
    score_high real NOT NULL CHECK (score_high BETWEEN score AND 1),
    items integer NOT NULL CHECK (items > 0),
    advice text NOT NULL,
    figures jsonb NOT NULL
);
COMMENT ON TABLE drift.evaluation IS 'What was measured of an adapter on pairs that it was not fitted on; the latest one counts';
COMMENT ON COLUMN drift.evaluation.score IS 'Per item, the mean of: found first by its own adapted vector; the new model''s nearest item among the adapted ten';
COMMENT ON COLUMN drift.evaluation.score_low IS 'Lower end of its interval, of 0.95 confidence; the quality gate holds it against the minimum';
COMMENT ON COLUMN drift.evaluation.score_high IS 'Upper end of its interval, of 0.95 confidence';
COMMENT ON COLUMN drift.evaluation.items IS 'Test pairs that the score is a mean over';
COMMENT ON COLUMN drift.evaluation.advice IS 'bridge; bridge and rerank; re-embed before switching; no gain: stay';
COMMENT ON COLUMN drift.evaluation.figures IS 'All figures with their intervals, the reasons of the advice and the findings; Evaluation.as_dict() in Python';
CREATE INDEX evaluation_of_adapter ON drift.evaluation (adapter_id, id);

-- drift.adapters reads it: who could look at adapters before the upgrade still can. (No format(): Alembic doubles its percent signs.)
DO $$ DECLARE command text; BEGIN
    FOR command IN
        SELECT 'GRANT ' || a.privilege_type || ' ON drift.evaluation TO '
               || CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = 'drift.adapter'::regclass AND a.grantee <> c.relowner
    LOOP
        EXECUTE command;
    END LOOP;
END $$;

-- Replaced by drift.activate(bigint, boolean, real), which functions re-created beside it would leave in place.
DROP FUNCTION IF EXISTS drift.activate(bigint);
    """)


def downgrade() -> None:
    op.execute("DROP TABLE drift.evaluation")
