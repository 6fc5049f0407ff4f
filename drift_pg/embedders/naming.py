"""Embedders by a name: what a command's --embed takes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from drift_pg.embedders.endpoint import openai
from drift_pg.embedders.onnx_model import onnx
from drift_pg.embedders.sentence_model import sentence_transformers
from drift_pg.embedding import Embedder
from drift_pg.errors import InvalidInput, MissingExtra

# Only options that change the vectors: a cache of embeddings goes by the whole reference.
_KINDS: dict[str, tuple[Callable[..., Embedder], dict[str, type]]] = {
    "openai": (openai, {"dimensions": int}),
    "sentence-transformers": (sentence_transformers, {"dimensions": int, "prompt_name": str}),
    "onnx": (onnx, {"pooling": str, "max_tokens": int}),
}


def load_embedder(reference: str) -> Embedder:
    """The embedder that a reference names.

    - `openai:MODEL`, `sentence-transformers:NAME_OR_FOLDER`, `onnx:FOLDER`: the functions of this package. Options
      follow after commas: `openai:text-embedding-3-large,dimensions=1024`.
    - `package.module:function`: a function of your own; the current folder is looked in too. A module whose whole
      name is one of those above has to be named otherwise.

    Raises:
        InvalidInput: of no such form, no such model, module or function, or not callable.
        MissingExtra: a library that it needs is not installed.
    """
    kind, colon, name = reference.partition(":")
    if not (kind and colon and name):
        raise InvalidInput(
            f"{reference!r} does not name an embedder",
            hint=f"write it as package.module:function, or as {', '.join(f'{kind}:MODEL' for kind in _KINDS)}",
        )
    return _made(kind, name) if kind in _KINDS else _imported(reference, kind, name)


def _made(kind: str, name: str) -> Embedder:
    make, known = _KINDS[kind]
    model, *options = name.split(",")
    return make(model, **dict(_option(kind, option, known) for option in options))


def _option(kind: str, option: str, known: dict[str, type]) -> tuple[str, Any]:
    key, _, value = option.partition("=")
    try:
        return key, known[key](value)
    except (KeyError, ValueError) as error:
        forms = ", ".join(f"{name}={'N' if convert is int else 'NAME'}" for name, convert in known.items())
        raise InvalidInput(f"{option!r} is no option of {kind} embedders", hint=f"they have: {forms}") from error


def _imported(reference: str, module: str, name: str) -> Embedder:
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), name)
    except MissingExtra:  # the module makes one of this package's embedders
        raise
    except (ImportError, AttributeError) as error:
        raise InvalidInput(
            f"the embedder {reference!r} cannot be imported: {error}",
            hint="run drift-pg in the environment and folder where `import` finds it",
        ) from error
    if not callable(found):
        raise InvalidInput(f"the embedder {reference!r} is a {type(found).__name__}, not a function of a list of texts")
    return found  # type: ignore[no-any-return]  # whatever it returns is checked when it is called
