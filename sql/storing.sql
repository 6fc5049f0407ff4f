-- Storing an adapter: its description, then its weights (by COPY, or as text in one call), then its probes.

CREATE OR REPLACE FUNCTION drift.begin_adapter(source text, target text, description jsonb)
RETURNS bigint
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    side record;
    registered integer;
    stored bigint;
BEGIN
    PERFORM drift.require_administration();
    IF source = target THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD003',
            MESSAGE = format('an adapter joins two models, source and target are both %L', source);
    END IF;
    FOR side IN
        SELECT * FROM (VALUES ('source', source), ('target', target)) AS s (name, model)
    LOOP
        registered := drift.model_dimensions(side.model);
        IF registered <> (description ->> (side.name || '_dimensions'))::integer THEN
            RAISE EXCEPTION USING
                ERRCODE = 'VD001',
                MESSAGE = format('the adapter''s %s has %s dimensions, model %L has %s', side.name,
                                 description ->> (side.name || '_dimensions'), side.model, registered),
                HINT = 'Were source and target swapped? Source is the new model, target the legacy one.';
        END IF;
    END LOOP;
    INSERT INTO drift.adapter (source, target, family, normalize_input, checksum, details)
    VALUES (begin_adapter.source, begin_adapter.target, description ->> 'family', (description ->> 'normalize_input')::boolean,
            decode(description ->> 'checksum', 'hex'), description -> 'details')
    RETURNING id INTO stored;
    INSERT INTO drift.adapter_layer
    SELECT l.*
    FROM jsonb_array_elements(description -> 'layers') WITH ORDINALITY AS e (layer, i),
         jsonb_populate_record(NULL::drift.adapter_layer, e.layer || jsonb_build_object('adapter_id', stored, 'position', e.i - 1)) AS l;
    RETURN stored;
END
$$;
COMMENT ON FUNCTION drift.begin_adapter(text, text, jsonb) IS
    'The first step of storing an adapter: its row and its layers, without weights. Callers write the weights and call drift.finish_adapter in the same transaction.';


CREATE OR REPLACE FUNCTION drift.finish_adapter(adapter bigint, inputs text[], expected text[])
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    verdict record;
BEGIN
    INSERT INTO drift.adapter_probe (adapter_id, position, input, expected)
    SELECT finish_adapter.adapter, p.i - 1, p.input::vector, p.output::vector
    FROM unnest(inputs, expected) WITH ORDINALITY AS p (input, output, i);
    SELECT * INTO verdict FROM drift.verify(adapter);
    IF NOT verdict.ok THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD030',
            MESSAGE = format('the adapter was not stored: %s', verdict.problem);
    END IF;
    INSERT INTO drift.event (action, subject, details)
    SELECT 'store', a.id::text,
           jsonb_build_object('source', a.source, 'target', a.target, 'family', a.family, 'checksum', encode(a.checksum, 'hex'))
    FROM drift.adapter a WHERE a.id = finish_adapter.adapter;
END
$$;
COMMENT ON FUNCTION drift.finish_adapter(bigint, text[], text[]) IS
    'The last step of storing an adapter: its probes, replayed at once; VD030 if it does not reproduce them.';


CREATE OR REPLACE FUNCTION drift.stored_adapter(source text, target text, checksum text)
RETURNS bigint
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
    SELECT a.id FROM drift.adapter a
    WHERE a.source = stored_adapter.source AND a.target = stored_adapter.target AND a.checksum = decode(stored_adapter.checksum, 'hex')
    ORDER BY a.status = 'active' DESC, a.id DESC LIMIT 1
$$;
COMMENT ON FUNCTION drift.stored_adapter(text, text, text) IS
    'The id of the adapter between two models that has this checksum (hexadecimal), the active one first; NULL if there is none.';


CREATE OR REPLACE FUNCTION drift.store_evaluation(adapter bigint, evaluation jsonb)
RETURNS bigint
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    missing text;
    stored drift.evaluation;
BEGIN
    PERFORM drift.require_administration();
    SELECT string_agg(array_to_string(p.path, '.'), ', ') INTO missing
    FROM (VALUES ('{score,value}'::text[]), ('{score,low}'), ('{score,high}'), ('{pairs}'), ('{advice,kind}')) AS p (path)
    WHERE evaluation #>> p.path IS NULL;
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD003',
            MESSAGE = format('the evaluation lacks %s: expected score, pairs and advice', missing),
            HINT = 'Store what drift_pg.evaluate(…).as_dict() gives.';
    END IF;
    PERFORM FROM drift.adapter a WHERE a.id = store_evaluation.adapter FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM drift.refuse_adapter(adapter);
    END IF;
    INSERT INTO drift.evaluation AS e (adapter_id, score, score_low, score_high, items, advice, figures)
    VALUES (adapter, (evaluation #>> '{score,value}')::real, (evaluation #>> '{score,low}')::real, (evaluation #>> '{score,high}')::real,
            (evaluation ->> 'pairs')::integer, evaluation #>> '{advice,kind}', evaluation)
    RETURNING e.* INTO stored;
    INSERT INTO drift.event (action, subject, details)
    VALUES ('evaluate', adapter::text,
            jsonb_build_object('evaluation', stored.id, 'score', stored.score, 'low', stored.score_low, 'high', stored.score_high,
                               'items', stored.items, 'advice', stored.advice));
    IF evaluation -> 'calibration' <> '{}' THEN
        PERFORM drift.store_calibration(adapter, evaluation -> 'calibration');
    END IF;
    RETURN stored.id;
END
$$;
COMMENT ON FUNCTION drift.store_evaluation(bigint, jsonb) IS
    'Keeps an evaluation of a stored adapter, as Evaluation.as_dict() in Python gives it; the latest is what drift.activate judges by. Its calibration becomes the adapter''s.';


CREATE OR REPLACE FUNCTION drift.store_adapter(source text, target text, description jsonb, weights text[], inputs text[], expected text[])
RETURNS bigint
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    stored bigint := drift.stored_adapter(source, target, description ->> 'checksum');
BEGIN
    IF stored IS NOT NULL THEN
        RETURN stored;
    END IF;
    stored := drift.begin_adapter(source, target, description);
    INSERT INTO drift.adapter_weight (adapter_id, layer, block, output, weights)
    SELECT stored, place.layer, place.block, place.output, w.weights::vector
    FROM unnest(weights) WITH ORDINALITY AS w (weights, i)
    JOIN (SELECT l.position AS layer, b AS block, o AS output, row_number() OVER (ORDER BY l.position, b, o) AS i
          FROM drift.adapter_layer l, generate_series(0, l.blocks - 1) AS b, generate_series(0, l.outputs - 1) AS o
          WHERE l.adapter_id = stored) AS place USING (i);
    PERFORM drift.finish_adapter(stored, inputs, expected);
    PERFORM drift.store_evaluation(stored, description -> 'evaluation');
    RETURN stored;
END
$$;
COMMENT ON FUNCTION drift.store_adapter(text, text, jsonb, text[], text[], text[]) IS
    'Stores an adapter from text, for scripts; the id of the one that is stored already if it has the same checksum. weights: one vector per output, by layer, block and output; an evaluation in the description is stored with it.';


CREATE OR REPLACE FUNCTION drift.store_calibration(adapter bigint, calibration jsonb)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    PERFORM drift.require_administration();
    PERFORM FROM drift.adapter a WHERE a.id = store_calibration.adapter FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM drift.refuse_adapter(adapter);
    END IF;
    INSERT INTO drift.calibration (adapter_id, metric, slope, intercept, residual, margin)
    SELECT adapter, m.key, l.slope, l.intercept, l.residual, l.margin
    FROM jsonb_each(calibration) m, jsonb_to_record(m.value) AS l (slope float8, intercept float8, residual float8, margin float8)
    ON CONFLICT (adapter_id, metric) DO UPDATE
    SET slope = excluded.slope, intercept = excluded.intercept, residual = excluded.residual, margin = excluded.margin;
    INSERT INTO drift.event (action, subject, details) VALUES ('calibrate', adapter::text, calibration);
END
$$;
COMMENT ON FUNCTION drift.store_calibration(bigint, jsonb) IS
    'Keeps what an adapter''s scores say of the new model''s, per metric: {"cosine": {"slope": …, "intercept": …, "residual": …, "margin": …}}.';
