"""Registers models and embedding columns; the checks are the SQL functions' own."""

from __future__ import annotations

import re
from dataclasses import dataclass

from psycopg import errors as pg_errors
from psycopg import sql

from drift_pg.database.connection import Connection, one, rows
from drift_pg.errors import ColumnMissing, InvalidDefinition, UnknownColumn


def register_model(conn: Connection, name: str, *, dimensions: int, normalized: bool = True) -> None:
    """Register an embedding model; nothing happens if it is registered alike.

    Args:
        conn: a connection.
        name: any text, such as "minilm-l6" or "vendor/model@2026-05".
        dimensions: 1 to 4,000.
        normalized: whether its vectors have unit length.

    Raises:
        AlreadyRegistered: the name is taken by another definition.
        InvalidDefinition: the name is empty or the dimensions are out of range.
    """
    rows(conn, "SELECT drift.register_model(%s, %s::integer, %s)", [name, dimensions, normalized])


def unregister_model(conn: Connection, name: str) -> None:
    """Forget a model that nothing uses, with its logged queries; raises UnknownModel or StillInUse."""
    rows(conn, "SELECT drift.unregister_model(%s)", [name])


def register_column(conn: Connection, relation: str, column: str, *, model: str, metric: str | None = None) -> None:
    """Register a column as holding embeddings of a model. Call it again after its index changed.

    Args:
        conn: a connection.
        relation: the table as SQL names it: 'public.docs', '"Weird Docs"'.
        column: the column's name, unquoted.
        model: the registered model that its vectors are of.
        metric: cosine, inner_product, l2 or l1; None takes that of the column's index.

    Raises:
        ColumnMissing: no such table or column, or not of type vector or halfvec.
        WrongDimensions: the column's are not the model's.
        MetricUnknown: no index, or several, and no metric named.
        UnknownModel, AlreadyRegistered
    """
    name = relation_name(conn, relation)
    rows(conn, "SELECT drift.register_column(%s::regclass, %s, %s, %s)", [name, column, model, metric])


def unregister_column(conn: Connection, relation: str, column: str) -> None:
    """Forget an embedding column, with its logged queries; the table is not touched. Raises UnknownColumn."""
    name = held_name(conn, relation)
    rows(conn, "SELECT drift.unregister_column(%s::regclass, %s)", [name, column])


def set_query_model(conn: Connection, relation: str, column: str, query_model: str | None) -> None:
    """Say which model a column's queries come from; None is the column's own.

    It is what `drift.status` shows and what a revision history records; each search still names its model.

    Raises:
        UnknownColumn, UnknownModel
        NoActiveAdapter: none is active from it to the column's model.
    """
    name = relation_name(conn, relation)
    rows(conn, "SELECT drift.set_query_model(%s::regclass, %s, %s)", [name, column, query_model])


def relation_name(conn: Connection, relation: str) -> str:
    """The qualified, quoted name of a table that SQL would find under `relation`.

    Raises:
        ColumnMissing: there is none.
        InvalidDefinition: it is not an SQL name.
    """
    try:
        found = one(
            conn,
            "SELECT pg_catalog.format('%%I.%%I', n.nspname, c.relname) AS name FROM pg_catalog.pg_class c "
            "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = pg_catalog.to_regclass(%s)",
            [relation],
        )
    except IndexError:
        raise no_table(relation) from None
    except (pg_errors.InvalidName, pg_errors.SyntaxError) as error:
        raise InvalidDefinition(
            f"{relation!r} is not the name of a table in SQL", detail=error.diag.message_primary
        ) from error
    return str(found.name)


def no_table(relation: str) -> ColumnMissing:
    """The error for a name that no table has."""
    return ColumnMissing(
        f"there is no table {relation}", hint="""name it as in SQL, with its schema: public.docs, '"Weird Docs"'"""
    )


def held_name(conn: Connection, relation: str) -> str:
    """As `relation_name`; a table that was dropped has only its number left, which is taken as it is."""
    return relation if relation.isdigit() else relation_name(conn, relation)


def held_column(conn: Connection, text: str) -> tuple[str, str]:
    """The table, as `held_name` takes it, and the column of what a person names: public.docs.embedding, 16423.embedding."""
    number, _, rest = text.partition(".")
    if number.isdigit():
        return number, rest
    name = ColumnName.resolve(conn, text)
    return name.relation_text, name.column


_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")


@dataclass(frozen=True)
class ColumnName:
    """A column as a person names it, resolved: `public.docs.embedding`, `"Weird Table"."Vec Col"`."""

    schema: str
    table: str
    column: str

    @classmethod
    def resolve(cls, conn: Connection, text: str) -> ColumnName:
        """Parse and look up.

        Raises:
            InvalidDefinition: not an SQL name of at least table and column.
            ColumnMissing: there is no such table.
        """
        parts = re.findall(r'"(?:[^"]|"")+"|[^".]+', text)
        if len(parts) not in (2, 3) or ".".join(parts) != text:
            raise InvalidDefinition(
                f"{text!r} is not schema.table.column or table.column",
                hint="""quote odd names as in SQL: '"Weird Table"."Vec Col"'""",
            )
        relation = relation_name(conn, ".".join(parts[:-1]))
        schema, table, column = one(
            conn,
            "SELECT i[1] AS schema, i[2] AS table, (pg_catalog.parse_ident(%s))[1] AS column FROM pg_catalog.parse_ident(%s) AS i",
            [parts[-1], relation],
        )
        return cls(schema, table, column)

    @property
    def relation(self) -> sql.Identifier:
        """The table, for composing."""
        return sql.Identifier(self.schema, self.table)

    @property
    def relation_text(self) -> str:
        """The table as SQL names it."""
        return self.relation.as_string(None)

    def __str__(self) -> str:
        """As a person writes it: quoted only where SQL needs it."""
        return ".".join(
            part if _PLAIN.fullmatch(part) else sql.Identifier(part).as_string(None) for part in self._parts
        )

    @property
    def _parts(self) -> tuple[str, str, str]:
        return self.schema, self.table, self.column


@dataclass(frozen=True)
class EmbeddingColumn:
    """A registered column: its name, model, the model's dimensions, and which table it is.

    `identity` changes when the table is replaced by another of its name, truncated or rewritten.
    """

    name: ColumnName
    model: str
    dimensions: int
    identity: str

    @classmethod
    def find(cls, conn: Connection, text: str) -> EmbeddingColumn:
        """Look up a column that is registered and still what it was.

        Raises:
            UnknownColumn: it is not registered.
            ColumnMissing: it has changed since, or there is no such table.
        """
        name = ColumnName.resolve(conn, text)
        found = rows(
            conn,
            "SELECT model, dimensions, problem, format('%%s %%s', relation::oid, pg_relation_filenode(relation)) AS identity "
            "FROM drift.columns WHERE relation = %s::regclass AND column_name = %s",
            [name.relation_text, name.column],
        )
        if not found:
            raise UnknownColumn(
                f"column {name} is not registered", hint=f"drift-pg register-column '{name}' --model NAME"
            )
        if found[0].problem:
            raise ColumnMissing(found[0].problem, hint=f"drift-pg unregister-column '{name}'")
        return cls(name, found[0].model, found[0].dimensions, found[0].identity)
