"""The quality gate: what may serve, what force leaves behind, and where evaluations are kept."""

import numpy as np
import psycopg
import pytest

import drift_pg
from drift_pg import Pairs, errors
from drift_pg.database.connection import one
from drift_pg.evaluation import Evaluation
from drift_pg.gate import DEFAULT_MINIMUM
from tests.tables import Upgrade, linear, rotation


@pytest.fixture
def upgrade(conn: psycopg.Connection, rng: np.random.Generator) -> Upgrade:
    return Upgrade(conn, rng)


def evaluation(upgrade: Upgrade, *, shuffled: bool = False) -> Evaluation:
    """Of the upgrade's adapter, which is exact, on right pairs or on pairs in disorder."""
    source = np.random.default_rng(0).permutation(upgrade.new) if shuffled else upgrade.new
    return drift_pg.evaluate(linear(upgrade.matrix), Pairs(source, upgrade.legacy))


def store(upgrade: Upgrade, **how: bool) -> int:
    return drift_pg.store_evaluation(upgrade.conn, upgrade.adapter, evaluation(upgrade, **how).as_dict())


def serving(conn: psycopg.Connection) -> list[int]:
    return [row[0] for row in conn.execute("SELECT id FROM drift.adapters WHERE status = 'active'")]


def activations(conn: psycopg.Connection) -> list[dict]:
    return [row[0] for row in conn.execute("SELECT details FROM drift.event WHERE action = 'activate' ORDER BY id")]


def test_what_was_not_evaluated_does_not_serve(upgrade: Upgrade) -> None:
    with pytest.raises(errors.NotEvaluated, match="adapter 1 is not activated: it has not been evaluated") as refused:
        drift_pg.activate(upgrade.conn, upgrade.adapter)
    assert refused.value.sqlstate == "VD023"
    assert "drift-pg evaluate 1 --test-pairs FILE" in refused.value.hint
    assert "--force" in refused.value.hint
    assert serving(upgrade.conn) == []


def test_what_passes_serves(upgrade: Upgrade) -> None:
    store(upgrade)
    drift_pg.activate(upgrade.conn, upgrade.adapter)
    assert serving(upgrade.conn) == [1]
    assert "forced" not in activations(upgrade.conn)[0]


def test_shuffled_pairs_are_refused(upgrade: Upgrade) -> None:
    store(upgrade, shuffled=True)
    with pytest.raises(
        errors.BelowMinimum, match=r"score is 0\.\d+, at least 0\.\d+ .* the minimum is 0\.8"
    ) as refused:
        drift_pg.activate(upgrade.conn, upgrade.adapter)
    assert refused.value.sqlstate == "VD024"
    assert "500 items" in refused.value.detail
    assert "re-embed before switching" in refused.value.detail
    assert "--force" in refused.value.hint
    assert serving(upgrade.conn) == []


def test_plain_sql_has_the_same_gate(upgrade: Upgrade) -> None:
    store(upgrade, shuffled=True)
    with pytest.raises(psycopg.Error, match=r"the minimum is 0\.800") as refused:
        upgrade.conn.execute("SELECT drift.activate(1)")
    assert refused.value.sqlstate == "VD024"
    upgrade.conn.execute("SELECT drift.activate(1, force => true)")
    assert serving(upgrade.conn) == [1]


@pytest.mark.parametrize("shuffled", [True, None])
def test_force_leaves_what_it_overrode(upgrade: Upgrade, shuffled: bool | None) -> None:
    if shuffled:
        store(upgrade, shuffled=True)
    drift_pg.activate(upgrade.conn, upgrade.adapter, force=True)
    (event,) = activations(upgrade.conn)
    assert event["forced"] is True
    assert ("its score is" if shuffled else "has not been evaluated") in event["overridden"]


def test_force_that_was_not_needed_is_no_override(upgrade: Upgrade) -> None:
    store(upgrade)
    drift_pg.activate(upgrade.conn, upgrade.adapter, force=True)
    assert "forced" not in activations(upgrade.conn)[0]


def test_force_does_not_make_a_broken_adapter_serve(upgrade: Upgrade) -> None:
    upgrade.conn.execute("UPDATE drift.adapter SET checksum = sha256('x')")
    with pytest.raises(errors.VerificationFailed):
        drift_pg.activate(upgrade.conn, upgrade.adapter, force=True)


def test_the_latest_evaluation_counts(upgrade: Upgrade) -> None:
    assert drift_pg.latest_evaluation(upgrade.conn, upgrade.adapter) is None
    store(upgrade)
    store(upgrade, shuffled=True)
    with pytest.raises(errors.BelowMinimum):
        drift_pg.activate(upgrade.conn, upgrade.adapter)
    stored = store(upgrade)
    latest = drift_pg.latest_evaluation(upgrade.conn, upgrade.adapter)
    assert (latest.id, latest.adapter_id, latest.score, latest.items) == (stored, 1, 1.0, 500)
    assert latest.figures == evaluation(upgrade).as_dict()
    drift_pg.activate(upgrade.conn, upgrade.adapter)


def test_the_minimum_is_the_callers(upgrade: Upgrade) -> None:
    figures = evaluation(upgrade).as_dict() | {"score": {"value": 0.5, "low": 0.45, "high": 0.55}}
    drift_pg.store_evaluation(upgrade.conn, upgrade.adapter, figures)
    with pytest.raises(errors.BelowMinimum, match=r"score is 0\.500, at least 0\.450 .* minimum is 0\.460"):
        drift_pg.activate(upgrade.conn, upgrade.adapter, minimum=0.46)
    with pytest.raises(errors.InvalidDefinition, match=r"minimum is 1\.5, expected 0 to 1"):
        drift_pg.activate(upgrade.conn, upgrade.adapter, minimum=1.5)
    with pytest.raises(errors.InvalidDefinition):
        drift_pg.activate(upgrade.conn, upgrade.adapter, minimum=float("nan"))
    drift_pg.activate(upgrade.conn, upgrade.adapter, minimum=0.44)


def test_sql_and_python_have_the_same_default(upgrade: Upgrade) -> None:
    row = one(upgrade.conn, "SELECT pg_get_function_arguments('drift.activate'::regproc) AS text")
    assert f"minimum real DEFAULT {DEFAULT_MINIMUM}" in row.text


def test_the_way_back_is_open(upgrade: Upgrade, rng: np.random.Generator) -> None:
    conn = upgrade.conn
    store(upgrade)
    drift_pg.activate(conn, upgrade.adapter)
    second = drift_pg.store(conn, linear(rotation(rng, 24)), source="new", target="legacy")
    drift_pg.activate(conn, second, force=True)
    store(upgrade, shuffled=True)  # whatever is measured since
    drift_pg.activate(conn, upgrade.adapter)
    assert serving(conn) == [1]
    drift_pg.activate(conn, second)
    drift_pg.deactivate(conn, source="new", target="legacy")
    drift_pg.activate(conn, second)
    assert serving(conn) == [second]
    assert [event.get("forced") for event in activations(conn)] == [None, True, None, None, None]


def test_people_see_the_evaluation(upgrade: Upgrade) -> None:
    row = one(upgrade.conn, "SELECT score, score_low, advice FROM drift.adapters")
    assert row == (None, None, None)
    store(upgrade)
    row = one(upgrade.conn, "SELECT score, score_low, advice FROM drift.adapters")
    assert row == (1.0, 1.0, "bridge")
    event = one(upgrade.conn, "SELECT subject, details FROM drift.event WHERE action = 'evaluate'")
    assert event.subject == "1"
    assert event.details == {"evaluation": 1, "score": 1.0, "low": 1.0, "high": 1.0, "items": 500, "advice": "bridge"}


def test_what_is_no_evaluation_is_not_stored(upgrade: Upgrade) -> None:
    with pytest.raises(errors.InvalidInput, match=r"lacks score\.value"):
        drift_pg.store_evaluation(upgrade.conn, upgrade.adapter, {})
    with pytest.raises(errors.UnknownAdapter, match="no adapter 9"):
        drift_pg.store_evaluation(upgrade.conn, 9, evaluation(upgrade).as_dict())
    assert one(upgrade.conn, "SELECT count(*) AS n FROM drift.evaluation").n == 0


def test_an_evaluation_goes_with_its_adapter(upgrade: Upgrade) -> None:
    store(upgrade)
    drift_pg.drop_adapter(upgrade.conn, upgrade.adapter)
    assert one(upgrade.conn, "SELECT count(*) AS n FROM drift.evaluation").n == 0


def test_an_old_activate_does_not_stay_behind(conn: psycopg.Connection) -> None:
    drift_pg.downgrade(conn, to="0002")
    conn.execute("CREATE FUNCTION drift.activate(adapter bigint) RETURNS void LANGUAGE sql AS ''")
    drift_pg.upgrade(conn)
    found = conn.execute("SELECT oid::regprocedure::text FROM pg_proc WHERE proname = 'activate'").fetchall()
    assert found == [("drift.activate(bigint,boolean,real)",)]


def test_who_could_see_adapters_before_the_upgrade_still_can(conn: psycopg.Connection) -> None:
    drift_pg.downgrade(conn, to="0002")
    conn.execute("GRANT SELECT ON drift.adapter TO PUBLIC")
    drift_pg.upgrade(conn)
    granted = one(conn, "SELECT has_table_privilege('pg_monitor', 'drift.evaluation', 'SELECT') AS reads")
    assert granted.reads
    assert not one(conn, "SELECT has_table_privilege('pg_monitor', 'drift.evaluation', 'INSERT') AS writes").writes
