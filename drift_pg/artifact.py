"""Adapter files: safetensors in and out, atomically, with errors that say what is wrong."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from drift_pg.errors import InvalidArtifact

FORMAT = "drift_pg adapter 1"


def write_atomically(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write `content` so that a crash leaves the old file or the new one, never half of one.

    `mode` holds the permissions of the file, less what the process's umask takes away.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write(path: Path, tensors: Mapping[str, NDArray[np.float32]], description: Mapping[str, Any]) -> None:
    """Write float32 tensors and a JSON description to a safetensors file."""
    metadata = {"format": FORMAT, "description": json.dumps(description, sort_keys=True)}
    write_atomically(path, save({name: np.ascontiguousarray(t) for name, t in tensors.items()}, metadata))


def read(path: Path) -> tuple[dict[str, NDArray[np.float32]], dict[str, Any]]:
    """Read what `write` wrote.

    Raises:
        InvalidArtifact: the file is missing, damaged, or not an adapter of this format.
    """
    if not path.is_file():
        raise InvalidArtifact(f"there is no adapter file {str(path)!r}")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise InvalidArtifact(f"{str(path)!r} is not a readable safetensors file", detail=str(error)) from error
    if metadata.get("format") != FORMAT:
        raise InvalidArtifact(
            f"{str(path)!r} has format {metadata.get('format')!r}, expected {FORMAT!r}",
            hint="export it again with this version: drift-pg export ID FILE",
        )
    return tensors, _description(path, metadata)


def sha256(path: Path) -> str:
    """SHA-256 (hexadecimal) of the file; raises InvalidArtifact if there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InvalidArtifact(f"the adapter file {str(path)!r} cannot be read", detail=error.strerror) from error


def _description(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        description = json.loads(metadata["description"])
    except (KeyError, ValueError, RecursionError) as error:
        raise InvalidArtifact(f"{str(path)!r} has no readable description", detail=str(error)) from error
    if not isinstance(description, dict):
        raise InvalidArtifact(f"{str(path)!r} has a description that is not an object")
    return description
