-- Searching: a table's own rows, nearest to a query of whichever model.

CREATE OR REPLACE FUNCTION drift.distance_operator(metric text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RETURN CASE metric WHEN 'cosine' THEN '<=>' WHEN 'inner_product' THEN '<#>' WHEN 'l2' THEN '<->' WHEN 'l1' THEN '<+>' END;
END
$$;
COMMENT ON FUNCTION drift.distance_operator(text) IS 'pgvector''s operator for a metric.';


CREATE OR REPLACE FUNCTION drift.nearest(row_type anyelement, embedding_column name, query vector, query_model text, k integer DEFAULT 10)
RETURNS SETOF anyelement
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    searched regclass;
    held record;
    problem text;
    adapted vector;
    subject text;
    scan text := current_setting('hnsw.iterative_scan', true);
    breadth text := current_setting('hnsw.ef_search', true);
BEGIN
    IF query IS NULL OR query_model IS NULL OR embedding_column IS NULL OR k IS NULL OR k < 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'VD003', MESSAGE = 'embedding_column, query, query_model and k must not be NULL, nor k negative';
    END IF;
    IF NOT has_table_privilege('drift.embedding_column', 'SELECT') THEN
        PERFORM drift.refuse_privilege();
    END IF;
    SELECT NULLIF(t.typrelid, 0)::regclass INTO searched FROM pg_type t WHERE t.oid = pg_typeof(row_type);
    IF searched IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD003',
            MESSAGE = format('row_type has type %s, expected a table''s row', pg_typeof(row_type)),
            HINT = 'SELECT * FROM drift.nearest(NULL::public.docs, …);';
    END IF;
    SELECT c.metric, c.index_cast, m.dimensions INTO held
    FROM drift.embedding_column c JOIN drift.model m ON m.name = c.model
    WHERE c.relation = searched AND c.column_name = nearest.embedding_column;
    IF NOT FOUND THEN
        PERFORM drift.refuse_column(searched, embedding_column);
    END IF;
    problem := drift.column_problem(searched, embedding_column, held.dimensions);
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD014',
            MESSAGE = problem,
            HINT = format('SELECT drift.unregister_column(%L, %L); then register the column that replaced it.', searched::text, embedding_column);
    END IF;
    adapted := drift.adapt_for(query, query_model, searched, embedding_column);
    subject := format(CASE WHEN held.index_cast IS NULL THEN 't.%1$I' ELSE 't.%1$I::%2$s(%3$s)' END, embedding_column, held.index_cast, held.dimensions);

    -- ef_search caps what an HNSW scan returns, and without an iterative scan rows that a policy hides
    -- are not made up for. Both are raised for this call only; older pgvectors lack the second.
    IF k > breadth::integer THEN
        PERFORM set_config('hnsw.ef_search', least(k, 1000)::text, true);
    END IF;
    IF scan = 'off' THEN
        PERFORM set_config('hnsw.iterative_scan', 'strict_order', true);
    END IF;
    RETURN QUERY EXECUTE format(
        'SELECT t.* FROM %s t ORDER BY %s %s $1%s LIMIT $2', searched, subject, drift.distance_operator(held.metric),
        CASE WHEN held.index_cast = 'halfvec' THEN '::halfvec' ELSE '' END)
    USING adapted, k;
    IF k > breadth::integer THEN
        PERFORM set_config('hnsw.ef_search', breadth, true);
    END IF;
    IF scan = 'off' THEN
        PERFORM set_config('hnsw.iterative_scan', scan, true);
    END IF;
END
$$;
COMMENT ON FUNCTION drift.nearest(anyelement, name, vector, text, integer) IS
    'The k rows of a table nearest to a query of query_model, by the column''s metric: SELECT * FROM drift.nearest(NULL::docs, ''embedding'', query, ''new-model''). Runs as the caller, so row-level security holds.';
