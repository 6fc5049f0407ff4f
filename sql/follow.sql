-- Following: new-model vectors that an application writes fill the legacy column, so that new rows need no old model.
--
-- What writes to the user's table must not fail because of us, and must not wait for us: what cannot be done is
-- reported as a warning, leaves a NULL, and is made up for by drift.catch_up.

CREATE OR REPLACE FUNCTION drift.follow(relation regclass, embedding_column name, source_column name DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    held drift.embedding_column;
    this drift.companion;
    model text;
    made bigint;
    patience text;
BEGIN
    PERFORM drift.require_administration();
    IF relation IS NULL OR embedding_column IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'VD003', MESSAGE = 'relation and embedding_column must not be NULL';
    END IF;
    held := drift.searched_column(relation, embedding_column);
    SELECT * INTO this FROM drift.companion c WHERE c.relation = follow.relation AND c.column_name = follow.embedding_column;
    IF source_column IS NULL THEN
        this := drift.companion_of(relation, embedding_column);
    END IF;
    model := drift.source_model(held, source_column, this.model);
    PERFORM drift.check_follow(held, this.model), drift.check_follow(held, model);
    PERFORM drift.check_writers(relation, this.id);
    IF EXISTS (SELECT FROM drift.following(relation, embedding_column) f
               WHERE (f.source_column, f.source_model, f.companion) IS NOT DISTINCT FROM (follow.source_column, model, this.id)) THEN
        RETURN;
    END IF;
    INSERT INTO drift.event (action, subject, details)
    VALUES ('follow', format('%s.%I', relation, embedding_column),
            jsonb_build_object('source_column', source_column, 'companion', drift.companion_table(this.id)))
    RETURNING id INTO made;
    patience := drift.limit_wait();
    PERFORM drift.drop_following(relation, embedding_column);
    IF source_column IS NOT NULL THEN
        PERFORM drift.fill_from_source(held, source_column, model, this, made);
    END IF;
    IF this.id IS NOT NULL THEN
        PERFORM drift.fill_from_companion(held, this);
    END IF;
    PERFORM set_config('lock_timeout', patience, true);
    RAISE WARNING USING
        MESSAGE = format('rows of %s that are filled by an adapter come before rows with vectors of model %L itself in a bridge search', relation, held.model),
        HINT = 'Where they are in a companion (drift.create_companion), search with drift.nearest(…, rerank => 200), which scores them by their own vectors: then they do no harm.';
EXCEPTION WHEN lock_not_available THEN
    PERFORM drift.refuse_lock(relation);
END
$$;
COMMENT ON FUNCTION drift.follow(regclass, name, name) IS
    'Fills an embedding column by drift.adapt when a vector of the new model is written: to source_column of the same row, or to the companion. A vector that the statement writes itself stays; so does one that is there when a row gets its first source vector, unless its text changes too or the statement sets it to NULL. New texts are queued in the companion. Undone by drift.unfollow.';


CREATE OR REPLACE FUNCTION drift.unfollow(relation regclass, embedding_column name)
RETURNS boolean
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    patience text := drift.limit_wait();
    dropped boolean;
BEGIN
    PERFORM drift.require_administration();
    dropped := drift.drop_following(relation, embedding_column);
    IF dropped THEN
        INSERT INTO drift.event (action, subject) VALUES ('unfollow', format('%s.%I', relation, embedding_column));
    END IF;
    PERFORM set_config('lock_timeout', patience, true);
    RETURN dropped;
EXCEPTION WHEN lock_not_available THEN
    PERFORM drift.refuse_lock(relation);
END
$$;
COMMENT ON FUNCTION drift.unfollow(regclass, name) IS
    'Removes what drift.follow installed; false if there was nothing. Vectors that were filled in stay.';


CREATE OR REPLACE FUNCTION drift.refuse_lock(relation regclass)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = 'lock_not_available',
        MESSAGE = format('the triggers of %s could not be changed: a transaction that uses it lasts longer than lock_timeout', relation),
        HINT = 'Nothing was changed, and nobody waits for it. Run it again at a quieter moment, or with a longer lock_timeout.';
END
$$;
COMMENT ON FUNCTION drift.refuse_lock(regclass) IS 'Raises that a table''s triggers could not be changed in time.';


CREATE OR REPLACE FUNCTION drift.source_model(held drift.embedding_column, source_column name, companion_model text)
RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    model text := coalesce((SELECT c.model FROM drift.embedding_column c WHERE c.relation = held.relation AND c.column_name = source_column),
                           companion_model, held.query_model);
    problem text;
BEGIN
    IF source_column IS NULL THEN
        RETURN NULL;
    ELSIF source_column = held.column_name THEN
        RAISE EXCEPTION USING ERRCODE = 'VD003', MESSAGE = format('column %I of %s cannot follow itself', source_column, held.relation);
    ELSIF model IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD013',
            MESSAGE = format('it is not known which model the vectors in column %I of %s are of', source_column, held.relation),
            HINT = format('SELECT drift.register_column(%L, %L, model => ''the new model'', metric => %L);', held.relation::text, source_column, held.metric);
    END IF;
    problem := drift.column_problem(held.relation, source_column, drift.model_dimensions(model));
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = CASE WHEN problem LIKE '%dimensions%' THEN 'VD001' ELSE 'VD014' END,
            MESSAGE = problem,
            HINT = format('Name the column that the application writes vectors of model %L to.', model);
    ELSIF EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = held.relation AND a.attname IN (source_column, held.column_name) AND a.attgenerated <> '') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD003',
            MESSAGE = format('column %I of %s cannot be filled from column %I: one of them is generated', held.column_name, held.relation, source_column);
    END IF;
    RETURN model;
END
$$;
COMMENT ON FUNCTION drift.source_model(drift.embedding_column, name, text) IS
    'The model of the vectors in another column of a table: as registered, else that of the companion, else that of the column''s queries.';


CREATE OR REPLACE FUNCTION drift.check_follow(held drift.embedding_column, model text)
RETURNS void
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    IF model = held.model THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD003',
            MESSAGE = format('column %I of %s holds vectors of model %L itself, so there is nothing to adapt', held.column_name, held.relation, model);
    ELSIF NOT EXISTS (SELECT FROM drift.adapter a WHERE a.source = model AND a.target = held.model AND a.status = 'active') THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD012',
            MESSAGE = format('column %I of %s cannot be filled: no adapter from model %L to model %L is active', held.column_name, held.relation, model, held.model),
            HINT = 'Activate one first: drift-pg adapters; drift-pg activate ID.';
    END IF;
END
$$;
COMMENT ON FUNCTION drift.check_follow(drift.embedding_column, text) IS 'Raises what forbids to fill a column by vectors of a model.';


CREATE OR REPLACE FUNCTION drift.check_writers(relation regclass, companion integer)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    tables text[] := '{drift.model,drift.embedding_column,drift.adapter,drift.adapter_layer,drift.adapter_weight,drift.companion}';
    made text := drift.companion_table(companion);
    lacking text;
BEGIN
    -- Triggers run as who writes: better to refuse now than to leave that role's rows out of the index later.
    SELECT string_agg(DISTINCT quote_ident(w.name), ', ') INTO lacking
    FROM (SELECT k.relowner FROM pg_class k WHERE k.oid = relation
          UNION SELECT a.grantee FROM pg_class k, aclexplode(k.relacl) a WHERE k.oid = relation AND a.privilege_type IN ('INSERT', 'UPDATE')
          UNION SELECT a.grantee FROM pg_attribute c, aclexplode(c.attacl) a WHERE c.attrelid = relation AND a.privilege_type IN ('INSERT', 'UPDATE')) AS g (role),
         LATERAL (SELECT CASE g.role WHEN 0 THEN 'public' ELSE pg_get_userbyid(g.role) END) AS w (name)
    WHERE NOT has_schema_privilege(w.name, 'drift', 'USAGE') OR EXISTS (SELECT FROM unnest(tables) t WHERE NOT has_table_privilege(w.name, t, 'SELECT'))
       OR EXISTS (SELECT FROM unnest('{SELECT,INSERT,UPDATE}'::text[]) p WHERE NOT has_table_privilege(w.name, made, p));
    IF lacking IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = format('%s may write to %s but not use drift.adapt there, so their rows would stay out of the legacy index', lacking, relation),
            HINT = format('GRANT USAGE ON SCHEMA drift TO %1$s; GRANT SELECT ON %2$s TO %1$s;', lacking, array_to_string(tables, ', '))
                   || CASE WHEN made IS NULL THEN '' ELSE format(' GRANT SELECT, INSERT, UPDATE ON %s TO %s;', made, lacking) END;
    END IF;
END
$$;
COMMENT ON FUNCTION drift.check_writers(regclass, integer) IS
    'Raises, with the GRANTs that help, if a role that may write to a table lacks what its triggers will need.';


CREATE OR REPLACE FUNCTION drift.text_changes_sql(companion drift.companion, written boolean)
RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
    -- As text, since json has no equality; in collation C, since another may hold two texts equal. A generated column has no value yet in a BEFORE trigger.
    SELECT coalesce(string_agg(format('OLD.%1$I::text COLLATE "C" IS DISTINCT FROM NEW.%1$I::text COLLATE "C"', a.attname), ' OR ' ORDER BY a.attnum), 'false')
    FROM pg_attribute a
    WHERE a.attrelid = companion.relation AND a.attname = ANY (companion.text_columns) AND (written OR a.attgenerated = '')
$$;
COMMENT ON FUNCTION drift.text_changes_sql(drift.companion, boolean) IS
    'SQL, for a trigger''s condition, that the embedded text changes; written: the row is written already.';


CREATE OR REPLACE FUNCTION drift.fill_from_source(held drift.embedding_column, source_column name, model text, companion drift.companion, number bigint)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    made text := format('drift.follow_%s', number);
    vectors text := drift.vector_schema();
    given text := jsonb_build_object('column', held.column_name, 'source', source_column, 'model', model);
BEGIN
    -- A function of its own for each column: NEW's field by a name in a variable would be dynamic SQL for each row.
    EXECUTE format('CREATE FUNCTION %1$s() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, drift, %2$s, pg_temp AS %3$L', made, vectors,
        format($follow$
DECLARE
    hint text;
BEGIN
    NEW.%1$I := NULL;
    NEW.%1$I := drift.adapt(NEW.%2$I::vector, %3$L, %4$L);
    RETURN NEW;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
    -- No row is lost because of us; but one that a NOT NULL would refuse is refused for its true reason.
    IF EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = TG_RELID AND a.attname = %5$L AND a.attnotnull) THEN
        RAISE EXCEPTION USING ERRCODE = SQLSTATE, HINT = hint,
            MESSAGE = format('column %%I of %%s cannot be filled from column %%I: %%s', %5$L, TG_RELID::regclass, %6$L, SQLERRM);
    END IF;
    RAISE WARNING USING ERRCODE = SQLSTATE, HINT = concat(rtrim(hint, ';') || '; then ', %7$L),
        MESSAGE = format('column %%I of %%s stays NULL, it cannot be filled from column %%I: %%s', %5$L, TG_RELID::regclass, %6$L, SQLERRM);
    RETURN NEW;
END
$follow$, held.column_name, source_column, model, held.model, held.column_name::text, source_column::text,
               format('SELECT drift.catch_up(%L, %L);', held.relation::text, held.column_name)));
    EXECUTE format('COMMENT ON FUNCTION %s() IS %L', made, format('Trigger: fills column %I of %s from column %I', held.column_name, held.relation, source_column));
    EXECUTE format('CREATE TRIGGER zz_drift_follow_%1$s_insert BEFORE INSERT ON %2$s FOR EACH ROW '
                   'WHEN (NEW.%3$I IS NULL AND NEW.%4$I IS NOT NULL) EXECUTE FUNCTION %5$s(%6$L)',
                   number, held.relation, held.column_name, source_column, made, given);
    -- The first vector of the new model that a row gets says nothing of its text: its legacy vector stays then.
    -- Qualified operators: what pg_dump writes of IS DISTINCT FROM is not restored without pgvector's schema in search_path.
    EXECUTE format('CREATE TRIGGER zz_drift_follow_%1$s_update BEFORE UPDATE ON %2$s FOR EACH ROW '
                   'WHEN (NEW.%4$I IS NOT NULL AND (NEW.%3$I IS NULL OR (NEW.%3$I OPERATOR(%7$s.=) OLD.%3$I '
                   'AND (NEW.%4$I OPERATOR(%7$s.<>) OLD.%4$I OR (OLD.%4$I IS NULL AND (%8$s)))))) EXECUTE FUNCTION %5$s(%6$L)',
                   number, held.relation, held.column_name, source_column, made, given, vectors, drift.text_changes_sql(companion, false));
END
$$;
COMMENT ON FUNCTION drift.fill_from_source(drift.embedding_column, name, text, drift.companion, bigint) IS
    'Installs the triggers that fill a column from another of the same row. Before each row, since a second UPDATE would write it and its index entries twice, and the column may be NOT NULL.';


CREATE OR REPLACE FUNCTION drift.fill_from_companion(held drift.embedding_column, companion drift.companion)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    made text := drift.companion_table(companion.id);
BEGIN
    EXECUTE format('CREATE TRIGGER drift_follow_insert AFTER INSERT ON %s REFERENCING NEW TABLE AS written '
                   'FOR EACH STATEMENT EXECUTE FUNCTION drift.on_vectors(%s)', made, companion.id);
    EXECUTE format('CREATE TRIGGER drift_follow_update AFTER UPDATE ON %s REFERENCING NEW TABLE AS written '
                   'FOR EACH STATEMENT EXECUTE FUNCTION drift.on_vectors(%s)', made, companion.id);
    -- By row, with conditions: what touches no text and brings a vector pays nothing.
    EXECUTE format('CREATE TRIGGER drift_companion_%1$s_new_text AFTER INSERT ON %2$s FOR EACH ROW WHEN (NEW.%3$I IS NULL) EXECUTE FUNCTION drift.on_text(%1$s)',
                   companion.id, held.relation, held.column_name);
    EXECUTE format('CREATE TRIGGER drift_companion_%1$s_text AFTER UPDATE ON %2$s FOR EACH ROW WHEN (%3$s) EXECUTE FUNCTION drift.on_text(%1$s)',
                   companion.id, held.relation, drift.text_changes_sql(companion, true));
END
$$;
COMMENT ON FUNCTION drift.fill_from_companion(drift.embedding_column, drift.companion) IS
    'Installs the triggers that fill a column from its companion, and queue in the companion the rows whose text changes.';


CREATE OR REPLACE FUNCTION drift.source_triggers(relation regclass, embedding_column name)
RETURNS TABLE (trigger name, function regprocedure, source_column name, source_model text)
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
    -- A trigger's argument is bytes that end in a zero.
    SELECT t.tgname, t.tgfoid::regprocedure, (g.given ->> 'source')::name, g.given ->> 'model'
    FROM pg_trigger t CROSS JOIN LATERAL (
        SELECT CASE WHEN t.tgname ~ '^zz_drift_follow_\d+_' AND t.tgnargs = 1
                    THEN convert_from(substring(t.tgargs FOR length(t.tgargs) - 1), getdatabaseencoding())::jsonb END) AS g (given)
    WHERE t.tgrelid = source_triggers.relation AND t.tgparentid = 0 AND g.given ->> 'column' = embedding_column
$$;
COMMENT ON FUNCTION drift.source_triggers(regclass, name) IS 'The triggers that fill an embedding column from another of its row.';


CREATE OR REPLACE FUNCTION drift.following(relation regclass, embedding_column name)
RETURNS TABLE (source_column name, source_model text, companion integer)
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
    SELECT s.source_column, s.source_model, c.id
    FROM (SELECT DISTINCT t.source_column, t.source_model FROM drift.source_triggers(relation, embedding_column) t) AS s
    FULL JOIN (SELECT c.id FROM drift.companion c WHERE c.relation = following.relation AND c.column_name = following.embedding_column
               AND EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = following.relation AND t.tgname = format('drift_companion_%s_text', c.id))) AS c ON true
$$;
COMMENT ON FUNCTION drift.following(regclass, name) IS
    'What an embedding column is filled from: another column of the row, its companion, or both; no row if it is not followed.';


CREATE OR REPLACE FUNCTION drift.drop_following(relation regclass, embedding_column name)
RETURNS boolean
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    companion integer := (SELECT f.companion FROM drift.following(relation, embedding_column) f);
    installed record;
    dropped boolean := companion IS NOT NULL;
BEGIN
    FOR installed IN
        SELECT array_agg(s.trigger) AS triggers, s.function FROM drift.source_triggers(relation, embedding_column) s GROUP BY s.function
    LOOP
        EXECUTE (SELECT string_agg(format('DROP TRIGGER %I ON %s', t, relation), '; ') FROM unnest(installed.triggers) t);
        EXECUTE format('DROP FUNCTION %s', installed.function);
        dropped := true;
    END LOOP;
    IF companion IS NOT NULL THEN
        EXECUTE format('DROP TRIGGER drift_companion_%1$s_new_text ON %2$s; DROP TRIGGER drift_companion_%1$s_text ON %2$s; '
                       'DROP TRIGGER drift_follow_insert ON %3$s; DROP TRIGGER drift_follow_update ON %3$s',
                       companion, relation, drift.companion_table(companion));
    END IF;
    RETURN dropped;
END
$$;
COMMENT ON FUNCTION drift.drop_following(regclass, name) IS 'Drops the triggers by which an embedding column is filled; whether there were any.';
