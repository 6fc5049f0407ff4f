"""A dump and restore keeps what serves."""

import subprocess
from pathlib import Path

import numpy as np
import psycopg

import drift_pg
from drift_pg.database.status import status
from tests import servers
from tests.tables import Upgrade, vector


def results(conn: psycopg.Connection, queries: np.ndarray) -> list[list[tuple]]:
    # The restored index is built anew: at this breadth both give the exact neighbours.
    conn.execute("SET hnsw.ef_search = 500")
    statement = "SELECT id FROM drift.nearest(NULL::docs, 'embedding', %s, 'new', 10)"
    return [conn.execute(statement, [vector(query)]).fetchall() for query in queries]


def test_searches_give_the_same_rows_after_a_restore(
    conn, dsn: str, server: str, postgresql: str, rng, tmp_path: Path
) -> None:
    upgrade = Upgrade(conn, rng).activate()
    before = results(conn, upgrade.new[:20])
    drift_pg.log_query(conn, "docs", "embedding", upgrade.new[0], model="new")
    programs = servers.programs(postgresql)
    subprocess.run([programs / "pg_dump", "--format=custom", f"--file={tmp_path / 'dump'}", dsn], check=True)
    with servers.database(server) as copy:
        subprocess.run([programs / "pg_restore", "--exit-on-error", f"--dbname={copy}", tmp_path / "dump"], check=True)
        with psycopg.connect(copy, autocommit=True) as restored:
            assert results(restored, upgrade.new[:20]) == before
            assert status(restored).healthy
            assert len(drift_pg.read_query_log(restored, "docs", "embedding", model="new")) == 1
