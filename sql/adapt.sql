-- The evaluator: drift.adapt maps a query of one model into another model's space.
-- In a search write ORDER BY embedding <=> (SELECT drift.adapt(…)): run once, and the index is used.

CREATE OR REPLACE FUNCTION drift.refuse_privilege()
RETURNS void
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'insufficient_privilege',
        MESSAGE = format('role %I may not read the adapters in schema drift', current_user),
        HINT = format('GRANT USAGE ON SCHEMA drift TO %1$I; GRANT SELECT ON ALL TABLES IN SCHEMA drift TO %1$I;', current_user);
END
$$;
COMMENT ON FUNCTION drift.refuse_privilege() IS 'Raises: the caller may not read adapters, with the GRANT that allows it.';


CREATE OR REPLACE FUNCTION drift.model_dimensions(model text)
RETURNS integer
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    dimensions integer;
BEGIN
    SELECT m.dimensions INTO dimensions FROM drift.model m WHERE m.name = model_dimensions.model;
    IF dimensions IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD010',
            MESSAGE = format('model %L is not registered', model),
            DETAIL = coalesce('Registered: ' || (SELECT string_agg(quote_literal(m.name), ', ' ORDER BY m.name) FROM drift.model m) || '.',
                              'No model is registered.'),
            HINT = format('SELECT drift.register_model(%L, dimensions => 384);', model);
    END IF;
    RETURN dimensions;
END
$$;
COMMENT ON FUNCTION drift.model_dimensions(text) IS 'The dimensions of a registered model; raises VD010 if it is unknown.';


CREATE OR REPLACE FUNCTION drift.check_dimensions(query vector, model text, dimensions integer)
RETURNS void
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    IF vector_dims(query) <> dimensions THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD001',
            MESSAGE = format('query has %s dimensions, model %L has %s', vector_dims(query), model, dimensions),
            HINT = 'Was the query embedded by the model that is named? SELECT * FROM drift.models;';
    END IF;
END
$$;
COMMENT ON FUNCTION drift.check_dimensions(vector, text, integer) IS 'Raises VD001 if a vector has not the dimensions of its model.';


CREATE OR REPLACE FUNCTION drift.refuse_direction(given vector)
RETURNS void
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'VD002',
        MESSAGE = format('a vector of %s dimensions has zero length, so no direction', vector_dims(given)),
        HINT = 'Was an empty text embedded?';
END
$$;
COMMENT ON FUNCTION drift.refuse_direction(vector) IS 'Raises VD002: a vector of zero length cannot be scaled to unit length.';


CREATE OR REPLACE FUNCTION drift.refuse_adapter(adapter bigint)
RETURNS void
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'VD011',
        MESSAGE = format('there is no adapter %s', adapter),
        HINT = 'SELECT * FROM drift.adapters;';
END
$$;
COMMENT ON FUNCTION drift.refuse_adapter(bigint) IS 'Raises VD011: no adapter has that id.';


CREATE OR REPLACE FUNCTION drift.refuse_incomplete(adapter bigint, what text)
RETURNS void
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'VD030',
        MESSAGE = format('adapter %s is incomplete: %s', adapter, what),
        HINT = format('SELECT * FROM drift.verify(%s); then import it again from its file: drift-pg import FILE', adapter);
END
$$;
COMMENT ON FUNCTION drift.refuse_incomplete(bigint, text) IS 'Raises VD030: rows of an adapter are missing.';


-- The settings make the plan an ordered index scan, planned once for a session: a scan that is sorted, or planned
-- for each query anew, costs half as much again as the products themselves.
CREATE OR REPLACE FUNCTION drift.multiply(adapter bigint, step drift.adapter_layer, given vector)
RETURNS vector
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
    part vector := given;
    products double precision[];
    total vector;
BEGIN
    FOR this_block IN 0 .. step.blocks - 1 LOOP
        IF step.blocks > 1 THEN
            part := subvector(given, this_block * step.block_columns + 1,
                              least(step.block_columns, vector_dims(given) - this_block * step.block_columns));
        END IF;
        products := ARRAY(
            SELECT -(w.weights <#> part) FROM drift.adapter_weight w
            WHERE w.adapter_id = multiply.adapter AND w.layer = step.position AND w.block = this_block
            ORDER BY w.output);
        IF cardinality(products) <> step.outputs THEN
            PERFORM drift.refuse_incomplete(adapter, format('layer %s has %s of %s rows of weights', step.position, cardinality(products), step.outputs));
        END IF;
        IF this_block = 0 THEN
            total := products::vector;
        ELSE
            total := total + products::vector;
        END IF;
    END LOOP;
    RETURN total;
END
$$;
COMMENT ON FUNCTION drift.multiply(bigint, drift.adapter_layer, vector) IS 'A layer''s weights times a vector that ends in 1.';


CREATE OR REPLACE FUNCTION drift.gelu(hidden vector)
RETURNS vector
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RETURN ARRAY(
        SELECT v / (1 + exp(-1.5957691216057308 * (c + 0.044715 * c * c * c)))
        FROM unnest(hidden::real[]::double precision[]) WITH ORDINALITY AS u (v, i), LATERAL (SELECT least(greatest(v, -10), 10) AS c) AS clipped
        ORDER BY i)::vector;
END
$$;
COMMENT ON FUNCTION drift.gelu(vector) IS 'Gaussian error linear unit (tanh form), elementwise.';


CREATE OR REPLACE FUNCTION drift.adapt(query vector, adapter bigint)
RETURNS vector
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    this record;
    step drift.adapter_layer;
    x vector := query;
    hidden vector;
    given vector;
    chosen integer;
BEGIN
    IF NOT has_table_privilege('drift.adapter_weight', 'SELECT') THEN
        PERFORM drift.refuse_privilege();
    END IF;
    SELECT a.source, a.normalize_input, m.dimensions INTO this
    FROM drift.adapter a JOIN drift.model m ON m.name = a.source WHERE a.id = adapt.adapter;
    IF NOT FOUND THEN
        PERFORM drift.refuse_adapter(adapter);
    END IF;
    IF vector_dims(query) <> this.dimensions THEN
        PERFORM drift.check_dimensions(query, this.source, this.dimensions);
    END IF;
    IF this.normalize_input THEN
        IF vector_norm(x) = 0 THEN
            PERFORM drift.refuse_direction(x);
        END IF;
        x := l2_normalize(x);
    END IF;
    hidden := x;
    FOR step IN
        SELECT * FROM drift.adapter_layer l WHERE l.adapter_id = adapt.adapter ORDER BY l.position
    LOOP
        CONTINUE WHEN step.expert <> chosen;
        given := CASE WHEN step.takes_input THEN hidden || x ELSE hidden END || '[1]'::vector;
        given := drift.multiply(adapter, step, given);
        IF step.is_route THEN
            SELECT u.i - 1 INTO chosen FROM unnest(given::real[]) WITH ORDINALITY AS u (v, i) ORDER BY u.v DESC, u.i LIMIT 1;
            CONTINUE;
        END IF;
        IF step.activation = 'gelu' THEN
            given := drift.gelu(given);
        END IF;
        IF step.normalize THEN
            IF vector_norm(given) = 0 THEN
                PERFORM drift.refuse_direction(given);
            END IF;
            given := l2_normalize(given);
        END IF;
        hidden := given;
    END LOOP;
    -- Without this an adapter that lost its layers would hand the query through unadapted.
    IF NOT FOUND THEN
        PERFORM drift.refuse_incomplete(adapter, 'it has no layers');
    END IF;
    RETURN hidden;
END
$$;
COMMENT ON FUNCTION drift.adapt(vector, bigint) IS
    'Maps a query by the adapter of this id, active or not: to try a candidate. Write it in a search as (SELECT drift.adapt(…)).';


CREATE OR REPLACE FUNCTION drift.adapt(query vector, source text, target text)
RETURNS vector
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    active bigint;
    candidate bigint;
BEGIN
    IF NOT has_table_privilege('drift.adapter', 'SELECT') THEN
        PERFORM drift.refuse_privilege();
    END IF;
    SELECT a.id INTO active FROM drift.adapter a
    WHERE a.source = adapt.source AND a.target = adapt.target AND a.status = 'active';
    IF FOUND THEN
        RETURN drift.adapt(query, active);
    END IF;
    PERFORM drift.check_dimensions(query, source, drift.model_dimensions(source));
    PERFORM drift.model_dimensions(target);
    IF source = target THEN
        RETURN adapt.query;
    END IF;
    SELECT max(a.id) INTO candidate FROM drift.adapter a WHERE a.source = adapt.source AND a.target = adapt.target;
    RAISE EXCEPTION USING
        ERRCODE = 'VD012',
        MESSAGE = format('no adapter from model %L to model %L is active', source, target),
        HINT = coalesce(format('SELECT drift.activate(%s);', candidate), 'Fit one and store it: drift-pg fit --help');
END
$$;
COMMENT ON FUNCTION drift.adapt(vector, text, text) IS
    'Maps a query of the source model into the target model''s space by their active adapter; the query itself if both are the same. Write it in a search as (SELECT drift.adapt(…)).';


CREATE OR REPLACE FUNCTION drift.adapt(query halfvec, source text, target text)
RETURNS halfvec
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RETURN drift.adapt(query::vector, source, target)::halfvec;
END
$$;
COMMENT ON FUNCTION drift.adapt(halfvec, text, text) IS
    'As drift.adapt(vector, text, text), for half-precision queries; computed in single precision.';


CREATE OR REPLACE FUNCTION drift.adapt_for(query vector, query_model text, relation regclass, embedding_column name)
RETURNS vector
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    held text;
BEGIN
    IF NOT has_table_privilege('drift.embedding_column', 'SELECT') THEN
        PERFORM drift.refuse_privilege();
    END IF;
    SELECT c.model INTO held FROM drift.embedding_column c
    WHERE c.relation = adapt_for.relation AND c.column_name = adapt_for.embedding_column;
    IF NOT FOUND THEN
        PERFORM drift.refuse_column(relation, embedding_column);
    END IF;
    RETURN drift.adapt(query, query_model, held);
END
$$;
COMMENT ON FUNCTION drift.adapt_for(vector, text, regclass, name) IS
    'Maps a query of query_model into the space of the model that the embedding column holds. An application''s SQL stays the same before, during and after an upgrade. Write it in a search as (SELECT drift.adapt_for(…)).';
