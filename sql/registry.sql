-- Models and embedding columns: what is registered, and what the catalog says of it.

CREATE OR REPLACE FUNCTION drift.register_model(name text, dimensions integer, normalized boolean DEFAULT true)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    known drift.model;
BEGIN
    PERFORM drift.require_administration();
    IF name = '' OR dimensions NOT BETWEEN 1 AND 4000 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD003',
            MESSAGE = format('model %L with %s dimensions cannot be registered: a model needs a name and 1 to 4000 dimensions', name, dimensions);
    END IF;
    INSERT INTO drift.model (name, dimensions, normalized)
    VALUES (register_model.name, register_model.dimensions, register_model.normalized)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
        INSERT INTO drift.event (action, subject, details)
        VALUES ('register_model', name, jsonb_build_object('dimensions', dimensions, 'normalized', normalized));
        RETURN;
    END IF;
    SELECT m.* INTO known FROM drift.model m WHERE m.name = register_model.name;
    IF (known.dimensions, known.normalized) IS DISTINCT FROM (dimensions, normalized) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD020',
            MESSAGE = format('model %L is registered with %s dimensions, normalized %s; it cannot also have %s dimensions, normalized %s',
                             name, known.dimensions, known.normalized::text, dimensions, normalized::text),
            HINT = 'A changed model is another model: register it under a name of its own, such as its version.';
    END IF;
END
$$;
COMMENT ON FUNCTION drift.register_model(text, integer, boolean) IS
    'Registers an embedding model; nothing happens if it is registered alike, VD020 if otherwise.';


CREATE OR REPLACE FUNCTION drift.unregister_model(name text)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    users text;
    logged bigint;
BEGIN
    PERFORM drift.require_administration();
    PERFORM drift.model_dimensions(name);
    SELECT string_agg(u.what, ', ') INTO users FROM (
        SELECT format('column %s.%I', c.relation, c.column_name) FROM drift.embedding_column c WHERE unregister_model.name IN (c.model, c.query_model)
        UNION ALL
        SELECT format('adapter %s', a.id) FROM drift.adapter a WHERE unregister_model.name IN (a.source, a.target)
        UNION ALL
        SELECT format('the companion of column %s.%I', c.relation, c.column_name) FROM drift.companion c WHERE c.model = unregister_model.name) AS u (what);
    IF users IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD022',
            MESSAGE = format('model %L is in use by %s', name, users),
            HINT = 'Remove those first: drift.unregister_column(relation, column), drift.drop_adapter(id).';
    END IF;
    SELECT count(*) INTO logged FROM drift.query_log l WHERE l.model = unregister_model.name;
    DELETE FROM drift.model m WHERE m.name = unregister_model.name;
    INSERT INTO drift.event (action, subject, details) VALUES ('unregister_model', name, jsonb_build_object('logged_queries', logged));
END
$$;
COMMENT ON FUNCTION drift.unregister_model(text) IS
    'Forgets a model that no column and no adapter uses, with its logged queries; drift.event has how many there were.';


CREATE OR REPLACE FUNCTION drift.require_administration()
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    missing text;
BEGIN
    SELECT string_agg(t, ', ') INTO missing
    FROM unnest(ARRAY['model', 'embedding_column', 'adapter', 'adapter_layer', 'adapter_weight', 'adapter_probe', 'evaluation', 'calibration', 'companion', 'query_log', 'event']) AS t
    WHERE NOT (has_table_privilege('drift.' || t, 'SELECT') AND has_table_privilege('drift.' || t, 'INSERT')
               AND has_table_privilege('drift.' || t, 'UPDATE') AND has_table_privilege('drift.' || t, 'DELETE'));
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = format('role %I may not administer schema drift', current_user),
            DETAIL = format('It lacks privileges on drift''s tables %s.', missing),
            HINT = format('GRANT USAGE ON SCHEMA drift TO %1$I; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA drift TO %1$I;', current_user);
    END IF;
END
$$;
COMMENT ON FUNCTION drift.require_administration() IS 'Raises, with the GRANT that helps, if the caller may not write to drift''s tables.';


CREATE OR REPLACE FUNCTION drift.refuse_column(relation regclass, embedding_column name)
RETURNS void
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'VD013',
        MESSAGE = format('column %I of %s is not registered as an embedding column', embedding_column, relation),
        HINT = format('SELECT drift.register_column(%L, %L, model => ''the model its vectors are of'');', relation::text, embedding_column);
END
$$;
COMMENT ON FUNCTION drift.refuse_column(regclass, name) IS 'Raises VD013: the column is not registered.';


CREATE OR REPLACE FUNCTION drift.vector_indexes(relation regclass, embedding_column name)
RETURNS TABLE (index regclass, metric text, index_cast text)
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    -- Under the pinned search_path an index expression reads (embedding::halfvec(384)), with no schema.
    RETURN QUERY
    SELECT i.indexrelid::regclass,
           CASE split_part(o.opcname, '_', 2) WHEN 'ip' THEN 'inner_product' ELSE split_part(o.opcname, '_', 2) END,
           substring(e.expression FROM '::(vector|halfvec)\(\d+\)\)$')
    FROM pg_index i
    JOIN pg_class k ON k.oid = i.indexrelid
    JOIN pg_am m ON m.oid = k.relam AND m.amname IN ('hnsw', 'ivfflat')
    JOIN pg_opclass o ON o.oid = i.indclass[0] AND o.opcname ~ '^(vector|halfvec)_(cosine|ip|l2|l1)_ops$'
    CROSS JOIN LATERAL (SELECT pg_get_indexdef(i.indexrelid, 1, true)) AS e (expression)
    WHERE i.indrelid = vector_indexes.relation AND i.indisvalid
      AND (e.expression = quote_ident(embedding_column)
           OR regexp_replace(e.expression, '^\((.*)::(vector|halfvec)\(\d+\)\)$', '\1') = quote_ident(embedding_column))
    ORDER BY i.indpred IS NOT NULL, k.relname;
END
$$;
COMMENT ON FUNCTION drift.vector_indexes(regclass, name) IS
    'The valid HNSW and IVFFlat indexes of a column, cast expressions included, with their metric; whole indexes before partial ones.';


CREATE OR REPLACE FUNCTION drift.column_problem(relation regclass, embedding_column name, dimensions integer)
RETURNS text
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    attribute record;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_class k WHERE k.oid = relation) THEN
        RETURN 'the table has been dropped';
    END IF;
    SELECT a.atttypid::regtype::text AS type, a.atttypmod INTO attribute FROM pg_attribute a
    WHERE a.attrelid = relation AND a.attname = embedding_column AND a.attnum > 0 AND NOT a.attisdropped;
    IF NOT FOUND THEN
        RETURN format('%s has no column %I', relation, embedding_column);
    ELSIF attribute.type NOT IN ('vector', 'halfvec') THEN
        RETURN format('column %I of %s has type %s, an embedding column has vector or halfvec', embedding_column, relation, attribute.type);
    ELSIF attribute.atttypmod NOT IN (-1, dimensions) THEN
        RETURN format('column %I of %s has %s dimensions, its model %s', embedding_column, relation, attribute.atttypmod, dimensions);
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION drift.column_problem(regclass, name, integer) IS
    'What keeps a column from holding embeddings of so many dimensions, or NULL.';


CREATE OR REPLACE FUNCTION drift.register_column(relation regclass, embedding_column name, model text, metric text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    wanted integer := drift.model_dimensions(model);
    problem text := drift.column_problem(relation, embedding_column, wanted);
    held integer;
    indexed text[];
    chosen text;
    held_model text;
    cast_to text;
BEGIN
    PERFORM drift.require_administration();
    IF relation IS NULL OR embedding_column IS NULL OR model IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'VD003', MESSAGE = 'relation, embedding_column and model must not be NULL';
    END IF;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = CASE WHEN problem LIKE '%dimensions%' THEN 'VD001' ELSE 'VD014' END,
            MESSAGE = problem,
            HINT = 'Give the table, the column and the model that its vectors are of.';
    END IF;
    EXECUTE format('SELECT vector_dims(t.%1$I) FROM %2$s t WHERE t.%1$I IS NOT NULL LIMIT 1', embedding_column, relation) INTO held;
    IF held <> wanted THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD001',
            MESSAGE = format('column %I of %s holds vectors of %s dimensions, model %L has %s', embedding_column, relation, held, model, wanted),
            HINT = 'SELECT * FROM drift.models;';
    END IF;
    SELECT array_agg(DISTINCT v.metric) INTO indexed FROM drift.vector_indexes(relation, embedding_column) v;
    chosen := drift.choose_metric(relation, embedding_column, metric, indexed);
    SELECT v.index_cast INTO cast_to FROM drift.vector_indexes(relation, embedding_column) v WHERE v.metric = chosen LIMIT 1;
    SELECT c.model INTO held_model FROM drift.embedding_column c
    WHERE c.relation = register_column.relation AND c.column_name = register_column.embedding_column;
    IF held_model <> model THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD020',
            MESSAGE = format('column %I of %s is registered with model %L, not %L', embedding_column, relation, held_model, model),
            HINT = format('Only if its vectors really were replaced: SELECT drift.unregister_column(%L, %L); then register it anew.', relation::text, embedding_column);
    END IF;
    INSERT INTO drift.embedding_column AS c (relation, column_name, model, metric, index_cast)
    VALUES (relation, embedding_column, model, chosen, cast_to)
    ON CONFLICT ON CONSTRAINT embedding_column_pkey DO UPDATE SET metric = excluded.metric, index_cast = excluded.index_cast
    WHERE (c.metric, c.index_cast) IS DISTINCT FROM (excluded.metric, excluded.index_cast);
    IF FOUND THEN
        INSERT INTO drift.event (action, subject, details)
        VALUES ('register_column', format('%s.%I', relation, embedding_column),
                jsonb_build_object('model', model, 'metric', chosen, 'index_cast', cast_to));
        PERFORM pg_notify('drift_adapter', 'register_column');
    END IF;
END
$$;
COMMENT ON FUNCTION drift.register_column(regclass, name, text, text) IS
    'Registers a column as holding embeddings of a model. The metric is that of its HNSW or IVFFlat index unless named; call it again after the index changed.';


CREATE OR REPLACE FUNCTION drift.choose_metric(relation regclass, embedding_column name, metric text, indexed text[])
RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    IF metric NOT IN ('cosine', 'inner_product', 'l2', 'l1') THEN
        RAISE EXCEPTION USING ERRCODE = 'VD003',
            MESSAGE = format('unknown metric %L; known: cosine, inner_product, l2, l1', metric);
    ELSIF metric <> ALL (indexed) THEN
        RAISE WARNING USING
            MESSAGE = format('no index of column %I of %s serves metric %s (indexed: %s): searches will read the whole table',
                             embedding_column, relation, metric, array_to_string(indexed, ', '));
    ELSIF metric IS NULL AND coalesce(cardinality(indexed), 0) <> 1 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD015',
            MESSAGE = format('the metric of column %I of %s is not known: it has %s', embedding_column, relation,
                             CASE WHEN indexed IS NULL THEN 'no HNSW or IVFFlat index'
                                  ELSE format('indexes of several metrics (%s)', array_to_string(indexed, ', ')) END),
            HINT = 'Name it: metric => ''cosine'' (or inner_product, l2, l1); in the shell --metric cosine.';
    END IF;
    RETURN coalesce(metric, indexed[1]);
END
$$;
COMMENT ON FUNCTION drift.choose_metric(regclass, name, text, text[]) IS 'The metric named, or the one that the indexes agree on; raises VD015 if neither.';


CREATE OR REPLACE FUNCTION drift.unregister_column(relation regclass, embedding_column name)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    logged bigint;
BEGIN
    PERFORM drift.require_administration();
    IF EXISTS (SELECT FROM drift.companion c WHERE c.relation = unregister_column.relation AND c.column_name = unregister_column.embedding_column) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD022',
            MESSAGE = format('column %I of %s has a companion table', embedding_column, relation),
            HINT = format('Its vectors are lost if you drop it: SELECT drift.drop_companion(%L, %L);', relation::text, embedding_column);
    END IF;
    IF EXISTS (SELECT FROM drift.source_triggers(relation, embedding_column)) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD022',
            MESSAGE = format('column %I of %s is filled from another', embedding_column, relation),
            HINT = format('SELECT drift.unfollow(%L, %L);', relation::text, embedding_column);
    END IF;
    SELECT count(*) INTO logged FROM drift.query_log l
    WHERE l.relation = unregister_column.relation AND l.column_name = unregister_column.embedding_column;
    DELETE FROM drift.embedding_column c
    WHERE c.relation = unregister_column.relation AND c.column_name = unregister_column.embedding_column;
    IF NOT FOUND THEN
        PERFORM drift.refuse_column(relation, embedding_column);
    END IF;
    INSERT INTO drift.event (action, subject, details)
    VALUES ('unregister_column', format('%s.%I', relation, embedding_column), jsonb_build_object('logged_queries', logged));
    PERFORM pg_notify('drift_adapter', 'unregister_column');
END
$$;
COMMENT ON FUNCTION drift.unregister_column(regclass, name) IS
    'Forgets an embedding column, with its logged queries (drift.event has how many there were); the table itself is not touched. A dropped table is named by its number, as drift.columns shows it.';


CREATE OR REPLACE FUNCTION drift.refresh_column(relation regclass, embedding_column name)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    held drift.embedding_column;
BEGIN
    SELECT * INTO held FROM drift.embedding_column c
    WHERE c.relation = refresh_column.relation AND c.column_name = refresh_column.embedding_column;
    IF FOUND THEN
        PERFORM drift.register_column(relation, embedding_column, held.model, held.metric);
    END IF;
END
$$;
COMMENT ON FUNCTION drift.refresh_column(regclass, name) IS
    'Reads anew which index serves an embedding column, after one was built or dropped; nothing happens if the column is not registered.';


CREATE OR REPLACE FUNCTION drift.set_query_model(relation regclass, embedding_column name, query_model text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    held drift.embedding_column;
    wanted text;
BEGIN
    PERFORM drift.require_administration();
    SELECT * INTO held FROM drift.embedding_column c
    WHERE c.relation = set_query_model.relation AND c.column_name = set_query_model.embedding_column FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM drift.refuse_column(relation, embedding_column);
    END IF;
    wanted := nullif(set_query_model.query_model, held.model);
    PERFORM drift.model_dimensions(wanted);
    IF wanted IS NOT NULL AND NOT EXISTS (
        SELECT FROM drift.adapter a WHERE a.source = wanted AND a.target = held.model AND a.status = 'active') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD012',
            MESSAGE = format('queries of column %I of %s cannot come from model %L: no adapter from it to model %L is active',
                             embedding_column, relation, wanted, held.model),
            HINT = 'Activate one first: drift-pg adapters; drift-pg activate ID.';
    ELSIF wanted IS DISTINCT FROM held.query_model THEN
        UPDATE drift.embedding_column c SET query_model = wanted
        WHERE c.relation = set_query_model.relation AND c.column_name = set_query_model.embedding_column;
        INSERT INTO drift.event (action, subject, details)
        VALUES ('set_query_model', format('%s.%I', relation, embedding_column),
                jsonb_build_object('query_model', wanted, 'replaced', held.query_model));
    END IF;
END
$$;
COMMENT ON FUNCTION drift.set_query_model(regclass, name, text) IS
    'Says which model the queries of an embedding column come from (NULL: its own). An adapter between the two must be active. A search names its model itself; this is for drift.status and for reviewing.';


CREATE OR REPLACE FUNCTION drift.set_column_model(relation regclass, embedding_column name, model text, replaces text, metric text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    held text;
BEGIN
    PERFORM drift.require_administration();
    SELECT c.model INTO held FROM drift.embedding_column c
    WHERE c.relation = set_column_model.relation AND c.column_name = set_column_model.embedding_column FOR UPDATE;
    IF held IS DISTINCT FROM replaces AND held IS DISTINCT FROM set_column_model.model THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD020',
            MESSAGE = format('column %I of %s %s, expected %s', embedding_column, relation,
                             coalesce(format('is registered with model %L', held), 'is not registered'),
                             coalesce(format('model %L', replaces), 'it not to be registered')),
            HINT = 'SELECT * FROM drift.columns; nothing was changed.';
    END IF;
    IF held IS DISTINCT FROM set_column_model.model AND held IS NOT NULL THEN
        PERFORM drift.unregister_column(relation, embedding_column);
    END IF;
    IF set_column_model.model IS NOT NULL THEN
        PERFORM drift.register_column(relation, embedding_column, model, metric);
    END IF;
END
$$;
COMMENT ON FUNCTION drift.set_column_model(regclass, name, text, text, text) IS
    'For a history of revisions: registers a column with a model (NULL: forgets it) in place of the model replaces (NULL: not registered); VD020 if it is registered with another. Says nothing about the vectors themselves: they must be of that model.';
