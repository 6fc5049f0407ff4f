"""Results as JSON lines: each is appended when it is there, so that a run can be interrupted and resumed."""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

Record = dict[str, Any]
"""`key`: what was measured; the rest: what came of it."""


def packed(values: ArrayLike) -> str:
    """Small whole numbers, 0 to 255, as text."""
    return base64.b64encode(zlib.compress(np.asarray(values).astype(np.uint8).tobytes(), 9)).decode()


def unpacked(text: str) -> NDArray[np.float64]:
    """What `packed` was given."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8).astype(np.float64)


class Records:
    """A file of JSON lines; of two with the same key the later counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = {_text(record["key"]): record for record in _read(path)}

    def __iter__(self) -> Iterator[Record]:
        return iter(self._lines.values())

    def get(self, key: Record) -> Record | None:
        """The record of this key, if there is one."""
        return self._lines.get(_text(key))

    def done(self, key: Record) -> bool:
        """Whether it need not run again; a refusal is asked again, which costs nothing."""
        record = self.get(key)
        return record is not None and "refused" not in record

    def add(self, record: Record) -> None:
        """Append one line, whole and on the disk before this returns."""
        if self.get(record["key"]) == record:
            return
        self._lines[_text(record["key"])] = record
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            # One that was cut short by a crash must not swallow the next.
            start = b"\n" if file.tell() and not _ends_line(self.path) else b""
            file.write(start + json.dumps(record, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def forget(self, selected: Callable[[Record], bool]) -> None:
        """Drop the records whose key is selected; the file as it was stays beside it, named .before."""
        if not self.path.exists():
            return
        self._lines = {text: record for text, record in self._lines.items() if not selected(record["key"])}
        kept = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in self)
        before, new = self.path.with_suffix(".before"), self.path.with_suffix(".new")
        new.write_text(kept, encoding="utf-8")
        os.replace(self.path, before)
        os.replace(new, self.path)


def _text(key: Record) -> str:
    return json.dumps(key, sort_keys=True)


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _read(path: Path) -> list[Record]:
    if not path.exists():
        return []
    found = (_parsed(line) for line in path.read_text(encoding="utf-8").split("\n"))
    return [record for record in found if record is not None]


def _parsed(line: str) -> Record | None:
    """None for a line that was cut short."""
    try:
        return cast(Record, json.loads(line))
    except json.JSONDecodeError:
        return None
