"""The command `drift-pg`: each command parses, calls one operation, and prints."""

from drift_pg.cli.main import main

__all__ = ["main"]
