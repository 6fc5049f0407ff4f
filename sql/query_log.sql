-- The query log: vectors of real queries, to fit and to evaluate by, and to choose what is re-embedded first.

CREATE OR REPLACE FUNCTION drift.require_query_log(privileges text[])
RETURNS void
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    PERFORM drift.require_privileges('drift.query_log', 'logged queries', privileges);
    IF NOT (has_table_privilege('drift.model', 'SELECT') AND has_table_privilege('drift.embedding_column', 'SELECT')) THEN
        PERFORM drift.refuse_privilege();
    END IF;
END
$$;
COMMENT ON FUNCTION drift.require_query_log(text[]) IS 'Raises, with the GRANT that helps, if the caller lacks a privilege on the query log.';


CREATE OR REPLACE FUNCTION drift.log_query(query vector, model text, relation regclass, embedding_column name)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    IF query IS NULL OR model IS NULL OR relation IS NULL OR embedding_column IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'VD003', MESSAGE = 'query, model, relation and embedding_column must not be NULL';
    END IF;
    PERFORM drift.require_query_log('{INSERT}');
    PERFORM drift.check_dimensions(query, model, drift.model_dimensions(model));
    IF vector_norm(query) = 0 THEN
        PERFORM drift.refuse_direction(query);
    ELSIF NOT EXISTS (SELECT FROM drift.embedding_column c WHERE c.relation = log_query.relation AND c.column_name = log_query.embedding_column) THEN
        PERFORM drift.refuse_column(relation, embedding_column);
    ELSIF has_table_privilege('drift.query_log', 'SELECT') AND has_table_privilege('drift.query_log', 'DELETE')
          AND has_table_privilege('drift.query_log', 'UPDATE') THEN
        -- So the log stays small with no job of its own. A stricter isolation could not delete what another has deleted.
        IF current_setting('transaction_isolation') = 'read committed'
           AND (random() < 0.001 OR (SELECT l.logged_at FROM drift.query_log l ORDER BY l.id LIMIT 1) < now() - interval '31 days') THEN
            PERFORM drift.trim_query_log();
        END IF;
    ELSIF pg_stat_get_live_tuples('drift.query_log'::regclass) >= 100000 THEN
        RETURN false;  -- who may only insert cannot make room, and must not fill the disk
    END IF;
    INSERT INTO drift.query_log (model, relation, column_name, query)
    VALUES (log_query.model, log_query.relation, log_query.embedding_column, log_query.query);
    RETURN true;
END
$$;
COMMENT ON FUNCTION drift.log_query(vector, text, regclass, name) IS
    'Keeps a query''s vector, with its model, its column and the time; no text and no user. INSERT on drift.query_log suffices. If the role may also SELECT, UPDATE and DELETE, one call in a thousand, and each that finds a query older than 31 days, trims the log (drift.trim_query_log); if not, the call returns false and keeps nothing once the log has 100,000 rows.';


CREATE OR REPLACE FUNCTION drift.trim_query_log(keep integer DEFAULT 10000, older_than interval DEFAULT '30 days')
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    trimmed bigint;
BEGIN
    IF keep IS NULL OR keep < 0 OR older_than IS NULL OR older_than < interval '0' THEN
        RAISE EXCEPTION USING ERRCODE = 'VD003',
            MESSAGE = format('keep is %s and older_than %s, neither may be NULL or negative', coalesce(keep::text, 'NULL'), coalesce(older_than::text, 'NULL'));
    END IF;
    PERFORM drift.require_query_log('{SELECT,UPDATE,DELETE}');
    -- SKIP LOCKED: two clients that trim at once must not wait for each other, nor for each other's transactions.
    DELETE FROM drift.query_log l WHERE l.id IN (
        SELECT gone.id FROM drift.query_log gone
        WHERE gone.id IN (SELECT placed.id
                          FROM (SELECT o.id, o.logged_at, row_number() OVER (PARTITION BY o.relation, o.column_name, o.model ORDER BY o.id DESC) AS place
                                FROM drift.query_log o) AS placed
                          WHERE placed.place > keep OR placed.logged_at < now() - older_than)
        FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS trimmed = ROW_COUNT;
    RETURN trimmed;
END
$$;
COMMENT ON FUNCTION drift.trim_query_log(integer, interval) IS
    'Deletes logged queries beyond the newest `keep` of each column and model, and those older than `older_than`; returns how many. What another transaction is deleting is left to it.';


CREATE OR REPLACE FUNCTION drift.touched(relation regclass, embedding_column name, query_model text, n integer DEFAULT 200, queries integer DEFAULT 1000)
RETURNS TABLE (key jsonb, touches bigint)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    held drift.embedding_column := drift.searched_column(relation, embedding_column);
    this drift.companion := drift.companion_of(relation, embedding_column);
    before record;
BEGIN
    IF query_model IS NULL OR n IS NULL OR n < 1 OR queries IS NULL OR queries < 1 THEN
        RAISE EXCEPTION USING ERRCODE = 'VD003', MESSAGE = 'query_model must not be NULL, n and queries must be 1 or more';
    END IF;
    PERFORM drift.require_query_log('{SELECT}');
    PERFORM drift.check_query_model(this, query_model);
    before := drift.widen_search(n);
    RETURN QUERY EXECUTE format(
        'WITH logged AS (SELECT l.id, l.query FROM drift.query_log l '
        'WHERE l.relation = $2 AND l.column_name = $3 AND l.model = $1 ORDER BY l.id DESC LIMIT $5), '
        'asked AS MATERIALIZED (SELECT drift.adapt_for(l.query, $1, $2, $3) AS adapted, count(*) AS times, '
        'row_number() OVER (ORDER BY count(*) DESC, max(l.id) DESC) AS turn FROM logged l GROUP BY l.query) '
        'SELECT jsonb_build_array(%1$s), sum(b.times)::bigint FROM (SELECT q.turn, q.times, f.* FROM asked q CROSS JOIN LATERAL ('
        'SELECT n.*, row_number() OVER () AS place FROM (SELECT %2$s FROM %3$s t ORDER BY %4$s LIMIT $4) AS n) AS f) AS b '
        'GROUP BY %5$s ORDER BY min(b.turn * $4 + b.place)',
        drift.key_list(this, 'b.key%2$s::text', ', '), drift.key_list(this, 't.%1$I AS key%2$s', ', '), relation,
        drift.legacy_distance(held, 'q.adapted'), drift.key_list(this, 'b.key%2$s', ', '))
    USING query_model, relation, embedding_column, n, queries;
    PERFORM drift.restore_search(before.ef_search, before.iterative_scan);
END
$$;
COMMENT ON FUNCTION drift.touched(regclass, name, text, integer, integer) IS
    'Which rows to embed first: all that are among the bridge''s first n for one of the newest logged queries. The query that was asked most often (of these, last) comes first, its nearest row first, so that whole answers become known, one by one. touches: how many logged queries want the row. drift.claim takes the keys, and leaves out rows that have a vector.';
