"""An Alembic project whose revisions are generated, for tests."""

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import psycopg
import sqlalchemy as sa
from alembic.autogenerate import produce_migrations
from alembic.migration import MigrationContext
from alembic.operations import MigrateOperation
from alembic.script import ScriptDirectory

import drift_pg
from drift_pg import Pairs
from tests.alembic_project import Project, url
from tests.tables import linear, rotation

DIMENSIONS = 24


def docs(kind: object, *more: object, name: str = "docs", schema: str | None = None) -> sa.MetaData:
    """Metadata of one table with one embedding column, and what else is given: columns, indexes."""
    metadata = sa.MetaData()
    sa.Table(
        name, metadata, sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False), sa.Column("body", sa.Text),
        *([] if kind is None else [sa.Column("embedding", kind)]), *more, schema=schema,
    )  # fmt: skip
    return metadata


def hnsw(name: str = "docs_embedding", column: str = "embedding", **options: object) -> sa.Index:
    """An HNSW index as a class declares it."""
    options = {"postgresql_ops": {column: "vector_cosine_ops"}, **options}
    return sa.Index(name, column, postgresql_using="hnsw", **options)


class Generated(Project):
    """A project that starts with no revision; its database has pgvector in a schema of its own."""

    def __init__(self, folder: Path, dsn: str, rng: np.random.Generator) -> None:
        super().__init__(folder, dsn)
        self.rng = rng
        self.search_path = "public,extensions"

    def declare(self, kind: object, *more: object, **options: object) -> "Generated":
        """Change the class."""
        self.metadata = docs(kind, *more, **options)
        return self

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection]:
        """A connection of the test's own, autocommit."""
        with psycopg.connect(self.dsn, autocommit=True, options="-csearch_path=public,extensions") as conn:
            yield conn

    def run(self, statement: str) -> list[tuple]:
        """A statement of the test's own, and its rows."""
        with self.connection() as conn:
            cursor = conn.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def fill(
        self, rows: int = 20, dimensions: int = DIMENSIONS, table: str = "docs", column: str = "embedding"
    ) -> None:
        """Rows with vectors."""
        vectors = self.rng.standard_normal((rows, dimensions))
        with self.connection() as conn, conn.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO {table} (id, {column}) VALUES (%s, %s)",
                [(i, str(row.tolist())) for i, row in enumerate(vectors)],
            )

    def export(
        self, source: str, target: str, name: str | None = None, *, inputs: int = DIMENSIONS, outputs: int = DIMENSIONS
    ) -> Path:
        """An adapter's file with its evaluation, as drift_pg.export writes it."""
        matrix = rotation(self.rng, max(inputs, outputs))[:inputs, :outputs]
        new = self.rng.standard_normal((100, inputs))
        adapter = linear(matrix)
        evaluation = drift_pg.evaluate(adapter, Pairs(new, new @ matrix)).as_dict()
        path = self.folder / "adapters" / f"{name or f'{source}-to-{target}'}.safetensors"
        replace(adapter, details={"source": source, "target": target, "evaluation": evaluation}).save(path)
        return path

    def operations(self) -> list[MigrateOperation]:
        """What autogenerate finds, as operations."""
        engine = sa.create_engine(url(self.dsn, search_path=self.search_path), poolclass=sa.NullPool)
        options = {
            "autogenerate_plugins": ["alembic.autogenerate.*", "drift_pg"],
            "script": ScriptDirectory.from_config(self.config()),
            **self.options,
        }
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts=options)
            return list(produce_migrations(context, self.metadata).upgrade_ops.ops)

    def generate(self) -> tuple[str, str]:
        """`alembic revision --autogenerate`: the bodies of upgrade and downgrade."""
        self.path = self.autogenerate(f"step {len(list((self.folder / 'versions').glob('*.py'))) + 1}")
        return bodies(self.path)

    def step(self) -> tuple[str, str]:
        """Generate, upgrade, downgrade, upgrade; then nothing is left to generate."""
        before = self.run(STATE) if self.run("SELECT to_regclass('drift.model')")[0][0] else []
        written = self.generate()
        self.upgrade()
        once = self.run(STATE)
        self.downgrade()
        assert (self.run(STATE) if before else []) == before
        self.upgrade()
        assert self.run(STATE) == once
        self.nothing_left()
        return written

    def nothing_left(self) -> None:
        """Autogenerate finds no difference, by its programming interface and by its command."""
        assert self.operations() == []
        upgrade, downgrade = self.generate()
        self.path.unlink()
        assert (upgrade, downgrade) == ("pass", "pass")


STATE = """
SELECT 'model', to_jsonb(m) - 'created_at' FROM drift.model m
UNION ALL SELECT 'column', to_jsonb(c) - 'created_at' FROM drift.embedding_column c
UNION ALL SELECT 'adapter', jsonb_build_object('source', source, 'target', target, 'checksum', checksum, 'status', status) FROM drift.adapter
ORDER BY 1, 2
"""


def bodies(path: Path) -> tuple[str, str]:
    """The bodies of upgrade and downgrade without Alembic's own comments; the file must be Python."""
    text = path.read_text()
    ast.parse(text)
    found = re.findall(r"commands auto generated by Alembic - please adjust! ###\n(.*?)\n    # ### end", text, re.S)
    upgrade, downgrade = ("\n".join(line.removeprefix("    ") for line in body.split("\n")) for body in found)
    return upgrade, downgrade


def calls(body: str) -> list[str]:
    """The operations that a body calls, in order."""
    return re.findall(r"^ *op\.(\w+)\(", body, re.M)
