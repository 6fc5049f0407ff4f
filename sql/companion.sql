-- Companion tables: the new model's vectors of a column's rows, beside the user's table and never in it.

CREATE OR REPLACE FUNCTION drift.companion_of(relation regclass, embedding_column name)
RETURNS drift.companion
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    this drift.companion;
BEGIN
    SELECT * INTO this FROM drift.companion c
    WHERE c.relation = companion_of.relation AND c.column_name = companion_of.embedding_column;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD016',
            MESSAGE = format('column %I of %s has no companion table for vectors of a new model', embedding_column, relation),
            HINT = format('SELECT drift.create_companion(%L, %L, model => ''the new model'', text_columns => ''{body}'');', relation::text, embedding_column);
    END IF;
    RETURN this;
END
$$;
COMMENT ON FUNCTION drift.companion_of(regclass, name) IS 'The companion of an embedding column; raises VD016 if it has none.';


CREATE OR REPLACE FUNCTION drift.companion_table(companion integer)
RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RETURN format('drift.companion_%s', companion);
END
$$;
COMMENT ON FUNCTION drift.companion_table(integer) IS 'The name of a companion table.';


-- The key's columns are called key1, key2, … in a companion, so that no name of the user's meets one of ours.
CREATE OR REPLACE FUNCTION drift.key_list(companion drift.companion, template text, separator text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RETURN (SELECT string_agg(format(template, k.name, k.i), separator ORDER BY k.i)
            FROM unnest(companion.key_columns) WITH ORDINALITY AS k (name, i));
END
$$;
COMMENT ON FUNCTION drift.key_list(drift.companion, text, text) IS
    'One piece of SQL per column of the user''s primary key: in the template %1$I is its name in the user''s table, key%2$s in the companion.';


CREATE OR REPLACE FUNCTION drift.content_sql(companion drift.companion)
RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RETURN format('concat_ws(E''\n'', %s)', (SELECT string_agg(format('t.%I', c.name), ', ' ORDER BY c.i)
                                             FROM unnest(companion.text_columns) WITH ORDINALITY AS c (name, i)));
END
$$;
COMMENT ON FUNCTION drift.content_sql(drift.companion) IS 'SQL of the text that a row t of the user''s table is embedded from.';


CREATE OR REPLACE FUNCTION drift.hash_sql(content text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RETURN format('sha256(convert_to(%s, ''UTF8''))', content);
END
$$;
COMMENT ON FUNCTION drift.hash_sql(text) IS
    'SQL of a text''s hash, given the text''s SQL. In line: a function with a pinned search_path would cost more than the hash, once per candidate.';


CREATE OR REPLACE FUNCTION drift.check_companion(relation regclass, embedding_column name, model text, text_columns name[], key_columns name[])
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    held text;
    missing text;
BEGIN
    SELECT c.model INTO held FROM drift.embedding_column c
    WHERE c.relation = check_companion.relation AND c.column_name = check_companion.embedding_column;
    IF NOT FOUND THEN
        PERFORM drift.refuse_column(relation, embedding_column);
    ELSIF held = model THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD003',
            MESSAGE = format('column %I of %s holds vectors of model %L itself, a companion is for another model', embedding_column, relation, model),
            HINT = 'Name the model that queries come from.';
    END IF;
    PERFORM drift.model_dimensions(model);
    SELECT string_agg(quote_ident(c), ', ') INTO missing FROM unnest(text_columns) AS c
    WHERE NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = relation AND a.attname = c AND a.attnum > 0 AND NOT a.attisdropped);
    IF missing IS NOT NULL OR cardinality(text_columns) = 0 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD014',
            MESSAGE = format('%s has no column %s to embed the text of', relation, coalesce(missing, 'named'));
    ELSIF key_columns IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD003',
            MESSAGE = format('%s has no primary key, so new vectors could not be kept beside its rows', relation),
            HINT = format('ALTER TABLE %s ADD PRIMARY KEY (…);', relation);
    END IF;
END
$$;
COMMENT ON FUNCTION drift.check_companion(regclass, name, text, name[], name[]) IS 'Raises what forbids a companion of these properties.';


CREATE OR REPLACE FUNCTION drift.create_companion(relation regclass, embedding_column name, model text, text_columns name[])
RETURNS regclass
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    keys name[] := (SELECT array_agg(a.attname ORDER BY k.place)
                    FROM pg_index i, unnest(i.indkey) WITH ORDINALITY AS k (number, place)
                    JOIN pg_attribute a ON a.attrelid = create_companion.relation AND a.attnum = k.number
                    WHERE i.indrelid = create_companion.relation AND i.indisprimary);
    this drift.companion;
    made text;
    dimensions integer;
BEGIN
    PERFORM drift.require_administration();
    PERFORM drift.check_companion(relation, embedding_column, model, text_columns, keys);
    INSERT INTO drift.companion (relation, column_name, model, text_columns, key_columns)
    VALUES (create_companion.relation, embedding_column, create_companion.model, create_companion.text_columns, keys)
    ON CONFLICT DO NOTHING RETURNING * INTO this;
    IF NOT FOUND THEN
        SELECT * INTO this FROM drift.companion_of(relation, embedding_column);
        IF (this.model, this.text_columns, this.key_columns) IS DISTINCT FROM (model, text_columns, keys) THEN
            RAISE EXCEPTION USING
                ERRCODE = 'VD020',
                MESSAGE = format('column %I of %s has a companion for model %L, from the text of %s, by the key %s', embedding_column, relation,
                                 this.model, array_to_string(this.text_columns, ', '), array_to_string(this.key_columns, ', ')),
                HINT = format('Its vectors are lost if you drop it: SELECT drift.drop_companion(%L, %L);', relation::text, embedding_column);
        END IF;
        RETURN drift.companion_table(this.id)::regclass;
    END IF;
    dimensions := drift.model_dimensions(model);
    made := drift.companion_table(this.id);
    EXECUTE format('CREATE TABLE %s (%s, embedding vector(%s), content_hash bytea, misses integer NOT NULL DEFAULT 0, '
                   'changed_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (%s))', made,
                   (SELECT string_agg(format('key%s %s NOT NULL', k.i, format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY k.i)
                    FROM unnest(keys) WITH ORDINALITY AS k (name, i)
                    JOIN pg_attribute a ON a.attrelid = relation AND a.attname = k.name),
                   dimensions, drift.key_list(this, 'key%2$s', ', '));
    -- In the row where a page has room: out of line, each candidate's vector would be a second look-up.
    IF dimensions <= 1900 THEN
        EXECUTE format('ALTER TABLE %s ALTER COLUMN embedding SET STORAGE MAIN', made);
    END IF;
    EXECUTE format('COMMENT ON TABLE %s IS %L', made,
                   format('Vectors of model %s for %s.%s; a NULL embedding is queued', model, relation, embedding_column));
    EXECUTE format('CREATE INDEX ON %s (misses DESC) WHERE embedding IS NULL', made);
    PERFORM drift.protect_companion(this);
    PERFORM drift.follow_deletes(this);
    INSERT INTO drift.event (action, subject, details)
    VALUES ('create_companion', format('%s.%I', relation, embedding_column),
            jsonb_build_object('model', model, 'table', made, 'text_columns', text_columns));
    RETURN made::regclass;
END
$$;
COMMENT ON FUNCTION drift.create_companion(regclass, name, text, name[]) IS
    'Creates the table that holds a new model''s vectors of an embedding column''s rows, by their primary key; nothing happens if it is there alike. The embedded text is that of text_columns, joined by a line break.';


CREATE OR REPLACE FUNCTION drift.protect_companion(companion drift.companion)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    made text := drift.companion_table(companion.id);
    granted record;
BEGIN
    -- INSERT INTO the user's table does not reach the companion; what deletes a row deletes its vector.
    FOR granted IN
        SELECT DISTINCT a.grantee, a.privilege_type FROM pg_class k, aclexplode(k.relacl) AS a
        WHERE k.oid = companion.relation AND a.privilege_type IN ('SELECT', 'DELETE') AND a.grantee <> k.relowner
    LOOP
        EXECUTE format('GRANT %s ON %s TO %s', granted.privilege_type, made,
                       CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(granted.grantee)) END);
    END LOOP;
    IF (SELECT k.relrowsecurity FROM pg_class k WHERE k.oid = companion.relation) THEN
        EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', made);
        EXECUTE format('CREATE POLICY as_the_users_table ON %s USING (EXISTS (SELECT FROM %s t WHERE %s))', made, companion.relation,
                       drift.key_list(companion, 't.%1$I = key%2$s', ' AND '));
    END IF;
END
$$;
COMMENT ON FUNCTION drift.protect_companion(drift.companion) IS
    'Gives a companion the readers of the user''s table, and its row-level security: who may not see a row may not see its vector.';


CREATE OR REPLACE FUNCTION drift.follow_deletes(companion drift.companion)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    patience text := current_setting('lock_timeout');
BEGIN
    -- A trigger, no foreign key: that would lock each row of the user's table that gets a vector, and forbid its TRUNCATE.
    IF patience = '0' THEN
        PERFORM set_config('lock_timeout', '5s', true);  -- waiting for this lock stops every writer behind it
    END IF;
    EXECUTE format('CREATE TRIGGER drift_companion_%s_delete AFTER DELETE ON %s REFERENCING OLD TABLE AS gone '
                   'FOR EACH STATEMENT EXECUTE FUNCTION drift.on_delete(%s)', companion.id, companion.relation, companion.id);
    EXECUTE format('CREATE TRIGGER drift_companion_%s_truncate AFTER TRUNCATE ON %s '
                   'FOR EACH STATEMENT EXECUTE FUNCTION drift.on_truncate(%s)', companion.id, companion.relation, companion.id);
    PERFORM set_config('lock_timeout', patience, true);
END
$$;
COMMENT ON FUNCTION drift.follow_deletes(drift.companion) IS
    'Installs the triggers that remove a companion''s rows with the user''s. They wait for their lock for 5 s at most, unless lock_timeout says otherwise.';


CREATE OR REPLACE FUNCTION drift.on_delete()
RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    this drift.companion;
BEGIN
    -- The user's DELETE must not fail for want of a privilege of ours; what stays behind is not found by any search, and swept.
    IF has_table_privilege(drift.companion_table(TG_ARGV[0]::integer), 'DELETE') AND has_table_privilege('drift.companion', 'SELECT') THEN
        SELECT * INTO this FROM drift.companion c WHERE c.id = TG_ARGV[0]::integer;
        EXECUTE format('DELETE FROM %s c USING gone t WHERE %s', drift.companion_table(this.id), drift.key_list(this, 't.%1$I = c.key%2$s', ' AND '));
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION drift.on_delete() IS 'Trigger: removes the companion''s rows of the rows that a statement deleted.';


CREATE OR REPLACE FUNCTION drift.on_truncate()
RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    IF has_table_privilege(drift.companion_table(TG_ARGV[0]::integer), 'DELETE') THEN
        EXECUTE format('DELETE FROM %s', drift.companion_table(TG_ARGV[0]::integer));
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION drift.on_truncate() IS 'Trigger: empties the companion with the user''s table.';


CREATE OR REPLACE FUNCTION drift.drop_companion(relation regclass, embedding_column name)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    this drift.companion := drift.companion_of(relation, embedding_column);
    held bigint;
BEGIN
    PERFORM drift.require_administration();
    EXECUTE format('SELECT count(embedding) FROM %s', drift.companion_table(this.id)) INTO held;
    IF EXISTS (SELECT FROM pg_class k WHERE k.oid = relation) THEN
        EXECUTE format('DROP TRIGGER IF EXISTS drift_companion_%s_delete ON %s', this.id, relation);
        EXECUTE format('DROP TRIGGER IF EXISTS drift_companion_%s_truncate ON %s', this.id, relation);
    END IF;
    EXECUTE format('DROP TABLE %s', drift.companion_table(this.id));
    DELETE FROM drift.companion c WHERE c.id = this.id;
    INSERT INTO drift.event (action, subject, details)
    VALUES ('drop_companion', format('%s.%I', relation, embedding_column), jsonb_build_object('model', this.model, 'vectors', held));
END
$$;
COMMENT ON FUNCTION drift.drop_companion(regclass, name) IS 'Drops a companion table with its vectors and its triggers.';


CREATE OR REPLACE FUNCTION drift.sweep_companion(relation regclass, embedding_column name)
RETURNS bigint
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    this drift.companion := drift.companion_of(relation, embedding_column);
    swept bigint;
BEGIN
    EXECUTE format('DELETE FROM %s c WHERE NOT EXISTS (SELECT FROM %s t WHERE %s)', drift.companion_table(this.id), relation,
                   drift.key_list(this, 't.%1$I = c.key%2$s', ' AND '));
    GET DIAGNOSTICS swept = ROW_COUNT;
    RETURN swept;
END
$$;
COMMENT ON FUNCTION drift.sweep_companion(regclass, name) IS
    'Deletes a companion''s rows whose rows in the user''s table are gone, as after a deletion by a role without privileges on the companion.';


CREATE OR REPLACE FUNCTION drift.store_vectors(relation regclass, embedding_column name, keys jsonb, contents text[], vectors text[])
RETURNS bigint
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    this drift.companion := drift.companion_of(relation, embedding_column);
    stored bigint;
BEGIN
    -- In the key's order, so that two clients that store the same rows wait for each other and do not lock up.
    EXECUTE format('INSERT INTO %1$s AS c (%2$s, embedding, content_hash) '
                   'SELECT %3$s, g.vector::vector, %4$s '
                   'FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS g (content, vector, i) '
                   'JOIN %5$s t ON %6$s ORDER BY %3$s '
                   'ON CONFLICT (%2$s) DO UPDATE SET embedding = excluded.embedding, content_hash = excluded.content_hash, changed_at = now()',
                   drift.companion_table(this.id), drift.key_list(this, 'key%2$s', ', '), drift.key_list(this, 't.%1$I', ', '),
                   drift.hash_sql('g.content'), relation, drift.given_key(this, '$3 -> (g.i - 1)::integer'))
    USING contents, vectors, keys;
    GET DIAGNOSTICS stored = ROW_COUNT;
    RETURN stored;
END
$$;
COMMENT ON FUNCTION drift.store_vectors(regclass, name, jsonb, text[], text[]) IS
    'Stores new-model vectors beside rows that are still there. keys: per row the list of its primary key''s values as text; contents: the texts that were embedded, whose hash tells later whether the row has changed.';


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


CREATE OR REPLACE FUNCTION drift.missing(relation regclass, embedding_column name, query vector, query_model text, n integer, matching jsonb DEFAULT NULL)
RETURNS TABLE (key jsonb, content text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    this drift.companion := drift.companion_of(relation, embedding_column);
    held drift.embedding_column := drift.searched_column(relation, embedding_column);
    adapted vector := drift.adapt_for(query, query_model, relation, embedding_column);
    before record := drift.widen_search(n);
BEGIN
    RETURN QUERY EXECUTE format(
        'WITH bridge AS MATERIALIZED ('
        '  SELECT %1$s, %2$s AS content, %3$s AS distance FROM %4$s t WHERE %5$s ORDER BY %3$s LIMIT $2) '
        'SELECT jsonb_build_array(%6$s), b.content FROM bridge b '
        'WHERE btrim(b.content, E'' \t\r\n'') <> '''' AND NOT EXISTS (SELECT FROM %7$s c WHERE %8$s AND c.embedding IS NOT NULL AND c.content_hash = %9$s) '
        'ORDER BY b.distance',
        drift.key_list(this, 't.%1$I AS key%2$s', ', '), drift.content_sql(this), drift.legacy_distance(held, '$1'), relation,
        drift.conditions(relation, matching), drift.key_list(this, 'b.key%2$s::text', ', '), drift.companion_table(this.id),
        drift.key_list(this, 'c.key%2$s = b.key%2$s', ' AND '), drift.hash_sql('b.content'))
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
    -- The locks first, then another look: who held one has committed its vector by now.
    SELECT jsonb_agg(k.key ORDER BY k.i) INTO mine FROM jsonb_array_elements(keys) WITH ORDINALITY AS k (key, i)
    WHERE pg_try_advisory_xact_lock(hashtextextended(format('drift companion %s %s', this.id, k.key), 0));
    RETURN QUERY EXECUTE format(
        'SELECT g.key, %1$s FROM jsonb_array_elements($1) WITH ORDINALITY AS g (key, i) JOIN %2$s t ON %3$s '
        'WHERE NOT EXISTS (SELECT FROM %4$s c WHERE %5$s AND c.embedding IS NOT NULL AND c.content_hash = %6$s) ORDER BY g.i',
        drift.content_sql(this), relation, drift.given_key(this, 'g.key'), drift.companion_table(this.id),
        drift.key_list(this, 'c.key%2$s = t.%1$I', ' AND '), drift.hash_sql(drift.content_sql(this)))
    USING mine;
END
$$;
COMMENT ON FUNCTION drift.claim(regclass, name, jsonb) IS
    'Of these rows, those that no other client is embedding and that still lack a vector, with their present text. They are the caller''s until its transaction ends.';


CREATE OR REPLACE FUNCTION drift.queue_missing(relation regclass, embedding_column name, keys jsonb)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    this drift.companion := drift.companion_of(relation, embedding_column);
    made text := drift.companion_table(this.id);
BEGIN
    EXECUTE format('INSERT INTO %1$s (%2$s) SELECT %3$s FROM jsonb_array_elements($1) AS g (key) JOIN %4$s t ON %5$s ORDER BY %3$s ON CONFLICT DO NOTHING',
                   made, drift.key_list(this, 'key%2$s', ', '), drift.key_list(this, 't.%1$I', ', '), relation, drift.given_key(this, 'g.key'))
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
