"""A temporary Alembic project: env.py, revisions written by a test, and the real commands."""

import io
import textwrap
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from psycopg.conninfo import conninfo_to_dict

ENV = """
from alembic import context
from sqlalchemy import create_engine, pool

config = context.config
options = dict(
    target_metadata=config.attributes.get("metadata"),
    transaction_per_migration=True,
    autogenerate_plugins=["alembic.autogenerate.*", "drift_pg"],
    **config.attributes.get("options", {}),
)
if context.is_offline_mode():
    context.configure(url=config.get_main_option("sqlalchemy.url"), literal_binds=True, **options)
    with context.begin_transaction():
        context.run_migrations()
else:
    engine = create_engine(config.get_main_option("sqlalchemy.url"), poolclass=pool.NullPool)
    with engine.connect() as connection:
        context.configure(connection=connection, **options)
        with context.begin_transaction():
            context.run_migrations()
"""

REVISION = '''"""{message}"""

import sqlalchemy as sa
from alembic import op

revision = {revision!r}
down_revision = {down_revision!r}
branch_labels = None
depends_on = None


def upgrade():
{upgrade}


def downgrade():
{downgrade}
'''


def url(dsn: str, driver: str = "psycopg", search_path: str = "public,extensions") -> sa.URL:
    """An engine URL for a database of the fixtures, with pgvector's schema on the search_path."""
    parts = conninfo_to_dict(dsn)
    query = {"host": str(parts["host"])}
    if driver != "asyncpg":
        query["options"] = f"-csearch_path={search_path}"
    return sa.URL.create(
        f"postgresql+{driver}",
        username=parts.get("user"),
        password=parts.get("password"),
        port=int(parts["port"]) if parts.get("port") else None,
        database=parts["dbname"],
        query=query,
    )


class Project:
    """An Alembic project in a folder, for one database.

    `options` go to context.configure, `metadata` is its target_metadata.
    """

    def __init__(self, folder: Path, dsn: str, *, env: str = ENV) -> None:
        self.folder = folder
        self.dsn = dsn
        self.metadata: sa.MetaData | None = None
        self.options: dict[str, object] = {}
        (folder / "versions").mkdir(parents=True)
        (folder / "adapters").mkdir()
        (folder / "env.py").write_text(env)
        template = Path(command.__file__).parent / "templates/generic/script.py.mako"
        (folder / "script.py.mako").write_text(template.read_text())

    def config(self, output: io.StringIO | None = None) -> Config:
        """What the commands take; with an output, they print there."""
        config = Config(output_buffer=output, stdout=io.StringIO())
        config.set_main_option("script_location", str(self.folder))
        config.set_main_option("path_separator", "os")
        rendered = url(self.dsn).render_as_string(hide_password=False)
        config.set_main_option("sqlalchemy.url", rendered.replace("%", "%%"))
        config.attributes.update(metadata=self.metadata, options=self.options)
        return config

    def write(self, revision: str, upgrade: str, downgrade: str, down_revision: object = None) -> Path:
        """A revision of these bodies."""
        bodies = {
            name: textwrap.indent(textwrap.dedent(text).strip() or "pass", "    ")
            for name, text in (("upgrade", upgrade), ("downgrade", downgrade))
        }
        path = self.folder / "versions" / f"{revision}.py"
        path.write_text(REVISION.format(message=revision, revision=revision, down_revision=down_revision, **bodies))
        return path

    def upgrade(self, to: str = "head") -> None:
        """`alembic upgrade`."""
        command.upgrade(self.config(), to)

    def downgrade(self, to: str = "-1") -> None:
        """`alembic downgrade`."""
        command.downgrade(self.config(), to)

    def sql(self, span: str = "head", *, down: bool = False) -> str:
        """What `alembic upgrade --sql` (or downgrade) prints."""
        output = io.StringIO()
        (command.downgrade if down else command.upgrade)(self.config(output), span, sql=True)
        return output.getvalue()

    def autogenerate(self, message: str = "generated") -> Path:
        """`alembic revision --autogenerate`; the file that it writes."""
        script = command.revision(self.config(), message=message, autogenerate=True)
        assert script is not None
        assert not isinstance(script, list)
        return Path(script.path)
