"""How commands embed texts: with a bar, and vectors kept on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from drift_pg.adapter import Float32
from drift_pg.cli.output import progress
from drift_pg.embedders import load_embedder
from drift_pg.embedding import Embedder, EmbeddingCache, Progress, embed_all

F = TypeVar("F", bound=Callable[..., Any])


EMBEDDER = "openai:MODEL, sentence-transformers:NAME, onnx:FOLDER, or MODULE:FUNCTION of your own"
"""What --embed takes, for help texts."""


def default_cache() -> Path:
    """The user's cache folder, by the XDG convention."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "drift-pg"


def cache_option(function: F) -> F:
    """Give a command --cache."""
    return click.option(
        "--cache",
        type=click.Path(path_type=Path, file_okay=False),
        default=default_cache,
        help="Where embedded vectors are kept.  [default: ~/.cache/drift-pg]",
    )(function)


def loaded(reference: str) -> Embedder:
    """The embedder that `reference` names, loaded once in a command: a model can take seconds and gigabytes."""
    kept: dict[str, Embedder] = click.get_current_context().meta.setdefault("drift_pg.embedders", {})
    if reference not in kept:
        kept[reference] = load_embedder(reference)
    return kept[reference]


def embedded(
    texts: Sequence[str],
    reference: str,
    *,
    model: str,
    cache: Path,
    dimensions: int,
    batch: int,
    what: str = "Embedding",
    told: Progress | None = None,
) -> Float32:
    """Texts by the embedder that `reference` names; a bar and `told` follow the progress."""
    embedder = loaded(reference)
    with EmbeddingCache.of(cache, model, reference) as kept, progress(what) as bar:

        def report(done: int, total: int) -> None:
            if told:
                told(done, total)
            bar(done, total)

        return embed_all(embedder, texts, kept, dimensions=dimensions, batch=batch, progress=report)
