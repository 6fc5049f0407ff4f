"""Storing, loading and activating adapters."""

import numpy as np
import psycopg
import pytest

import drift_pg
from drift_pg import errors
from drift_pg.adapter import Adapter, Layer


def linear(rng: np.random.Generator, source: int, target: int) -> Adapter:
    return Adapter((Layer(rng.standard_normal((target, source + 1)), normalize=True),), source, target)


@pytest.fixture
def models(conn: psycopg.Connection) -> psycopg.Connection:
    """Three registered models: new (5 dimensions), legacy (3), other (4)."""
    for name, dimensions in (("new", 5), ("legacy", 3), ("other", 4)):
        drift_pg.register_model(conn, name, dimensions=dimensions)
    return conn


def test_what_is_loaded_is_what_was_stored(models: psycopg.Connection, rng: np.random.Generator) -> None:
    adapter = linear(rng, 5, 3)
    stored = drift_pg.store(models, adapter, source="new", target="legacy")
    assert drift_pg.load_by_id(models, stored).checksum == adapter.checksum
    with pytest.raises(errors.NoActiveAdapter):
        drift_pg.load(models, source="new", target="legacy")
    drift_pg.activate(models, stored)
    assert drift_pg.load(models, source="new", target="legacy").checksum == adapter.checksum
