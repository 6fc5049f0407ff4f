"""Errors of schema drift through SQLAlchemy: drift_pg's class, which class and column; others as they were."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import psycopg
import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DatabaseError, DBAPIError, SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import drift_pg
from drift_pg import DriftError, errors
from drift_pg.sqlalchemy import EmbeddingVector, adapted, nearest
from tests import servers
from tests.orm import DRIVERS, Database
from tests.tables import Upgrade

Q = [1.0] * 24


class Base(DeclarativeBase):
    pass


class Doc(Base):
    __tablename__ = "docs"

    id: Mapped[int] = mapped_column(primary_key=True)
    embedding: Mapped[Any] = mapped_column(EmbeddingVector(24, model="legacy", query_model="new"))


class Mistyped(Base):
    __tablename__ = "docs"
    __table_args__ = {"schema": "public"}

    id: Mapped[int] = mapped_column(primary_key=True)
    embedding: Mapped[Any] = mapped_column(EmbeddingVector(24, model="legacy", query_model="newer"))


class Unregistered(Base):
    __tablename__ = "others"

    id: Mapped[int] = mapped_column(primary_key=True)
    vec: Mapped[Any] = mapped_column(EmbeddingVector(24, model="legacy", query_model="new"))


@pytest.fixture
def upgrade(conn: psycopg.Connection, rng: np.random.Generator) -> Upgrade:
    """A table, an adapter that is stored and not active; pgvector is found by every new connection."""
    conn.execute(f"ALTER DATABASE {conn.info.dbname} SET search_path = public, {servers.PGVECTOR_SCHEMA}".encode())
    conn.execute(f"SET search_path = public, {servers.PGVECTOR_SCHEMA}".encode())
    # Of a table without rows no distance is taken, and no query adapted.
    conn.execute("CREATE TABLE others AS SELECT 1::bigint AS id, array_fill(1, '{24}')::vector(24) AS vec")
    return Upgrade(conn, rng, rows=30)


@pytest.fixture(params=DRIVERS)
def database(upgrade: Upgrade, request: pytest.FixtureRequest) -> Database:
    return Database(upgrade.conn.info.dsn, request.param)


def ask(entity: Any, query: Any, column: str = "embedding") -> Any:
    return lambda session: session.scalars(
        select(entity).order_by(getattr(entity, column).cosine_distance(query))
    ).all()


MISTAKES = {
    "unknown model": (ask(Mistyped, Q), errors.UnknownModel, "Mistyped, column embedding of table public.docs"),
    "unknown column": (ask(Unregistered, Q, "vec"), errors.UnknownColumn, "Unregistered, column vec of table others"),
    "wrong dimensions": (ask(Doc, Q[1:]), errors.WrongDimensions, "Doc, column embedding of table docs"),
    "no active adapter": (ask(Doc, Q), errors.NoActiveAdapter, "Doc, column embedding of table docs"),
    "a named model": (ask(Doc, adapted(Q, model="x")), errors.UnknownModel, "(query_model 'x')"),
    "nearest": (lambda s: nearest(s, Doc.embedding, Q), errors.NoActiveAdapter, "Doc, column embedding of table docs"),
    "Core": (
        lambda s: s.connection().execute(select(Doc.__table__).order_by(Doc.__table__.c.embedding.cosine_distance(Q))),
        errors.NoActiveAdapter,
        "The query was for column embedding of table docs (query_model 'new').",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_drift_pgs_error_and_names_class_and_column(database: Database, mistake: str) -> None:
    work, kind, detail = MISTAKES[mistake]
    with pytest.raises(kind) as caught:
        database.run(work)
    error = caught.value
    assert isinstance(error, (DriftError, DBAPIError))
    assert detail in str(error)
    assert error.sqlstate == kind.sqlstate
    assert error.hint
    assert str(error).startswith(error.message)
    assert "drift.adapt_for" in error.statement
    assert error.__cause__ is error.orig
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


def test_an_application_that_knows_only_sqlalchemys_errors_handles_it(database: Database) -> None:
    def search(session: Session) -> int:
        try:
            ask(Doc, Q)(session)
        except SQLAlchemyError:
            session.rollback()
        return session.scalars(select(Doc.id).order_by(Doc.id)).first()

    assert database.run(search) == 0


def test_a_statement_written_by_hand_raises_it_too(database: Database) -> None:
    by_hand = text("SELECT drift.adapt_for(NULL::vector, 'new', 'others', 'vec'), drift.model_dimensions('nobody')")
    with pytest.raises(errors.UnknownModel, match="'nobody' is not registered"):
        database.run(lambda s: s.execute(by_hand))


def test_a_role_without_privileges_learns_the_grant(upgrade: Upgrade, database: Database) -> None:
    upgrade.activate()
    upgrade.conn.execute("GRANT SELECT ON docs TO public; GRANT USAGE ON SCHEMA extensions TO public")
    with servers_role(upgrade.conn) as role:

        def search(session: Session) -> Any:
            session.execute(text(f"SET ROLE {role}"))
            return ask(Doc, Q)(session)

        with pytest.raises(errors.PermissionDenied, match="GRANT SELECT ON ALL TABLES IN SCHEMA drift") as caught:
            database.run(search)
    assert isinstance(caught.value, DBAPIError)


class servers_role:  # noqa: N801 (a context manager)
    """A role for a test; roles are the server's, not the database's."""

    def __init__(self, conn: psycopg.Connection) -> None:
        self.conn, self.name = conn, f"reader_{conn.info.dbname}"

    def __enter__(self) -> str:
        self.conn.execute(f"CREATE ROLE {self.name}".encode())
        return self.name

    def __exit__(self, *_: object) -> None:
        self.conn.execute(f"DROP OWNED BY {self.name}; DROP ROLE {self.name}".encode())


def test_a_database_without_schema_drift_says_how_to_install_it(upgrade: Upgrade, database: Database) -> None:
    drift_pg.downgrade(upgrade.conn, destroy_adapters=True)
    with pytest.raises(errors.NotInstalled, match="drift-pg upgrade") as caught:
        database.run(ask(Doc, Q))
    assert isinstance(caught.value, DBAPIError)


OTHERS = {
    "a missing table": "SELECT * FROM drift_documents",
    "a missing table, adapting": None,
    "a missing function": "SELECT drift_it(1)",
    "division by zero": "SELECT 1 / 0",
    "a missing schema": "SELECT * FROM drift.nowhere",
    "syntax": "SELEC 1",
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_errors_are_left_alone(upgrade: Upgrade, database: Database, other: str) -> None:
    upgrade.activate()
    statement = OTHERS[other]

    def search(session: Session) -> Any:
        if statement:
            return session.execute(text(statement))
        return session.execute(select(Doc.id, text("missing")).where(Doc.embedding.cosine_distance(Q) < 1))

    with pytest.raises(DBAPIError) as caught:
        database.run(search)
    assert not isinstance(caught.value, DriftError)
    assert type(caught.value).__module__ == "sqlalchemy.exc"


def test_a_privilege_that_is_not_drifts_is_left_alone(upgrade: Upgrade, database: Database) -> None:
    upgrade.activate()
    upgrade.conn.execute("GRANT USAGE ON SCHEMA extensions, drift TO public")
    upgrade.conn.execute("GRANT SELECT ON ALL TABLES IN SCHEMA drift TO public")
    with servers_role(upgrade.conn) as role:

        def search(session: Session) -> Any:
            session.execute(text(f"SET ROLE {role}"))
            return ask(Doc, Q)(session)

        with pytest.raises(DBAPIError, match="permission denied for table docs") as caught:
            database.run(search)
    assert not isinstance(caught.value, DriftError)


def test_the_class_that_it_would_have_been_is_kept(upgrade: Upgrade) -> None:
    with pytest.raises(DatabaseError) as caught:
        Database(upgrade.conn.info.dsn, "psycopg").run(ask(Doc, Q))
    assert isinstance(caught.value, errors.NoActiveAdapter)


def test_an_error_inside_an_automatic_flush_keeps_what_sqlalchemy_says(upgrade: Upgrade) -> None:
    upgrade.conn.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM drift.model_dimensions('nobody'); RETURN NEW; END $$;"
        "CREATE TRIGGER refuse BEFORE INSERT ON docs FOR EACH ROW EXECUTE FUNCTION refuse()"
    )

    def add(session: Session) -> Any:
        session.add(Doc(id=99, embedding=Q))
        return session.scalars(select(Doc.id)).all()

    with pytest.raises(errors.UnknownModel, match="invoked autoflush"):
        Database(upgrade.conn.info.dsn, "psycopg").run(add)
