"""Reads queries, and what is relevant to them, from a file of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from drift_pg.errors import InvalidInput
from drift_pg.evaluation.labelled import Label

FORMAT = """{"query": "a text", "relevant": {"key": grade}}"""
_FIELDS = ("query", "vector", "legacy_vector", "relevant")


@dataclass(frozen=True)
class QueryFile:
    """Queries, all of them texts or all of them vectors.

    Attributes:
        texts: q, None if the file holds vectors.
        vectors: (q, m) by the new model, None if it holds texts.
        legacy_vectors: (q, k) by the legacy model, None unless every line has one.
        labels: q; None for a line without `relevant`.
    """

    texts: list[str] | None
    vectors: list[list[float]] | None
    legacy_vectors: list[list[float]] | None
    labels: list[Label]

    @property
    def labelled(self) -> list[Label] | None:
        """The labels, None if no line has any."""
        return self.labels if any(label is not None for label in self.labels) else None

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def load(cls, path: Path) -> QueryFile:
        """Read lines such as {"query": "a text"} or {"vector": [0.1, …]}, each with, or without, `relevant`.

        `relevant` holds grades by key or a list of keys; `legacy_vector` the query by the legacy model.

        Raises:
            InvalidInput: a line is not of that form; the message has its number.
        """
        lines = [_Line.parsed(path, number, text) for number, text in _numbered(path)]
        if not lines:
            raise InvalidInput(f"{str(path)!r} holds no queries", hint=f"write a line per query: {FORMAT}")
        first = lines[0]
        for line in lines:
            for name in ("query", "legacy_vector"):
                if (name in line.fields) != (name in first.fields):
                    line.refuse(f"{_which(name, line)} {name!r}, unlike line {first.number}")
        return cls(
            [line.fields["query"] for line in lines] if "query" in first.fields else None,
            [line.fields["vector"] for line in lines] if "vector" in first.fields else None,
            [line.fields["legacy_vector"] for line in lines] if "legacy_vector" in first.fields else None,
            [line.fields.get("relevant") for line in lines],
        )


def _which(name: str, line: _Line) -> str:
    return "it has" if name in line.fields else "it lacks"


def _numbered(path: Path) -> list[tuple[int, str]]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the queries file {str(path)!r} cannot be read", detail=str(error)) from error
    # Not splitlines(): a text may hold U+2028, which JSON allows unescaped.
    return [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


@dataclass(frozen=True)
class _Line:
    path: Path
    number: int
    fields: dict[str, Any]

    @classmethod
    def parsed(cls, path: Path, number: int, text: str) -> _Line:
        try:
            fields = json.loads(text)
        except json.JSONDecodeError as error:
            cls(path, number, {}).refuse(f"it is not JSON: {error}")
        line = cls(path, number, fields if isinstance(fields, dict) else {})
        if not isinstance(fields, dict):
            line.refuse(f"it is a {type(fields).__name__}, not an object")
        line.check()
        return line

    def refuse(self, why: str) -> NoReturn:
        raise InvalidInput(f"{str(self.path)!r}, line {self.number}: {why}", hint=f"write a line per query: {FORMAT}")

    def check(self) -> None:
        if unknown := [name for name in self.fields if name not in _FIELDS]:
            self.refuse(f"unknown field {unknown[0]!r}; known: {', '.join(_FIELDS)}")
        if ("query" in self.fields) == ("vector" in self.fields):
            self.refuse("it must have either 'query' or 'vector'")
        query = self.fields.get("query", "-")
        if not isinstance(query, str) or not query.strip():
            self.refuse(f"'query' is {query!r}, expected a text")
        for name in ("vector", "legacy_vector"):
            if name in self.fields and not _is_vector(self.fields[name]):
                self.refuse(f"{name!r} is no list of numbers")
        if "relevant" in self.fields and not _is_label(self.fields["relevant"]):
            self.refuse("'relevant' must be a list of keys or an object of grades (whole numbers ≥ 0), one of them > 0")


def _is_vector(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_number(x) for x in value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_label(value: object) -> bool:
    if isinstance(value, dict):
        grades: Sequence[object] = list(value.values())
        return all(type(g) is int and g >= 0 for g in grades) and any(grades)
    return isinstance(value, list) and bool(value) and all(type(key) in (str, int) for key in value)
