"""Families that train: the ranking loss, mixtures, and auto, which compares. Mechanics on drawn vectors, quality on real ones."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from drift_pg import Adapter, Pairs, fit
from drift_pg.errors import InvalidInput, InvalidVector, TooFewPairs, WrongDimensions
from drift_pg.families import auto, ranking
from drift_pg.families.mixture import k_means
from drift_pg.families.ranking import LEAST_PAIRS, Division, Routing, Schedule, expert_choice
from tests.test_families import real_pairs, retention

pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::drift_pg.families.SmallSample")
briefly = pytest.mark.usefixtures("few_steps")

RANKED: list[tuple[str, dict[str, Any]]] = [
    ("procrustes", {"objective": "ranking"}),
    ("ridge", {"objective": "ranking"}),
    ("low_rank", {"objective": "ranking", "rank": 4}),
    ("spectral", {"objective": "ranking"}),
    ("mlp", {"objective": "ranking", "hidden": 8, "epochs": 2}),
    ("mixture", {"experts": 3}),
    ("mixture", {"experts": 3, "routing": "expert_choice", "budget": (2, 1, 1)}),
]


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training of a few steps, kept whether or not it helps: mechanics do not need more."""
    monkeypatch.setattr("drift_pg.families.ranking._better", lambda start, trained, division: trained)
    for module in ("base", "mixture"):
        monkeypatch.setattr(f"drift_pg.families.{module}.Schedule", lambda: Schedule(steps=6, settled=3))


@pytest.fixture
def fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the training, which reaches nearly all of its quality: docs/quality.md measures the whole."""
    monkeypatch.setattr("drift_pg.families.mixture.Schedule", lambda: Schedule(steps=80, settled=40))


def some_pairs(rng: np.random.Generator, n: int = 400, m: int = 12, k: int = 8, scale: float = 1) -> Pairs:
    x = rng.standard_normal((n, m))
    y = np.tanh(x @ rng.standard_normal((m, k)))
    return Pairs(scale * x, scale * y)


@briefly
@pytest.mark.parametrize(("family", "options"), RANKED)
def test_the_ranking_loss_trains_the_same_under_the_same_seed_only(
    family: str, options: dict[str, Any], rng: np.random.Generator
) -> None:
    pairs = some_pairs(rng)
    first, again, other = (fit(pairs, family, seed=seed, force=True, **options) for seed in (1, 1, 2))
    assert first.checksum == again.checksum
    assert first.checksum != other.checksum
    assert np.isfinite(first.apply(pairs.source)).all()


@briefly
@pytest.mark.parametrize("scale", [1, 100])
@pytest.mark.parametrize(("family", "options"), RANKED)
def test_training_takes_pairs_of_any_length_and_dimensions(
    family: str, options: dict[str, Any], scale: float, rng: np.random.Generator
) -> None:
    adapter = fit(some_pairs(rng, m=6, k=9, scale=scale), family, force=True, **options)
    assert (adapter.source_dimensions, adapter.target_dimensions) == (6, 9)


@pytest.mark.parametrize(("family", "options"), RANKED)
def test_the_ranking_loss_refuses_pairs_that_it_would_learn_by_heart(
    family: str, options: dict[str, Any], rng: np.random.Generator
) -> None:
    with pytest.raises(TooFewPairs, match=f"399 pairs.*below {LEAST_PAIRS:,}"):
        fit(some_pairs(rng, 399), family, **options)


def test_a_spent_budget_stops_training_at_once(rng: np.random.Generator) -> None:
    began = time.perf_counter()
    adapter = fit(some_pairs(rng), "mixture", force=True, seconds=0)
    assert adapter.details["steps"] == 0
    assert time.perf_counter() - began < 20


@briefly
def test_progress_is_told_after_each_step(rng: np.random.Generator) -> None:
    told: list[tuple[int, int]] = []
    fit(some_pairs(rng), "spectral", objective="ranking", force=True, progress=lambda *step: told.append(step))
    done, total = told[-1]
    assert done == total == len(told)


@briefly
def test_a_query_log_changes_what_is_learnt(rng: np.random.Generator) -> None:
    pairs, log = some_pairs(rng), rng.standard_normal((50, 12))
    without, using = (fit(pairs, "mixture", force=True, query_log=given) for given in (None, log))
    assert without.checksum != using.checksum
    assert (without.details["queries"], using.details["queries"]) == (0, 50)


def test_training_that_does_not_help_is_not_kept(rng: np.random.Generator) -> None:
    division = Division.of(some_pairs(rng), seed=0)
    good, bad = fit(division.rest, "ridge"), fit(some_pairs(rng), "ridge")
    assert ranking._better(good, bad, division) is good
    assert ranking._better(bad, good, division) is good


def test_what_stops_or_judges_training_is_not_trained_on(rng: np.random.Generator) -> None:
    pairs = some_pairs(rng)
    division = Division.of(pairs, seed=0)
    assert len(division.rest) + len(division.held) == len(pairs)
    assert not np.isin(pairs.source[division.held, 0], division.rest.source[:, 0]).any()


@pytest.mark.parametrize(
    ("log", "error"),
    [
        (np.ones((3, 5)), WrongDimensions),
        (np.ones(12), WrongDimensions),
        (np.full((3, 12), np.nan), InvalidVector),
        (np.zeros((3, 12)), InvalidVector),
    ],
)
def test_a_query_log_of_another_kind_is_refused(log: Any, error: type[Exception], rng: np.random.Generator) -> None:
    with pytest.raises(error, match="query log"):
        fit(some_pairs(rng), "mixture", force=True, query_log=log)


@pytest.mark.parametrize("family", ["spectral", "procrustes", "ridge"])
def test_a_family_that_does_not_train_refuses_a_query_log(family: str, rng: np.random.Generator) -> None:
    with pytest.raises(InvalidInput, match="no use of a query log"):
        fit(some_pairs(rng), family, query_log=np.ones((3, 12)))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"experts": 0}, "experts is 0"),
        ({"experts": 65}, "experts is 65, it must be 1 to 40"),
        ({"tie": 2}, "tie is 2"),
        ({"routing": "random"}, "'random'; known: kmeans, expert_choice"),
        ({"budget": (1, 2)}, "budget is"),
        ({"budget": (1, 1, 1, 0)}, "budget is"),
    ],
)
def test_options_of_a_mixture_are_checked(options: dict[str, Any], match: str, rng: np.random.Generator) -> None:
    with pytest.raises(InvalidInput, match=match):
        fit(some_pairs(rng), "mixture", force=True, **options)


def test_an_unknown_objective_is_refused(rng: np.random.Generator) -> None:
    with pytest.raises(InvalidInput, match="'cosine'; known: regression, ranking"):
        fit(some_pairs(rng), "spectral", objective="cosine")


@briefly
def test_a_mixture_is_a_route_layer_and_a_layer_for_each_expert(rng: np.random.Generator) -> None:
    adapter = fit(some_pairs(rng), "mixture", force=True, experts=3)
    assert [layer.is_route for layer in adapter.layers] == [True, False, False, False]
    assert [layer.expert for layer in adapter.layers[1:]] == [0, 1, 2]
    assert adapter.multiply_adds == 3 * 13 + 8 * 13


def test_k_means_finds_separate_clusters(rng: np.random.Generator) -> None:
    wanted = np.array([[0, 0], [10, 0], [0, 10], [10, 10]], np.float32)
    items = np.repeat(wanted, 50, axis=0) + 0.1 * rng.standard_normal((200, 2)).astype(np.float32)
    found = k_means(items, 4, seed=0)
    assert np.allclose(found[np.lexsort(found.round().T)], wanted[np.lexsort(wanted.T)], atol=0.1)


def test_k_means_of_equal_items_ends(rng: np.random.Generator) -> None:
    assert np.isfinite(k_means(np.ones((20, 3), np.float32), 4, seed=0)).all()


# Expert choice


def test_experts_take_the_items_that_score_highest_and_leave_none() -> None:
    scores = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]], np.float32)
    assert expert_choice(scores, np.array([4, 4])).tolist() == [0, 0, 0, 1]
    assert expert_choice(scores, np.array([2, 2])).tolist() == [0, 0, 1, 1]


def test_no_item_is_left_out_and_no_expert_takes_more_than_its_capacity(rng: np.random.Generator) -> None:
    for budget in [(1, 1, 1), (5, 1, 1), (0.2, 0.3, 0.5)]:
        scores = rng.random((101, 3)).astype(np.float32)
        capacities = Routing(budget, slack=1.0).capacities(101)
        taken = np.bincount(expert_choice(scores, capacities), minlength=3)
        assert taken.sum() == 101
        assert (taken <= capacities).all()


@pytest.mark.usefixtures("fewer_steps")
def test_learnt_routing_serves_what_it_trained(pydocs: dict[str, np.ndarray]) -> None:
    adapter = fit(real_pairs(pydocs, "minilm_l3"), "mixture", routing="expert_choice")
    assert adapter.details["agreement"] >= 0.96


# auto


@briefly
def test_auto_compares_on_a_validation_part_and_says_so(rng: np.random.Generator) -> None:
    adapter = fit(some_pairs(rng), force=True)
    table = adapter.details["candidates"]
    assert [row["name"] for row in table] == ["procrustes", "spectral", "spectral · ranking", "mixture"]
    assert [row["name"] for row in table if row["chosen"]] == [adapter.details["chosen"]]
    assert all(0 <= row[measure] <= 1 for row in table for measure in ("self_retrieval", "first_kept", "overlap"))
    assert adapter.family == "auto"


@pytest.mark.parametrize(("dimensions", "experts"), [(384, 8), (1536, 4), (2048, 2)])
def test_auto_trains_fewer_experts_of_more_dimensions(dimensions: int, experts: int) -> None:
    pairs = Pairs(np.ones((2, dimensions)), np.ones((2, dimensions)))
    assert auto._trained(pairs)["mixture"].experts == experts


def test_auto_trains_no_mixture_of_very_many_dimensions() -> None:
    assert list(auto._trained(Pairs(np.ones((2, 3072)), np.ones((2, 3072))))) == ["spectral · ranking"]


@pytest.mark.parametrize("n", [auto.LEAST_COMPARED, LEAST_PAIRS - 1])
def test_auto_trains_nothing_on_few_pairs(n: int, rng: np.random.Generator) -> None:
    adapter = fit(some_pairs(rng, n))
    assert {row["name"] for row in adapter.details["candidates"]} == {"procrustes", "spectral"}


@pytest.mark.parametrize("n", [2, 3, auto.LEAST_COMPARED - 1])
def test_auto_compares_nothing_on_a_handful_of_pairs(n: int, rng: np.random.Generator) -> None:
    pairs = some_pairs(rng, n)
    assert fit(pairs).checksum == fit(pairs, "procrustes").checksum


@briefly
def test_auto_does_without_torch(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "find_spec", lambda name: None)
    assert len(fit(some_pairs(rng, LEAST_PAIRS)).details["candidates"]) == 2


def measured(scores: list[float], multiply_adds: int) -> auto.Measured:
    values = np.asarray(scores)
    return auto.Measured(auto.Agreement(values, values, values), multiply_adds, 0, 0.0)


def test_a_costlier_candidate_must_be_better_beyond_chance() -> None:
    noise = np.random.default_rng(0).random(200) / 2
    cheap, same = measured(noise.tolist(), 100), measured((noise + 0.001).tolist(), 104)
    assert auto._choose({"cheap": cheap, "same cost": same}) == "same cost"
    luck = noise + np.where(np.arange(200) % 2, 0.3, -0.29)
    assert auto._choose({"cheap": cheap, "dear": measured(luck.tolist(), 200)}) == "cheap"
    assert auto._choose({"cheap": cheap, "dear": measured((noise + 0.1).tolist(), 200)}) == "dear"


# Real embeddings


@pytest.mark.usefixtures("fewer_steps")
def test_a_trained_mixture_retains_more_than_any_closed_form_on_real_text(pydocs: dict[str, np.ndarray]) -> None:
    pairs = real_pairs(pydocs, "minilm_l3")
    trained: Adapter = fit(pairs, "mixture")
    assert retention(trained, pydocs, "minilm_l3") > retention(fit(pairs, "spectral"), pydocs, "minilm_l3") + 0.04
