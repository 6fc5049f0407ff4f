-- Which package these functions come from.

CREATE OR REPLACE FUNCTION drift.version()
RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN :'version';
END
$$;
COMMENT ON FUNCTION drift.version() IS 'The drift_pg version that installed these functions, and a digest of their text.';
