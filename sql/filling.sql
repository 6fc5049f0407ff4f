-- Filling a followed column: from its companion as vectors come, and what was missed; new texts are queued.

CREATE OR REPLACE FUNCTION drift.unfilled_sql(companion drift.companion, candidates text)
RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RETURN format('FROM %1$s w JOIN %2$s t ON %3$s WHERE w.embedding IS NOT NULL AND vector_norm(w.embedding) > 0 '
                  'AND (t.%4$I IS NULL OR w.outdated = %5$s) AND w.content_hash = %6$s',
                  candidates, companion.relation, drift.key_list(companion, 'w.key%2$s = t.%1$I', ' AND '), companion.column_name,
                  drift.fingerprint_sql(companion, 't'), drift.hash_sql(drift.content_sql(companion)));
END
$$;
COMMENT ON FUNCTION drift.unfilled_sql(drift.companion, text) IS
    'SQL of the rows t that rows w of a companion can fill: their column is NULL, or still what it was when the text changed.';


CREATE OR REPLACE FUNCTION drift.unfilled_sql(relation regclass, embedding_column name, source_column name)
RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RETURN format('FROM %1$s t WHERE t.%2$I IS NULL AND t.%3$I IS NOT NULL AND vector_norm(t.%3$I::vector) > 0', relation, embedding_column, source_column);
END
$$;
COMMENT ON FUNCTION drift.unfilled_sql(regclass, name, name) IS 'SQL of the rows t that another of their columns can fill.';


CREATE OR REPLACE FUNCTION drift.fill_sql(companion drift.companion, candidates text)
RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    -- SKIP LOCKED: who holds a row of the user's table may be waiting for one of ours.
    RETURN format('UPDATE %1$s t SET %2$I = drift.adapt_for(free.embedding, %3$L, %4$L, %5$L) FROM ('
                  'SELECT %6$s, w.embedding %7$s LIMIT $1 FOR NO KEY UPDATE OF t SKIP LOCKED) AS free WHERE %8$s',
                  companion.relation, companion.column_name, companion.model, companion.relation::text, companion.column_name::text,
                  drift.key_list(companion, 'w.key%2$s', ', '), drift.unfilled_sql(companion, candidates),
                  drift.key_list(companion, 't.%1$I = free.key%2$s', ' AND '));
END
$$;
COMMENT ON FUNCTION drift.fill_sql(drift.companion, text) IS 'SQL that fills a column from rows of its companion, of which at most $1.';


CREATE OR REPLACE FUNCTION drift.fingerprint_sql(companion drift.companion, written text)
RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
    SELECT format('sha256(vector_send(%s.%I::vector))', written, companion.column_name)
$$;
COMMENT ON FUNCTION drift.fingerprint_sql(drift.companion, text) IS 'SQL of what tells a row''s legacy vector from another.';


CREATE OR REPLACE FUNCTION drift.on_vectors()
RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
SET lock_timeout = '100ms'
AS $$
DECLARE
    this drift.companion;
BEGIN
    SELECT * INTO this FROM drift.companion c WHERE c.id = TG_ARGV[0]::integer;
    EXECUTE drift.fill_sql(this, 'written') USING NULL::bigint;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING USING ERRCODE = SQLSTATE,
        MESSAGE = format('column %I of %s is not filled from its companion: %s', this.column_name, this.relation, SQLERRM),
        HINT = format('Mend that, then: SELECT drift.catch_up(%L, %L);', this.relation::text, this.column_name);
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION drift.on_vectors() IS
    'Trigger: adapts a companion''s new vectors into the legacy column where that is NULL or of an older text.';


CREATE OR REPLACE FUNCTION drift.on_text()
RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    patience text := current_setting('lock_timeout');
    made text;
    this drift.companion;
    command text;
BEGIN
    IF NOT has_schema_privilege('drift', 'USAGE') THEN
        RETURN NULL;
    END IF;
    made := drift.companion_table(TG_ARGV[0]::integer);
    IF NOT (has_table_privilege('drift.companion', 'SELECT') AND has_table_privilege(made, 'SELECT')
            AND has_table_privilege(made, 'INSERT') AND has_table_privilege(made, 'UPDATE')) THEN
        RETURN NULL;
    END IF;
    SELECT * INTO this FROM drift.companion c WHERE c.id = TG_ARGV[0]::integer;
    command := format(
        'INSERT INTO %1$s AS c (%2$s, misses, outdated) SELECT %3$s, 1, CASE WHEN t.%4$I = ($2).%4$I THEN %5$s END '
        'FROM (SELECT ($1).*) AS t WHERE %6$s ON CONFLICT (%2$s) DO UPDATE '
        'SET embedding = NULL, content_hash = NULL, misses = c.misses + 1, outdated = excluded.outdated, changed_at = now()',
        made, drift.key_list(this, 'key%2$s', ', '), drift.key_list(this, 't.%1$I', ', '), this.column_name,
        drift.fingerprint_sql(this, 't'), drift.has_text_sql(drift.content_sql(this)));
    -- A block is a subtransaction, of which a bulk load should not make one per row; a row just inserted has none to wait for.
    IF TG_OP = 'INSERT' AND NOT row_security_active(made) AND drift.absent_columns(this.relation, this.key_columns || this.text_columns) IS NULL THEN
        EXECUTE command USING NEW, NEW;
        RETURN NULL;
    END IF;
    BEGIN
        PERFORM set_config('lock_timeout', '200ms', true);  -- long before anybody's deadlock is detected
        EXECUTE command USING NEW, CASE TG_OP WHEN 'INSERT' THEN NEW ELSE OLD END;
        PERFORM set_config('lock_timeout', patience, true);
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING USING ERRCODE = SQLSTATE,
            MESSAGE = format('a row of %s whose text is new is not queued for embedding: %s', this.relation, SQLERRM);
    END;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION drift.on_text() IS
    'Trigger: queues a row in the companion whose text is new, with the fingerprint of a legacy vector that is of the older text. Searches compare texts themselves: a row that is not queued is not answered wrongly.';


CREATE OR REPLACE FUNCTION drift.require_following(relation regclass, embedding_column name)
RETURNS TABLE (source_column name, source_model text, companion drift.companion)
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RETURN QUERY SELECT f.source_column, f.source_model, c
    FROM drift.following(relation, embedding_column) f LEFT JOIN drift.companion c ON c.id = f.companion;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD013',
            MESSAGE = format('column %I of %s is not followed, so it is not known what to fill it from', embedding_column, relation),
            HINT = format('SELECT drift.follow(%L, %L, source_column => ''the new column'');', relation::text, embedding_column);
    END IF;
END
$$;
COMMENT ON FUNCTION drift.require_following(regclass, name) IS 'What a column is filled from; raises VD013 if it is not followed.';


CREATE OR REPLACE FUNCTION drift.left_behind(relation regclass, embedding_column name)
RETURNS bigint
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    source record;
    counted bigint := 0;
    more bigint := 0;
BEGIN
    SELECT * INTO source FROM drift.require_following(relation, embedding_column);
    IF source.source_column IS NOT NULL THEN
        EXECUTE 'SELECT count(*) ' || drift.unfilled_sql(relation, embedding_column, source.source_column) INTO counted;
    END IF;
    IF (source.companion).id IS NOT NULL THEN
        EXECUTE 'SELECT count(*) ' || drift.unfilled_sql(source.companion, drift.companion_table((source.companion).id)) INTO more;
    END IF;
    RETURN counted + more;
END
$$;
COMMENT ON FUNCTION drift.left_behind(regclass, name) IS 'How many rows drift.catch_up would fill. Reads the table, and its companion, whole.';


CREATE OR REPLACE FUNCTION drift.catch_up(relation regclass, embedding_column name, at_most integer DEFAULT 1000)
RETURNS bigint
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    held drift.embedding_column := drift.searched_column(relation, embedding_column);
    source record;
    filled bigint := 0;
    more bigint := 0;
BEGIN
    IF at_most < 1 THEN
        RAISE EXCEPTION USING ERRCODE = 'VD003', MESSAGE = format('at_most is %s, expected 1 or more', at_most);
    END IF;
    SELECT * INTO source FROM drift.require_following(relation, embedding_column);
    IF source.source_column IS NOT NULL THEN
        -- By table and place: rows of two partitions may have the same place.
        EXECUTE format('UPDATE %1$s t SET %2$I = drift.adapt(t.%3$I::vector, %4$L, %5$L) FROM ('
                       'SELECT t.tableoid, t.ctid %6$s LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED) AS free WHERE t.ctid = free.ctid AND t.tableoid = free.tableoid',
                       relation, embedding_column, source.source_column, source.source_model, held.model,
                       drift.unfilled_sql(relation, embedding_column, source.source_column))
        USING at_most;
        GET DIAGNOSTICS filled = ROW_COUNT;
    END IF;
    IF (source.companion).id IS NOT NULL AND filled < at_most THEN
        EXECUTE drift.fill_sql(source.companion, drift.companion_table((source.companion).id)) USING at_most - filled;
        GET DIAGNOSTICS more = ROW_COUNT;
    END IF;
    RETURN filled + more;
END
$$;
COMMENT ON FUNCTION drift.catch_up(regclass, name, integer) IS
    'Fills a followed column where it is NULL, or known to be of an older text, and a vector of the new model is there: rows written before drift.follow, or while their adapter was not active. Call it until it returns 0. Rows that somebody is changing are left for the next call.';
