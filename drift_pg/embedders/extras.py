"""Libraries that only an embedder needs: imported when one is made."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from drift_pg.errors import MissingExtra


def library(name: str, extra: str) -> Any:
    """The module, or an error that says how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtra(
            f"this embedder needs the package {name}: {error}", hint=f"pip install 'drift-pg[{extra}]'"
        ) from error
