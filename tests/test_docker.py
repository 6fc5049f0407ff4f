"""The image's init script, run as the image would run it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import psycopg
import pytest

import drift_pg
from drift_pg.database.status import status
from tests import servers
from tests.tables import rotation, vector

CHECKOUT = Path(__file__).parents[1]
DOCKERFILE = (CHECKOUT / "docker/Dockerfile").read_text()
DIMENSIONS = 8


@pytest.fixture
def initialised(bare_dsn: str, postgresql: str) -> str:
    """The DSN of a database that the rendered script has filled."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = subprocess.run(
        ["sh", CHECKOUT / "docker/render.sh"], check=True, capture_output=True, env={**os.environ, "PATH": path}
    ).stdout
    psql = [servers.programs(postgresql) / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", bare_dsn]
    subprocess.run(psql, check=True, input=script)
    return bare_dsn


def test_the_init_script_makes_a_database_that_serves(initialised: str, rng: np.random.Generator) -> None:
    new = rng.standard_normal((200, DIMENSIONS))
    legacy = new @ rotation(rng, DIMENSIONS)
    with pytest.warns(drift_pg.families.SmallSample):
        adapter = drift_pg.fit(drift_pg.Pairs(new, legacy), "procrustes")
    with psycopg.connect(initialised, autocommit=True) as conn:
        conn.execute(f"CREATE TABLE docs (id integer PRIMARY KEY, embedding vector({DIMENSIONS}))")
        with conn.cursor() as cursor:
            cursor.executemany("INSERT INTO docs VALUES (%s, %s)", [(i, vector(row)) for i, row in enumerate(legacy)])
        conn.execute("CREATE INDEX ON docs USING hnsw (embedding vector_cosine_ops)")
        for name in ("legacy", "new"):
            drift_pg.register_model(conn, name, dimensions=DIMENSIONS)
        drift_pg.register_column(conn, "docs", "embedding", model="legacy")
        drift_pg.activate(conn, drift_pg.store(conn, adapter, source="new", target="legacy"), force=True)
        search = "SELECT id FROM drift.nearest(NULL::docs, 'embedding', %s, 'new', 1)"
        assert [conn.execute(search, [vector(query)]).fetchone() for query in new[:20]] == [(i,) for i in range(20)]
        assert status(conn).healthy


def test_an_upgrade_finds_nothing_to_change_in_it(initialised: str) -> None:
    with psycopg.connect(initialised, autocommit=True) as conn:
        before, after = drift_pg.upgrade(conn)
    assert before == after


def test_the_dockerfile_copies_what_is_there_and_lets_it_through() -> None:
    sources = [name for line in re.findall(r"^COPY (?!--)(.*) \S+$", DOCKERFILE, re.M) for name in line.split()]
    allowed = (CHECKOUT / "docker/Dockerfile.dockerignore").read_text().splitlines()
    assert {"drift_pg", "sql", "migrations"} < set(sources)
    for name in sources:
        assert (CHECKOUT / name).exists(), name
        assert f"!{name}" in allowed, name
