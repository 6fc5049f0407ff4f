"""Stores, loads, activates and verifies adapters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from psycopg.types.json import Jsonb

from drift_pg.adapter import Adapter, Float32, Layer, unit
from drift_pg.database import weights
from drift_pg.database.connection import Connection, one, rows, translated
from drift_pg.database.evaluations import latest_evaluation, store_evaluation, stored_calibration
from drift_pg.errors import NoActiveAdapter, UnknownAdapter, VerificationFailed
from drift_pg.gate import DEFAULT_MINIMUM

PROBES = 4

SOURCE, TARGET, EVALUATION = "source", "target", "evaluation"
CARRIED = (SOURCE, TARGET, EVALUATION)
"""Details of an exported adapter that are not the adapter's own: the database has columns and a table for them."""


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
    caller's. Probes are stored with it, and replayed before it is accepted; so is the evaluation that a
    file from `export` carries.

    Returns:
        Its id.

    Raises:
        UnknownModel: a model is not registered.
        WrongDimensions: the adapter's are not the models'.
        VerificationFailed: the database does not evaluate it as numpy does.
    """
    with translated(), conn.transaction():
        stored = int(
            one(conn, "SELECT drift.begin_adapter(%s, %s, %s) AS id", [source, target, Jsonb(describe(adapter))]).id
        )
        weights.write(conn, stored, adapter.layers)
        inputs = probe_inputs(adapter)
        rows(
            conn,
            "SELECT drift.finish_adapter(%s::bigint, %s, %s)",
            [stored, texts(inputs), texts(adapter.apply(inputs))],
        )
        if EVALUATION in adapter.details:
            store_evaluation(conn, stored, adapter.details[EVALUATION])
    return stored


def describe(adapter: Adapter) -> dict[str, Any]:
    """What `drift.begin_adapter` stores of an adapter: all but its weights, its models and its evaluation."""
    layers = [
        {
            "outputs": layer.outputs,
            "inputs": layer.inputs,
            "blocks": weights.blocks_of(layer),
            "block_columns": weights.BLOCK,
            "activation": layer.activation,
            "takes_input": layer.takes_input,
            "normalize": layer.normalize,
            "is_route": layer.is_route,
            "expert": layer.expert,
        }
        for layer in adapter.layers
    ]
    return {
        "family": adapter.family,
        "normalize_input": adapter.normalize_input,
        "checksum": adapter.checksum,
        "source_dimensions": adapter.source_dimensions,
        "target_dimensions": adapter.target_dimensions,
        "details": {name: value for name, value in adapter.details.items() if name not in CARRIED},
        "layers": layers,
    }


def texts(vectors: Float32) -> list[str]:
    """Each row as pgvector reads it; nine digits give back the same float32."""
    return ["[" + ",".join(map("{:.9g}".format, row)) + "]" for row in vectors.tolist()]


def export(conn: Connection, adapter_id: int, path: str | Path) -> Adapter:
    """Write a stored adapter to a file that carries its models' names and its latest evaluation.

    So another database can tell what it maps, its quality gate can judge it, and mixed search is calibrated: `store`, `drift-pg import`
    and `op.activate_adapter` read them.

    Raises:
        UnknownAdapter, VerificationFailed
    """
    adapter = load_by_id(conn, adapter_id)
    models = one(conn, "SELECT source, target FROM drift.adapter WHERE id = %s", [adapter_id])
    carried: dict[str, Any] = {SOURCE: models.source, TARGET: models.target}
    evaluation = latest_evaluation(conn, adapter_id)
    if evaluation:
        # The latest evaluation may be of too few pairs to calibrate by; the adapter's lines then are an earlier one's.
        carried[EVALUATION] = {**evaluation.figures, "calibration": stored_calibration(conn, adapter_id)}
    complete = replace(adapter, details={**adapter.details, **carried})
    complete.save(path)
    return complete


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
