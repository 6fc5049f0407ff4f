"""drift.adapt computes what Adapter.apply computes, for adapters of every shape."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import drift_pg
from drift_pg.adapter import Adapter, Float32, Layer, unit
from drift_pg.errors import InvalidVector

CLOSE = 1 - 1e-6
dimensions = st.integers(1, 40)


def layer(rng: np.random.Generator, outputs: int, inputs: int, *, scale: float = 1, **flags: Any) -> Layer:
    return Layer(rng.standard_normal((outputs, inputs + 1)) * scale / np.sqrt(inputs), **flags)


@st.composite
def layers_of(
    draw: st.DrawFn, rng: np.random.Generator, source: int, width: int, target: int, expert: int | None = None
) -> list[Layer]:
    """One or two layers with any flags that map (width,) to (target,)."""
    layers: list[Layer] = []
    for outputs in [draw(dimensions), target] if draw(st.booleans()) else [target]:
        takes_input, scale = draw(st.booleans()), draw(st.sampled_from([0.1, 1.0, 10.0]))
        flags: Any = {
            "activation": draw(st.sampled_from(["identity", "gelu"])),
            "takes_input": takes_input,
            "normalize": draw(st.booleans()),
            "expert": expert,
        }
        layers.append(layer(rng, outputs, width + source * takes_input, scale=scale, **flags))
        width = outputs
    return layers


@st.composite
def adapters(draw: st.DrawFn) -> Adapter:
    """Shared stages and stages of 0 to 4 experts, in any order, the experts' layers interleaved."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    source, target, experts = draw(dimensions), draw(dimensions), draw(st.integers(0, 4))
    layers = [layer(rng, experts, source, scale=3, is_route=True)] if experts else []
    stages = draw(st.permutations([bool(experts), *draw(st.lists(st.booleans(), max_size=2))]))
    width = source
    for position, apart in enumerate(stages):
        outputs = target if position == len(stages) - 1 else draw(dimensions)
        carriers = range(experts) if apart and experts else [None]
        chains = [draw(layers_of(rng, source, width, outputs, expert)) for expert in carriers]
        layers += [each for depth in zip_longest(*chains) for each in depth if each is not None]
        width = outputs
    return Adapter(tuple(layers), source, target, draw(st.booleans()))


@contextmanager
def stored(conn: psycopg.Connection, adapter: Adapter) -> Iterator[int]:
    """Store an adapter for the length of a block."""
    with conn.transaction(force_rollback=True):
        drift_pg.register_model(conn, "new", dimensions=adapter.source_dimensions)
        drift_pg.register_model(conn, "legacy", dimensions=adapter.target_dimensions)
        yield drift_pg.store(conn, adapter, source="new", target="legacy")


def adapt(conn: psycopg.Connection, adapter_id: int, x: Float32) -> Float32:
    """What SQL makes of x."""
    query = "SELECT drift.adapt(%s::real[]::extensions.vector, %s::bigint)::real[]"
    with conn.transaction():
        row = conn.execute(query, [x.tolist(), adapter_id]).fetchone()
    assert row is not None
    return np.array(row[0], np.float32)


def assert_same_direction_and_length(actual: Float32, expected: Float32) -> None:
    a, b = actual.astype(float), expected.astype(float)
    assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) >= CLOSE
    assert np.linalg.norm(a) == pytest.approx(np.linalg.norm(b), rel=2e-3)


def assert_evaluates_as_numpy_does(conn: psycopg.Connection, adapter_id: int, adapter: Adapter, x: Float32) -> None:
    try:
        expected = adapter.apply(x)
    except InvalidVector:
        with pytest.raises(psycopg.Error) as caught:
            adapt(conn, adapter_id, x)
        assert caught.value.sqlstate == InvalidVector.sqlstate
    else:
        assert_same_direction_and_length(adapt(conn, adapter_id, x), expected)


def assert_stored_faithfully(conn: psycopg.Connection, adapter_id: int, adapter: Adapter) -> None:
    row = conn.execute("SELECT encode(drift.checksum(%s), 'hex')", [adapter_id]).fetchone()
    assert row == (adapter.checksum,)
    assert drift_pg.load_by_id(conn, adapter_id).checksum == adapter.checksum


def far_from_a_border(adapter: Adapter, x: Float32) -> bool:
    """Whether rounding cannot change the expert of any row."""
    if len(adapter.experts) < 2:
        return True
    given = unit(x) if adapter.normalize_input else x
    logits = np.sort(adapter.layers[0].apply(given, given))
    return bool((logits[:, -1] - logits[:, -2] > 1e-3).all())


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(adapter=adapters(), seed=st.integers(0, 2**32 - 1))
def test_sql_evaluates_and_keeps_any_adapter_as_numpy_does(
    conn: psycopg.Connection, adapter: Adapter, seed: int
) -> None:
    x = np.random.default_rng(seed).standard_normal((3, adapter.source_dimensions)).astype(np.float32)
    assume(far_from_a_border(adapter, x))
    with stored(conn, adapter) as adapter_id:
        assert_stored_faithfully(conn, adapter_id, adapter)
        for row in x:
            assert_evaluates_as_numpy_does(conn, adapter_id, adapter, row)


@pytest.mark.parametrize(("source", "target"), [(1998, 3), (1999, 3), (2000, 3), (2001, 3), (4000, 3), (3, 4000)])
def test_weights_split_into_blocks_are_kept_and_evaluated(
    source: int, target: int, conn: psycopg.Connection, rng: np.random.Generator
) -> None:
    adapter = Adapter((layer(rng, target, source, normalize=True),), source, target)
    with stored(conn, adapter) as adapter_id:
        assert_stored_faithfully(conn, adapter_id, adapter)
        assert_evaluates_as_numpy_does(conn, adapter_id, adapter, rng.standard_normal(source, np.float32))


def test_a_hidden_layer_and_the_input_may_fill_blocks_together(
    conn: psycopg.Connection, rng: np.random.Generator
) -> None:
    hidden, last = layer(rng, 700, 1500, activation="gelu"), layer(rng, 5, 2200, takes_input=True)
    adapter = Adapter((hidden, last), 1500, 5)
    with stored(conn, adapter) as adapter_id:
        assert_stored_faithfully(conn, adapter_id, adapter)
        assert_evaluates_as_numpy_does(conn, adapter_id, adapter, rng.standard_normal(1500, np.float32))


def test_a_route_layer_may_be_split_into_blocks(conn: psycopg.Connection, rng: np.random.Generator) -> None:
    experts = [layer(rng, 2, 4000, expert=i) for i in range(3)]
    adapter = Adapter((layer(rng, 3, 4000, is_route=True), *experts), 4000, 2)
    x = rng.standard_normal((8, 4000), np.float32)
    with stored(conn, adapter) as adapter_id:
        assert_stored_faithfully(conn, adapter_id, adapter)
        for row in x[[far_from_a_border(adapter, row[None]) for row in x]]:
            assert_evaluates_as_numpy_does(conn, adapter_id, adapter, row)


def test_the_first_of_equal_logits_wins_in_both(conn: psycopg.Connection) -> None:
    route = Layer([[0, 0, 0], [1, 0, 0], [1, 0, 0], [0, 1, 0]], is_route=True)
    experts = [Layer([[0, 0, i + 1]], expert=i) for i in range(4)]
    adapter = Adapter((route, *experts), 2, 1)
    with stored(conn, adapter) as adapter_id:
        for x, expected in [([1, 0], 2), ([-1, -1], 1), ([1, 1], 2), ([0, 1], 4)]:
            assert adapter.apply(x) == adapt(conn, adapter_id, np.array(x, np.float32)) == expected


@pytest.mark.parametrize("depth", [-2, -4, -5, -6, -8])
def test_gelu_far_below_zero_keeps_its_direction_in_both(depth: float, conn: psycopg.Connection) -> None:
    hidden = Layer([[1, 0, depth], [0, 1, depth]], activation="gelu", normalize=True)
    adapter = Adapter((hidden,), 2, 2)
    with stored(conn, adapter) as adapter_id:
        assert_evaluates_as_numpy_does(conn, adapter_id, adapter, np.array([0.6, -0.8], np.float32))


@pytest.mark.parametrize("size", [1e30, 1e-22, 1e-30])
def test_a_query_of_any_size_has_its_direction_in_both(
    size: float, conn: psycopg.Connection, rng: np.random.Generator
) -> None:
    adapter, x = Adapter((layer(rng, 3, 5),), 5, 3), rng.standard_normal(5)
    with stored(conn, adapter) as adapter_id:
        actual = adapt(conn, adapter_id, (size * x).astype(np.float32))
    assert_same_direction_and_length(actual, adapter.apply(x))


def test_a_zero_vector_is_refused_by_both(conn: psycopg.Connection, rng: np.random.Generator) -> None:
    adapter = Adapter((layer(rng, 3, 5),), 5, 3)
    with stored(conn, adapter) as adapter_id:
        assert_evaluates_as_numpy_does(conn, adapter_id, adapter, np.zeros(5, np.float32))


def test_every_finite_weight_is_kept_bit_by_bit(conn: psycopg.Connection) -> None:
    info = np.finfo(np.float32)
    odd = [-0.0, info.tiny, info.smallest_subnormal, -info.smallest_subnormal, 1e15, -1e15, info.eps, 1 / 3]
    adapter = Adapter((Layer([odd, odd[::-1]]),), len(odd) - 1, 2)
    with stored(conn, adapter) as adapter_id:
        assert_stored_faithfully(conn, adapter_id, adapter)
        loaded = drift_pg.load_by_id(conn, adapter_id)
    assert loaded.layers[0].weights.tobytes() == adapter.layers[0].weights.tobytes()
