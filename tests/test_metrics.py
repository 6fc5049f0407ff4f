"""Metrics against values computed by hand."""

import numpy as np
import pytest

from drift_pg.errors import InvalidInput
from drift_pg.evaluation.metrics import bootstrap_interval, overlap_at, recall_at, reciprocal_rank

FOUND = np.array([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]])
RELEVANT = np.array([1, 7, 13])  # first, third, not found


def test_recall_counts_the_first_k() -> None:
    assert recall_at(FOUND, RELEVANT, 1).tolist() == [1, 0, 0]
    assert recall_at(FOUND, RELEVANT, 2).tolist() == [1, 0, 0]
    assert recall_at(FOUND, RELEVANT, 3).tolist() == [1, 1, 0]
    assert recall_at(FOUND, RELEVANT, 10).tolist() == [1, 1, 0]


def test_reciprocal_rank_is_zero_beyond_k() -> None:
    assert reciprocal_rank(FOUND, RELEVANT, 4).tolist() == [1, pytest.approx(1 / 3), 0]
    assert reciprocal_rank(FOUND, RELEVANT, 2).tolist() == [1, 0, 0]
    assert reciprocal_rank([[3, 7], [7, 3]], [7, 7], 10).tolist() == [0.5, 1]


def test_keys_may_be_text() -> None:
    assert recall_at([["a", "b"], ["c", "d"]], ["b", "x"], 2).tolist() == [1, 0]


def test_overlap_ignores_order_and_what_is_below_k() -> None:
    found = [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]]
    reference = [[4, 3, 2, 1], [1, 9, 2, 8], [5, 6, 7, 8]]
    assert overlap_at(found, reference, 4).tolist() == [1, 0.5, 0]
    assert overlap_at(found, reference, 2).tolist() == [0, 0.5, 0]
    assert overlap_at([[1, 2, 3]], [[3]], 3).tolist() == [1]
    assert overlap_at([[3]], [[1, 2, 3]], 3).tolist() == [pytest.approx(1 / 3)]


def test_interval_of_a_constant_is_that_constant() -> None:
    assert bootstrap_interval(np.full(50, 0.25)) == (0.25, 0.25)
    assert bootstrap_interval([1.0]) == (1, 1)


def test_interval_of_a_share_is_close_to_the_normal_one() -> None:
    values = np.repeat([0.0, 1.0], [60, 40])  # mean .4, standard error sqrt(.4 * .6 / 100) = .049
    low, high = bootstrap_interval(values, draws=20_000)
    assert low == pytest.approx(0.4 - 1.96 * 0.049, abs=0.011)
    assert high == pytest.approx(0.4 + 1.96 * 0.049, abs=0.011)


def test_interval_agrees_with_resampling_the_queries_one_by_one(rng: np.random.Generator) -> None:
    values = rng.random(200)
    means = values[rng.integers(0, 200, (20_000, 200))].mean(axis=1)
    assert bootstrap_interval(values, draws=20_000) == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.003)


def test_interval_narrows_with_level_and_repeats_with_its_seed(rng: np.random.Generator) -> None:
    values = rng.random(100)
    wide, narrow = bootstrap_interval(values), bootstrap_interval(values, level=0.5)
    assert wide[0] < narrow[0] < values.mean() < narrow[1] < wide[1]
    assert wide == bootstrap_interval(values)
    assert wide != bootstrap_interval(values, seed=1)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: recall_at([1, 2], [1, 2], 1), r"found has shape \(2,\)"),
        (lambda: recall_at(FOUND, [1, 2], 1), r"relevant has shape \(2,\), expected \(3,\)"),
        (lambda: reciprocal_rank(FOUND, RELEVANT, 0), "k is 0"),
        (lambda: overlap_at(FOUND, [[1]], 1), "found has 3 queries, reference 1"),
        (lambda: overlap_at(FOUND, np.empty((3, 0)), 1), r"reference has shape \(3, 0\)"),
        (lambda: bootstrap_interval([]), r"values have shape \(0,\)"),
        (lambda: bootstrap_interval([0.1, np.nan]), "finite"),
        (lambda: bootstrap_interval([0.1], level=1), "level is 1"),
    ],
)
def test_bad_input_is_named(call: object, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        call()  # type: ignore[operator]
