"""How commands embed texts: with a bar, and vectors kept on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from drift_pg.adapter import Float32
from drift_pg.cli.output import progress
from drift_pg.embedding import EmbeddingCache, Progress, embed_all, load_embedder

F = TypeVar("F", bound=Callable[..., Any])


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
    embedder = load_embedder(reference)
    with EmbeddingCache.of(cache, model, reference) as kept, progress(what) as bar:

        def report(done: int, total: int) -> None:
            if told:
                told(done, total)
            bar(done, total)

        return embed_all(embedder, texts, kept, dimensions=dimensions, batch=batch, progress=report)
