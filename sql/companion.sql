-- Companion tables: the new model's vectors of a column's rows, beside the user's table and never in it.

CREATE OR REPLACE FUNCTION drift.companion_of(relation regclass, embedding_column name)
RETURNS drift.companion
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    this drift.companion;
BEGIN
    IF NOT has_table_privilege('drift.companion', 'SELECT') THEN
        PERFORM drift.refuse_privilege();
    END IF;
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


CREATE OR REPLACE FUNCTION drift.absent_columns(relation regclass, columns name[])
RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    RETURN (SELECT string_agg(quote_ident(c), ', ' ORDER BY i) FROM unnest(columns) WITH ORDINALITY AS c (c, i)
            WHERE NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = relation AND a.attname = c AND a.attnum > 0 AND NOT a.attisdropped));
END
$$;
COMMENT ON FUNCTION drift.absent_columns(regclass, name[]) IS 'Which of these columns a table does not have, quoted; NULL if it has all.';


CREATE OR REPLACE FUNCTION drift.require_privileges(made text, contents text, privileges text[])
RETURNS void
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    lacking text := (SELECT string_agg(p, ', ') FROM unnest(privileges) AS p WHERE NOT has_table_privilege(made, p));
BEGIN
    IF lacking IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = format('role %I lacks %s on %s, which holds %s', current_user, lacking, made, contents),
            HINT = format('GRANT %s ON %s TO %I;', lacking, made, current_user);
    END IF;
END
$$;
COMMENT ON FUNCTION drift.require_privileges(text, text, text[]) IS 'Raises, with the GRANT that helps, if the caller lacks a privilege on a table of schema drift.';


CREATE OR REPLACE FUNCTION drift.require_companion(companion drift.companion, privileges text[])
RETURNS void
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    made text := drift.companion_table(companion.id);
    gone text := drift.absent_columns(companion.relation, companion.key_columns || companion.text_columns);
BEGIN
    IF gone IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'VD014',
            MESSAGE = format('%s has no column %s any more, by which its companion %s knows rows and their texts', companion.relation, gone, made),
            HINT = format('If it was renamed, say so: UPDATE drift.companion SET key_columns = %L, text_columns = %L WHERE id = %s; with the new name in its place.',
                          companion.key_columns, companion.text_columns, companion.id);
    END IF;
    PERFORM drift.require_privileges(made, 'vectors of a new model', privileges);
END
$$;
COMMENT ON FUNCTION drift.require_companion(drift.companion, text[]) IS
    'Raises, with what helps, if the caller lacks a privilege on a companion, or a column was renamed by which it knows rows and their texts.';


-- The key's columns are called key1, key2, … in a companion, so that no name of the user's meets one of ours.


CREATE OR REPLACE FUNCTION drift.key_list(companion drift.companion, template text, separator text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    IF cardinality(companion.key_columns) = 1 THEN
        RETURN format(template, companion.key_columns[1], 1);  -- each search asks ten times
    END IF;
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
    RETURN format('int8send(hashtextextended(%s COLLATE "C", 0))', content);
END
$$;
COMMENT ON FUNCTION drift.hash_sql(text) IS
    'SQL of a text''s hash, given the text''s SQL: 64 bits that tell a text from the one before it, at a seventh of the cost of SHA-256, which would be half of a search. In line: a function with a pinned search_path would cost more than the hash.';


CREATE OR REPLACE FUNCTION drift.check_companion(relation regclass, embedding_column name, model text, text_columns name[], key_columns name[])
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    held text;
    missing text := drift.absent_columns(relation, text_columns);
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
SET client_min_messages = warning
AS $$
DECLARE
    keys name[] := (SELECT array_agg(a.attname ORDER BY k.place)
                    FROM pg_index i, unnest(i.indkey) WITH ORDINALITY AS k (number, place)
                    JOIN pg_attribute a ON a.attrelid = create_companion.relation AND a.attnum = k.number
                    WHERE i.indrelid = create_companion.relation AND i.indisprimary);
    this drift.companion;
    made text;
BEGIN
    PERFORM drift.require_administration();
    PERFORM drift.check_companion(relation, embedding_column, model, text_columns, keys);
    INSERT INTO drift.companion (relation, column_name, model, text_columns, key_columns)
    VALUES (create_companion.relation, embedding_column, create_companion.model, create_companion.text_columns, keys)
    ON CONFLICT DO NOTHING RETURNING * INTO this;
    IF FOUND THEN
        made := drift.make_companion(this);
        INSERT INTO drift.event (action, subject, details)
        VALUES ('create_companion', format('%s.%I', relation, embedding_column),
                jsonb_build_object('model', model, 'table', made, 'text_columns', text_columns));
    ELSE
        this := drift.companion_of(relation, embedding_column);
        made := drift.companion_table(this.id);
        IF (this.model, this.text_columns, this.key_columns) IS DISTINCT FROM (model, text_columns, keys) THEN
            RAISE EXCEPTION USING
                ERRCODE = 'VD020',
                MESSAGE = format('column %I of %s has a companion for model %L, from the text of %s, by the key %s', embedding_column, relation,
                                 this.model, array_to_string(this.text_columns, ', '), array_to_string(this.key_columns, ', ')),
                HINT = format('Its vectors are lost if you drop it: SELECT drift.drop_companion(%L, %L);', relation::text, embedding_column);
        END IF;
    END IF;
    PERFORM drift.protect_companion(this);
    PERFORM drift.follow_deletes(this);
    RETURN made::regclass;
END
$$;
COMMENT ON FUNCTION drift.create_companion(regclass, name, text, name[]) IS
    'Creates the table that holds a new model''s vectors of an embedding column''s rows, by their primary key. If it is there alike, it gets the privileges and the row-level security that the user''s table has by now. The embedded text is that of text_columns, joined by a line break.';


CREATE OR REPLACE FUNCTION drift.make_companion(companion drift.companion)
RETURNS text
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    made text := drift.companion_table(companion.id);
    dimensions integer := drift.model_dimensions(companion.model);
BEGIN
    -- The keys' collations too: PostgreSQL does not compare columns of two.
    EXECUTE format('CREATE TABLE %s (%s, embedding vector(%s), content_hash bytea, misses integer NOT NULL DEFAULT 0, outdated bytea, '
                   'changed_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (%s))', made,
                   (SELECT string_agg(format('key%s %s%s NOT NULL', k.i, format_type(a.atttypid, a.atttypmod),
                                             ' COLLATE ' || nullif(a.attcollation, 0)::regcollation::text), ', ' ORDER BY k.i)
                    FROM unnest(companion.key_columns) WITH ORDINALITY AS k (name, i)
                    JOIN pg_attribute a ON a.attrelid = companion.relation AND a.attname = k.name),
                   dimensions, drift.key_list(companion, 'key%2$s', ', '));
    -- In the row where a page has room: out of line, each candidate's vector would be a second look-up.
    IF dimensions <= 1900 THEN
        EXECUTE format('ALTER TABLE %s ALTER COLUMN embedding SET STORAGE MAIN', made);
    END IF;
    EXECUTE format('COMMENT ON TABLE %s IS %L', made,
                   format('Vectors of model %s for %s.%s; a NULL embedding is queued', companion.model, companion.relation, companion.column_name));
    EXECUTE format('COMMENT ON COLUMN %s.outdated IS %L', made, 'Fingerprint of a legacy vector that is of an older text, where drift.follow saw that text change');
    EXECUTE format('CREATE INDEX ON %s (misses DESC) WHERE embedding IS NULL', made);
    RETURN made;
END
$$;
COMMENT ON FUNCTION drift.make_companion(drift.companion) IS 'Creates the table of a companion.';


CREATE OR REPLACE FUNCTION drift.protect_companion(companion drift.companion)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    made text := drift.companion_table(companion.id);
    granted record;
BEGIN
    -- Who may change a row may store its vector, which a search does that embeds what is missing.
    FOR granted IN
        SELECT DISTINCT a.grantee, CASE a.privilege_type WHEN 'UPDATE' THEN 'INSERT, UPDATE' ELSE a.privilege_type END AS privileges
        FROM pg_class k, aclexplode(k.relacl) AS a
        WHERE k.oid = companion.relation AND a.privilege_type IN ('SELECT', 'UPDATE', 'DELETE') AND a.grantee <> k.relowner
        UNION SELECT k.relowner, 'SELECT, INSERT, UPDATE, DELETE' FROM pg_class k
        WHERE k.oid = companion.relation AND k.relowner <> (SELECT r.oid FROM pg_roles r WHERE r.rolname = current_user)
    LOOP
        EXECUTE format('GRANT %s ON %s TO %s', granted.privileges, made,
                       CASE granted.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(granted.grantee)) END);
    END LOOP;
    EXECUTE format('DROP POLICY IF EXISTS as_the_users_table ON %s', made);
    IF (SELECT k.relrowsecurity FROM pg_class k WHERE k.oid = companion.relation) THEN
        -- OFFSET 0: a look-up by key; else the planner may hash the whole table for each search.
        EXECUTE format('CREATE POLICY as_the_users_table ON %s USING (EXISTS (SELECT FROM %s t WHERE %s OFFSET 0))', made, companion.relation,
                       drift.key_list(companion, 't.%1$I = key%2$s', ' AND '));
        EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', made);
    ELSE
        EXECUTE format('ALTER TABLE %s DISABLE ROW LEVEL SECURITY', made);
    END IF;
END
$$;
COMMENT ON FUNCTION drift.protect_companion(drift.companion) IS
    'Gives a companion the readers and writers of the user''s table, and its row-level security: who may not see a row may not see its vector.';


CREATE OR REPLACE FUNCTION drift.limit_wait()
RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    patience text := current_setting('lock_timeout');
BEGIN
    IF patience = '0' THEN
        PERFORM set_config('lock_timeout', '5s', true);
    END IF;
    RETURN patience;
END
$$;
COMMENT ON FUNCTION drift.limit_wait() IS
    'Before a lock on a user''s table, behind which every other writer waits: 5 s at most, unless lock_timeout says otherwise. Returns the setting, to be put back.';


CREATE OR REPLACE FUNCTION drift.drop_companion(relation regclass, embedding_column name)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    this drift.companion := drift.companion_of(relation, embedding_column);
    patience text := drift.limit_wait();
    held bigint;
BEGIN
    PERFORM drift.require_administration();
    EXECUTE format('SELECT count(embedding) FROM %s', drift.companion_table(this.id)) INTO held;
    IF EXISTS (SELECT FROM pg_class k WHERE k.oid = relation) THEN
        EXECUTE (SELECT string_agg(format('DROP TRIGGER IF EXISTS drift_companion_%s_%s ON %s', this.id, t, relation), '; ')
                 FROM unnest('{delete,truncate,text,new_text}'::text[]) AS t);
    END IF;
    EXECUTE format('DROP TABLE %s', drift.companion_table(this.id));
    PERFORM set_config('lock_timeout', patience, true);
    DELETE FROM drift.companion c WHERE c.id = this.id;
    INSERT INTO drift.event (action, subject, details)
    VALUES ('drop_companion', format('%s.%I', relation, embedding_column), jsonb_build_object('model', this.model, 'vectors', held));
END
$$;
COMMENT ON FUNCTION drift.drop_companion(regclass, name) IS 'Drops a companion table with its vectors and its triggers.';
