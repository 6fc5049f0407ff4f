"""create_vector_index and drop_vector_index: online and printed, repeated, refused, interrupted."""

from pathlib import Path

import psycopg
import pytest

from drift_pg import errors
from tests.alembic_project import Project

DEFINITIONS = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'Odd %:s \"chema' ORDER BY 1"
TABLE = "'Weird %(t)s Table', 'Vec :Col \"q\"', schema='Odd %:s \"chema'"
NAME = "'an %s \"index\" :x'"


def rows(dsn: str, query: str) -> list[tuple]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        return conn.execute(query).fetchall()


def project(folder: Path, dsn: str, options: str = "", kind: str = "vector(3)") -> Project:
    """A history of one index; pgvector's schema is not on the search_path of the printed script."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute('CREATE SCHEMA IF NOT EXISTS "Odd %:s ""chema"')
        conn.execute('DROP TABLE IF EXISTS "Odd %:s ""chema"."Weird %(t)s Table"')
        conn.execute(f'CREATE TABLE "Odd %:s ""chema"."Weird %(t)s Table" ("Vec :Col ""q""" extensions.{kind})')
    made = Project(folder, dsn)
    call = f"vector_index({NAME}, {TABLE}{options})"
    made.write("r1", f"op.create_{call}", f"op.drop_{call}")
    return made


CASES = [
    ("", "vector(3)"),
    (", m=8, ef_construction=40, metric='l1', maintenance_work_mem='70MB', parallel_workers=1", "vector(3)"),
    (", concurrently=False, metric='inner_product'", "vector(3)"),
    (", method='ivfflat', lists=7, metric='l2'", "vector(3)"),
    (", column_type='halfvec'", "halfvec(3)"),
    (", dimensions=3072", "vector(3072)"),
]


@pytest.mark.parametrize(("options", "kind"), CASES)
def test_online_taken_back_and_printed_are_the_same(dsn: str, tmp_path: Path, options: str, kind: str) -> None:
    history = project(tmp_path / "a", dsn, options, kind)
    history.upgrade()
    online = rows(dsn, DEFINITIONS)
    assert len(online) == 1
    history.downgrade("base")
    assert rows(dsn, DEFINITIONS) == []
    history.upgrade()
    assert rows(dsn, DEFINITIONS) == online
    down, up = history.sql("r1:base", down=True), history.sql()
    with psycopg.connect(dsn, autocommit=True) as conn:
        for script in (down, up):
            conn.execute("DROP TABLE IF EXISTS alembic_version" if script is up else "SELECT")
            before = conn.execute("SHOW search_path").fetchall(), conn.execute("SHOW maintenance_work_mem").fetchall()
            for statement in script.replace("\n\n", "\0").split("\0"):
                if statement.strip():
                    conn.execute(statement)
            assert before == (
                conn.execute("SHOW search_path").fetchall(),
                conn.execute("SHOW maintenance_work_mem").fetchall(),
            )
            if script is down:
                assert rows(dsn, DEFINITIONS) == []
    assert rows(dsn, DEFINITIONS) == online


def test_the_same_index_again_is_left_alone_and_another_is_refused(dsn: str, tmp_path: Path) -> None:
    history = project(tmp_path / "a", dsn)
    history.upgrade()
    before = rows(dsn, "SELECT oid FROM pg_class WHERE relname LIKE 'an %index%'")
    rows(dsn, "DELETE FROM alembic_version RETURNING 1")
    history.upgrade()
    rows(dsn, "DELETE FROM alembic_version RETURNING 1")
    call = f"vector_index({NAME}, {TABLE}, m=5)"
    history.write("r1", f"op.create_{call}", f"op.drop_{call}")
    with pytest.raises(errors.AlreadyRegistered, match="another definition"):
        history.upgrade()
    assert rows(dsn, "SELECT oid FROM pg_class WHERE relname LIKE 'an %index%'") == before


@pytest.mark.parametrize(
    "options", [", dimensions=4001", ", method='ivfflat', metric='l1'", ", lists=3", ", metric='x'"]
)
def test_what_pgvector_has_not_is_refused(dsn: str, tmp_path: Path, options: str) -> None:
    history = project(tmp_path / "a", dsn, options)
    with pytest.raises(errors.InvalidDefinition):
        history.upgrade()
