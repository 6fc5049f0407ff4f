"""Stores, loads, activates and verifies adapters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from psycopg import sql
from psycopg.types.json import Jsonb

from drift_pg.adapter import Adapter, Float32, Layer, unit
from drift_pg.database import weights
from drift_pg.database.connection import Connection, one, rows, translated, vector_schema
from drift_pg.errors import (
    InvalidDefinition,
    NoActiveAdapter,
    UnknownAdapter,
    VerificationFailed,
    WrongDimensions,
)
from drift_pg.gate import DEFAULT_MINIMUM

PROBES = 4


@dataclass(frozen=True)
class Verification:
    """What `drift.verify` found.

    Attributes:
        ok: whether the adapter is what was stored and SQL evaluates it as numpy does.
        probes: how many were replayed.
        worst_error: distance to the expected output, relative to its length; None if not replayed.
        problem: what is wrong, None if nothing.
    """

    ok: bool
    probes: int
    worst_error: float | None
    problem: str | None


def store(conn: Connection, adapter: Adapter, *, source: str, target: str) -> int:
    """Store an adapter as a candidate between two registered models.

    All of it or nothing: in autocommit mode it is a transaction of its own, otherwise part of the
    caller's. Probes are stored with it, and replayed before it is accepted.

    Returns:
        Its id.

    Raises:
        UnknownModel: a model is not registered.
        WrongDimensions: the adapter's are not the models'.
        VerificationFailed: the database does not evaluate it as numpy does.
    """
    vector = vector_schema(conn)
    with translated(), conn.transaction():
        rows(conn, "SELECT drift.require_administration()")
        _check_models(conn, adapter, source, target)
        stored = int(
            one(
                conn,
                "INSERT INTO drift.adapter (source, target, family, normalize_input, checksum, details) "
                "VALUES (%s, %s, %s, %s, %s, %s) RETURNING id",
                [
                    source,
                    target,
                    adapter.family,
                    adapter.normalize_input,
                    bytes.fromhex(adapter.checksum),
                    Jsonb(dict(adapter.details)),
                ],
            ).id
        )
        _store_layers(conn, stored, adapter)
        _store_probes(conn, stored, adapter, vector)
        found = verify(conn, stored)
        if not found.ok:
            raise VerificationFailed(f"the adapter was not stored: {found.problem}")
        rows(
            conn,
            "INSERT INTO drift.event (action, subject, details) VALUES ('store', %s, %s)",
            [
                str(stored),
                Jsonb(
                    {
                        "source": source,
                        "target": target,
                        "family": adapter.family,
                        "checksum": adapter.checksum,
                    }
                ),
            ],
        )
    return stored


def _check_models(conn: Connection, adapter: Adapter, source: str, target: str) -> None:
    if source == target:
        raise InvalidDefinition(f"an adapter joins two models, source and target are both {source!r}")
    for side, model, dimensions in (
        ("source", source, adapter.source_dimensions),
        ("target", target, adapter.target_dimensions),
    ):
        registered = one(conn, "SELECT drift.model_dimensions(%s) AS n", [model]).n
        if registered != dimensions:
            raise WrongDimensions(
                f"the adapter's {side} has {dimensions} dimensions, model {model!r} has {registered}",
                hint="were source and target swapped? source is the new model, target the legacy one",
            )


def _store_layers(conn: Connection, stored: int, adapter: Adapter) -> None:
    with conn.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO drift.adapter_layer (adapter_id, position, outputs, inputs, blocks, block_columns, activation, "
            "takes_input, normalize, is_route, expert) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            [
                (stored, i, layer.outputs, layer.inputs, weights.blocks_of(layer), weights.BLOCK, layer.activation,
                 layer.takes_input, layer.normalize, layer.is_route, layer.expert)
                for i, layer in enumerate(adapter.layers)
            ],
        )  # fmt: skip
    weights.write(conn, stored, adapter.layers)


def _store_probes(conn: Connection, stored: int, adapter: Adapter, vector: str) -> None:
    inputs = probe_inputs(adapter)
    statement = sql.SQL(
        "INSERT INTO drift.adapter_probe (adapter_id, position, input, expected) VALUES (%s, %s, %s::real[]::{0}, %s::real[]::{0})"
    ).format(sql.Identifier(vector, "vector"))
    with conn.cursor() as cursor:
        cursor.executemany(
            statement, [(stored, i, x.tolist(), adapter.apply(x).tolist()) for i, x in enumerate(inputs)]
        )


def probe_inputs(adapter: Adapter) -> Float32:
    """(PROBES, m) unit vectors; for a mixture, those that lie farthest from where routing flips.

    Rounding differs between numpy and pgvector, so a probe at the border of two experts could fail
    without a fault.
    """
    drawn = unit(np.random.default_rng(0).standard_normal((16 * PROBES, adapter.source_dimensions)).astype(np.float32))
    if not adapter.experts or len(adapter.experts) == 1:
        return drawn[:PROBES]
    logits = np.sort(adapter.layers[0].apply(drawn, drawn), axis=1)
    return np.asarray(drawn[np.argsort(logits[:, -2] - logits[:, -1])[:PROBES]])


def load(conn: Connection, *, source: str, target: str) -> Adapter:
    """Load the active adapter between two models.

    Raises:
        NoActiveAdapter: none is active.
        VerificationFailed: its weights are not those of its checksum.
    """
    found = rows(
        conn,
        "SELECT id FROM drift.adapter WHERE source = %s AND target = %s AND status = 'active'",
        [source, target],
    )
    if not found:
        raise NoActiveAdapter(
            f"no adapter from model {source!r} to model {target!r} is active", hint="drift-pg adapters"
        )
    return load_by_id(conn, found[0].id)


def load_by_id(conn: Connection, adapter_id: int) -> Adapter:
    """Load an adapter, active or not; raises UnknownAdapter or VerificationFailed."""
    found = rows(
        conn,
        "SELECT a.family, a.normalize_input, a.details, encode(a.checksum, 'hex') AS checksum, s.dimensions AS m, t.dimensions AS k "
        "FROM drift.adapter a JOIN drift.model s ON s.name = a.source JOIN drift.model t ON t.name = a.target WHERE a.id = %s",
        [adapter_id],
    )
    if not found:
        raise UnknownAdapter(f"there is no adapter {adapter_id}", hint="drift-pg adapters")
    this = found[0]
    with translated():
        layers = tuple(
            _load_layer(conn, row)
            for row in rows(
                conn,
                "SELECT * FROM drift.adapter_layer WHERE adapter_id = %s ORDER BY position",
                [adapter_id],
            )
        )
    adapter = Adapter(layers, this.m, this.k, this.normalize_input, this.family, this.details)
    if adapter.checksum != this.checksum:
        raise VerificationFailed(
            f"adapter {adapter_id}'s weights are not those of its checksum",
            hint=f"drift-pg verify {adapter_id}",
        )
    return adapter


def _load_layer(conn: Connection, row: Any) -> Layer:
    loaded = weights.read(
        conn, row.adapter_id, row.position, row.outputs, row.inputs + 1, row.blocks, row.block_columns
    )
    if loaded is None:
        raise VerificationFailed(
            f"adapter {row.adapter_id} is incomplete: layer {row.position} lacks rows of weights",
            hint=f"drift-pg verify {row.adapter_id}",
        )
    return Layer(loaded, row.activation, row.takes_input, row.normalize, row.expert, row.is_route)


def activate(conn: Connection, adapter_id: int, *, force: bool = False, minimum: float = DEFAULT_MINIMUM) -> None:
    """Make an adapter the one that serves its two models, at commit, for every client.

    A candidate must have passed the quality gate; one that has served before is activated again as it is.

    Args:
        conn: a connection.
        adapter_id: of a stored adapter.
        force: activate it whatever the gate says; the event keeps what was overridden.
        minimum: 0 to 1, what the lower end of its score must reach.

    Raises:
        UnknownAdapter, VerificationFailed
        NotEvaluated: it has no evaluation.
        BelowMinimum: its latest evaluation is below the minimum.
        ActivationRunning: another transaction is changing the same two models' adapter.
    """
    rows(conn, "SELECT drift.activate(%s::bigint, %s, %s::real)", [adapter_id, force, minimum])


def deactivate(conn: Connection, *, source: str, target: str) -> None:
    """Retire the active adapter of two models; raises NoActiveAdapter, UnknownModel, ActivationRunning."""
    rows(conn, "SELECT drift.deactivate(%s, %s)", [source, target])


def drop_adapter(conn: Connection, adapter_id: int) -> None:
    """Delete an adapter that is not active; raises UnknownAdapter or StillInUse."""
    rows(conn, "SELECT drift.drop_adapter(%s::bigint)", [adapter_id])


def verify(conn: Connection, adapter_id: int) -> Verification:
    """Recompute a stored adapter's checksum in SQL and replay its probes; raises UnknownAdapter."""
    found = one(conn, "SELECT * FROM drift.verify(%s::bigint)", [adapter_id])
    return Verification(found.ok, found.probes, found.worst_error, found.problem)
