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


CREATE OR REPLACE FUNCTION drift.score_sql(metric text, distance text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RETURN format(CASE metric WHEN 'cosine' THEN '(1 - (%s))' ELSE '(- (%s))' END, distance);
END
$$;
COMMENT ON FUNCTION drift.score_sql(text, text) IS 'SQL of a score, more is nearer, given the SQL of a distance: cosine similarity, inner product, or the negative distance.';


CREATE OR REPLACE FUNCTION drift.searched_column(relation regclass, embedding_column name)
RETURNS drift.embedding_column
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    held drift.embedding_column;
    problem text;
BEGIN
    IF NOT has_table_privilege('drift.embedding_column', 'SELECT') THEN
        PERFORM drift.refuse_privilege();
    END IF;
    SELECT * INTO held FROM drift.embedding_column c
    WHERE c.relation = searched_column.relation AND c.column_name = searched_column.embedding_column;
    IF NOT FOUND THEN
        PERFORM drift.refuse_column(relation, embedding_column);
    END IF;
    problem := drift.column_problem(relation, embedding_column, drift.model_dimensions(held.model));
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD014',
            MESSAGE = problem,
            HINT = format('SELECT drift.unregister_column(%L, %L); then register the column that replaced it.', relation::text, embedding_column);
    END IF;
    RETURN held;
END
$$;
COMMENT ON FUNCTION drift.searched_column(regclass, name) IS 'What is registered of a column, if it still is what was registered; raises VD013 or VD014.';


CREATE OR REPLACE FUNCTION drift.legacy_distance(held drift.embedding_column, query text)
RETURNS text
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RETURN CASE WHEN held.index_cast IS NULL THEN format('t.%I', held.column_name)
                ELSE format('t.%I::%s(%s)', held.column_name, held.index_cast, drift.model_dimensions(held.model)) END
        || format(' %s %s', drift.distance_operator(held.metric), query) || CASE held.index_cast WHEN 'halfvec' THEN '::halfvec' ELSE '' END;
END
$$;
COMMENT ON FUNCTION drift.legacy_distance(drift.embedding_column, text) IS
    'SQL of the distance of a row t to a query, cast as the column''s index casts it.';


CREATE OR REPLACE FUNCTION drift.companion_distance(metric text, dimensions integer, query text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RETURN format(CASE WHEN dimensions > 2000 THEN 'c.embedding::halfvec(%1$s) %2$s %3$s::halfvec' ELSE 'c.embedding %2$s %3$s' END,
                  dimensions, drift.distance_operator(metric), query);
END
$$;
COMMENT ON FUNCTION drift.companion_distance(text, integer, text) IS
    'SQL of the distance of a companion''s row c to a query, cast as its index is: pgvector indexes more than 2,000 dimensions as halfvec only.';


CREATE OR REPLACE FUNCTION drift.conditions(relation regclass, matching jsonb)
RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    absent text;
BEGIN
    IF matching IS NULL THEN
        RETURN 'true';
    ELSIF jsonb_typeof(matching) <> 'object' OR EXISTS (SELECT FROM jsonb_each(matching) m WHERE jsonb_typeof(m.value) = 'object') THEN
        RAISE EXCEPTION USING ERRCODE = 'VD003',
            MESSAGE = format('matching is %s, expected an object of column names and values', left(matching::text, 200)),
            HINT = 'matching => ''{"language": "en", "status": ["new", "old"], "deleted_at": null}''';
    END IF;
    absent := drift.absent_columns(relation, ARRAY(SELECT jsonb_object_keys(matching))::name[]);
    IF absent IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'VD014', MESSAGE = format('%s has no column %s to match', relation, absent);
    END IF;
    RETURN coalesce((
        SELECT string_agg(CASE jsonb_typeof(m.value)
            WHEN 'null' THEN format('t.%I IS NULL', m.key)
            WHEN 'array' THEN format('t.%I IN (%s)', m.key, coalesce((SELECT string_agg(quote_literal(v), ', ') FROM jsonb_array_elements_text(m.value) v), 'NULL'))
            ELSE format('t.%I = %L', m.key, m.value #>> '{}') END, ' AND ')
        FROM jsonb_each(matching) m), 'true');
END
$$;
COMMENT ON FUNCTION drift.conditions(regclass, jsonb) IS
    'SQL of the rows t whose columns have these values: {"column": value, "column": [one, of, these], "column": null}. Names and values are quoted here.';


-- ef_search caps what an HNSW scan returns, and without an iterative scan rows that a policy hides are not made up for.
CREATE OR REPLACE FUNCTION drift.widen_search(n integer, OUT ef_search text, OUT iterative_scan text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    ef_search := current_setting('hnsw.ef_search', true);
    iterative_scan := current_setting('hnsw.iterative_scan', true);
    IF n > ef_search::integer THEN
        PERFORM set_config('hnsw.ef_search', least(n, 1000)::text, true);
    END IF;
    IF iterative_scan = 'off' THEN
        PERFORM set_config('hnsw.iterative_scan', 'strict_order', true);
    END IF;
END
$$;
COMMENT ON FUNCTION drift.widen_search(integer) IS
    'Lets an HNSW scan find n rows, and returns the settings before, for drift.restore_search. Older pgvectors have no iterative scan.';


CREATE OR REPLACE FUNCTION drift.restore_search(ef_search text, iterative_scan text)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    IF ef_search IS NOT NULL THEN
        PERFORM set_config('hnsw.ef_search', ef_search, true);
    END IF;
    IF iterative_scan IS NOT NULL THEN
        PERFORM set_config('hnsw.iterative_scan', iterative_scan, true);
    END IF;
END
$$;
COMMENT ON FUNCTION drift.restore_search(text, text) IS 'Puts back the settings that drift.widen_search changed.';


CREATE OR REPLACE FUNCTION drift.check_query_model(companion drift.companion, query_model text)
RETURNS void
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    IF companion.model <> query_model THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD016',
            MESSAGE = format('column %I of %s has a companion for vectors of model %L, not of %L',
                             companion.column_name, companion.relation, companion.model, query_model);
    END IF;
END
$$;
COMMENT ON FUNCTION drift.check_query_model(drift.companion, text) IS 'Raises VD016 if a companion''s vectors are of another model than the query.';


CREATE OR REPLACE FUNCTION drift.calibration_of(held drift.embedding_column, query_model text)
RETURNS drift.calibration
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    line drift.calibration;
BEGIN
    IF NOT has_table_privilege('drift.calibration', 'SELECT') THEN
        PERFORM drift.refuse_privilege();
    END IF;
    SELECT l.* INTO line FROM drift.calibration l JOIN drift.adapter a ON a.id = l.adapter_id
    WHERE a.source = query_model AND a.target = held.model AND a.status = 'active' AND l.metric = held.metric;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD017',
            MESSAGE = format('the active adapter from model %L to model %L is not calibrated for metric %s', query_model, held.model, held.metric),
            HINT = 'Scores of two models cannot be compared as they are: drift-pg evaluate ID --test-pairs FILE calibrates.';
    END IF;
    RETURN line;
END
$$;
COMMENT ON FUNCTION drift.calibration_of(drift.embedding_column, text) IS
    'What the active adapter''s scores say of the new model''s; raises VD017 if nothing tells.';


CREATE OR REPLACE FUNCTION drift.reranked_sql(held drift.embedding_column, query_model text, matching jsonb)
RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    this drift.companion := drift.companion_of(held.relation, held.column_name);
    made text := drift.companion_table(this.id);
    line drift.calibration := drift.calibration_of(held, query_model);
    bridge text := drift.legacy_distance(held, '$1');
    exact text := drift.companion_distance(held.metric, drift.model_dimensions(query_model), '$2');
    hash text := drift.hash_sql(drift.content_sql(this));
    conditions text := drift.conditions(held.relation, matching);
BEGIN
    PERFORM drift.require_companion(this, '{SELECT}');
    PERFORM drift.check_query_model(this, query_model);
    -- The companion is searched as its index would be alone; only the bridge needs a wider search.
    -- Keys first, the rows of the k best last. LATERAL with OFFSET 0 is a look-up by key whatever the statistics say:
    -- a companion fills up while it serves, and a hash of either table would cost more than the search.
    RETURN format(
        'WITH bridge AS MATERIALIZED (SELECT f.*, row_number() OVER () AS place '
        'FROM (SELECT set_config(''hnsw.ef_search'', $5, true) AS ef_search OFFSET 0) AS wide CROSS JOIN LATERAL ('
        'SELECT %1$s, %2$s AS content, %3$s AS distance FROM %4$s t WHERE wide.ef_search IS NOT NULL AND %5$s ORDER BY %3$s LIMIT $4) AS f), '
        'known AS MATERIALIZED (SELECT f.*, row_number() OVER () AS place '
        'FROM (SELECT set_config(''hnsw.ef_search'', $6, true) AS ef_search OFFSET 0) AS narrow CROSS JOIN LATERAL ('
        'SELECT %6$s, %7$s AS distance FROM %8$s c '
        'CROSS JOIN LATERAL (SELECT FROM %4$s t WHERE %9$s AND c.content_hash = %10$s AND %5$s OFFSET 0) AS still '
        'WHERE narrow.ef_search IS NOT NULL AND c.embedding IS NOT NULL ORDER BY %7$s LIMIT $3) AS f), '
        'scored AS MATERIALIZED (SELECT %11$s, %12$s AS score, k.place AS known_place, NULL::bigint AS place, false AS lacks FROM known k '
        'UNION ALL SELECT %13$s, coalesce(c.score, %14$s + %15$s * %16$s), NULL, b.place, c.score IS NULL AND %22$s FROM bridge b '
        'LEFT JOIN LATERAL (SELECT %17$s AS score FROM %8$s c WHERE %18$s AND c.content_hash = %19$s OFFSET 0) AS c ON true '
        'WHERE NOT EXISTS (SELECT FROM known k WHERE %20$s)) '
        'SELECT t.* FROM (SELECT * FROM scored s '
        'WHERE (SELECT set_config(''drift.missing'', count(*)::text, true) FROM scored WHERE lacks) IS NOT NULL '
        'ORDER BY s.score DESC NULLS LAST, s.known_place, s.place LIMIT $3) AS s '
        'CROSS JOIN LATERAL (SELECT * FROM %4$s t WHERE %21$s OFFSET 0) AS t ORDER BY s.score DESC NULLS LAST, s.known_place, s.place',
        drift.key_list(this, 't.%1$I AS key%2$s', ', '), drift.content_sql(this), bridge, held.relation, conditions,
        drift.key_list(this, 'c.key%2$s', ', '), exact, made, drift.key_list(this, 't.%1$I = c.key%2$s', ' AND '), hash,
        drift.key_list(this, 'k.key%2$s', ', '), drift.score_sql(held.metric, 'k.distance'), drift.key_list(this, 'b.key%2$s', ', '),
        line.intercept + line.margin, line.slope, drift.score_sql(held.metric, 'b.distance'), drift.score_sql(held.metric, exact),
        drift.key_list(this, 'c.key%2$s = b.key%2$s', ' AND '), drift.hash_sql('b.content'),
        drift.key_list(this, 'k.key%2$s = b.key%2$s', ' AND '), drift.key_list(this, 't.%1$I = s.key%2$s', ' AND '),
        drift.has_text_sql('b.content'));
END
$$;
COMMENT ON FUNCTION drift.reranked_sql(drift.embedding_column, text, jsonb) IS
    'SQL of the mixed search, which leaves in setting drift.missing how many of the bridge''s first have a text and no vector: $1 the adapted query, $2 the query itself, $3 how many rows, $4 how many of the bridge''s first to order anew, $5 and $6 hnsw.ef_search for the bridge and for the companion, as text.';


CREATE OR REPLACE FUNCTION drift.nearest(row_type anyelement, embedding_column name, query vector, query_model text, k integer DEFAULT 10,
                                         rerank integer DEFAULT NULL, matching jsonb DEFAULT NULL)
RETURNS SETOF anyelement
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    searched regclass;
    held drift.embedding_column;
    adapted vector;
    before record;
BEGIN
    IF query IS NULL OR query_model IS NULL OR embedding_column IS NULL OR k IS NULL OR k < 0 OR rerank < k THEN
        RAISE EXCEPTION USING ERRCODE = 'VD003',
            MESSAGE = 'embedding_column, query, query_model and k must not be NULL, k not negative, and rerank not less than k';
    END IF;
    SELECT NULLIF(t.typrelid, 0)::regclass INTO searched FROM pg_type t WHERE t.oid = pg_typeof(row_type);
    IF searched IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD003',
            MESSAGE = format('row_type has type %s, expected a table''s row', pg_typeof(row_type)),
            HINT = 'SELECT * FROM drift.nearest(NULL::public.docs, …);';
    END IF;
    held := drift.searched_column(searched, embedding_column);
    adapted := drift.adapt_for(query, query_model, searched, embedding_column);
    before := drift.widen_search(greatest(k, rerank));
    PERFORM set_config('drift.missing', '0', true);
    IF rerank IS NULL OR query_model = held.model THEN
        RETURN QUERY EXECUTE format('SELECT t.* FROM %s t WHERE %s ORDER BY %s LIMIT $2', searched,
                                    drift.conditions(searched, matching), drift.legacy_distance(held, '$1'))
        USING adapted, k;
    ELSE
        RETURN QUERY EXECUTE drift.reranked_sql(held, query_model, matching)
        USING adapted, query, k, rerank, current_setting('hnsw.ef_search'), greatest(k, before.ef_search::integer)::text;
    END IF;
    PERFORM drift.restore_search(before.ef_search, before.iterative_scan);
END
$$;
COMMENT ON FUNCTION drift.nearest(anyelement, name, vector, text, integer, integer, jsonb) IS
    'The k rows of a table nearest to a query of query_model, by the column''s metric: SELECT * FROM drift.nearest(NULL::docs, ''embedding'', query, ''new-model''). rerank => 200 orders the bridge''s first 200, and what the companion finds, by the new model''s own vectors where they are known. matching => ''{"language": "en"}'' filters before both. Then current_setting(''drift.missing''), in the same transaction, says how many of those first have no vector yet. Runs as the caller, so row-level security holds.';
