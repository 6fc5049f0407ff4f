-- What companion tables hold: which rows lack a vector, who embeds them, storing what came.

CREATE OR REPLACE FUNCTION drift.given_key(companion drift.companion, key text)
RETURNS text
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RETURN (SELECT string_agg(format('t.%I = (%s ->> %s)::%s', k.name, given_key.key, k.i - 1, format_type(a.atttypid, a.atttypmod)), ' AND ' ORDER BY k.i)
            FROM unnest(companion.key_columns) WITH ORDINALITY AS k (name, i)
            JOIN pg_attribute a ON a.attrelid = companion.relation AND a.attname = k.name);
END
$$;
COMMENT ON FUNCTION drift.given_key(drift.companion, text) IS 'SQL that a row t of the user''s table has the key that a piece of SQL gives as a JSON list.';


CREATE OR REPLACE FUNCTION drift.has_text_sql(content text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RETURN format('btrim(%s, E'' \t\r\n'') <> ''''', content);
END
$$;
COMMENT ON FUNCTION drift.has_text_sql(text) IS 'SQL that a text, given its SQL, is worth embedding: more than white space.';


CREATE OR REPLACE FUNCTION drift.lacks_vector_sql(companion drift.companion, content text, key text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RETURN format('%s AND NOT EXISTS (SELECT FROM %s c WHERE %s AND c.embedding IS NOT NULL AND c.content_hash = %s OFFSET 0)', drift.has_text_sql(content),
                  drift.companion_table(companion.id), drift.key_list(companion, key || ' = c.key%2$s', ' AND '), drift.hash_sql(content));
END
$$;
COMMENT ON FUNCTION drift.lacks_vector_sql(drift.companion, text, text) IS
    'SQL that a row has a text and no vector of it, given the SQL of its text and a template of its key''s columns. OFFSET 0: a look-up by key, whatever the statistics say.';


CREATE OR REPLACE FUNCTION drift.missing(relation regclass, embedding_column name, query vector, query_model text, n integer, matching jsonb DEFAULT NULL)
RETURNS TABLE (key jsonb, content text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    held drift.embedding_column := drift.searched_column(relation, embedding_column);
    adapted vector := drift.adapt_for(query, query_model, relation, embedding_column);
    this drift.companion;
    before record;
BEGIN
    IF query_model = held.model THEN
        RETURN;
    END IF;
    this := drift.companion_of(relation, embedding_column);
    PERFORM drift.require_companion(this, '{SELECT}');
    PERFORM drift.check_query_model(this, query_model);
    PERFORM drift.calibration_of(held, query_model);  -- before anything is embedded for a search that cannot be
    before := drift.widen_search(n);
    RETURN QUERY EXECUTE format(
        'WITH bridge AS MATERIALIZED (SELECT f.*, row_number() OVER () AS place FROM ('
        'SELECT %1$s, %2$s AS content FROM %3$s t WHERE %4$s ORDER BY %5$s LIMIT $2) AS f) '
        'SELECT jsonb_build_array(%6$s), b.content FROM bridge b WHERE %7$s ORDER BY b.place',
        drift.key_list(this, 't.%1$I AS key%2$s', ', '), drift.content_sql(this), relation, drift.conditions(relation, matching),
        drift.legacy_distance(held, '$1'), drift.key_list(this, 'b.key%2$s::text', ', '),
        drift.lacks_vector_sql(this, 'b.content', 'b.key%2$s'))
    USING adapted, n;
    PERFORM drift.restore_search(before.ef_search, before.iterative_scan);
END
$$;
COMMENT ON FUNCTION drift.missing(regclass, name, vector, text, integer, jsonb) IS
    'Of the bridge''s first n, nearest first, the rows that have no vector of the new model, or one of a text that has changed since; rows without text are left out.';


CREATE OR REPLACE FUNCTION drift.claim(relation regclass, embedding_column name, keys jsonb)
RETURNS TABLE (key jsonb, content text)
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    this drift.companion := drift.companion_of(relation, embedding_column);
    mine jsonb;
BEGIN
    PERFORM drift.require_companion(this, '{SELECT,INSERT,UPDATE}');  -- before anything is embedded that could not be kept
    -- The locks first, then another look: who held one has committed its vector by now.
    SELECT jsonb_agg(k.key ORDER BY k.i) INTO mine FROM jsonb_array_elements(keys) WITH ORDINALITY AS k (key, i)
    WHERE pg_try_advisory_xact_lock(hashtextextended(format('drift companion %s %s', this.id, k.key), 0));
    RETURN QUERY EXECUTE format(
        'SELECT g.key, %1$s FROM jsonb_array_elements($1) WITH ORDINALITY AS g (key, i) JOIN %2$s t ON %3$s WHERE %4$s ORDER BY g.i',
        drift.content_sql(this), relation, drift.given_key(this, 'g.key'), drift.lacks_vector_sql(this, drift.content_sql(this), 't.%1$I'))
    USING mine;
END
$$;
COMMENT ON FUNCTION drift.claim(regclass, name, jsonb) IS
    'Of these rows, those that no other client is embedding and that still lack a vector, with their present text. They are the caller''s until its transaction ends.';


-- A search never waits long for a user's transaction, nor may it make one wait: what is locked is left for the next.
CREATE OR REPLACE FUNCTION drift.store_vectors(relation regclass, embedding_column name, keys jsonb, contents text[], vectors text[])
RETURNS bigint
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
SET lock_timeout = '100ms'
AS $$
DECLARE
    this drift.companion := drift.companion_of(relation, embedding_column);
    made text := drift.companion_table(this.id);
    names text := drift.key_list(this, 'key%2$s', ', ');
    stored bigint;
BEGIN
    PERFORM drift.require_companion(this, '{SELECT,INSERT,UPDATE}');
    -- In the key's order, so that two clients that store the same rows wait for each other and do not lock up.
    EXECUTE format('WITH given AS MATERIALIZED (SELECT %1$s, %2$s AS hash, g.vector '
                   'FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS g (content, vector, i) JOIN %3$s t ON %4$s AND %5$s = g.content), '
                   'free AS MATERIALIZED (SELECT %6$s FROM given g JOIN %7$s c USING (%8$s) ORDER BY %6$s FOR UPDATE OF c SKIP LOCKED) '
                   'INSERT INTO %7$s AS c (%8$s, embedding, content_hash) SELECT %8$s, g.vector::vector, g.hash FROM given g '
                   'WHERE (%8$s) IN (SELECT * FROM free) OR NOT EXISTS (SELECT FROM %7$s c WHERE %9$s) ORDER BY %8$s '
                   'ON CONFLICT (%8$s) DO UPDATE SET embedding = excluded.embedding, content_hash = excluded.content_hash, changed_at = now()',
                   drift.key_list(this, 't.%1$I AS key%2$s', ', '), drift.hash_sql('g.content'), relation,
                   drift.given_key(this, '$3 -> (g.i - 1)::integer'), drift.content_sql(this), drift.key_list(this, 'c.key%2$s', ', '),
                   made, names, drift.key_list(this, 'c.key%2$s = g.key%2$s', ' AND '))
    USING contents, vectors, keys;
    GET DIAGNOSTICS stored = ROW_COUNT;
    RETURN stored;
END
$$;
COMMENT ON FUNCTION drift.store_vectors(regclass, name, jsonb, text[], text[]) IS
    'Stores new-model vectors beside rows that are still there and have the texts that were embedded; how many. Vectors that another transaction is writing are left out. keys: per row the list of its primary key''s values as text.';


CREATE OR REPLACE FUNCTION drift.queue_missing(relation regclass, embedding_column name, keys jsonb)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
SET lock_timeout = '100ms'
AS $$
DECLARE
    this drift.companion := drift.companion_of(relation, embedding_column);
    made text := drift.companion_table(this.id);
BEGIN
    PERFORM drift.require_companion(this, '{SELECT,INSERT,UPDATE}');
    EXECUTE format('INSERT INTO %1$s (%2$s) SELECT %3$s FROM jsonb_array_elements($1) AS g (key) JOIN %4$s t ON %5$s '
                   'WHERE NOT EXISTS (SELECT FROM %1$s c WHERE %6$s) ORDER BY %3$s ON CONFLICT DO NOTHING',
                   made, drift.key_list(this, 'key%2$s', ', '), drift.key_list(this, 't.%1$I', ', '), relation, drift.given_key(this, 'g.key'),
                   drift.key_list(this, 'c.key%2$s = t.%1$I', ' AND '))
    USING keys;
    -- A row that another client is counting loses one count: it is an order of work, and no search waits for it.
    EXECUTE format('UPDATE %1$s c SET misses = c.misses + 1 FROM (SELECT c.ctid FROM jsonb_array_elements($1) AS g (key) JOIN %2$s t ON %3$s '
                   'JOIN %1$s c ON %4$s ORDER BY %5$s FOR UPDATE OF c SKIP LOCKED) AS free WHERE c.ctid = free.ctid',
                   made, relation, drift.given_key(this, 'g.key'), drift.key_list(this, 'c.key%2$s = t.%1$I', ' AND '), drift.key_list(this, 'c.key%2$s', ', '))
    USING keys;
END
$$;
COMMENT ON FUNCTION drift.queue_missing(regclass, name, jsonb) IS
    'Counts that a search wanted these rows'' vectors and they were missing: what is missed most is embedded first.';


CREATE OR REPLACE FUNCTION drift.coverage(relation regclass, embedding_column name)
RETURNS TABLE (rows bigint, known bigint, stale bigint, queued bigint, orphaned bigint)
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    this drift.companion := drift.companion_of(relation, embedding_column);
BEGIN
    PERFORM drift.require_companion(this, '{SELECT}');
    RETURN QUERY EXECUTE format(
        'SELECT count(*) FILTER (WHERE j.text), count(*) FILTER (WHERE j.text AND j.fresh), count(*) FILTER (WHERE j.text AND NOT j.fresh), '
        'count(*) FILTER (WHERE j.text AND j.queued), count(*) FILTER (WHERE j.text IS NULL) FROM ('
        'SELECT CASE WHEN t.content IS NOT NULL THEN %1$s END AS text, c.content_hash = %2$s AS fresh, c.found AND c.content_hash IS NULL AS queued '
        'FROM (SELECT %3$s, %4$s AS content FROM %5$s t) AS t FULL JOIN '
        '(SELECT %6$s, CASE WHEN embedding IS NOT NULL THEN content_hash END AS content_hash, true AS found FROM %7$s) AS c USING (%6$s)) AS j '
        'WHERE j.text IS NULL OR j.text',
        drift.has_text_sql('t.content'), drift.hash_sql('t.content'), drift.key_list(this, 't.%1$I AS key%2$s', ', '), drift.content_sql(this), relation,
        drift.key_list(this, 'key%2$s', ', '), drift.companion_table(this.id));
END
$$;
COMMENT ON FUNCTION drift.coverage(regclass, name) IS
    'How many rows with a text a column''s table has, and how many of them have a vector of the new model, one of an older text, or are queued; and vectors whose rows are gone. Reads both tables whole.';


CREATE OR REPLACE FUNCTION drift.companion_index(relation regclass, embedding_column name)
RETURNS TABLE (name text, statement text, method text, operator_class text, options text[])
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    this drift.companion := drift.companion_of(relation, embedding_column);
    held drift.embedding_column := drift.searched_column(relation, embedding_column);
    dimensions integer := drift.model_dimensions(this.model);
    vectors text := drift.vector_schema();
    key text := CASE WHEN dimensions > 2000 THEN format('(embedding::%s.halfvec(%s))', vectors, dimensions) ELSE 'embedding' END;
BEGIN
    SELECT m.amname, k.reloptions INTO method, options
    FROM drift.vector_indexes(relation, embedding_column) v JOIN pg_class k ON k.oid = v.index JOIN pg_am m ON m.oid = k.relam
    WHERE v.metric = held.metric LIMIT 1;
    method := coalesce(method, 'hnsw');
    name := format('companion_%s_vectors', this.id);
    operator_class := format('%s_%s_ops', CASE WHEN dimensions > 2000 THEN 'halfvec' ELSE 'vector' END,
                             CASE held.metric WHEN 'inner_product' THEN 'ip' ELSE held.metric END);
    statement := format('CREATE INDEX CONCURRENTLY %s ON %s USING %s (%s %s.%s)%s', name, drift.companion_table(this.id), method, key, vectors,
                        operator_class, ' WITH (' || array_to_string(options, ', ') || ')');
    RETURN NEXT;
END
$$;
COMMENT ON FUNCTION drift.companion_index(regclass, name) IS
    'The index that a companion should have: the method and parameters of the column''s own, for the vectors of the new model. drift-pg companion index builds it.';


CREATE OR REPLACE FUNCTION drift.vector_schema()
RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RETURN (SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector');
END
$$;
COMMENT ON FUNCTION drift.vector_schema() IS 'The schema that pgvector is in, quoted: for statements that outlive this package''s search_path.';
