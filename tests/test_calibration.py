"""What a bridge's score says of the new model's: the line, its margin, where it is kept, and when there is none."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import psycopg
import pytest

import drift_pg
from drift_pg import Pairs, errors
from drift_pg.adapter import Adapter
from drift_pg.evaluation.calibration import MINIMUM, best_margin, calibrate
from drift_pg.evaluation.mixed import merged, scores
from drift_pg.neighbours import METRICS, largest
from tests.tables import Upgrade, linear, rotation


@pytest.mark.parametrize("metric", METRICS)
def test_an_exact_adapter_is_calibrated_by_the_identity(metric: str, rng: np.random.Generator) -> None:
    matrix = rotation(rng, 16)
    new = rng.standard_normal((300, 16)).astype(np.float32)
    new /= np.linalg.norm(new, axis=1, keepdims=True)
    legacy = new @ matrix
    if metric == "l1":  # no rotation keeps it, so the adapter is the identity
        matrix, legacy = np.eye(16), new
    line = calibrate(linear(matrix), Pairs(new, legacy), metric)
    assert (line.slope, line.intercept) == pytest.approx((1, 0), abs=1e-3)
    assert line.residual < 1e-3


def overlap(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found, wanted, strict=True)]))


def test_mixed_search_does_not_dip_on_real_text(pydocs: dict[str, np.ndarray]) -> None:
    new, legacy = pydocs["documents_minilm_l6"], pydocs["documents_minilm_l3"]
    adapter = drift_pg.fit(Pairs(new[:4000], legacy[:4000]), family="spectral")
    line = calibrate(adapter, Pairs(new[4000:5000], legacy[4000:5000]))
    items, queries = slice(5000, 9000), pydocs["queries_minilm_l6"][:200]
    exact = scores("cosine", queries, new[items])
    bridge = scores("cosine", adapter.apply(queries), legacy[items])
    candidates, wanted = largest(bridge, 200), largest(exact, 10)
    expected = line.expected(np.take_along_axis(bridge, candidates, 1))
    order = np.random.default_rng(0).permutation(exact.shape[1])
    curve = []
    for share in (0, 0.05, 0.25, 0.5, 1):
        known = np.zeros(exact.shape[1], bool)
        known[order[: int(share * len(order))]] = True
        curve.append(overlap(merged(exact, candidates, expected, known, 10), wanted))
    assert curve[0] == overlap(largest(bridge, 10), wanted)
    assert all(later > earlier - 0.01 for earlier, later in pairwise(curve))
    assert curve[3] > curve[0] + 0.1
    assert curve[-1] == 1


def test_the_usual_margin_stays_unless_another_is_surely_better() -> None:
    level = np.full(7, 0.5)
    assert best_margin({0.0: level, 0.5: level, 1.0: level + 0.001}) == 0.5
    assert best_margin({0.0: level, 0.5: level, 1.0: level + 0.1}) == 1.0


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        (lambda new, legacy: Pairs(new[: MINIMUM - 1], legacy[: MINIMUM - 1]), "too few"),
        (lambda new, legacy: Pairs(new, np.random.default_rng(3).permutation(legacy)), "slope"),
    ],
)
def test_what_has_no_line_says_so(pairs, says: str, rng: np.random.Generator) -> None:
    matrix = rotation(rng, 16)
    new = rng.standard_normal((200, 16)).astype(np.float32)
    given = pairs(new, (new @ matrix).astype(np.float32))
    with pytest.raises(errors.NotCalibrated, match=says):
        calibrate(linear(matrix), given)
    evaluation = drift_pg.evaluate(linear(matrix), given)
    assert "cosine" not in evaluation.calibration
    assert any("Mixed search (rerank) is refused" in finding for finding in evaluation.findings)


def test_an_evaluation_calibrates_and_its_file_carries_that(
    conn: psycopg.Connection, rng: np.random.Generator, tmp_path: Path
) -> None:
    upgrade = Upgrade(conn, rng)
    figures = drift_pg.evaluate(linear(upgrade.matrix), Pairs(upgrade.new, upgrade.legacy)).as_dict()
    drift_pg.store_evaluation(conn, upgrade.adapter, figures)
    query = (
        "SELECT slope, intercept, residual, margin FROM drift.calibration WHERE adapter_id = %s AND metric = 'cosine'"
    )
    stored = conn.execute(query, [upgrade.adapter]).fetchone()
    assert stored == tuple(figures["calibration"]["cosine"].values())
    drift_pg.export(conn, upgrade.adapter, tmp_path / "adapter.safetensors")
    again = drift_pg.store(conn, Adapter.load(tmp_path / "adapter.safetensors"), source="new", target="legacy")
    assert conn.execute(query, [again]).fetchone() == stored
