"""Autogenerate: each change of a class is the revision that a reviewer expects, and it runs both ways."""

import logging
import os
import re
from pathlib import Path

import numpy as np
import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from pgvector.sqlalchemy import VECTOR

import drift_pg
from drift_pg import artifact, errors
from drift_pg.adapter import Adapter
from drift_pg.sqlalchemy import EmbeddingHalfVector, EmbeddingVector
from tests import servers
from tests.alembic_project import url
from tests.autogenerating import DIMENSIONS, Generated, calls, hnsw

LEGACY = EmbeddingVector(DIMENSIONS, model="legacy")
UPGRADED = EmbeddingVector(DIMENSIONS, model="legacy", query_model="new")
GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def project(bare_dsn: str, tmp_path: Path, rng: np.random.Generator) -> Generated:
    with psycopg.connect(bare_dsn, autocommit=True) as conn:
        servers.install_pgvector(conn)
    return Generated(tmp_path / "history", bare_dsn, rng)


@pytest.fixture
def legacy(project: Generated) -> Generated:
    """A filled table of legacy vectors, made by its first revision."""
    project.declare(LEGACY, hnsw()).generate()
    project.upgrade()
    project.fill()
    return project


def golden(name: str, path: Path, *adapters: Path) -> None:
    """Compare a revision with its golden file, which has neither its id and date nor the adapters' checksums."""
    text = path.read_text()[path.read_text().index("from typing") :]
    text = re.sub(r"(revision: .*= )'[0-9a-f]{12}'", r"\1'…'", text)
    for i, file in enumerate(adapters, 1):
        text = text.replace(artifact.sha256(file), f"<sha256 {i}>").replace(
            Adapter.load(file).checksum, f"<checksum {i}>"
        )
    kept = GOLDEN / f"{name}.py.txt"
    if "DRIFT_PG_WRITE_GOLDEN" in os.environ:
        kept.write_text(text)
    assert text == kept.read_text()


def test_the_first_revision_installs_registers_creates_and_indexes(project: Generated) -> None:
    upgrade, downgrade = project.declare(LEGACY, hnsw(postgresql_with={"m": 8})).step()
    assert calls(upgrade) == [
        "install_drift", "register_embedding_model", "create_table", "set_embedding_model", "create_vector_index",
    ]  # fmt: skip
    assert calls(downgrade) == [
        "drop_vector_index", "set_embedding_model", "drop_table", "unregister_embedding_model", "uninstall_drift",
    ]  # fmt: skip
    assert "concurrently=False" in upgrade
    assert project.run("SELECT reloptions FROM pg_class WHERE relname = 'docs_embedding'") == [(["m=8"],)]
    project.downgrade("base")
    assert project.run("SELECT to_regclass('docs'), to_regnamespace('drift')") == [(None, None)]


def test_an_upgrade_of_the_model_is_one_reviewed_revision(legacy: Generated) -> None:
    file = legacy.export("new", "legacy")
    vectors = legacy.run("SELECT * FROM docs ORDER BY id")
    path = legacy.declare(UPGRADED, hnsw()).autogenerate("queries come from new")
    golden("query_model", path, file)
    path.unlink()
    legacy.step()
    assert legacy.run("SELECT query_model, problem FROM drift.status") == [("new", None)]
    assert legacy.run("SELECT * FROM docs ORDER BY id") == vectors


def test_a_further_upgrade_and_the_way_back(legacy: Generated) -> None:
    legacy.export("new", "legacy")
    legacy.declare(UPGRADED, hnsw()).step()
    newest = legacy.export("newest", "legacy", inputs=32)
    upgrade, downgrade = legacy.declare(EmbeddingVector(DIMENSIONS, "legacy", "newest"), hnsw()).step()
    assert calls(upgrade) == ["register_embedding_model", "activate_adapter", "set_query_model"]
    assert "op.register_embedding_model('newest', dimensions=32)" in upgrade
    assert artifact.sha256(newest) in upgrade
    assert "op.set_query_model('docs', 'embedding', 'newest', existing_query_model='new')" in upgrade
    assert "op.set_query_model('docs', 'embedding', 'new', existing_query_model='newest')" in downgrade

    upgrade, downgrade = legacy.declare(LEGACY, hnsw()).step()
    assert upgrade.splitlines()[-1] == "op.set_query_model('docs', 'embedding', None, existing_query_model='newest')"
    assert "stays active" in upgrade
    assert downgrade == "op.set_query_model('docs', 'embedding', 'newest')"
    assert legacy.run("SELECT count(*) FROM drift.adapters WHERE status = 'active'") == [(2,)]

    upgrade, _ = legacy.declare(EmbeddingVector(DIMENSIONS, "legacy", "newest"), hnsw()).step()
    assert calls(upgrade) == ["set_query_model"]  # an earlier revision brought the adapter, and it still serves


def test_a_better_adapter_replaces_the_active_one(legacy: Generated) -> None:
    first = legacy.export("new", "legacy", "first")
    legacy.declare(UPGRADED, hnsw()).step()
    legacy.declare(LEGACY, hnsw()).step()
    first.unlink()
    legacy.export("new", "legacy", "second")
    replaced = legacy.run("SELECT checksum FROM drift.adapters WHERE status = 'active'")[0][0]
    legacy.declare(UPGRADED, hnsw())
    upgrade, _ = legacy.generate()
    assert calls(upgrade) == ["activate_adapter", "set_query_model"]
    assert f"replaces={replaced!r}" in upgrade
    legacy.upgrade()
    assert legacy.run("SELECT count(*) FROM drift.adapters WHERE status = 'active'") == [(1,)]
    legacy.nothing_left()


def test_of_several_files_the_newest_is_taken_and_said(legacy: Generated) -> None:
    older, newer = legacy.export("new", "legacy", "b"), legacy.export("new", "legacy", "a")
    os.utime(older, (1, 1))
    upgrade, _ = legacy.declare(UPGRADED, hnsw()).step()
    assert "# 2 files hold an adapter from 'new' to 'legacy'; this one is the newest." in upgrade
    assert artifact.sha256(newer) in upgrade


def test_without_a_file_the_revision_says_what_to_do_and_fails_until_it_is_done(legacy: Generated) -> None:
    upgrade, _ = legacy.declare(UPGRADED, hnsw()).generate()
    assert calls(upgrade) == ["register_embedding_model", "activate_adapter", "set_query_model"]
    assert "# No file in adapters/ holds an adapter from 'new' to 'legacy'" in upgrade
    assert "drift-pg export ID adapters/new-to-legacy.safetensors" in upgrade
    before = legacy.run("SELECT name FROM drift.models")
    with pytest.raises(errors.InvalidDefinition, match="model 'new' with 0 dimensions"):
        legacy.upgrade()
    sized = legacy.path.read_text().replace("dimensions=0", f"dimensions={DIMENSIONS}")
    legacy.path.write_text(sized)
    with pytest.raises(errors.InvalidArtifact, match="cannot be read"):
        legacy.upgrade()
    file = legacy.export("new", "legacy")
    with pytest.raises(errors.InvalidArtifact, match="the revision says nothing"):
        legacy.upgrade()
    assert legacy.run("SELECT name FROM drift.models") == before
    legacy.path.write_text(sized.replace("sha256=''", f"sha256={artifact.sha256(file)!r}"))
    legacy.upgrade()
    legacy.nothing_left()


def test_an_adapter_that_the_shell_activated_is_to_be_exported(legacy: Generated) -> None:
    file = legacy.export("new", "legacy", "kept")
    with legacy.connection() as conn:
        drift_pg.register_model(conn, "new", dimensions=DIMENSIONS)
        stored = drift_pg.store(conn, Adapter.load(file), source="new", target="legacy")
        drift_pg.activate(conn, stored, force=True)
    kept = file.rename(file.with_suffix(".away"))
    upgrade, _ = legacy.declare(UPGRADED, hnsw()).generate()
    assert f"drift-pg export {stored} adapters/new-to-legacy.safetensors" in upgrade
    legacy.path.unlink()
    kept.rename(file)
    upgrade, _ = legacy.generate()
    assert "though by no revision" in upgrade
    assert "replaces=None" in upgrade
    legacy.upgrade()
    legacy.nothing_left()


def test_a_file_that_is_no_adapter_is_said_and_passed_over(legacy: Generated, caplog: pytest.LogCaptureFixture) -> None:
    legacy.export("new", "legacy")
    (legacy.folder / "adapters/broken.safetensors").write_bytes(b"x" * 9)
    legacy.export("else", "legacy")
    upgrade, _ = legacy.declare(UPGRADED, hnsw()).step()
    assert "adapters/new-to-legacy.safetensors" in upgrade
    assert "broken.safetensors" in caplog.text


@pytest.mark.parametrize(
    ("kind", "size"), [(EmbeddingVector, 32), (EmbeddingHalfVector, 32), (EmbeddingVector, DIMENSIONS)]
)
def test_a_filled_column_keeps_its_vectors_when_dimensions_or_model_change(
    project: Generated, caplog: pytest.LogCaptureFixture, kind: type[EmbeddingVector], size: int
) -> None:
    project.declare(kind(DIMENSIONS, model="legacy")).step()
    project.fill()
    project.export("new", "legacy", inputs=size)
    upgrade, downgrade = project.declare(kind(size, model="new")).step()
    assert calls(upgrade) == ["register_embedding_model", "activate_adapter", "set_query_model"]
    assert f"# Write the class so: {kind.__name__}({DIMENSIONS}, model='legacy', query_model='new')" in upgrade
    assert "op.set_embedding_model('docs', 'embedding', 'new', existing_model='legacy')" in upgrade
    assert calls(downgrade) == ["set_query_model", "deactivate_adapter", "unregister_embedding_model"]
    assert project.run("SELECT count(*) FROM docs WHERE embedding IS NOT NULL") == [(20,)]
    assert "Write the class so" in caplog.text  # the difference is gone, the class is still to be written
    caplog.clear()
    project.declare(kind(DIMENSIONS, model="legacy", query_model="new")).nothing_left()
    assert "Write the class so" not in caplog.text


def test_vectors_that_were_replaced_are_said_by_hand(legacy: Generated) -> None:
    legacy.declare(EmbeddingVector(DIMENSIONS, model="new"), hnsw()).generate()
    text = legacy.path.read_text()
    suggested = re.search(r"#     (op\.set_embedding_model\(.*\))", text)
    assert suggested is not None
    body = f"    op.register_embedding_model('new', {DIMENSIONS})\n    {suggested[1]}\n"
    legacy.path.write_text(
        re.sub(
            r"(def upgrade.*?\"\"\"\n).*?(\n\ndef downgrade.*?\"\"\"\n).*", rf"\1{body}\2    pass\n", text, flags=re.S
        )
    )
    legacy.upgrade()
    legacy.nothing_left()


@pytest.mark.parametrize("size", [32, DIMENSIONS])
def test_an_empty_column_is_altered(project: Generated, size: int) -> None:
    project.declare(LEGACY, hnsw()).step()
    upgrade, downgrade = project.declare(EmbeddingVector(size, model="new"), hnsw()).step()
    altered = ["alter_column"] if size != DIMENSIONS else []
    guard = [] if altered else ["execute"]
    assert calls(upgrade) == [
        "register_embedding_model",
        *guard,
        "set_embedding_model",
        *altered,
        "set_embedding_model",
    ]
    assert calls(downgrade) == [
        "set_embedding_model", *altered, "set_embedding_model", *guard, "unregister_embedding_model",
    ]  # fmt: skip
    project.fill(dimensions=size)
    with pytest.raises(
        sa.exc.DBAPIError, match="expected 24 dimensions" if altered else "docs.embedding holds vectors"
    ):
        project.downgrade()


def test_a_revision_for_an_empty_column_refuses_to_run_where_it_is_filled(project: Generated) -> None:
    project.declare(LEGACY).step()
    project.declare(EmbeddingVector(DIMENSIONS, model="new")).generate()
    project.fill()
    before = project.run("SELECT model FROM drift.columns")
    with pytest.raises(sa.exc.DBAPIError, match="holds vectors, whose model cannot be changed to 'new'"):
        project.upgrade()
    assert project.run("SELECT model FROM drift.columns") == before


def test_an_empty_column_gives_its_query_model_back(project: Generated) -> None:
    project.declare(LEGACY).step()
    project.export("new", "legacy")
    project.declare(UPGRADED).step()
    project.declare(EmbeddingVector(DIMENSIONS, model="else", metric="l2")).step()
    project.downgrade()
    assert project.run("SELECT model, query_model, metric FROM drift.columns") == [("legacy", "new", "cosine")]


def test_the_same_model_with_other_dimensions_is_refused(legacy: Generated) -> None:
    legacy.declare(EmbeddingVector(32, model="legacy"), hnsw())
    with pytest.raises(
        errors.InvalidDefinition, match="declares model 'legacy' with 32 dimensions, it has 24"
    ) as caught:
        legacy.generate()
    assert "query_model='legacy-32'" in str(caught.value.hint)


def test_two_columns_cannot_disagree_about_a_model(project: Generated) -> None:
    project.declare(LEGACY, sa.Column("second", EmbeddingVector(32, model="legacy")))
    with pytest.raises(errors.InvalidDefinition, match="it has 24"):
        project.generate()


def test_a_metric_that_changes_and_changes_back(project: Generated) -> None:
    project.declare(LEGACY).step()
    upgrade, downgrade = project.declare(EmbeddingVector(DIMENSIONS, model="legacy", metric="l2")).step()
    assert upgrade == "op.set_embedding_model('docs', 'embedding', 'legacy', metric='l2', existing_model='legacy')"
    assert downgrade == "op.set_embedding_model('docs', 'embedding', 'legacy', existing_model='legacy')"


def test_a_table_of_vectors_is_adopted(project: Generated) -> None:
    project.declare(VECTOR(DIMENSIONS)).generate()
    assert "import pgvector.sqlalchemy" in project.path.read_text()
    project.upgrade()
    project.fill()
    upgrade, downgrade = project.declare(LEGACY).step()
    assert calls(upgrade) == ["install_drift", "register_embedding_model", "set_embedding_model"]
    assert calls(downgrade) == ["set_embedding_model", "unregister_embedding_model", "uninstall_drift"]


def test_unknown_vectors_of_other_dimensions_are_not_taken_for_the_models(project: Generated) -> None:
    project.declare(VECTOR(DIMENSIONS)).generate()
    project.upgrade()
    project.fill()
    upgrade, _ = project.declare(EmbeddingVector(32, model="new")).generate()
    assert "alter_column" not in upgrade
    assert "#     EmbeddingVector(24, model='…', query_model='new')" in upgrade
    with pytest.raises(errors.WrongDimensions):
        project.upgrade()
    assert project.run("SELECT to_regnamespace('drift')") == [(None,)]


def test_vectors_of_a_column_without_dimensions_are_measured(project: Generated) -> None:
    project.declare(EmbeddingVector(model="legacy"))
    project.run("CREATE TABLE docs (id bigint PRIMARY KEY, body text, embedding vector)")
    project.fill()
    upgrade, _ = project.step()
    assert f"op.register_embedding_model('legacy', dimensions={DIMENSIONS})" in upgrade
    upgrade, _ = project.declare(EmbeddingVector(32, model="new")).generate()
    assert calls(upgrade) == ["register_embedding_model", "activate_adapter", "set_query_model"]


@pytest.mark.parametrize("what", ["column", "table"])
def test_what_is_dropped_is_forgotten_first_and_comes_back(legacy: Generated, what: str) -> None:
    legacy.export("new", "legacy")
    legacy.declare(UPGRADED, hnsw()).step()
    if what == "column":
        legacy.declare(None)
    else:
        legacy.metadata = sa.MetaData()
    upgrade, downgrade = legacy.step()
    assert calls(upgrade) == ["set_query_model", "set_embedding_model", "drop_vector_index", f"drop_{what}"]
    assert calls(downgrade) == [f"{'add' if what == 'column' else 'create'}_{what}", "create_vector_index", "set_embedding_model", "set_query_model"]  # fmt: skip
    legacy.downgrade()
    assert legacy.declare(UPGRADED, hnsw()).operations() == []
    assert legacy.run("SELECT query_model, problem FROM drift.status") == [("new", None)]


@pytest.mark.parametrize("kind", [VECTOR(DIMENSIONS), EmbeddingVector(DIMENSIONS)])
def test_what_the_shell_registered_is_left_alone(project: Generated, kind: object) -> None:
    project.declare(kind).generate()
    project.upgrade()
    with project.connection() as conn:
        drift_pg.upgrade(conn)
        drift_pg.register_model(conn, "legacy", dimensions=DIMENSIONS)
        conn.execute("CREATE INDEX by_hand ON docs USING hnsw (embedding vector_l2_ops)")
        drift_pg.register_column(conn, "public.docs", "embedding", model="legacy")
    project.nothing_left()


def test_a_plain_vector_column_behaves_as_before(project: Generated) -> None:
    with_drift, without = project.declare(VECTOR(DIMENSIONS), hnsw()), []
    with_drift.generate()
    project.path.unlink()
    found = project.operations()
    project.options = {"autogenerate_plugins": ["alembic.autogenerate.*"]}
    without = project.operations()
    assert [
        op.to_diff_tuple()[0] if not hasattr(op, "ops") else [o.to_diff_tuple()[0] for o in op.ops] for op in found
    ] == [op.to_diff_tuple()[0] if not hasattr(op, "ops") else [o.to_diff_tuple()[0] for o in op.ops] for op in without]


def test_an_earlier_revision_of_drift_is_upgraded(project: Generated) -> None:
    project.declare(VECTOR(DIMENSIONS)).generate()
    project.upgrade()
    with project.connection() as conn:
        drift_pg.upgrade(conn, to="0001")
    assert project.operations() == []  # no class needs it
    upgrade, downgrade = project.declare(LEGACY).generate()
    assert upgrade.startswith("op.install_drift(start='0001')\n")
    assert downgrade.endswith("op.uninstall_drift(to='0001')")
    project.upgrade()
    project.nothing_left()


def test_without_pgvector_autogenerate_works_and_running_it_says_what_is_missing(
    bare_dsn: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    project = Generated(tmp_path / "history", bare_dsn, rng)
    upgrade, _ = project.declare(LEGACY, hnsw()).generate()
    assert calls(upgrade)[:2] == ["install_drift", "register_embedding_model"]
    with pytest.raises(sa.exc.ProgrammingError, match="has no pgvector"):
        project.upgrade()


def test_alembic_check_shows_the_operations(legacy: Generated) -> None:
    engine = sa.create_engine(url(legacy.dsn))
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"autogenerate_plugins": ["alembic.autogenerate.*", "drift_pg"]}
        )
        found = compare_metadata(context, legacy.declare(UPGRADED, hnsw()).metadata)
    engine.dispose()
    assert [each[0] for each in found] == [
        "RegisterEmbeddingModelOp",
        "comment",
        "ActivateAdapterOp",
        "SetQueryModelOp",
    ]


def test_comments_cannot_become_code(legacy: Generated) -> None:
    model = "new\nraise SystemExit\r\x0c\u2028'\"{model}%s\\"
    upgrade, _ = legacy.declare(EmbeddingVector(32, model=model), hnsw()).generate()
    assert [line for line in upgrade.splitlines() if line.startswith("raise")] == []
    legacy.export(model, "legacy", "odd", inputs=32)
    legacy.path.unlink()
    legacy.step()
    assert legacy.run("SELECT query_model FROM drift.columns") == [(model,)]


def test_the_user_may_switch_the_comparison_of_types_off(legacy: Generated, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    legacy.options = {"compare_type": False}
    legacy.declare(LEGACY, hnsw()).nothing_left()
    legacy.run("DELETE FROM docs")
    upgrade, _ = legacy.declare(EmbeddingVector(32, model="new"), hnsw()).generate()
    assert "alter_column" not in upgrade
    legacy.path.unlink()
    legacy.options = {"compare_type": lambda *arguments: None}
    upgrade, _ = legacy.generate()
    assert "alter_column" in upgrade
