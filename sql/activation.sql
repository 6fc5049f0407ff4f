-- Adapters: is one what was stored, and which one serves.

CREATE OR REPLACE FUNCTION drift.checksum(adapter bigint)
RETURNS bytea
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    bytes bytea;
BEGIN
    SELECT convert_to(format(E'drift_pg adapter 1\n%s %s %s\n', s.dimensions, t.dimensions, a.normalize_input), 'UTF8')
    INTO bytes
    FROM drift.adapter a JOIN drift.model s ON s.name = a.source JOIN drift.model t ON t.name = a.target
    WHERE a.id = checksum.adapter;
    -- vector_send puts four bytes of header before the big-endian float4s.
    SELECT bytes || string_agg(
        convert_to(format(E'%s %s %s %s %s %s %s %s\n', l.position, l.outputs, l.inputs, l.activation,
                          l.takes_input, l.normalize, l.is_route, coalesce(l.expert::text, '-')), 'UTF8')
        || coalesce((SELECT string_agg(substring(vector_send(w.weights) FROM 5), ''::bytea ORDER BY w.output, w.block)
                     FROM drift.adapter_weight w WHERE w.adapter_id = l.adapter_id AND w.layer = l.position), ''::bytea),
        ''::bytea ORDER BY l.position)
    INTO bytes
    FROM drift.adapter_layer l WHERE l.adapter_id = checksum.adapter;
    RETURN sha256(bytes);
END
$$;
COMMENT ON FUNCTION drift.checksum(bigint) IS
    'SHA-256 of a stored adapter''s canonical bytes, computed from its rows; the same as Adapter.checksum in Python.';


CREATE OR REPLACE FUNCTION drift.verify(adapter bigint)
RETURNS TABLE (ok boolean, probes integer, worst_error double precision, problem text)
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    tolerance CONSTANT double precision := 1e-3;  -- of the expected length; cosine then is above 1 - 1e-6
    stored bytea;
BEGIN
    SELECT a.checksum INTO stored FROM drift.adapter a WHERE a.id = verify.adapter;
    IF NOT FOUND THEN
        PERFORM drift.refuse_adapter(adapter);
    END IF;
    IF stored IS DISTINCT FROM drift.checksum(adapter) THEN
        RETURN QUERY SELECT false, 0, NULL::double precision, 'its weights are not those of its checksum'::text;
        RETURN;
    END IF;
    SELECT count(*), max((drift.adapt(p.input, adapter) <-> p.expected) / greatest(vector_norm(p.expected), 1e-30))
    INTO probes, worst_error
    FROM drift.adapter_probe p WHERE p.adapter_id = verify.adapter;
    problem := CASE WHEN probes = 0 THEN 'it has no probes'
                    WHEN worst_error > tolerance THEN format('a probe is off by %s of its length, allowed is %s', worst_error, tolerance) END;
    ok := problem IS NULL;
    RETURN NEXT;
END
$$;
COMMENT ON FUNCTION drift.verify(bigint) IS
    'Whether a stored adapter is what was written: recomputes its checksum and replays its probes through drift.adapt. worst_error is relative to the expected length.';


CREATE OR REPLACE FUNCTION drift.lock_activation(source text, target text)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended(format('drift.activate %L %L', source, target), 0)) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD021',
            MESSAGE = format('another transaction is changing the active adapter from model %L to model %L', source, target),
            HINT = 'When it has ended, look at what is active, then decide: SELECT * FROM drift.adapters;';
    END IF;
END
$$;
COMMENT ON FUNCTION drift.lock_activation(text, text) IS 'Takes the lock on the active adapter of two models until the transaction ends, or raises VD021.';


CREATE OR REPLACE FUNCTION drift.latest_evaluation(adapter bigint)
RETURNS SETOF drift.evaluation
LANGUAGE sql STABLE STRICT PARALLEL SAFE ROWS 1
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
    SELECT e.* FROM drift.evaluation e WHERE e.adapter_id = latest_evaluation.adapter ORDER BY e.id DESC LIMIT 1
$$;
COMMENT ON FUNCTION drift.latest_evaluation(bigint) IS 'The evaluation of an adapter that counts: its latest; no row if there is none.';


CREATE OR REPLACE FUNCTION drift.check_gate(adapter bigint, minimum real)
RETURNS void
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    found drift.evaluation;
    unseen text := format('SELECT drift.activate(%s, force => true); or drift-pg activate %s --force', adapter, adapter);
BEGIN
    SELECT * INTO found FROM drift.latest_evaluation(adapter);
    IF found.id IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD023',
            MESSAGE = format('adapter %s is not activated: it has not been evaluated', adapter),
            HINT = format('drift-pg evaluate %s --test-pairs FILE; to serve it unseen: %s', adapter, unseen);
    ELSIF found.score_low < minimum THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD024',
            MESSAGE = format('adapter %s is not activated: its score is %s, at least %s with 95 %% confidence, and the minimum is %s',
                             adapter, round(found.score::numeric, 3), round(found.score_low::numeric, 3), round(minimum::numeric, 3)),
            DETAIL = format('Evaluated on %s items at %s; the advice was: %s.', found.items, date_trunc('second', found.created_at), found.advice),
            HINT = format('Fit it on more pairs, or re-embed first; to serve it all the same: %s', unseen);
    END IF;
END
$$;
COMMENT ON FUNCTION drift.check_gate(bigint, real) IS
    'The quality gate: raises VD023 if an adapter has no evaluation, VD024 if the lower end of its score is below the minimum.';


CREATE OR REPLACE FUNCTION drift.activate(adapter bigint, force boolean DEFAULT false, minimum real DEFAULT :'minimum')
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    this drift.adapter;
    replaced bigint;
    verdict record;
    overridden text;
BEGIN
    PERFORM drift.require_administration();
    IF NOT minimum BETWEEN 0 AND 1 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD003',
            MESSAGE = format('the minimum is %s, expected 0 to 1', minimum);
    END IF;
    SELECT * INTO verdict FROM drift.verify(adapter);
    IF NOT verdict.ok THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD030',
            MESSAGE = format('adapter %s is not activated: %s', adapter, verdict.problem),
            HINT = 'Store it again from its file: drift-pg import FILE. What was active stays active.';
    END IF;
    SELECT a.* INTO this FROM drift.adapter a WHERE a.id = activate.adapter;
    PERFORM drift.lock_activation(this.source, this.target);
    -- Only a candidate is judged: one that has served was accepted then, and is the way back from what replaced it.
    IF this.status = 'candidate' THEN
        BEGIN
            PERFORM drift.check_gate(adapter, minimum);
        EXCEPTION WHEN SQLSTATE 'VD023' OR SQLSTATE 'VD024' THEN
            IF NOT force THEN
                RAISE;
            END IF;
            overridden := SQLERRM;
        END;
    END IF;
    -- A status read before the lock may be old; only what is not yet active changes.
    UPDATE drift.adapter a SET status = 'retired'
    WHERE a.source = this.source AND a.target = this.target AND a.status = 'active' AND a.id <> this.id
    RETURNING a.id INTO replaced;
    UPDATE drift.adapter a SET status = 'active', activated_at = now() WHERE a.id = this.id AND a.status <> 'active';
    IF FOUND THEN
        INSERT INTO drift.event (action, subject, details)
        VALUES ('activate', adapter::text, jsonb_build_object('source', this.source, 'target', this.target, 'replaced', replaced)
            || CASE WHEN overridden IS NULL THEN '{}'::jsonb ELSE jsonb_build_object('forced', true, 'overridden', overridden) END);
        PERFORM pg_notify('drift_adapter', format('activate %s', adapter));
    END IF;
END
$$;
COMMENT ON FUNCTION drift.activate(bigint, boolean, real) IS
    'Makes an adapter the one that serves its two models, at commit, for every client; the one before is retired. Refuses an adapter that drift.verify finds broken, and, unless forced, a candidate that the quality gate refuses (VD023, VD024).';


CREATE OR REPLACE FUNCTION drift.deactivate(source text, target text)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    stopped bigint;
BEGIN
    PERFORM drift.require_administration();
    PERFORM drift.model_dimensions(source), drift.model_dimensions(target);
    PERFORM drift.lock_activation(source, target);
    UPDATE drift.adapter a SET status = 'retired'
    WHERE a.source = deactivate.source AND a.target = deactivate.target AND a.status = 'active'
    RETURNING a.id INTO stopped;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD012',
            MESSAGE = format('no adapter from model %L to model %L is active', source, target),
            HINT = 'SELECT * FROM drift.adapters;';
    END IF;
    INSERT INTO drift.event (action, subject, details)
    VALUES ('deactivate', stopped::text, jsonb_build_object('source', source, 'target', target));
    PERFORM pg_notify('drift_adapter', format('deactivate %s', stopped));
END
$$;
COMMENT ON FUNCTION drift.deactivate(text, text) IS
    'Retires the active adapter of two models. Searches that need it then fail with VD012; drift.activate brings it back.';


CREATE OR REPLACE FUNCTION drift.drop_adapter(adapter bigint)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    this drift.adapter;
BEGIN
    PERFORM drift.require_administration();
    DELETE FROM drift.adapter a WHERE a.id = drop_adapter.adapter RETURNING a.* INTO this;
    IF NOT FOUND THEN
        PERFORM drift.refuse_adapter(adapter);
    ELSIF this.status = 'active' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD022',
            MESSAGE = format('adapter %s is active', adapter),
            HINT = format('SELECT drift.deactivate(%L, %L);', this.source, this.target);
    END IF;
    INSERT INTO drift.event (action, subject, details)
    VALUES ('drop_adapter', adapter::text, jsonb_build_object('source', this.source, 'target', this.target, 'checksum', encode(this.checksum, 'hex')));
END
$$;
COMMENT ON FUNCTION drift.drop_adapter(bigint) IS 'Deletes an adapter that is not active, with its weights.';


-- For a history of revisions: a switch says what it starts from, so that two histories do not undo each other unseen.
CREATE OR REPLACE FUNCTION drift.switch_adapter(source text, target text, checksum text, replaces text, force boolean DEFAULT false, minimum real DEFAULT :'minimum')
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    serving record;
    chosen bigint := drift.stored_adapter(source, target, checksum);
BEGIN
    PERFORM drift.require_administration();
    PERFORM drift.model_dimensions(source), drift.model_dimensions(target);
    PERFORM drift.lock_activation(source, target);
    SELECT a.id, encode(a.checksum, 'hex') AS checksum INTO serving FROM drift.adapter a
    WHERE a.source = switch_adapter.source AND a.target = switch_adapter.target AND a.status = 'active';
    IF serving.checksum IS NOT DISTINCT FROM switch_adapter.checksum THEN
        RETURN;
    ELSIF serving.checksum IS DISTINCT FROM replaces THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD025',
            MESSAGE = format('from model %L to model %L %s, expected %s', source, target,
                             coalesce(format('adapter %s is active (checksum %s)', serving.id, serving.checksum), 'no adapter is active'),
                             coalesce('the one with checksum ' || replaces, 'none')),
            DETAIL = 'Nothing was changed.',
            HINT = CASE WHEN serving.id IS NULL
                THEN 'It was deactivated outside this history: drift-pg adapters; activate the expected one again, then repeat.'
                ELSE format('If two branches of a history activate adapters, let one follow the other and say replaces=%L; if it was activated by hand: SELECT drift.deactivate(%L, %L);',
                            serving.checksum, source, target) END;
    ELSIF switch_adapter.checksum IS NULL THEN
        PERFORM drift.deactivate(source, target);
    ELSIF chosen IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD011',
            MESSAGE = format('no adapter from model %L to model %L has checksum %s', source, target, switch_adapter.checksum),
            HINT = 'SELECT * FROM drift.adapters; store it from its file: drift-pg import FILE';
    ELSE
        PERFORM drift.activate(chosen, force, minimum);
    END IF;
END
$$;
COMMENT ON FUNCTION drift.switch_adapter(text, text, text, text, boolean, real) IS
    'Activates the stored adapter of a checksum (NULL: none) in place of the one with checksum replaces (NULL: none); VD025 if another is active. Nothing happens if it is active already.';


CREATE OR REPLACE FUNCTION drift.forget_artifact(source text, target text, checksum text)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    stored bigint := drift.stored_adapter(source, target, checksum);
BEGIN
    IF EXISTS (SELECT FROM drift.adapter a WHERE a.id = stored AND a.details ? 'artifact' AND a.status <> 'active') THEN
        PERFORM drift.drop_adapter(stored);
    END IF;
END
$$;
COMMENT ON FUNCTION drift.forget_artifact(text, text, text) IS
    'Deletes the inactive adapter of a checksum if a revision brought it from a file, which still has it; one that was stored otherwise stays.';
