"""Where commands that embed keep vectors on disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

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
