"""On what machine, with which versions."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks import peers

PACKAGES = ("drift-pg", "numpy", "torch", *peers.PACKAGES)


@cache
def machine() -> dict[str, str]:
    """What the seconds and, in their last digits, the figures depend on; one record keeps one of these."""
    found = {package: _version(package) for package in PACKAGES}
    return {
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "python": platform.python_version(),
    } | {package: number for package, number in found.items() if number}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    """Its name, where the system tells; else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
