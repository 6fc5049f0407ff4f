"""Fixtures: a server per worker, a database per test cloned from a template, real embeddings."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psycopg
import pytest
from click.testing import CliRunner, Result

from drift_pg.cli import main
from tests import servers
from tests.orm import DRIVERS, Database, World

LONG = {"test_training.py", "test_evaluation.py", "test_families.py", "test_quality.py", "test_reembedding_search.py"}

QUALITY_DATA = Path(os.environ.get("DRIFT_PG_QUALITY_DATA", Path(__file__).parents[2] / "shared/data/pydocs.npz"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out on older versions of PostgreSQL what no version could make a difference to; begin with the long files."""
    spared = {item for item in items if _spared(item)}
    config.hook.pytest_deselected(items=list(spared))
    # Else the last worker would be alone with one of them for a minute (xdist hands out whole files).
    items[:] = sorted((item for item in items if item not in spared), key=lambda item: item.path.name not in LONG)


def _spared(item: pytest.Item) -> bool:
    given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    # One driver, one protocol: its asynchronous half is ours to test, not the server's.
    ours = item.get_closest_marker("one_postgresql") or given.get("database") == "psycopg async"
    return bool(ours) and given.get("postgresql", servers.VERSIONS[0]) != servers.VERSIONS[0]


@pytest.fixture(scope="session", params=servers.VERSIONS)
def postgresql(request: pytest.FixtureRequest) -> str:
    """The version of PostgreSQL: every database test runs on each."""
    return request.param


@pytest.fixture(scope="session")
def server(postgresql: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The DSN of a server that this test worker has for itself."""
    return servers.start(tmp_path_factory.mktemp(f"pg{postgresql}"), postgresql)


@pytest.fixture(scope="session")
def template(server: str) -> str:
    """The name of an installed database to clone."""
    return servers.make_template(server)


@pytest.fixture
def dsn(server: str, template: str) -> Iterator[str]:
    """The DSN of a database with schema drift, for this test alone."""
    with servers.database(server, template) as name:
        yield name


@pytest.fixture
def conn(dsn: str) -> Iterator[psycopg.Connection]:
    """An autocommit connection to it; pgvector's schema is not on its search_path."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def bare_dsn(server: str) -> Iterator[str]:
    """The DSN of an empty database: no pgvector, no drift."""
    with servers.database(server) as name:
        yield name


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """An env.py as Alembic's templates have it disables every logger there is: what came after would log nothing."""
    yield
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.disabled = False


@pytest.fixture
def cli(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command on this test's database, with a cache of its own."""
    monkeypatch.setenv("DRIFT_PG_DSN", dsn)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str, exits: int = 0, typed: str | None = None) -> Result:
        result = CliRunner().invoke(main, list(arguments), input=typed)
        assert result.exit_code == exits, result.output
        return result

    return run


@pytest.fixture
def rng() -> np.random.Generator:
    """Reproducible draws, for shapes and mechanics; never for claims about quality."""
    return np.random.default_rng(7)


@pytest.fixture(scope="session")
def pydocs() -> dict[str, np.ndarray]:
    """Real embeddings of real documentation by three models (see CONTRIBUTING.md)."""
    if not QUALITY_DATA.is_file():
        pytest.skip(f"quality data not found at {QUALITY_DATA}; set DRIFT_PG_QUALITY_DATA")
    with np.load(QUALITY_DATA) as file:
        arrays = {name: file[name] for name in file.files}
    return {
        name: a.astype(np.float32) / np.linalg.norm(a.astype(np.float32), axis=1, keepdims=True) if a.ndim == 2 else a
        for name, a in arrays.items()
    }


@pytest.fixture(scope="module")
def world(server: str, template: str) -> Iterator[World]:
    """A database that the tests of this module only read."""
    with servers.database(server, template) as dsn:
        yield World(dsn)


@pytest.fixture(params=DRIVERS)
def database(world: World, request: pytest.FixtureRequest) -> Database:
    """It, through each driver of SQLAlchemy."""
    return Database(world.dsn, request.param)
