"""Installing, upgrading and removing schema drift."""

import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import sql
from psycopg.conninfo import make_conninfo

import drift_pg
from drift_pg import errors
from drift_pg.cli import main
from drift_pg.database import scripts
from drift_pg.database.install import installed_revision
from tests import servers
from tests.tables import linear, rotation

CATALOG = """
SELECT 'table', format('%s.%s %s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attstorage)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
WHERE c.relnamespace = 'drift'::regnamespace
UNION ALL SELECT 'constraint', format('%s %s', conrelid::regclass, pg_get_constraintdef(oid)) FROM pg_constraint WHERE connamespace = 'drift'::regnamespace
UNION ALL SELECT 'index', indexdef FROM pg_indexes WHERE schemaname = 'drift'
UNION ALL SELECT 'view', format('%s %s', viewname, definition) FROM pg_views WHERE schemaname = 'drift'
UNION ALL SELECT 'function', pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'drift'::regnamespace
UNION ALL SELECT 'comment', format('%s %s %s', classoid::regclass, objsubid, description)
FROM pg_description WHERE objoid IN (SELECT oid FROM pg_class WHERE relnamespace = 'drift'::regnamespace
                                     UNION ALL SELECT oid FROM pg_proc WHERE pronamespace = 'drift'::regnamespace)
ORDER BY 1, 2
"""


def catalog(dsn: str) -> list[tuple[str, str]]:
    with psycopg.connect(dsn) as conn:
        return conn.execute(CATALOG).fetchall()


@pytest.fixture
def pgvector_dsn(bare_dsn: str) -> str:
    """A database with pgvector in a schema of its own, without drift."""
    with psycopg.connect(bare_dsn, autocommit=True) as conn:
        servers.install_pgvector(conn)
    return bare_dsn


def test_every_upgrade_path_gives_the_catalog_of_a_fresh_install(pgvector_dsn: str, dsn: str) -> None:
    fresh = catalog(dsn)
    with psycopg.connect(pgvector_dsn, autocommit=True) as conn:
        for revision in scripts.revisions():
            drift_pg.upgrade(conn, to=revision)
            assert installed_revision(conn) == revision
        assert catalog(pgvector_dsn) == fresh
        drift_pg.upgrade(conn)
        assert catalog(pgvector_dsn) == fresh
        drift_pg.downgrade(conn)
        drift_pg.upgrade(conn)
        assert catalog(pgvector_dsn) == fresh


def test_a_downgrade_leaves_nothing_behind(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        assert drift_pg.downgrade(conn) == (scripts.head(), "base")
        assert conn.execute("SELECT to_regnamespace('drift')").fetchone() == (None,)
        with pytest.raises(errors.NotInstalled):
            drift_pg.downgrade(conn)


def test_a_downgrade_stops_at_the_revision_asked_for(conn: psycopg.Connection) -> None:
    assert drift_pg.downgrade(conn, to="0001") == (scripts.head(), "0001")
    with pytest.raises(errors.InvalidInput, match="not before it"):
        drift_pg.downgrade(conn, to="0002")
    assert drift_pg.upgrade(conn) == ("0001", scripts.head())


def test_a_downgrade_does_not_destroy_adapters_unless_told_to(conn: psycopg.Connection, rng) -> None:
    for name in ("new", "legacy"):
        drift_pg.register_model(conn, name, dimensions=3)
    drift_pg.store(conn, linear(rotation(rng, 3)), source="new", target="legacy")
    for to in ("base", "0001"):
        with pytest.raises(errors.StillInUse, match="1 adapters"):
            drift_pg.downgrade(conn, to=to)
    assert conn.execute("SELECT count(*) FROM drift.adapter").fetchone() == (1,)
    drift_pg.downgrade(conn, destroy_adapters=True)


def test_a_downgrade_drops_nothing_that_a_user_built_on_it(conn: psycopg.Connection) -> None:
    conn.execute("CREATE VIEW public.mine AS SELECT relation, problem FROM drift.status")
    with pytest.raises(psycopg.errors.DependentObjectsStillExist, match="mine"):
        drift_pg.downgrade(conn)
    assert conn.execute("SELECT count(*) FROM public.mine").fetchone() == (0,)
    conn.execute("DROP VIEW public.mine")
    drift_pg.downgrade(conn)


def test_the_printed_sql_run_by_psql_gives_the_same_database(pgvector_dsn: str, dsn: str) -> None:
    runner = CliRunner()
    arguments = ["upgrade", "--sql", "--vector-schema", servers.PGVECTOR_SCHEMA]
    script = runner.invoke(main, arguments).output
    assert script == runner.invoke(main, arguments).output
    with psycopg.connect(pgvector_dsn, autocommit=True) as conn:
        conn.execute(script)
        assert catalog(pgvector_dsn) == catalog(dsn)
        with pytest.raises(psycopg.Error, match="already installed"):
            conn.execute(script)


def test_the_printed_sql_checks_the_revision_it_starts_from(pgvector_dsn: str, dsn: str) -> None:
    step = (
        CliRunner()
        .invoke(main, ["upgrade", "--sql", "--from", "0001", "--vector-schema", servers.PGVECTOR_SCHEMA])
        .output
    )
    with psycopg.connect(pgvector_dsn, autocommit=True) as conn:
        drift_pg.upgrade(conn, to="0001")
        conn.execute(step)
        assert catalog(pgvector_dsn) == catalog(dsn)
        with pytest.raises(psycopg.Error, match="is at revision '0005', this script starts at '0001'"):
            conn.execute(step)


def test_an_upgrade_is_part_of_the_callers_transaction(pgvector_dsn: str) -> None:
    with psycopg.connect(pgvector_dsn) as conn:
        conn.execute("SET LOCAL search_path = public")
        drift_pg.upgrade(conn)
        assert conn.execute("SHOW search_path").fetchone() == ("public",)
        conn.rollback()
        assert installed_revision(conn) == "base"


def test_a_connection_lost_in_an_upgrade_leaves_nothing(pgvector_dsn: str) -> None:
    with psycopg.connect(pgvector_dsn, autocommit=True) as watcher:
        conn = psycopg.connect(pgvector_dsn)
        drift_pg.upgrade(conn)
        watcher.execute("SELECT pg_terminate_backend(%s)", [conn.info.backend_pid])
        with pytest.raises(errors.ConnectionLost, match="connection"):
            drift_pg.register_model(conn, "new", dimensions=3)
        assert installed_revision(watcher) == "base"
        drift_pg.upgrade(watcher)


def test_upgrades_at_the_same_time_wait_for_each_other(pgvector_dsn: str) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with psycopg.connect(pgvector_dsn, autocommit=True) as conn:
                drift_pg.upgrade(conn)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_without_pgvector_it_says_what_to_run(bare_dsn: str) -> None:
    with psycopg.connect(bare_dsn, autocommit=True) as conn, pytest.raises(errors.NotInstalled) as refused:
        drift_pg.upgrade(conn)
    assert refused.value.hint == "CREATE EXTENSION vector;"


def test_a_schema_drift_of_someone_else_is_left_alone(pgvector_dsn: str) -> None:
    with psycopg.connect(pgvector_dsn, autocommit=True) as conn:
        conn.execute("CREATE SCHEMA drift; CREATE TABLE drift.mine (id int)")
        with pytest.raises(errors.AlreadyRegistered, match="belongs to something else"):
            drift_pg.upgrade(conn)
        assert conn.execute("SELECT count(*) FROM drift.mine").fetchone() == (0,)


def test_a_newer_database_is_not_touched(conn: psycopg.Connection) -> None:
    conn.execute("UPDATE drift.alembic_version SET version_num = '9999'")
    with pytest.raises(errors.WrongRevision, match="9999"):
        drift_pg.upgrade(conn)


def test_a_role_without_superuser_installs_and_one_without_create_is_told(pgvector_dsn: str) -> None:
    with psycopg.connect(pgvector_dsn, autocommit=True) as conn:
        role = f"installer_{conn.info.dbname[-8:]}"
        conn.execute(sql.SQL("CREATE ROLE {} LOGIN NOSUPERUSER").format(sql.Identifier(role)))
        try:
            conn.execute(sql.SQL("GRANT USAGE ON SCHEMA extensions TO {}").format(sql.Identifier(role)))
            with psycopg.connect(make_conninfo(pgvector_dsn, user=role), autocommit=True) as theirs:
                with pytest.raises(errors.PermissionDenied) as refused:
                    drift_pg.upgrade(theirs)
                assert "GRANT CREATE ON DATABASE" in (refused.value.hint or "")
                conn.execute(
                    sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(
                        sql.Identifier(conn.info.dbname), sql.Identifier(role)
                    )
                )
                assert drift_pg.upgrade(theirs)[1] == scripts.head()
        finally:
            conn.execute(sql.SQL("DROP OWNED BY {0} CASCADE; DROP ROLE {0}").format(sql.Identifier(role)))


def test_a_wheel_installs_from_any_folder(tmp_path: Path, pgvector_dsn: str, dsn: str) -> None:
    """Build it, install it without the checkout on the path, and upgrade a database from another folder."""
    root = Path(__file__).parents[1]
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(root)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    target = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    run = "import drift_pg, sys; from drift_pg.cli import main; assert 'site' in drift_pg.__file__; main()"
    subprocess.run(
        [sys.executable, "-c", run, "upgrade"],
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(target), "DRIFT_PG_DSN": pgvector_dsn, "PATH": "/usr/bin:/bin"},
    )
    assert catalog(pgvector_dsn) == catalog(dsn)
