"""Operations in a user's Alembic history: online, printed, taken back, repeated, refused."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import psycopg
import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations

import drift_pg
from drift_pg import Pairs, artifact, errors
from drift_pg.adapter import Adapter
from drift_pg.database import scripts
from drift_pg.database.install import installed_revision
from tests import servers
from tests.alembic_project import Project, url
from tests.tables import linear, make_docs, rotation, vector
from tests.test_install import catalog

ROWS, DIMENSIONS = 300, 24

STATE = """
SELECT 'model', to_jsonb(m) - 'created_at' FROM drift.model m
UNION ALL SELECT 'column', to_jsonb(c) - 'created_at' FROM drift.embedding_column c
UNION ALL SELECT 'adapter', to_jsonb(a) - '{id,created_at,created_by,activated_at}'::text[] FROM drift.adapter a
UNION ALL SELECT 'layer', to_jsonb(l) - 'adapter_id' FROM drift.adapter_layer l
UNION ALL SELECT 'weight', to_jsonb(w) - 'adapter_id' FROM drift.adapter_weight w
UNION ALL SELECT 'probe', to_jsonb(p) - 'adapter_id' FROM drift.adapter_probe p
UNION ALL SELECT 'evaluation', to_jsonb(e) - '{id,adapter_id,created_at,created_by}'::text[] FROM drift.evaluation e
ORDER BY 1, 2
"""


class History(Project):
    """Four revisions: install, legacy model, adapter for the new model, its query model."""

    def __init__(self, folder: Path, dsn: str, new: np.ndarray, matrix: np.ndarray) -> None:
        super().__init__(folder, dsn)
        self.new, self.matrix = new, matrix
        self.file = self.export("new-to-legacy", self.matrix)
        self.write("r1", "op.install_drift()", "op.uninstall_drift()")
        self.write(
            "r2",
            f"op.register_embedding_model('legacy', {DIMENSIONS})\nop.set_embedding_model('docs', 'embedding', 'legacy')",
            "op.set_embedding_model('docs', 'embedding', None, existing_model='legacy')\n"
            f"op.unregister_embedding_model('legacy', {DIMENSIONS})",
            "r1",
        )
        self.write(
            "r3",
            f"op.register_embedding_model('new', {DIMENSIONS})\n{self.activation('activate_adapter')}\n"
            "op.set_query_model('docs', 'embedding', 'new')",
            "op.set_query_model('docs', 'embedding', None, existing_query_model='new')\n"
            f"{self.activation('deactivate_adapter')}\nop.unregister_embedding_model('new', {DIMENSIONS})",
            "r2",
        )

    def export(self, name: str, matrix: np.ndarray, *, source: str = "new", target: str = "legacy") -> Path:
        """An adapter's file with its evaluation, as drift_pg.export writes it."""
        adapter = linear(matrix)
        evaluation = drift_pg.evaluate(adapter, Pairs(self.new, self.new @ self.matrix)).as_dict()
        path = self.folder / "adapters" / f"{name}.safetensors"
        replace(adapter, details={"source": source, "target": target, "evaluation": evaluation}).save(path)
        return path

    def activation(self, operation: str, **options: object) -> str:
        """A line of a revision."""
        arguments = {"artifact": "adapters/new-to-legacy.safetensors", "sha256": artifact.sha256(self.file), **options}
        return f"op.{operation}('new', 'legacy', " + ", ".join(f"{k}={v!r}" for k, v in arguments.items()) + ")"

    def rows(self, query: str) -> list[tuple]:
        """What a query gives, on a connection of its own."""
        with psycopg.connect(self.dsn, options="-csearch_path=public,extensions") as conn:
            return conn.execute(query).fetchall()

    def run(self, statement: str) -> None:
        """Commit a statement of the test's own."""
        with psycopg.connect(self.dsn) as conn:
            conn.execute(statement)

    @contextmanager
    def operations(self) -> Iterator[Operations]:
        """Operations outside any revision; committed at the end."""
        engine = sa.create_engine(url(self.dsn))
        with engine.begin() as connection:
            yield Operations(MigrationContext.configure(connection))
        engine.dispose()

    def state(self) -> list[tuple]:
        """Everything that drift's tables hold, without what differs between two runs."""
        return self.rows(STATE)


@pytest.fixture
def pgvector_dsn(bare_dsn: str) -> str:
    """A database with pgvector in a schema of its own, without drift."""
    with psycopg.connect(bare_dsn, autocommit=True) as conn:
        servers.install_pgvector(conn)
    return bare_dsn


@pytest.fixture
def history(pgvector_dsn: str, tmp_path: Path, rng: np.random.Generator) -> History:
    """The history, of a database with a table of legacy vectors."""
    new = rng.standard_normal((ROWS, DIMENSIONS)).astype(np.float32)
    new /= np.linalg.norm(new, axis=1, keepdims=True)
    matrix = rotation(rng, DIMENSIONS)
    with psycopg.connect(pgvector_dsn, autocommit=True) as conn:
        make_docs(conn, new @ matrix)
    return History(tmp_path / "history", pgvector_dsn, new, matrix)


def nearest(history: History, item: int) -> list[int]:
    query = f"SELECT id FROM drift.nearest(NULL::docs, 'embedding', '{vector(history.new[item])}', 'new', 5)"
    return [row[0] for row in history.rows(query)]


def test_an_upgrade_serves_and_a_downgrade_takes_everything_back(history: History, dsn: str) -> None:
    history.upgrade("r2")
    before = history.state()
    history.upgrade()
    assert nearest(history, 7)[0] == 7
    assert history.rows("SELECT query_model, problem FROM drift.status") == [("new", None)]
    assert catalog(history.dsn) == catalog(dsn)

    history.downgrade()
    assert history.state() == before
    with pytest.raises(psycopg.Error, match="model 'new' is not registered"):
        nearest(history, 7)
    history.downgrade("base")
    assert history.rows("SELECT to_regnamespace('drift') IS NULL, (SELECT count(*) FROM docs)") == [(True, ROWS)]


def test_up_down_up_is_up(history: History) -> None:
    history.upgrade()
    once = history.state()
    history.downgrade("base")
    history.upgrade()
    assert history.state() == once
    history.downgrade()
    history.upgrade()
    assert history.state() == once


def psql(history: History, version: str, script: str) -> None:
    command = [servers.programs(version) / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", history.dsn]
    done = subprocess.run(command, input=script, text=True, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("end", ["head", "r2"])
def test_the_printed_sql_gives_the_same_database(history: History, postgresql: str, end: str) -> None:
    history.upgrade()
    if end != "head":
        history.downgrade(end)
    online = history.state()
    history.downgrade("base")
    history.run("DROP TABLE alembic_version")
    printed = history.sql() + (history.sql(f"head:{end}", down=True) if end != "head" else "")
    psql(history, postgresql, printed)
    assert history.state() == online
    assert history.rows("SELECT version_num FROM alembic_version") == [(end if end != "head" else "r3",)]


def test_the_printed_sql_down_to_nothing(history: History, postgresql: str) -> None:
    history.upgrade()
    psql(history, postgresql, history.sql("head:base", down=True))
    assert history.rows("SELECT to_regnamespace('drift') IS NULL, (SELECT count(*) FROM docs)") == [(True, ROWS)]


@pytest.mark.parametrize("revision", [None, *scripts.revisions()])
def test_install_leads_from_every_revision_to_the_package(
    pgvector_dsn: str, dsn: str, tmp_path: Path, revision: str | None
) -> None:
    project = Project(tmp_path / "history", pgvector_dsn)
    project.write(
        "r1", f"op.install_drift(start={revision or 'base'!r})", f"op.uninstall_drift(to={revision or 'base'!r})"
    )
    with psycopg.connect(pgvector_dsn, autocommit=True) as conn:
        if revision:
            drift_pg.upgrade(conn, to=revision)
        project.upgrade()
        assert catalog(pgvector_dsn) == catalog(dsn)
        project.downgrade()
        assert installed_revision(conn) == (scripts.head() if revision else "base")


def test_the_settings_of_the_migration_are_put_back(history: History) -> None:
    history.write("r4", "op.execute('CREATE TABLE seen (x extensions.vector)')", "op.drop_table('seen')", "r3")
    history.write(
        "r1", "op.install_drift()\nop.execute('CREATE TABLE here ()')", "op.drop_table('here')\nop.uninstall_drift()"
    )
    history.upgrade()
    assert history.rows("SELECT to_regclass('public.here') IS NOT NULL") == [(True,)]


def test_a_revision_that_is_run_twice_changes_nothing(history: History) -> None:
    history.upgrade()
    once = history.state()
    history.run("DELETE FROM alembic_version")
    history.upgrade()
    assert history.state() == once


def damage(history: History, how: str) -> None:
    """Change the artifact of the last revision so that it must be refused."""
    if how == "another checksum":
        history.export("new-to-legacy", history.matrix[::-1])
    elif how == "missing":
        history.file.unlink()
    elif how == "no checksum":
        rewrite(history, sha256="")
    elif how == "damaged":
        history.file.write_bytes(history.file.read_bytes()[:-9])
        rewrite(history)
    elif how == "other models":
        history.export("new-to-legacy", history.matrix, source="else")
        rewrite(history)
    elif how == "other dimensions":
        replace(linear(np.eye(DIMENSIONS + 1)), details={}).save(history.file)
        rewrite(history)
    elif how == "not evaluated":
        linear(history.matrix).save(history.file)
        rewrite(history)


def rewrite(history: History, **options: object) -> None:
    path = history.folder / "versions/r3.py"
    lines = path.read_text().splitlines()
    for operation in ("activate_adapter", "deactivate_adapter"):
        at = next(i for i, line in enumerate(lines) if f"op.{operation}" in line)
        lines[at] = "    " + history.activation(operation, **options)
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ("another checksum", errors.InvalidArtifact, "has SHA-256"),
        ("missing", errors.InvalidArtifact, "cannot be read"),
        ("no checksum", errors.InvalidArtifact, "the revision says nothing"),
        ("damaged", errors.InvalidArtifact, "not a readable safetensors file"),
        ("other models", errors.InvalidArtifact, "from 'else' to 'legacy'"),
        ("other dimensions", errors.WrongDimensions, "has 25 dimensions, model 'new' has 24"),
        ("not evaluated", errors.NotEvaluated, "has not been evaluated"),
    ],
)  # fmt: skip
def test_a_wrong_artifact_is_refused_and_nothing_is_half_done(
    history: History, how: str, error: type[errors.DriftError], says: str
) -> None:
    history.upgrade("r2")
    before = history.state()
    damage(history, how)
    with pytest.raises(error, match=says):
        history.upgrade()
    assert history.state() == before
    assert history.rows("SELECT version_num FROM alembic_version") == [("r2",)]


def test_an_error_does_not_repeat_the_adapters_weights(history: History) -> None:
    history.upgrade("r2")
    damage(history, "other dimensions")
    with pytest.raises(errors.WrongDimensions) as caught:
        history.upgrade()
    shown: BaseException | None = caught.value
    while shown is not None:
        assert len(str(shown)) < 2000
        shown = shown.__cause__ or shown.__context__


def test_what_is_below_the_gate_needs_force(history: History, rng: np.random.Generator) -> None:
    history.upgrade("r2")
    history.file = history.export("new-to-legacy", rotation(rng, DIMENSIONS))
    rewrite(history)
    with pytest.raises(errors.BelowMinimum):
        history.upgrade()
    rewrite(history, force=True)
    history.upgrade()
    assert history.rows("SELECT status FROM drift.adapters") == [("active",)]


def second(history: History, **options: object) -> Path:
    """A further adapter for the same models, in a revision r4 after r2 or r3."""
    file = history.export("second", history.matrix + 1e-3)
    options = {"artifact": "adapters/second.safetensors", "sha256": artifact.sha256(file), **options}
    return history.write(
        "r4",
        history.activation("activate_adapter", **options),
        history.activation("deactivate_adapter", **options),
        "r3",
    )


def active(history: History) -> list[str]:
    return [row[0] for row in history.rows("SELECT checksum FROM drift.adapters WHERE status = 'active'")]


def test_a_second_adapter_replaces_the_first_and_gives_it_back(history: History) -> None:
    first = Adapter.load(history.file).checksum
    second(history, replaces=first)
    history.upgrade("r3")
    before = history.rows("SELECT checksum, status FROM drift.adapters")
    history.upgrade()
    assert active(history) == [Adapter.load(history.folder / "adapters/second.safetensors").checksum]
    history.downgrade()
    assert history.rows("SELECT checksum, status FROM drift.adapters") == before


def test_two_branches_that_activate_are_told(history: History) -> None:
    path = second(history)
    path.write_text(path.read_text().replace("down_revision = 'r3'", "down_revision = 'r2'"))
    history.upgrade("r3")
    before = history.state()
    with pytest.raises(errors.AnotherIsActive, match="expected none") as caught:
        history.upgrade("heads")
    assert f"replaces={Adapter.load(history.file).checksum!r}" in str(caught.value)
    assert history.state() == before


def test_a_downgrade_below_an_adapter_that_serves_by_now_is_refused(history: History) -> None:
    history.upgrade()
    with psycopg.connect(history.dsn, autocommit=True) as conn:
        other = drift_pg.store(conn, linear(history.matrix + 1e-3), source="new", target="legacy")
        drift_pg.activate(conn, other, force=True)
    before = history.state()
    with pytest.raises(errors.AnotherIsActive, match=f"adapter {other} is active"):
        history.downgrade()
    assert history.state() == before


def test_models_in_use_outlive_a_downgrade(history: History) -> None:
    history.upgrade()
    with psycopg.connect(history.dsn, autocommit=True) as conn:
        drift_pg.store(conn, linear(history.matrix + 1e-3), source="new", target="legacy")
    with pytest.raises(errors.StillInUse, match="model 'new' is in use by adapter"):
        history.downgrade()
    assert active(history) == [Adapter.load(history.file).checksum]


def test_what_was_stored_by_hand_outlives_a_downgrade(history: History) -> None:
    history.upgrade("r2")
    with psycopg.connect(history.dsn, autocommit=True) as conn:
        drift_pg.register_model(conn, "new", dimensions=DIMENSIONS)
        by_hand = drift_pg.store(conn, Adapter.load(history.file), source="new", target="legacy")
        path = history.folder / "versions/r3.py"
        path.write_text(path.read_text().replace("op.unregister_embedding_model('new', 24)", ""))
        history.upgrade()
        assert [row[0] for row in history.rows("SELECT id FROM drift.adapters")] == [by_hand]
        history.downgrade()
        assert history.rows("SELECT id, status FROM drift.adapters") == [(by_hand, "retired")]
        assert drift_pg.latest_evaluation(conn, by_hand)


def test_uninstalling_never_destroys_adapters(history: History) -> None:
    history.upgrade()
    with psycopg.connect(history.dsn, autocommit=True) as conn:
        drift_pg.store(conn, linear(history.matrix), source="new", target="legacy")
    with history.operations() as operations, pytest.raises(errors.StillInUse, match="holds 2 adapters"):
        operations.uninstall_drift()


def test_a_column_with_another_model_is_not_taken_over(history: History) -> None:
    history.upgrade("r2")
    with history.operations() as operations:
        operations.register_embedding_model("else", DIMENSIONS)
    refused = pytest.raises(errors.AlreadyRegistered, match="is registered with model 'legacy', expected")
    with history.operations() as operations, refused:
        operations.set_embedding_model("docs", "embedding", "else")
    with history.operations() as operations:
        operations.set_embedding_model("docs", "embedding", "else", existing_model="legacy")
    assert history.rows("SELECT model FROM drift.columns") == [("else",)]


def test_without_pgvector_the_error_says_so(bare_dsn: str, tmp_path: Path) -> None:
    project = Project(tmp_path / "history", bare_dsn)
    project.write("r1", "op.install_drift()", "op.uninstall_drift()")
    with pytest.raises(sa.exc.ProgrammingError, match="has no pgvector"):
        project.upgrade()


def test_odd_names(history: History, rng: np.random.Generator) -> None:
    odd, model = 'Weird "50% :x" Table', "v/mödel's:2026 %"
    with psycopg.connect(history.dsn, autocommit=True) as conn:
        make_docs(conn, rng.standard_normal((20, 4)), schema="odd schema", table=odd, column="Vec 'Col'")
    body = f"op.register_embedding_model({model!r}, 4)\nop.set_embedding_model({odd!r}, \"Vec 'Col'\", {{}}, schema='odd schema')"
    history.write(
        "r4", body.format(repr(model)),
        f"op.set_embedding_model({odd!r}, \"Vec 'Col'\", None, existing_model={model!r}, schema='odd schema')\n"
        f"op.unregister_embedding_model({model!r}, 4)", "r3",
    )  # fmt: skip
    history.upgrade()
    assert (model, "Vec 'Col'") in history.rows("SELECT model, column_name FROM drift.columns")
    history.downgrade()
    history.upgrade("r4")


def test_asyncpg_runs_the_same_operations(history: History) -> None:
    import asyncio

    from sqlalchemy.ext.asyncio import create_async_engine

    def migrate(connection: sa.Connection) -> None:
        operations = Operations(MigrationContext.configure(connection, opts={"script": None}))
        connection.exec_driver_sql("SET search_path = public, extensions")
        operations.install_drift()
        operations.register_embedding_model("legacy", DIMENSIONS)
        operations.set_embedding_model("docs", "embedding", "legacy")
        operations.register_embedding_model("new", DIMENSIONS)
        operations.activate_adapter("new", "legacy", str(history.file), artifact.sha256(history.file))
        operations.set_query_model("docs", "embedding", "new")
        connection.commit()
        with pytest.raises(errors.UnknownModel, match="model 'gone' is not registered") as caught:
            operations.set_query_model("docs", "embedding", "gone")
        assert "drift.register_model" in str(caught.value)

    async def run() -> None:
        engine = create_async_engine(url(history.dsn, "asyncpg"))
        async with engine.connect() as connection:
            await connection.run_sync(migrate)
            await connection.rollback()
        await engine.dispose()

    asyncio.run(run())
    assert nearest(history, 7)[0] == 7
