"""The image's init script, run as the image would run it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psycopg

import drift_pg
from drift_pg.database.status import status
from tests import servers
from tests.tables import linear, rotation

RENDER = Path(__file__).parents[1] / "docker" / "render.sh"


def test_the_init_script_makes_a_database_that_serves(bare_dsn: str, postgresql: str, rng: np.random.Generator) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = subprocess.run(["sh", RENDER], check=True, capture_output=True, env={**os.environ, "PATH": path}).stdout
    psql = [servers.programs(postgresql) / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", bare_dsn]
    subprocess.run(psql, check=True, input=script)
    with psycopg.connect(bare_dsn, autocommit=True) as conn:
        for name in ("legacy", "new"):
            drift_pg.register_model(conn, name, dimensions=3)
        stored = drift_pg.store(conn, linear(rotation(rng, 3)), source="new", target="legacy")
        drift_pg.activate(conn, stored)
        assert conn.execute("SELECT drift.adapt('[1,0,0]'::vector, 'new', 'legacy') IS NOT NULL").fetchone() == (True,)
        assert status(conn).healthy
