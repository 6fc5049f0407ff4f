"""What is active in a database at one moment: one cheap question, and what its answer lets one serve."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from drift_pg.adapter import Float32
from drift_pg.database.connection import Connection, one
from drift_pg.errors import InvalidVector, WrongDimensions

Pair: TypeAlias = "tuple[str, str]"
Key: TypeAlias = "tuple[str, ...]"
"""What a query is adapted for: (source, target), or (query model, relation, column)."""
Apply: TypeAlias = "Callable[[ArrayLike], Float32]"

_QUESTION = """
SELECT (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(a.source, a.target, a.id, pg_catalog.encode(a.checksum, 'hex')))
        FROM drift.adapter a WHERE a.status = 'active') AS adapters,
       (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(m.name, m.dimensions)) FROM drift.model m) AS models,
       (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(r.relation, c.column_name, c.model))
        FROM pg_catalog.unnest(%s::text[]) AS r (relation)
        JOIN drift.embedding_column c ON c.relation = pg_catalog.to_regclass(r.relation)) AS columns
"""


@dataclass(frozen=True)
class Snapshot:
    """What one question learns.

    Attributes:
        adapters: id and checksum of each active adapter, by source and target.
        models: dimensions by name.
        columns: the model that a registered column holds, by its table as it was asked for, and its name.
    """

    adapters: dict[Pair, tuple[int, str]]
    models: dict[str, int]
    columns: dict[Pair, str]

    @classmethod
    def take(cls, conn: Connection, relations: Iterable[str]) -> Snapshot:
        """Ask; of the tables in `relations` only, named as in SQL."""
        answer = one(conn, _QUESTION, [sorted(relations)])
        return cls(
            {(source, target): (number, checksum) for source, target, number, checksum in answer.adapters or ()},
            dict(answer.models or ()),
            {(relation, column): model for relation, column, model in answer.columns or ()},
        )

    def pair(self, key: Key) -> Pair | None:
        """The models that `key` needs an adapter between; None if its column is not registered."""
        if len(key) == 2:
            return key[0], key[1]
        query_model, relation, column = key
        held = self.columns.get((relation, column))
        return None if held is None else (query_model, held)


class State:
    """What is served while the database vouches for it.

    A hit takes one state and looks at nothing else, so `until` and `ready` always belong together: what
    changes gets a new state.

    Attributes:
        snapshot: what was learnt.
        until: the moment, of the monotonic clock, from which it has to be asked again.
        ready: what maps a query, filled as it is needed.
    """

    __slots__ = ("ready", "snapshot", "until")

    def __init__(self, snapshot: Snapshot, until: float = 0.0) -> None:
        self.snapshot = snapshot
        self.until = until
        self.ready: dict[Key, Apply] = {}


NOTHING = Snapshot({}, {}, {})


def identity(model: str, dimensions: int) -> Apply:
    """What maps queries of the model that the column holds: they are returned as they are."""

    def same(query: ArrayLike) -> Float32:
        x = np.asarray(query, dtype=np.float32)
        if not 1 <= x.ndim <= 2 or x.shape[-1] != dimensions:
            raise WrongDimensions(
                f"query has shape {x.shape}, model {model!r} has {dimensions} dimensions",
                hint="was the query embedded by the model that is named?",
            )
        if not np.isfinite(x).all():
            raise InvalidVector("query holds NaN or infinity")
        return x

    return same
