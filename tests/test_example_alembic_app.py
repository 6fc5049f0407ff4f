"""The example application's history: what it finds before, after and back again, and what autogenerate says of it."""

import io
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import Session

from drift_pg import errors
from examples.alembic_app import __main__ as app
from examples.alembic_app.models import Document
from examples.alembic_app.search import search, search_in_a_statement, search_unadapted
from tests import servers
from tests.alembic_project import url
from tests.test_alembic_operations import STATE
from tests.test_install import catalog


class App:
    """The application on a database, with a copy of its migrations to write into."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.dsn, self.folder = dsn, folder
        shutil.copytree(app.HERE / "migrations", folder, ignore=shutil.ignore_patterns("__pycache__"))
        self.engine = create_engine(url(dsn))

    def alembic(self, name: str, *arguments: object, output: io.StringIO | None = None, **options: object) -> object:
        """Run an Alembic command."""
        config = Config(app.HERE / "alembic.ini", output_buffer=output)
        config.set_main_option("script_location", str(self.folder))
        return getattr(command, name)(config, *arguments, **options)

    def find(self, how: object) -> list[list[int]]:
        """What ten queries find."""
        with Session(self.engine) as session:
            return [how(session, query) for query in QUERIES]

    def state(self) -> tuple[list[tuple], list[tuple]]:
        """Catalog and contents of schema drift, and the application's own catalog."""
        with psycopg.connect(self.dsn) as conn:
            own = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1"
            return catalog(self.dsn), [*conn.execute(STATE), *conn.execute(own)]


with np.load(app.HERE / "documents.npz") as file:
    QUERIES = file["queries_minilm_l6"].astype(np.float32)[:10].tolist()


@pytest.fixture
def application(bare_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    """The application, its documents loaded, at the revision before the upgrade of the model."""
    with psycopg.connect(bare_dsn, autocommit=True) as conn:
        servers.install_pgvector(conn)
    monkeypatch.setenv("DATABASE_URL", url(bare_dsn).render_as_string(hide_password=False))
    made = App(bare_dsn, tmp_path / "migrations")
    made.alembic("upgrade", "0003")
    with Session(made.engine) as session:
        app.load(session)
    yield made
    made.engine.dispose()


def test_orm_searches_find_what_sql_finds(application: App) -> None:
    application.alembic("upgrade", "head")
    found = application.find(search)
    assert found == application.find(search_in_a_statement)
    with psycopg.connect(application.dsn, options="-csearch_path=public,extensions") as conn:
        query = "SELECT id FROM drift.nearest(NULL::document, 'embedding', %s::vector, 'minilm-l6', 10)"
        assert found == [[row[0] for row in conn.execute(query, [str(q)])] for q in QUERIES]
    with np.load(app.HERE / "documents.npz") as file:
        answers = file["answers"][: len(QUERIES)].tolist()
    adapted = sum(answer in ids for answer, ids in zip(answers, found, strict=True))
    unadapted = sum(answer in ids for answer, ids in zip(answers, application.find(search_unadapted), strict=True))
    assert adapted > unadapted


def test_a_downgrade_gives_the_earlier_results_and_up_again_the_same_catalog(application: App) -> None:
    before, earlier = application.state(), application.find(search_unadapted)
    application.alembic("upgrade", "head")
    once = application.state()
    application.alembic("downgrade", "-1")
    assert application.state() == before
    assert application.find(search_unadapted) == earlier
    with pytest.raises(errors.UnknownModel, match="minilm-l6") as caught:
        application.find(search)
    assert "Document" in str(caught.value.detail)
    application.alembic("upgrade", "head")
    assert application.state() == once
    application.alembic("downgrade", "base")
    application.alembic("upgrade", "head")
    assert application.state() == once


def test_the_printed_sql_gives_the_same_database(application: App, postgresql: str) -> None:
    application.alembic("upgrade", "head")
    online = application.state()
    application.alembic("downgrade", "base")
    with psycopg.connect(application.dsn) as conn:
        conn.execute("DROP TABLE alembic_version")
    printed = io.StringIO()
    application.alembic("upgrade", "head", sql=True, output=printed)
    psql = [servers.programs(postgresql) / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", application.dsn]
    environment = {"PGOPTIONS": "-csearch_path=public,extensions"}
    done = subprocess.run(psql, input=printed.getvalue(), text=True, check=False, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert application.state() == online


def generated(application: App) -> tuple[Path, str, str]:
    """The file that autogenerate writes, and the bodies of its functions."""
    script = application.alembic("revision", message="generated", autogenerate=True)
    path = Path(script.path)
    _, upgrade, downgrade = re.split(r"def \w+\(\) -> None:\n", path.read_text())
    noise = re.compile(r'^ +(# (###|please)|"""(Up|Down)grade schema).*\n?', re.MULTILINE)
    return path, noise.sub("", upgrade).strip("\n"), noise.sub("", downgrade).strip("\n")


def test_autogenerate_has_nothing_to_say_at_the_head(application: App) -> None:
    application.alembic("upgrade", "head")
    _, upgrade, downgrade = generated(application)
    assert (upgrade.strip(), downgrade.strip()) == ("pass", "pass")


def test_autogenerate_writes_the_upgrade_that_the_class_declares(application: App) -> None:
    application.alembic("upgrade", "head")
    written = application.state()
    application.alembic("downgrade", "-1")
    (application.folder / "versions/0004_minilm_l6.py").unlink()
    _, upgrade, downgrade = generated(application)
    golden = (Path(__file__).parent / "golden/alembic_app_upgrade.txt").read_text()
    assert f"{upgrade}\n\n{downgrade}\n" == golden
    application.alembic("upgrade", "head")
    assert application.state() == written
    application.alembic("downgrade", "-1")
    application.alembic("upgrade", "head")
    assert application.state() == written
    _, upgrade, _ = generated(application)
    assert upgrade.strip() == "pass"


def test_autogenerate_from_nothing_runs(bare_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(bare_dsn, autocommit=True) as conn:
        servers.install_pgvector(conn)
    monkeypatch.setenv("DATABASE_URL", url(bare_dsn).render_as_string(hide_password=False))
    made = App(bare_dsn, tmp_path / "migrations")
    shutil.rmtree(made.folder / "versions")
    (made.folder / "versions").mkdir()
    generated(made)
    made.alembic("upgrade", "head")
    with Session(made.engine) as session:
        app.load(session)
        assert session.scalar(select(func.count()).select_from(Document)) == 400
    assert made.find(search)[0]
    _, upgrade, _ = generated(made)
    assert upgrade.strip() == "pass"
    made.alembic("downgrade", "base")
    made.engine.dispose()
