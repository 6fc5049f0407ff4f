-- A vector goes with its row: the triggers on the user's table, and sweeping what they could not see.

CREATE OR REPLACE FUNCTION drift.follow_deletes(companion drift.companion)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    patience text := drift.limit_wait();
    secured boolean := (SELECT k.relrowsecurity FROM pg_class k WHERE k.oid = companion.relation);
    deleting text := format('drift_companion_%s_delete', companion.id);
BEGIN
    -- A trigger, no foreign key: that would lock each row of the user's table that gets a vector, and forbid its TRUNCATE.
    -- Its price: a vector that is stored while its row is being deleted stays behind, for drift.sweep_companion.
    -- Under row-level security a vector is seen through its row, so it goes before the row does.
    IF NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = companion.relation AND t.tgname = deleting AND (t.tgtype & 1 = 1) = secured) THEN
        EXECUTE format('DROP TRIGGER IF EXISTS %s ON %s', deleting, companion.relation);
        EXECUTE format(CASE WHEN secured THEN 'CREATE TRIGGER %1$s BEFORE DELETE ON %2$s FOR EACH ROW EXECUTE FUNCTION drift.on_delete(%3$s)'
                            ELSE 'CREATE TRIGGER %1$s AFTER DELETE ON %2$s REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION drift.on_delete(%3$s)'
                       END, deleting, companion.relation, companion.id);
        EXECUTE format('CREATE OR REPLACE TRIGGER drift_companion_%1$s_truncate AFTER TRUNCATE ON %2$s '
                       'FOR EACH STATEMENT EXECUTE FUNCTION drift.on_truncate(%1$s)', companion.id, companion.relation);
    END IF;
    PERFORM set_config('lock_timeout', patience, true);
END
$$;
COMMENT ON FUNCTION drift.follow_deletes(drift.companion) IS
    'Installs the triggers that remove a companion''s rows with the user''s.';


CREATE OR REPLACE FUNCTION drift.on_delete()
RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    made text;
    condition text;
BEGIN
    -- The user's DELETE must not fail for want of a privilege of ours; what stays behind is not found by any search, and swept.
    IF NOT has_schema_privilege('drift', 'USAGE') THEN
        RETURN OLD;
    END IF;
    made := drift.companion_table(TG_ARGV[0]::integer);
    IF has_table_privilege('drift.companion', 'SELECT') AND has_table_privilege(made, 'SELECT') AND has_table_privilege(made, 'DELETE') THEN
        SELECT drift.key_list(c, CASE TG_LEVEL WHEN 'ROW' THEN '($1).%1$I = c.key%2$s' ELSE 't.%1$I = c.key%2$s' END, ' AND ') INTO condition
        FROM drift.companion c WHERE c.id = TG_ARGV[0]::integer AND drift.absent_columns(TG_RELID, c.key_columns) IS NULL;
        IF condition IS NULL THEN
            RAISE WARNING USING
                MESSAGE = format('vectors of the new model stay behind in %s: a key column of %s was renamed', made, TG_RELID::regclass),
                HINT = format('UPDATE drift.companion SET key_columns = … WHERE id = %s; then SELECT drift.sweep_companion(…);', TG_ARGV[0]);
        ELSIF TG_LEVEL = 'ROW' THEN
            EXECUTE format('DELETE FROM %s c WHERE %s', made, condition) USING OLD;
        ELSE
            EXECUTE format('DELETE FROM %s c USING gone t WHERE %s', made, condition);
        END IF;
    END IF;
    RETURN OLD;
END
$$;
COMMENT ON FUNCTION drift.on_delete() IS 'Trigger: removes the companion''s rows of the rows that are deleted.';


CREATE OR REPLACE FUNCTION drift.on_truncate()
RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
BEGIN
    IF NOT has_schema_privilege('drift', 'USAGE') THEN
        RETURN NULL;
    END IF;
    IF has_table_privilege(drift.companion_table(TG_ARGV[0]::integer), 'DELETE') THEN
        EXECUTE format('DELETE FROM %s', drift.companion_table(TG_ARGV[0]::integer));
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION drift.on_truncate() IS 'Trigger: empties the companion with the user''s table.';


CREATE OR REPLACE FUNCTION drift.sweep_companion(relation regclass, embedding_column name)
RETURNS bigint
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, drift, :"pgvector", pg_temp
AS $$
DECLARE
    this drift.companion := drift.companion_of(relation, embedding_column);
    swept bigint;
BEGIN
    IF row_security_active(relation) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'insufficient_privilege',
            MESSAGE = format('role %I does not see all rows of %s, so it cannot tell which are gone', current_user, relation),
            HINT = 'Run it as the table''s owner, or as a role with BYPASSRLS.';
    END IF;
    EXECUTE format('DELETE FROM %s c WHERE NOT EXISTS (SELECT FROM %s t WHERE %s)', drift.companion_table(this.id), relation,
                   drift.key_list(this, 't.%1$I = c.key%2$s', ' AND '));
    GET DIAGNOSTICS swept = ROW_COUNT;
    RETURN swept;
END
$$;
COMMENT ON FUNCTION drift.sweep_companion(regclass, name) IS
    'Deletes a companion''s rows whose rows in the user''s table are gone: deleted from one partition, by a role without privileges on the companion, or while they were being embedded.';
