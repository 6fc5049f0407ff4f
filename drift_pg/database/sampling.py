"""Sampling rows of an embedding column, to be embedded by the new model: the pairs."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg import sql

from drift_pg.adapter import Float32, lengths
from drift_pg.artifact import write_atomically
from drift_pg.database.connection import Connection, one, rows, vector_schema
from drift_pg.database.registry import ColumnName, EmbeddingColumn
from drift_pg.errors import ColumnMissing, InvalidDefinition, TooFewPairs
from drift_pg.pairs import MINIMUM

SMALL_TABLE = 1 << 30
"""Bytes of heap up to which every page is read, which samples rows independently of each other."""

MARGIN = 1.3
"""How many more rows are drawn than wanted, for those that repeat a text or hold no vector."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows drawn from a table.

    Attributes:
        keys: (n,) primary keys as text, row addresses where there is none.
        texts: what each row's vector was made from.
        vectors: (n, k) float32, the legacy embeddings.
        method: how the rows were drawn, for the record.
        repeated: rows left out because their text was drawn already.
    """

    keys: NDArray[np.str_]
    texts: NDArray[np.str_]
    vectors: Float32
    method: str
    repeated: int

    def __len__(self) -> int:
        return len(self.texts)

    def save(self, path: Path) -> None:
        """Keep the sample until its texts are embedded; only the user may read it."""
        buffer = io.BytesIO()
        np.savez(
            buffer,
            keys=self.keys,
            texts=self.texts,
            vectors=self.vectors,
            method=self.method,
            repeated=self.repeated,
        )
        write_atomically(path, buffer.getvalue(), mode=0o600)

    @classmethod
    def load(cls, path: Path) -> Sample:
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            return cls(file["keys"], file["texts"], file["vectors"], str(file["method"]), int(file["repeated"]))


def draw(conn: Connection, column: EmbeddingColumn, text: Sequence[str], count: int, *, seed: int = 0) -> Sample:
    """Draw `count` rows at random that have a vector and a text, no text twice.

    Small tables are read whole (TABLESAMPLE BERNOULLI), of large ones only some pages (SYSTEM_ROWS
    where the extension tsm_system_rows is installed, SYSTEM otherwise). Seeded, except SYSTEM_ROWS.

    Args:
        conn: a connection.
        column: the embedding column.
        text: the columns that the embedded text is made of, joined by a line break.
        count: how many rows.
        seed: the same seed draws the same rows from the same table.

    Raises:
        ColumnMissing: a text column does not exist.
        TooFewPairs: the table has fewer than two such rows.
        InvalidDefinition: it is a view or foreign table, which cannot be sampled.
    """
    source = _Source.find(conn, column, text)
    share = min(1.0, MARGIN * count / max(source.rows, 1))
    while True:
        drawn, method = source.read(conn, share, count, seed)
        sample = _chosen(drawn, column, count, seed, method)
        if len(sample) >= count or share >= 1:
            break
        share = min(1.0, share * 4)
    if len(sample) < MINIMUM:
        raise TooFewPairs(
            f"{column.name} has {len(sample)} rows with a vector and a text; at least {MINIMUM} are needed"
        )
    return sample


@dataclass(frozen=True)
class _Source:
    """The table to draw from, and how."""

    column: EmbeddingColumn
    text: tuple[str, ...]
    key: sql.Composable
    rows: int
    heap: int
    vector: str
    system_rows: str | None

    @classmethod
    def find(cls, conn: Connection, column: EmbeddingColumn, text: Sequence[str]) -> _Source:
        name = column.name
        facts = one(
            conn,
            "SELECT c.relkind, (SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace "
            "WHERE e.extname = 'tsm_system_rows') AS system_rows, "
            "ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns "
            "FROM pg_class c WHERE c.oid = %s::regclass",
            [name.relation_text],
        )
        if facts.relkind not in "rmp":
            raise InvalidDefinition(
                f"{name.schema}.{name.table} is no table, so rows cannot be sampled from it",
                hint="bring the pairs in a file: drift-pg fit --pairs-file FILE",
            )
        if missing := [t for t in text if t not in facts.columns]:
            raise ColumnMissing(
                f"{name.schema}.{name.table} has no column {', '.join(map(repr, missing))}; it has {', '.join(facts.columns)}"
            )
        size = table_size(conn, name)
        key = key_text(primary_key(conn, name))
        return cls(column, tuple(text), key, size.rows, size.heap, vector_schema(conn), facts.system_rows)

    def _clause(self, share: float, count: int, seed: int) -> tuple[sql.Composed, str]:
        if self.heap <= SMALL_TABLE:
            return sql.SQL("BERNOULLI ({}) REPEATABLE ({})").format(100 * share, seed), "bernoulli"
        if self.system_rows is not None and share < 1:
            wanted = int(share * self.rows) + count
            return sql.SQL("{} ({})").format(sql.Identifier(self.system_rows, "system_rows"), wanted), "system_rows"
        return sql.SQL("SYSTEM ({}) REPEATABLE ({})").format(100 * share, seed), "system"

    def read(self, conn: Connection, share: float, count: int, seed: int) -> tuple[list[Any], str]:
        clause, method = self._clause(share, count, seed)
        joined = sql.SQL("concat_ws(E'\\n', {})").format(sql.SQL(", ").join(sql.Identifier("t", t) for t in self.text))
        query = sql.SQL(
            "SELECT s.key, s.text, s.vector FROM (SELECT {key} AS key, {text} AS text, {send}(t.{column}::{vector}) AS vector "
            "FROM {relation} t TABLESAMPLE {clause} WHERE t.{column} IS NOT NULL) s WHERE btrim(s.text, E' \\t\\r\\n') <> ''"
        ).format(
            key=self.key,
            text=joined,
            send=sql.Identifier(self.vector, "vector_send"),
            column=sql.Identifier(self.column.name.column),
            vector=sql.Identifier(self.vector, "vector"),
            relation=self.column.name.relation,
            clause=clause,
        )
        return rows(conn, query), method


def table_size(conn: Connection, name: ColumnName) -> Any:
    """Rows and bytes of heap, partitions included; counted where the table was never analysed."""
    size = one(
        conn,
        "SELECT sum(c.reltuples)::bigint AS rows, sum(pg_relation_size(c.oid))::bigint AS heap, bool_or(c.reltuples < 0) AS unknown "
        "FROM (SELECT relid FROM pg_partition_tree(%s::regclass) UNION SELECT %s::regclass) p JOIN pg_class c ON c.oid = p.relid WHERE c.relkind <> 'p'",
        [name.relation_text, name.relation_text],
    )
    if not size.unknown and size.rows:
        return size
    return one(
        conn,
        sql.SQL("SELECT count(*) AS rows, {}::bigint AS heap FROM {}").format(size.heap or 0, name.relation),
    )


def primary_key(conn: Connection, name: ColumnName) -> list[str]:
    """The columns of a table's primary key, in the key's order; none if it has no key."""
    found = rows(
        conn,
        "SELECT a.attname::text AS name FROM pg_catalog.pg_index i, pg_catalog.unnest(i.indkey) WITH ORDINALITY AS k (number, place) "
        "JOIN pg_catalog.pg_attribute a ON a.attrelid = %s::regclass AND a.attnum = k.number "
        "WHERE i.indrelid = %s::regclass AND i.indisprimary ORDER BY k.place",
        [name.relation_text] * 2,
    )
    return [row.name for row in found]


def key_text(columns: Sequence[str]) -> sql.Composable:
    """The primary key as text; the row's address where there is none."""
    if not columns:
        return sql.SQL("t.ctid::text")
    if len(columns) == 1:
        return sql.SQL("{}::text").format(sql.Identifier("t", columns[0]))
    return sql.SQL("ROW({})::text").format(sql.SQL(", ").join(sql.Identifier("t", c) for c in columns))


def _chosen(drawn: list[Any], column: EmbeddingColumn, count: int, seed: int, method: str) -> Sample:
    """Leave out repeated texts and zero vectors, and take `count` in an order that only the seed decides."""
    ordered = sorted(drawn, key=lambda row: hashlib.sha256(f"{seed}\0{row.text}\0{row.key}".encode()).digest())
    distinct = list({row.text: row for row in reversed(ordered)}.values())[::-1]
    vectors = [np.frombuffer(row.vector, ">f4", offset=4) for row in distinct]
    table = np.array(vectors, np.float32).reshape(len(distinct), column.dimensions)
    usable = np.flatnonzero(lengths(table) > 0)[:count]
    texts = np.array([distinct[i].text for i in usable], dtype=np.str_)
    return Sample(
        np.array([distinct[i].key for i in usable], dtype=np.str_),
        texts,
        table[usable],
        method,
        len(drawn) - len(distinct),
    )
