"""What every function of schema drift promises, and every error's place in the tree."""

import re

import psycopg

from drift_pg import _assets, errors
from drift_pg.database.connection import BY_SQLSTATE


def functions(conn: psycopg.Connection) -> list[tuple]:
    return conn.execute(
        "SELECT oid::regprocedure::text, prosecdef, proconfig, obj_description(oid, 'pg_proc'), provolatile, proparallel, prosrc "
        "FROM pg_proc WHERE pronamespace = 'drift'::regnamespace"
    ).fetchall()


def test_functions_run_as_the_caller_with_a_pinned_search_path_and_a_comment(conn: psycopg.Connection) -> None:
    assert len(functions(conn)) > 20
    for name, definer, config, comment, *_ in functions(conn):
        assert not definer, name
        assert any(c.startswith("search_path=pg_catalog") and c.endswith("pg_temp") for c in config or []), name
        assert comment, name


def test_only_functions_that_write_are_volatile(conn: psycopg.Connection) -> None:
    for name, _, _, _, volatility, parallel, source in functions(conn):
        writes = bool(
            re.search(
                r"INSERT INTO|UPDATE drift|DELETE FROM|pg_try_advisory|EXECUTE format\(.(DELETE|INSERT|UPDATE|CREATE|GRANT|DROP)|EXECUTE drift\.fill|PERFORM drift\.(lock|register|drop)",
                re.sub(r"HINT = [^;]*", "", source),  # what a user should run, the function does not
            )
        )
        assert (volatility == "v") == writes, name
        assert not (parallel == "s" and (writes or "set_config" in source)), name


def test_views_run_as_the_caller_and_every_table_has_a_comment(conn: psycopg.Connection) -> None:
    relations = conn.execute(
        "SELECT relname, relkind, reloptions, obj_description(oid, 'pg_class') FROM pg_class "
        "WHERE relnamespace = 'drift'::regnamespace AND relkind IN ('r', 'v') AND relname <> 'alembic_version'"
    ).fetchall()
    assert {name for name, kind, *_ in relations if kind == "v"} == {"models", "adapters", "columns", "status"}
    for name, kind, options, comment in relations:
        assert comment, name
        assert kind == "r" or options == ["security_invoker=true"], name


def test_every_error_that_sql_raises_has_a_class_and_every_class_is_raised() -> None:
    texts = "".join(path.read_text() for path in _assets.folder("sql").glob("*.sql"))
    texts += (_assets.Path(errors.__file__).parent / "database/scripts.py").read_text()
    raised = set(re.findall(r"VD\d{3}", texts))
    assert raised == {state for state in BY_SQLSTATE if state.startswith("VD")}


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    documented = dict(re.findall(r"─ (\w+)(?: +(VD\d{3}|42501))?", errors.__doc__ or ""))
    actual = {
        name: cls.sqlstate or ""
        for name, cls in vars(errors).items()
        if isinstance(cls, type) and issubclass(cls, errors.DriftError) and cls is not errors.DriftError
    }
    assert documented == actual
