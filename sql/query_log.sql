-- The query log: vectors of real queries, to fit and to evaluate by, and to choose what is re-embedded first.

CREATE OR REPLACE FUNCTION drift.log_query(query vector, model text, relation regclass, embedding_column name)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    IF query IS NULL OR model IS NULL OR relation IS NULL OR embedding_column IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'VD003', MESSAGE = 'query, model, relation and embedding_column must not be NULL';
    ELSIF NOT (has_table_privilege('drift.query_log', 'INSERT') AND has_table_privilege('drift.model', 'SELECT')
               AND has_table_privilege('drift.embedding_column', 'SELECT')) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = format('role %I may not log queries', current_user),
            HINT = format('GRANT USAGE ON SCHEMA drift TO %1$I; GRANT SELECT ON drift.model, drift.embedding_column TO %1$I; '
                          'GRANT SELECT, INSERT, UPDATE, DELETE ON drift.query_log TO %1$I;', current_user);
    END IF;
    PERFORM drift.check_dimensions(query, model, drift.model_dimensions(model));
    IF vector_norm(query) = 0 THEN
        PERFORM drift.refuse_direction(query);
    ELSIF NOT EXISTS (SELECT FROM drift.embedding_column c WHERE c.relation = log_query.relation AND c.column_name = log_query.embedding_column) THEN
        PERFORM drift.refuse_column(relation, embedding_column);
    END IF;
    INSERT INTO drift.query_log (model, relation, column_name, query)
    VALUES (log_query.model, log_query.relation, log_query.embedding_column, log_query.query);
    -- One call in a hundred, so that the log stays small with no job of its own; who may only insert leaves it to the others.
    IF random() < 0.01 AND has_table_privilege('drift.query_log', 'SELECT') AND has_table_privilege('drift.query_log', 'DELETE')
       AND has_table_privilege('drift.query_log', 'UPDATE') THEN
        PERFORM drift.trim_query_log();
    END IF;
END
$$;
COMMENT ON FUNCTION drift.log_query(vector, text, regclass, name) IS
    'Keeps a query''s vector, with its model, its column and the time; no text and no user. About one call in a hundred trims the log to 10,000 queries per column and 30 days (drift.trim_query_log), so log a sample.';


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
    -- SKIP LOCKED: two clients that trim at once must not wait for each other.
    DELETE FROM drift.query_log l WHERE l.id IN (
        SELECT gone.id FROM drift.query_log gone
        WHERE gone.id IN (SELECT placed.id FROM (SELECT o.id, o.logged_at, row_number() OVER (PARTITION BY o.relation, o.column_name ORDER BY o.id DESC) AS place
                                                 FROM drift.query_log o) AS placed
                          WHERE placed.place > keep OR placed.logged_at < now() - older_than)
        ORDER BY gone.id FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS trimmed = ROW_COUNT;
    RETURN trimmed;
END
$$;
COMMENT ON FUNCTION drift.trim_query_log(integer, interval) IS
    'Deletes logged queries beyond the newest `keep` of each column, and those older than `older_than`; returns how many.';
