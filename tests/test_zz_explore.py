"""Two adapters made one: compose(first, second)(x) is second(first(x))."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st

from drift_pg import compose
from drift_pg.adapter import Adapter, Float32, Layer, unit
from drift_pg.errors import InvalidDefinition, InvalidVector, WrongDimensions

CLOSE = 1 - 1e-6
examples = settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
dimensions = st.integers(1, 12)
activations = st.sampled_from(["identity", "gelu"])
seeds = st.integers(0, 2**32 - 1)


def layer(rng: np.random.Generator, outputs: int, inputs: int, *, bias: bool = True, **flags: Any) -> Layer:
    weights = rng.standard_normal((outputs, inputs + 1)) / np.sqrt(inputs)
    weights[:, -1] *= bias
    return Layer(weights, **flags)


def adapter(*layers: Layer, source: int, normalize_input: bool = True) -> Adapter:
    return Adapter(layers, source, layers[-1].outputs, normalize_input)


@st.composite
def chains(draw: st.DrawFn, rng: np.random.Generator, source: int, target: int, width: int) -> list[Layer]:
    """Layers that map (width,) to (target,): any before one that may take the input (source,), any after."""
    before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    takes_input = draw(st.booleans())
    layers: list[Layer] = []
    for position in range(before + 1 + after):
        outputs = target if position == before + after else draw(dimensions)
        takes = takes_input and position == before
        layers.append(
            layer(
                rng,
                outputs,
                width + source * takes,
                bias=draw(st.booleans()),
                activation=draw(activations),
                takes_input=takes,
                normalize=position >= before and draw(st.booleans()),
            )
        )
        width = outputs
    return layers


@st.composite
def plain(draw: st.DrawFn, source: int, target: int) -> Adapter:
    """Linear, low-rank, MLP-like: any list of layers without experts that can come second."""
    rng = np.random.default_rng(draw(seeds))
    layers = draw(chains(rng, source, target, source))
    return adapter(*layers, source=source, normalize_input=draw(st.booleans()))


@st.composite
def mixtures(draw: st.DrawFn, source: int, target: int, *, route_bias: bool = True) -> Adapter:
    """1 to 3 experts, each a list of layers of its own, perhaps a shared layer before and after."""
    rng = np.random.default_rng(draw(seeds))
    count, shared = draw(st.integers(1, 3)), draw(st.booleans())
    middle = draw(dimensions) if shared else target
    layers = [layer(rng, count, source, bias=route_bias, is_route=True)]
    for expert in range(count):
        layers += [replace(each, expert=expert) for each in draw(chains(rng, source, middle, source))]
    if shared:
        layers.append(layer(rng, target, middle, activation=draw(activations), normalize=draw(st.booleans())))
    return adapter(*layers, source=source, normalize_input=draw(st.booleans()))


def rows(first: Adapter, seed: int = 0) -> Float32:
    return np.random.default_rng(seed).standard_normal((4, first.source_dimensions)).astype(np.float32)


def assert_composed(first: Adapter, second: Adapter, seed: int = 0) -> Adapter:
    """compose gives the same as one after the other, on a few random rows."""
    x, composed = rows(first, seed), compose(first, second)
    y, expected = composed.apply(x).astype(float), second.apply(first.apply(x)).astype(float)
    length, expected_length = np.linalg.norm(y, axis=1), np.linalg.norm(expected, axis=1)
    assert (np.einsum("nd,nd->n", y, expected) / length / expected_length).min() >= CLOSE
    np.testing.assert_allclose(length, expected_length, rtol=2e-3)
    return composed


def assume_well_defined(first: Adapter, second: Adapter, seed: int) -> None:
    """Skip rows that one of both maps (almost) to zero, or that lie at the border of two experts."""
    try:
        between = first.apply(rows(first, seed))
        given, y = unit(between) if second.normalize_input else between, second.apply(between)
    except InvalidVector:
        reject()
    assume(bool((np.linalg.norm(y, axis=1) > 1e-4).all()))
    if len(second.experts) > 1:
        logits = np.sort(second.layers[0].apply(given, given))
        assume(bool((logits[:, -1] - logits[:, -2] > 1e-3).all()))


def check(first: Adapter, second: Adapter, seed: int) -> None:
    assume_well_defined(first, second, seed)
    assert_composed(first, second, seed)


# The same result


@examples
@given(st.data(), dimensions, dimensions, dimensions, seeds)
def test_adapters_without_experts_compose(data: st.DataObject, m: int, between: int, k: int, seed: int) -> None:
    check(data.draw(plain(m, between)), data.draw(plain(between, k)), seed)


@examples
@given(st.data(), dimensions, dimensions, dimensions, seeds)
def test_a_mixture_can_come_first(data: st.DataObject, m: int, between: int, k: int, seed: int) -> None:
    check(data.draw(mixtures(m, between)), data.draw(plain(between, k)), seed)


@examples
@given(st.data(), dimensions, dimensions, dimensions, st.booleans(), st.booleans(), seeds)
def test_a_mixture_can_follow_a_single_affine_layer(
    data: st.DataObject, m: int, between: int, k: int, normalize: bool, normalize_input: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    first = adapter(layer(rng, between, m, normalize=normalize), source=m, normalize_input=normalize_input)
    second = data.draw(mixtures(between, k, route_bias=False))
    check(first, second, seed)


@examples
@given(st.data(), dimensions, dimensions, dimensions, seeds)
def test_a_biased_route_can_follow_what_stays_unnormalized(
    data: st.DataObject, m: int, between: int, k: int, seed: int
) -> None:
    first = adapter(layer(np.random.default_rng(seed), between, m), source=m)
    check(first, replace(data.draw(mixtures(between, k)), normalize_input=False), seed)


@settings(examples, max_examples=50)
@given(st.data(), dimensions, dimensions, dimensions, dimensions, seeds)
def test_three_adapters_compose_in_either_order(data: st.DataObject, a: int, b: int, c: int, d: int, seed: int) -> None:
    first, second, third = (
        adapter(layer(np.random.default_rng(seed + i), k, m, normalize=data.draw(st.booleans())), source=m)
        for i, (m, k) in enumerate([(a, b), (b, c), (c, d)])
    )
    check(compose(first, second), third, seed)
    check(first, compose(second, third), seed)


@pytest.mark.parametrize("activation", ["identity", "gelu"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_input_passes_beside_hidden_layers(depth: int, activation: Any, rng: np.random.Generator) -> None:
    hidden = [layer(rng, 5, 4 if i == 0 else 5, activation=activation) for i in range(depth)]
    second = adapter(*hidden, layer(rng, 3, 9, takes_input=True), source=4)
    assert_composed(adapter(layer(rng, 4, 6), source=6), second)
    assert_composed(adapter(layer(rng, 4, 6, normalize=True), source=6), second)


def test_gelu_and_identity_layers_may_alternate_before_the_input(rng: np.random.Generator) -> None:
    kinds: list[Any] = ["gelu", "identity", "gelu", "gelu", "identity"]
    hidden = [layer(rng, 5, 4 if i == 0 else 5, activation=kind) for i, kind in enumerate(kinds)]
    second = adapter(*hidden, layer(rng, 3, 9, takes_input=True), source=4)
    assert_composed(adapter(layer(rng, 7, 6, activation="gelu"), layer(rng, 4, 13, takes_input=True), source=6), second)


def test_a_first_layer_that_takes_the_input_sees_it_twice(rng: np.random.Generator) -> None:
    twice = adapter(layer(rng, 3, 8, takes_input=True), source=4)
    assert_composed(adapter(layer(rng, 4, 6), source=6), twice)
    assert_composed(adapter(layer(rng, 4, 12, takes_input=True), source=6), twice)


def test_a_mixture_can_follow_one_affine_layer_that_takes_the_input(rng: np.random.Generator) -> None:
    experts = [layer(rng, 3, 4, expert=i) for i in range(2)]
    second = adapter(layer(rng, 2, 4, bias=False, is_route=True), *experts, source=4)
    assert_composed(adapter(layer(rng, 4, 12, takes_input=True), source=6), second)


def test_a_shared_layer_that_ends_only_one_experts_path_is_not_normalized_for_the_other(
    rng: np.random.Generator,
) -> None:
    short, longer = layer(rng, 4, 6, expert=0), layer(rng, 4, 6, expert=1)
    shared, tail = layer(rng, 4, 4), layer(rng, 4, 4, expert=1)
    first = adapter(layer(rng, 2, 6, is_route=True), short, longer, shared, tail, source=6)
    assert_composed(first, adapter(layer(rng, 3, 4), source=4))


def test_experts_of_a_following_mixture_may_take_the_input(rng: np.random.Generator) -> None:
    deep = [layer(rng, 5, 4, activation="gelu", expert=0), layer(rng, 3, 9, takes_input=True, expert=0)]
    route, flat = layer(rng, 2, 4, bias=False, is_route=True), layer(rng, 3, 8, takes_input=True, expert=1)
    assert_composed(adapter(layer(rng, 4, 6), source=6), adapter(route, *deep, flat, source=4))


# What it costs, and what it says of itself


def test_linear_maps_fold_into_one_layer(rng: np.random.Generator) -> None:
    first = adapter(layer(rng, 4, 6), source=6)
    as_given = adapter(layer(rng, 3, 4, normalize=True), source=4, normalize_input=False)
    assert len(assert_composed(first, as_given).layers) == 1


def test_a_normalized_linear_map_needs_no_normalization_before_it(rng: np.random.Generator) -> None:
    first = adapter(layer(rng, 4, 6), source=6)
    second = adapter(layer(rng, 3, 4, bias=False, normalize=True), source=4)
    assert len(assert_composed(first, second).layers) == 1


def test_low_rank_maps_stay_thin(rng: np.random.Generator) -> None:
    first = adapter(layer(rng, 2, 40), layer(rng, 40, 2), source=40)
    second = replace(adapter(layer(rng, 2, 40), layer(rng, 40, 2), source=40), normalize_input=False)
    composed = assert_composed(first, second)
    assert composed.parameters <= first.parameters + second.parameters
    assert [each.outputs for each in composed.layers] == [2, 40]


def test_the_result_names_both_adapters_and_leaves_them_as_they_were(rng: np.random.Generator) -> None:
    first, second = adapter(layer(rng, 4, 6), source=6), adapter(layer(rng, 3, 4), source=4)
    before = (first.checksum, second.checksum)
    composed = compose(first, second)
    assert composed.family == "composed"
    assert composed.details == {"first": before[0], "second": before[1]}
    assert (replace(first).checksum, replace(second).checksum) == before
    assert (composed.source_dimensions, composed.target_dimensions) == (6, 3)


# What it refuses


def test_dimensions_that_do_not_meet_are_refused(rng: np.random.Generator) -> None:
    with pytest.raises(WrongDimensions, match="gives 4 dimensions, the second takes 5"):
        compose(adapter(layer(rng, 4, 6), source=6), adapter(layer(rng, 3, 5), source=5))


@pytest.mark.parametrize(
    "first",
    [
        lambda rng: [layer(rng, 5, 4), layer(rng, 4, 5)],
        lambda rng: [layer(rng, 4, 4, activation="gelu")],
        lambda rng: [layer(rng, 5, 4, activation="gelu"), layer(rng, 4, 9, takes_input=True)],
        lambda rng: [layer(rng, 1, 4, is_route=True), layer(rng, 4, 4, expert=0)],
    ],
    ids=["two layers", "gelu", "MLP", "mixture"],
)
def test_a_mixture_after_anything_but_one_affine_layer_is_refused(
    first: Callable[[np.random.Generator], list[Layer]], rng: np.random.Generator
) -> None:
    second = adapter(layer(rng, 1, 4, bias=False, is_route=True), layer(rng, 3, 4, expert=0), source=4)
    with pytest.raises(InvalidDefinition, match="single affine layer"):
        compose(adapter(*first(rng), source=4), second)


@pytest.mark.parametrize("normalize", [False, True])
def test_a_biased_route_after_a_normalization_is_refused(*, normalize: bool, rng: np.random.Generator) -> None:
    first = adapter(layer(rng, 4, 4, normalize=normalize), source=4)
    second = adapter(layer(rng, 1, 4, is_route=True), layer(rng, 3, 4, expert=0), source=4)
    with pytest.raises(InvalidDefinition, match="bias cannot follow a normalized"):
        compose(first, second)


@pytest.mark.parametrize("flags", [{"normalize": True}, {"takes_input": True}])
def test_input_cannot_pass_a_layer_that_normalizes_or_takes_it(
    flags: dict[str, bool], rng: np.random.Generator
) -> None:
    hidden = layer(rng, 5, 8 if "takes_input" in flags else 4, **flags)
    second = adapter(hidden, layer(rng, 3, 9, takes_input=True), source=4)
    with pytest.raises(InvalidDefinition, match="normalize or take the input"):
        compose(adapter(layer(rng, 4, 6), source=6), second)
