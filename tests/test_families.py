"""Families recover known maps, refuse bad options, survive poor pairs, and reach their measured quality."""

import json
import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from drift_pg import Adapter, Pairs, fit
from drift_pg.errors import DriftError, InvalidInput
from drift_pg.families import FAMILIES, Procrustes, SmallSample

pytestmark = pytest.mark.filterwarnings("ignore::drift_pg.families.SmallSample")
Array = NDArray[np.floating[Any]]


def unit(x: Array) -> Array:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def orthonormal(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """A matrix whose shorter side is orthonormal."""
    tall = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))[0]
    return tall if rows >= columns else tall.T


def isotropic(rng: np.random.Generator, n: int, dimensions: int) -> Array:
    """Rows with a mean of zero and a covariance of exactly 1."""
    x = rng.standard_normal((n, dimensions))
    return np.linalg.qr(x - x.mean(axis=0))[0] * np.sqrt(n)


def anisotropic(rng: np.random.Generator, n: int, dimensions: int) -> Array:
    """Rows spread unevenly around a mean far from zero, as text embeddings are."""
    return rng.standard_normal((n, dimensions)) * np.linspace(0.5, 2, dimensions) + 1


def assert_recovers(adapter: Adapter, x: Array, y: Array, tolerance: float = 1e-4) -> None:
    np.testing.assert_allclose(adapter.apply(x), y, atol=tolerance * np.abs(y).max())


# Known maps


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize(("source", "target"), [(8, 8), (6, 10), (1, 1), (1, 4)])
def test_procrustes_recovers_a_rotation(source: int, target: int, *, centre: bool, rng: np.random.Generator) -> None:
    rotation, x = orthonormal(rng, source, target), unit(anisotropic(rng, 200, source))
    adapter = fit(Pairs(x, x @ rotation), "procrustes", centre=centre)
    unseen = unit(rng.standard_normal((20, source)))
    if source > 1:  # around its mean, a single unit dimension has nothing to fit
        assert_recovers(adapter, unseen, unseen @ rotation)
    assert adapter.normalize_input
    assert adapter.layers[0].normalize


@pytest.mark.parametrize("centre", [True, False])
def test_procrustes_recovers_a_projection_of_an_isotropic_space(*, centre: bool, rng: np.random.Generator) -> None:
    projection, x = orthonormal(rng, 10, 6), isotropic(rng, 200, 10)
    adapter = fit(Pairs(x, x @ projection), "procrustes", centre=centre)
    unseen = rng.standard_normal((20, 10))
    assert_recovers(adapter, unseen, unseen @ projection)


def test_centred_procrustes_recovers_a_rotation_and_a_shift(rng: np.random.Generator) -> None:
    rotation, shift, x = orthonormal(rng, 7, 7), rng.standard_normal(7), anisotropic(rng, 200, 7)
    pairs = Pairs(x, x @ rotation + shift)
    assert_recovers(fit(pairs, "procrustes"), x, x @ rotation + shift)
    with pytest.raises(AssertionError):
        assert_recovers(fit(pairs, "procrustes", centre=False), x, x @ rotation + shift)


def test_the_matrix_of_procrustes_is_orthogonal(rng: np.random.Generator) -> None:
    for source, target in [(7, 7), (5, 9), (9, 5)]:
        pairs = Pairs(rng.standard_normal((100, source)), rng.standard_normal((100, target)))
        matrix = fit(pairs, "procrustes").layers[0].matrix
        product = matrix @ matrix.T if source <= target else matrix.T @ matrix
        np.testing.assert_allclose(product, np.eye(min(source, target)), atol=1e-5)


def test_diagonal_scaling_recovers_the_scale_of_each_dimension(rng: np.random.Generator) -> None:
    rotation, x = orthonormal(rng, 6, 6), isotropic(rng, 300, 6)
    scales = np.array([0.2, 0.5, 1, 2, 3, 5])
    pairs = Pairs(x, x @ rotation * scales)
    adapter = fit(pairs, "procrustes", diagonal_scaling=True)
    assert_recovers(adapter, x, pairs.target)
    np.testing.assert_allclose(np.linalg.norm(adapter.layers[0].matrix, axis=0), scales, rtol=1e-4)
    assert len(adapter.layers) == 1


@pytest.mark.parametrize(("source", "target"), [(6, 6), (5, 9), (9, 5)])
def test_ridge_recovers_an_affine_map(source: int, target: int, rng: np.random.Generator) -> None:
    matrix, shift = rng.standard_normal((source, target)), rng.standard_normal(target)
    x, unseen = anisotropic(rng, 300, source), rng.standard_normal((20, source))
    adapter = fit(Pairs(x, x @ matrix + shift), "ridge", penalty=1e-8)
    assert_recovers(adapter, unseen, unseen @ matrix + shift)


def test_ridge_shrinks_as_the_penalty_grows(rng: np.random.Generator) -> None:
    pairs = Pairs(rng.standard_normal((100, 4)), rng.standard_normal((100, 4)))
    sizes = [np.linalg.norm(fit(pairs, "ridge", penalty=p).layers[0].matrix) for p in (1e-3, 1, 1e3)]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(("source", "target"), [(8, 8), (6, 10), (10, 6)])
def test_low_rank_recovers_a_map_of_its_rank(source: int, target: int, rng: np.random.Generator) -> None:
    matrix = rng.standard_normal((source, 3)) @ rng.standard_normal((3, target))
    x, shift = anisotropic(rng, 300, source), rng.standard_normal(target)
    adapter = fit(Pairs(x, x @ matrix + shift), "low_rank", rank=3, penalty=1e-8)
    unseen = rng.standard_normal((20, source))
    assert_recovers(adapter, unseen, unseen @ matrix + shift, 1e-3)
    assert [layer.outputs for layer in adapter.layers] == [3, target]


def test_low_rank_with_diagonal_scaling_is_no_worse(rng: np.random.Generator) -> None:
    pairs = Pairs(x := anisotropic(rng, 300, 8), x @ rng.standard_normal((8, 8)))
    plain, scaled = (
        np.square(fit(pairs, "low_rank", rank=2, diagonal_scaling=scaling).apply(pairs.source) - pairs.target).mean()
        for scaling in (False, True)
    )
    assert scaled <= plain * (1 + 1e-5)


def test_a_rank_above_the_dimensions_is_the_full_map(rng: np.random.Generator) -> None:
    x = anisotropic(rng, 100, 5)
    adapter = fit(Pairs(x, x @ rng.standard_normal((5, 4))), "low_rank", rank=64)
    assert adapter.layers[0].outputs == 4


def curved(rng: np.random.Generator, n: int) -> Pairs:
    """A rotation with a bend that no linear map follows."""
    x = rng.standard_normal((n, 4))
    return Pairs(x, x @ orthonormal(rng, 4, 4) + np.sin(2 * x))


MLP: dict[str, Any] = {"hidden": 32, "epochs": 15, "batch": 64, "learning_rate": 3e-2}


@pytest.mark.parametrize("diagonal_scaling", [False, True])
def test_mlp_beats_its_own_skip_on_a_nonlinear_map(*, diagonal_scaling: bool, rng: np.random.Generator) -> None:
    pytest.importorskip("torch")
    train, test = curved(rng, 600).split((0.8, 0.2))
    options = MLP | {"diagonal_scaling": diagonal_scaling}
    skip, mlp = (
        np.square(adapter.apply(test.source) - test.target).mean()
        for adapter in (fit(train, "procrustes"), fit(train, "mlp", **options))
    )
    assert mlp < skip / 2


def test_mlp_trains_the_same_under_the_same_seed_only(rng: np.random.Generator) -> None:
    pytest.importorskip("torch")
    pairs, options = curved(rng, 100), MLP | {"epochs": 3}
    first, again, other = (fit(pairs, "mlp", seed=seed, **options).checksum for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_mlp_compiles_to_two_layers_between_spaces_of_any_dimensions(rng: np.random.Generator) -> None:
    pytest.importorskip("torch")
    pairs = Pairs(unit(rng.standard_normal((60, 7))), unit(rng.standard_normal((60, 3))))
    adapter = fit(pairs, "mlp", hidden=5, epochs=2)
    assert [(layer.inputs, layer.outputs) for layer in adapter.layers] == [(7, 5), (12, 3)]
    assert adapter.layers[1].takes_input
    assert adapter.layers[1].normalize


def test_mlp_trains_on_read_only_arrays(rng: np.random.Generator) -> None:
    pytest.importorskip("torch")
    arrays = [rng.standard_normal((20, 3)).astype(np.float32) for _ in range(2)]
    for array in arrays:
        array.flags.writeable = False
    assert fit(Pairs(*arrays), "mlp", hidden=2, epochs=1).target_dimensions == 3


# What fit says and refuses


def test_fit_records_how_it_fitted(rng: np.random.Generator) -> None:
    pairs = Pairs(rng.standard_normal((50, 4)), rng.standard_normal((50, 3)))
    adapter = fit(pairs, "ridge", seed=3, penalty=0.5)
    assert adapter.family == "ridge"
    assert {**adapter.details, "seconds": 0} == {
        "options": {"objective": "regression", "penalty": 0.5},
        "pairs": 50,
        "queries": 0,
        "seconds": 0,
        "seed": 3,
    }
    assert adapter.details["seconds"] >= 0
    json.dumps(adapter.details)


def test_procrustes_centres_by_default(rng: np.random.Generator) -> None:
    adapter = fit(Pairs(rng.standard_normal((50, 4)), rng.standard_normal((50, 3))), "procrustes")
    assert adapter.details["options"] == {"objective": "regression", "centre": True, "diagonal_scaling": False}


@pytest.mark.parametrize("scale", [1, 3])
def test_an_adapter_normalizes_where_the_pairs_have_unit_length(scale: float, rng: np.random.Generator) -> None:
    x, y = unit(rng.standard_normal((50, 4))), unit(rng.standard_normal((50, 3)))
    for family in ("procrustes", "ridge", "low_rank"):
        adapter = fit(Pairs(scale * x, y), family)
        assert (adapter.normalize_input, adapter.layers[-1].normalize) == (scale == 1, True)
        adapter = fit(Pairs(x, scale * y), family)
        assert (adapter.normalize_input, adapter.layers[-1].normalize) == (True, scale == 1)


def test_an_unknown_family_is_refused_with_the_known_ones(rng: np.random.Generator) -> None:
    with pytest.raises(InvalidInput, match="'forest'; known: auto, procrustes, ridge, "):
        fit(Pairs(rng.standard_normal((50, 4)), rng.standard_normal((50, 3))), "forest")


@pytest.mark.parametrize("family", FAMILIES)
def test_an_unknown_option_is_refused_with_the_known_ones(family: str, rng: np.random.Generator) -> None:
    with pytest.raises(InvalidInput, match=rf"{family}.*has no option alpha, depth; its options: \w+"):
        fit(Pairs(rng.standard_normal((50, 4)), rng.standard_normal((50, 3))), family, depth=3, alpha=1)


@pytest.mark.parametrize(
    ("family", "options", "match"),
    [
        ("ridge", {"penalty": 0}, "above 0"),
        ("ridge", {"penalty": -1}, "above 0"),
        ("low_rank", {"penalty": 0}, "above 0"),
        ("low_rank", {"rank": 0}, "at least 1"),
        ("mlp", {"hidden": 0}, "at least 1"),
        ("mlp", {"epochs": 0}, "at least 1"),
        ("mlp", {"batch": 0}, "at least 1"),
        ("mlp", {"learning_rate": -1.0}, "learning"),
    ],
)
def test_an_option_out_of_range_is_refused(
    family: str, options: dict[str, Any], match: str, rng: np.random.Generator
) -> None:
    with pytest.raises(InvalidInput, match=match):
        fit(Pairs(rng.standard_normal((50, 4)), rng.standard_normal((50, 3))), family, **options)


@pytest.mark.parametrize(("n", "dimensions"), [(1999, 2), (2000, 2001)])
def test_a_small_sample_warns(n: int, dimensions: int, rng: np.random.Generator) -> None:
    pairs = Pairs(rng.standard_normal((n, dimensions)), rng.standard_normal((n, 1)))
    with pytest.warns(SmallSample, match=f"{n:,} pairs of {dimensions} dimensions"):
        fit(pairs, "procrustes")


def test_a_sample_of_the_recommended_size_does_not_warn(rng: np.random.Generator) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(Pairs(rng.standard_normal((2000, 2)), rng.standard_normal((2000, 2))), "procrustes")


def test_fitting_leaves_the_family_and_the_pairs_as_they_were(rng: np.random.Generator) -> None:
    pairs, family = Pairs(rng.standard_normal((50, 4)), rng.standard_normal((50, 3))), Procrustes(diagonal_scaling=True)
    source, target = pairs.source.copy(), pairs.target.copy()
    assert family.fit(pairs).checksum == family.fit(pairs).checksum
    assert family == Procrustes(diagonal_scaling=True)
    np.testing.assert_array_equal(pairs.source, source)
    np.testing.assert_array_equal(pairs.target, target)


# Poor pairs


def poor_pairs(rng: np.random.Generator) -> dict[str, tuple[Array, Array]]:
    x, y = rng.standard_normal((50, 6)), rng.standard_normal((50, 4))
    one, other = unit(x[:1]).repeat(50, axis=0), unit(y[:1]).repeat(50, axis=0)
    return {
        "constant dimensions": (np.c_[x, np.full(50, 3.0)], np.c_[y, np.zeros(50)]),
        "all equal": (one, other),
        "equal source": (one, y),
        "equal target": (x, other),
        "two pairs": (x[:2], y[:2]),
        "fewer than dimensions": (rng.standard_normal((5, 30)), rng.standard_normal((5, 20))),
        "one dimension": (x[:, :1], y[:, :1]),
        "repeated dimensions": (np.c_[x, x], np.c_[y, y]),
        "tiny": (x * 1e-25, y * 1e-25),
    }


@pytest.mark.parametrize("kind", list(poor_pairs(np.random.default_rng())))
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("procrustes", {}),
        ("procrustes", {"centre": False, "diagonal_scaling": True}),
        ("procrustes", {"diagonal_scaling": True}),
        ("ridge", {}),
        ("spectral", {}),
        ("spectral", {"exponents": (0, 0.5, -0.25)}),
        ("low_rank", {}),
        ("low_rank", {"diagonal_scaling": True}),
        ("mlp", {"hidden": 3, "epochs": 2, "diagonal_scaling": True}),
        ("spectral", {"objective": "ranking"}),
        ("mixture", {"experts": 3}),
        ("mixture", {"experts": 3, "routing": "expert_choice"}),
        ("auto", {}),
    ],
)
def test_poor_pairs_give_a_finite_adapter_or_a_clear_error(
    family: str, options: dict[str, Any], kind: str, rng: np.random.Generator
) -> None:
    if family in ("mlp", "mixture") or "objective" in options:
        pytest.importorskip("torch")
    pairs = Pairs(*poor_pairs(rng)[kind])
    try:
        adapter = fit(pairs, family, force=True, seconds=0.5, **options)
    except DriftError:
        return
    y = adapter.apply(unit(rng.standard_normal((10, pairs.source_dimensions))))
    assert all(np.isfinite(layer.weights).all() for layer in adapter.layers)
    assert np.isfinite(y).all()


# Real embeddings


def recall(queries: Array, documents: Array, labels: NDArray[np.int32]) -> float:
    """The share of queries whose document is among the ten nearest."""
    scores = queries @ documents.T
    return float(((scores > scores[np.arange(len(labels)), labels][:, None]).sum(axis=1) < 10).mean())


def retention(adapter: Adapter, data: dict[str, np.ndarray], target: str) -> float:
    """Recall@10 of adapted minilm_l6 queries over that of a full re-embedding."""
    queries, labels = data["queries_minilm_l6"], data["labels"]
    bridge = recall(adapter.apply(queries), data[f"documents_{target}"], labels)
    return bridge / recall(queries, data["documents_minilm_l6"], labels)


def real_pairs(data: dict[str, np.ndarray], target: str, seed: int = 0) -> Pairs:
    """5,000 documents that no query asks for."""
    answers = np.union1d(data["labels"], data["log_labels"])
    free = np.setdiff1d(np.arange(len(data["documents_minilm_l6"])), answers)
    chosen = np.random.default_rng(seed).permutation(free)[:5000]
    return Pairs(data["documents_minilm_l6"][chosen], data[f"documents_{target}"][chosen])


@pytest.mark.parametrize(("target", "low", "high"), [("minilm_l3", 0.50, 0.56), ("wordllama", 0.45, 0.50)])
def test_procrustes_retains_on_real_text_what_design_md_says(
    target: str, low: float, high: float, pydocs: dict[str, np.ndarray]
) -> None:
    assert low <= retention(fit(real_pairs(pydocs, target), "procrustes"), pydocs, target) <= high


def test_spectral_recovers_a_rotation_whatever_exponents_it_tries(rng: np.random.Generator) -> None:
    x = isotropic(rng, 400, 12)
    y = x @ orthonormal(rng, 12, 12)
    found = unit(fit(Pairs(x, y), "spectral").apply(x))
    assert (found * unit(y)).sum(axis=1).min() > 0.99


def test_spectral_with_given_exponents_is_that_map(rng: np.random.Generator) -> None:
    with pytest.warns(SmallSample):
        adapter = fit(Pairs(isotropic(rng, 50, 4), isotropic(rng, 50, 6)), "spectral", exponents=(0, 0.5, -0.25))
    assert adapter.details["chosen"] == "p=0 s=0.5 r=-0.25"
    assert [layer.weights.shape for layer in adapter.layers] == [(6, 5)]


@pytest.mark.parametrize(("target", "least"), [("minilm_l3", 0.58), ("wordllama", 0.49)])
def test_spectral_retains_more_than_procrustes_on_real_text(
    pydocs: dict[str, np.ndarray], target: str, least: float
) -> None:
    pairs = real_pairs(pydocs, target)
    assert retention(fit(pairs, "spectral"), pydocs, target) >= least
