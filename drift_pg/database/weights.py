"""Weights to and from rows, by binary COPY written and read as numpy records.

One row per output unit, so that the evaluator is an index scan of inner products; its weights must fit a
page, so an output of more than `BLOCK` weights has several rows.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from drift_pg.adapter import Float32, Layer
from drift_pg.database.connection import Connection

BLOCK = 2000
"""float4 weights per row: 8,192 bytes a page less its and the row's headers allow 2,027."""

_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_COPY_IN = "COPY drift.adapter_weight (adapter_id, layer, block, output, weights) FROM STDIN (FORMAT binary)"

_COPY_OUT = (
    "COPY (SELECT adapter_id, layer, block, output, weights FROM drift.adapter_weight "
    "WHERE adapter_id = %s AND layer = %s AND block = %s ORDER BY output) TO STDOUT (FORMAT binary)"
)


def blocks_of(layer: Layer) -> int:
    """How many rows each output of the layer has."""
    return -(-(layer.inputs + 1) // BLOCK)


def _record(columns: int) -> np.dtype[np.void]:
    """One row of the binary COPY format: each field's length, then its big-endian bytes."""
    fields: list[Any] = [("fields", ">i2")]
    for name, kind in (("adapter_id", ">i8"), ("layer", ">i4"), ("block", ">i4"), ("output", ">i4")):
        fields += [(f"{name}_length", ">i4"), (name, kind)]
    return np.dtype(
        [
            *fields,
            ("weights_length", ">i4"),
            ("dimensions", ">i2"),
            ("unused", ">i2"),
            ("weights", ">f4", (columns,)),
        ]
    )


def _rows(adapter_id: int, position: int, block: int, weights: Float32) -> bytes:
    outputs, columns = weights.shape
    records = np.zeros(outputs, _record(columns))
    records["fields"] = 5
    records["adapter_id_length"] = 8
    for name in ("layer", "block", "output"):
        records[f"{name}_length"] = 4
    records["weights_length"] = 4 + 4 * columns
    records["dimensions"] = columns
    records["adapter_id"], records["layer"], records["block"] = adapter_id, position, block
    records["output"], records["weights"] = np.arange(outputs), weights
    return records.tobytes()


def write(conn: Connection, adapter_id: int, layers: tuple[Layer, ...]) -> None:
    """COPY all layers' weights."""
    with conn.cursor() as cursor, cursor.copy(_COPY_IN) as copy:
        copy.write(_SIGNATURE)
        for position, layer in enumerate(layers):
            for block in range(blocks_of(layer)):
                part = layer.weights[:, block * BLOCK : (block + 1) * BLOCK]
                copy.write(_rows(adapter_id, position, block, part))
        copy.write(_TRAILER)


def read(
    conn: Connection,
    adapter_id: int,
    position: int,
    outputs: int,
    columns: int,
    blocks: int,
    block_columns: int,
) -> Float32 | None:
    """One layer's weights (outputs, columns), or None if rows are missing."""
    parts = []
    for block in range(blocks):
        width = min(block_columns, columns - block * block_columns)
        records = _read_block(conn, adapter_id, position, block, width)
        if records is None or len(records) != outputs:
            return None
        parts.append(records["weights"].astype(np.float32))
    return np.hstack(parts)


def _read_block(conn: Connection, adapter_id: int, position: int, block: int, width: int) -> NDArray[np.void] | None:
    with conn.cursor() as cursor, cursor.copy(_COPY_OUT, [adapter_id, position, block]) as copy:
        content = b"".join(copy)[len(_SIGNATURE) : -len(_TRAILER)]
    record = _record(width)
    if len(content) % record.itemsize:
        return None
    return cast("NDArray[np.void]", np.frombuffer(content, record))
