"""Storing, loading, verifying and activating adapters."""

import contextlib
import threading
from pathlib import Path

import numpy as np
import psycopg
import pytest
from psycopg.types.json import Jsonb

import drift_pg
from drift_pg import Pairs, errors
from drift_pg.adapter import Adapter, Layer
from drift_pg.database import adapters, weights
from drift_pg.database.connection import one
from tests.tables import Upgrade, linear, vector


def random_adapter(rng: np.random.Generator, source: int = 5, target: int = 3) -> Adapter:
    return linear(rng.standard_normal((source, target)))


@pytest.fixture
def models(conn: psycopg.Connection) -> psycopg.Connection:
    """Registered models: new (5 dimensions), legacy (3), wide (4000)."""
    for name, dimensions in (("new", 5), ("legacy", 3), ("wide", 4000)):
        drift_pg.register_model(conn, name, dimensions=dimensions)
    return conn


@pytest.fixture
def stored(models: psycopg.Connection, rng: np.random.Generator) -> int:
    """The id of a stored candidate from new to legacy."""
    return drift_pg.store(models, random_adapter(rng), source="new", target="legacy")


def count(conn: psycopg.Connection, table: str) -> int:
    return one(conn, f"SELECT count(*) AS n FROM drift.{table}").n


def test_what_is_loaded_is_what_was_stored(models: psycopg.Connection, rng: np.random.Generator) -> None:
    adapter = Adapter(random_adapter(rng).layers, 5, 3, family="procrustes", details={"pairs": 7, "seed": 1})
    stored = drift_pg.store(models, adapter, source="new", target="legacy")
    loaded = drift_pg.load_by_id(models, stored)
    assert (loaded.checksum, loaded.family, loaded.details) == (adapter.checksum, "procrustes", {"pairs": 7, "seed": 1})
    with pytest.raises(errors.NoActiveAdapter):
        drift_pg.load(models, source="new", target="legacy")
    drift_pg.activate(models, stored, force=True)
    assert drift_pg.load(models, source="new", target="legacy").checksum == adapter.checksum
    with pytest.raises(errors.UnknownAdapter):
        drift_pg.load_by_id(models, stored + 1)


def test_a_mixture_survives_storage(models: psycopg.Connection, rng: np.random.Generator) -> None:
    route = Layer(rng.standard_normal((2, 6)), is_route=True)
    experts = [Layer(rng.standard_normal((3, 6)), "gelu", expert=e) for e in (0, 1)]
    last = Layer(rng.standard_normal((3, 9)), takes_input=True, normalize=True)
    adapter = Adapter((route, *experts, last), 5, 3, normalize_input=False)
    stored = drift_pg.store(models, adapter, source="new", target="legacy")
    assert drift_pg.load_by_id(models, stored).checksum == adapter.checksum
    assert drift_pg.verify(models, stored).ok


def test_weights_wider_than_a_page_are_split_in_blocks(models: psycopg.Connection, rng: np.random.Generator) -> None:
    adapter = random_adapter(rng, 4000, 3)
    stored = drift_pg.store(models, adapter, source="wide", target="legacy")
    assert one(models, "SELECT blocks FROM drift.adapter_layer").blocks == 3
    assert drift_pg.load_by_id(models, stored).checksum == adapter.checksum
    assert one(models, "SELECT max(pg_column_size(w.*)) AS n FROM drift.adapter_weight w").n < 8160
    assert weights.BLOCK * 4 < 8160 < (weights.BLOCK + 50) * 4


def test_the_most_dimensions_on_both_sides(models: psycopg.Connection, rng: np.random.Generator) -> None:
    drift_pg.register_model(models, "wider", dimensions=4000)
    adapter = linear(rng.standard_normal((4000, 4000)).astype(np.float32))
    stored = drift_pg.store(models, adapter, source="wide", target="wider")
    assert drift_pg.verify(models, stored).ok


@pytest.mark.parametrize("row_factory", [psycopg.rows.tuple_row, psycopg.rows.dict_row, psycopg.rows.namedtuple_row])
def test_the_callers_connection_is_used_as_it_is(dsn: str, rng: np.random.Generator, row_factory) -> None:
    with psycopg.connect(dsn, row_factory=row_factory) as conn:
        for name, dimensions in (("new", 5), ("legacy", 3)):
            drift_pg.register_model(conn, name, dimensions=dimensions)
        stored = drift_pg.store(conn, random_adapter(rng), source="new", target="legacy")
        assert drift_pg.load_by_id(conn, stored).source_dimensions == 5
        conn.rollback()  # the transaction is the caller's: nothing was committed
        assert count(conn, "adapter") == count(conn, "model") == 0


@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        ("nope", "legacy", errors.UnknownModel),
        ("new", "nope", errors.UnknownModel),
        ("new", "new", errors.InvalidDefinition),
        ("legacy", "new", errors.WrongDimensions),
        ("new", "wide", errors.WrongDimensions),
    ],
)
def test_an_adapter_that_does_not_fit_its_models_is_refused(models, rng, source, target, error) -> None:
    with pytest.raises(error):
        drift_pg.store(models, random_adapter(rng), source=source, target=target)
    assert count(models, "adapter") == count(models, "adapter_weight") == 0


def test_a_connection_lost_in_a_store_leaves_nothing(models: psycopg.Connection, dsn: str, rng, monkeypatch) -> None:
    writes = weights.write

    def write_and_lose(conn: psycopg.Connection, *arguments: object) -> None:
        writes(conn, *arguments)
        models.execute("SELECT pg_terminate_backend(%s)", [conn.info.backend_pid])

    monkeypatch.setattr(weights, "write", write_and_lose)
    with psycopg.connect(dsn, autocommit=True) as victim, pytest.raises(errors.ConnectionLost):
        drift_pg.store(victim, random_adapter(rng), source="new", target="legacy")
    assert count(models, "adapter") == count(models, "adapter_weight") == 0
    monkeypatch.undo()
    assert drift_pg.verify(models, drift_pg.store(models, random_adapter(rng), source="new", target="legacy")).ok


TAMPERING = {
    "a weight": "UPDATE drift.adapter_weight SET weights = weights + '[0,0,0,0,0,1]' WHERE output = 1",
    "a lost row": "DELETE FROM drift.adapter_weight WHERE output = 2",
    "a lost layer": "DELETE FROM drift.adapter_layer",
    "a flag": "UPDATE drift.adapter_layer SET normalize = false",
    "the input's length": "UPDATE drift.adapter SET normalize_input = false",
    "the checksum": "UPDATE drift.adapter SET checksum = sha256('x')",
    "a probe": "UPDATE drift.adapter_probe SET expected = input_of.v FROM (SELECT '[1,0,0]'::extensions.vector v) input_of WHERE position = 0",
    "no probes": "DELETE FROM drift.adapter_probe",
}


@pytest.mark.parametrize("change", TAMPERING.values(), ids=TAMPERING.keys())
def test_an_adapter_that_was_changed_is_not_activated(
    models: psycopg.Connection, stored: int, rng, change: str
) -> None:
    serving = drift_pg.store(models, random_adapter(rng), source="new", target="legacy")
    drift_pg.activate(models, serving, force=True)
    with models.transaction():
        models.execute("SET LOCAL search_path = extensions")
        models.execute(
            f"{change} {'AND' if 'WHERE' in change else 'WHERE'} {'id' if 'drift.adapter SET' in change else 'adapter_id'} = {stored}"
        )
    found = drift_pg.verify(models, stored)
    assert not found.ok
    with pytest.raises(errors.VerificationFailed, match=f"adapter {stored} is not activated"):
        drift_pg.activate(models, stored, force=True)
    assert one(models, "SELECT id FROM drift.adapters WHERE status = 'active'").id == serving


def test_a_load_of_changed_weights_is_refused(models: psycopg.Connection, stored: int) -> None:
    with models.transaction(force_rollback=True):
        models.execute("UPDATE drift.adapter SET checksum = sha256('x')")
        with pytest.raises(errors.VerificationFailed, match="checksum"):
            drift_pg.load_by_id(models, stored)
    models.execute("DELETE FROM drift.adapter_weight WHERE output = 0")
    with pytest.raises(errors.VerificationFailed, match="lacks rows"):
        drift_pg.load_by_id(models, stored)


def test_an_incomplete_adapter_answers_with_an_error_not_with_a_vector(models: psycopg.Connection, stored: int) -> None:
    drift_pg.activate(models, stored, force=True)
    models.execute("DELETE FROM drift.adapter_weight WHERE output = 2")
    with pytest.raises(psycopg.Error, match="layer 0 has 2 of 3 rows") as refused:
        models.execute("SELECT drift.adapt(%s::extensions.vector, 'new', 'legacy')", [vector(np.ones(5))])
    assert refused.value.sqlstate == "VD030"
    models.execute("DELETE FROM drift.adapter_layer")
    with pytest.raises(psycopg.Error, match="it has no layers") as refused:
        models.execute("SELECT drift.adapt(%s::extensions.vector, 'new', 'legacy')", [vector(np.ones(5))])
    assert refused.value.sqlstate == "VD030"


def test_activation_replaces_and_deactivation_retires(models: psycopg.Connection, stored: int, rng) -> None:
    second = drift_pg.store(models, random_adapter(rng), source="new", target="legacy")
    drift_pg.activate(models, stored, force=True)
    drift_pg.activate(models, stored, force=True)
    drift_pg.activate(models, second, force=True)
    drift_pg.activate(models, stored, force=True)
    drift_pg.deactivate(models, source="new", target="legacy")
    statuses = [tuple(row) for row in models.execute("SELECT id, status FROM drift.adapters ORDER BY id").fetchall()]
    assert statuses == [(stored, "retired"), (second, "retired")]
    events = [
        row[0] for row in models.execute("SELECT action FROM drift.event WHERE action LIKE '%activate' ORDER BY id")
    ]
    assert events == ["activate", "activate", "activate", "deactivate"]
    with pytest.raises(errors.NoActiveAdapter):
        drift_pg.deactivate(models, source="new", target="legacy")
    with pytest.raises(errors.UnknownModel):
        drift_pg.deactivate(models, source="new", target="nope")


def test_of_two_activations_at_once_one_wins_and_the_other_is_told(
    models: psycopg.Connection, dsn: str, stored: int, rng
) -> None:
    rival = drift_pg.store(models, random_adapter(rng), source="new", target="legacy")
    with psycopg.connect(dsn) as first, psycopg.connect(dsn) as second:
        drift_pg.activate(first, stored, force=True)
        with pytest.raises(errors.ActivationRunning, match="from model 'new' to model 'legacy'"):
            drift_pg.activate(second, rival, force=True)
        second.rollback()
        with pytest.raises(errors.ActivationRunning):
            drift_pg.deactivate(second, source="new", target="legacy")
        first.commit()
    assert one(models, "SELECT id FROM drift.adapters WHERE status = 'active'").id == stored


def test_many_activations_leave_exactly_one_active(models: psycopg.Connection, dsn: str, rng) -> None:
    ids = [drift_pg.store(models, random_adapter(rng), source="new", target="legacy") for _ in range(6)]

    def run(adapter: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            for _ in range(5):
                with contextlib.suppress(errors.ActivationRunning):
                    drift_pg.activate(conn, adapter, force=True)

    threads = [threading.Thread(target=run, args=(i,)) for i in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert one(models, "SELECT count(*) AS n FROM drift.adapters WHERE status = 'active'").n == 1


def test_only_an_adapter_that_does_not_serve_is_dropped(models: psycopg.Connection, stored: int) -> None:
    drift_pg.activate(models, stored, force=True)
    with pytest.raises(errors.StillInUse):
        drift_pg.drop_adapter(models, stored)
    drift_pg.deactivate(models, source="new", target="legacy")
    drift_pg.drop_adapter(models, stored)
    assert count(models, "adapter_weight") == count(models, "adapter_probe") == 0
    with pytest.raises(errors.UnknownAdapter):
        drift_pg.drop_adapter(models, stored)
    with pytest.raises(errors.UnknownAdapter):
        drift_pg.verify(models, stored)


def test_probes_of_a_mixture_stay_away_from_where_routing_flips(rng: np.random.Generator) -> None:
    route = Layer(rng.standard_normal((3, 6)), is_route=True)
    mixture = Adapter((route, *(Layer(rng.standard_normal((3, 6)), expert=e) for e in range(3))), 5, 3)
    logits = np.sort(route.apply(adapters.probe_inputs(mixture), adapters.probe_inputs(mixture)), axis=1)
    assert (logits[:, -1] - logits[:, -2]).min() > 0.5


def test_an_exported_adapter_carries_its_models_and_its_evaluation(
    conn: psycopg.Connection, rng: np.random.Generator, tmp_path: Path
) -> None:
    upgrade = Upgrade(conn, rng)
    figures = drift_pg.evaluate(linear(upgrade.matrix), Pairs(upgrade.new, upgrade.legacy)).as_dict()
    drift_pg.store_evaluation(conn, upgrade.adapter, figures)
    path = tmp_path / "adapter.safetensors"
    drift_pg.export(conn, upgrade.adapter, path)
    loaded = Adapter.load(path)
    assert loaded.details == {"source": "new", "target": "legacy", "evaluation": figures}
    again = drift_pg.store(conn, loaded, source="new", target="legacy")
    assert drift_pg.latest_evaluation(conn, again).figures == figures
    assert drift_pg.load_by_id(conn, again).details == {}
    drift_pg.activate(conn, again)


def test_storing_from_text_gives_the_same_rows_as_by_copy(conn: psycopg.Connection, rng: np.random.Generator) -> None:
    drift_pg.register_model(conn, "wide", dimensions=2100)
    drift_pg.register_model(conn, "narrow", dimensions=3)
    adapter = linear(rng.standard_normal((2100, 3)))
    copied = drift_pg.store(conn, adapter, source="wide", target="narrow")
    blocks = [b for b in range(2) for _ in range(3)]
    weights = [
        text for b in range(2) for text in adapters.texts(adapter.layers[0].weights[:, b * 2000 : (b + 1) * 2000])
    ]
    assert len(weights) == len(blocks)
    inputs = adapters.probe_inputs(adapter)
    arguments = [
        Jsonb(adapters.describe(adapter)),
        weights,
        adapters.texts(inputs),
        adapters.texts(adapter.apply(inputs)),
    ]
    query = "SELECT drift.store_adapter('wide', 'narrow', %s, %s, %s, %s)"
    assert conn.execute(query, arguments).fetchone() == (copied,)
    drift_pg.drop_adapter(conn, copied)
    stored = conn.execute(query, arguments).fetchone()[0]
    assert drift_pg.load_by_id(conn, stored).checksum == adapter.checksum
    conn.execute("DELETE FROM drift.adapter")
    with pytest.raises(psycopg.Error, match="not those of its checksum"):
        conn.execute(query, [arguments[0], weights[:-1], *arguments[2:]])
