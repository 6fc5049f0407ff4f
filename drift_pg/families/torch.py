"""torch, which only trains: imported when a family needs it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from drift_pg.errors import MissingExtra


def import_torch() -> ModuleType:
    """torch, or an error that says how to install it."""
    try:
        return import_module("torch")
    except ImportError as error:
        raise MissingExtra("this trains with torch", hint="pip install 'drift-pg[train]'") from error
