"""Finds sql/ and migrations/: packaged in a wheel, or beside the package in a checkout."""

from __future__ import annotations

from pathlib import Path

from drift_pg.errors import InstallationBroken


def folder(name: str) -> Path:
    """Return the folder `sql` or `migrations`.

    An editable install does not see what hatchling force-includes into the wheel, so the checkout's
    own folder is the second place looked at.
    """
    here = Path(__file__).parent
    places = [here / f"_{name}", here.parent / name]
    for place in places:
        if place.is_dir():
            return place
    raise InstallationBroken(
        f"drift_pg's folder {name!r} is missing",
        detail=f"looked in {', '.join(map(str, places))}",
        hint="pip install --force-reinstall drift-pg",
    )
