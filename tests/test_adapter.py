"""The canonical form: what adapters compute, refuse, and keep in files."""

import hashlib
import json
import pickle
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save

from drift_pg import artifact
from drift_pg.adapter import MAX_DIMENSIONS, Adapter, Layer, gelu
from drift_pg.errors import InvalidArtifact, InvalidDefinition, InvalidVector, WrongDimensions


def layer(rng: np.random.Generator, outputs: int, inputs: int, **flags: Any) -> Layer:
    return Layer(rng.standard_normal((outputs, inputs + 1)), **flags)


def affine(rng: np.random.Generator, source: int = 5, target: int = 3, **flags: Any) -> Adapter:
    return Adapter((layer(rng, target, source, **flags),), source, target)


def residual(rng: np.random.Generator) -> Adapter:
    """An MLP whose last layer takes the input, 5 -> 3."""
    hidden, last = layer(rng, 7, 5, activation="gelu"), layer(rng, 3, 12, takes_input=True, normalize=True)
    return Adapter((hidden, last), 5, 3, family="mlp", details={"pairs": 10, "seed": 0})


def mixture(rng: np.random.Generator) -> Adapter:
    """A shared layer, two experts of different depth, 5 -> 3."""
    route = Layer(np.column_stack([rng.standard_normal((2, 5)), np.zeros(2)]), is_route=True)
    shared = layer(rng, 4, 5, activation="gelu")
    shallow = layer(rng, 3, 4, expert=0, normalize=True)
    deep = (layer(rng, 6, 4, expert=1), layer(rng, 3, 11, expert=1, takes_input=True))
    return Adapter((route, shared, shallow, *deep), 5, 3, family="mixture")


MAKERS = [affine, residual, mixture]


def identity(dimensions: int, *, normalize_input: bool = True) -> Adapter:
    return Adapter((Layer(np.eye(dimensions, dimensions + 1)),), dimensions, dimensions, normalize_input)


# What it computes


@pytest.mark.parametrize("make", MAKERS)
def test_many_rows_are_mapped_as_one_by_one(
    make: Callable[[np.random.Generator], Adapter], rng: np.random.Generator
) -> None:
    adapter, x = make(rng), rng.standard_normal((20, 5))
    many = adapter.apply(x)
    assert many.shape == (20, 3)
    assert many.dtype == np.float32
    for row, y in zip(x, many, strict=True):
        one = adapter.apply(row)
        assert (one.shape, one.dtype) == ((3,), np.float32)
        np.testing.assert_allclose(one, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", MAKERS)
def test_no_rows_are_mapped_to_no_rows(
    make: Callable[[np.random.Generator], Adapter], rng: np.random.Generator
) -> None:
    assert make(rng).apply(np.zeros((0, 5))).shape == (0, 3)


def test_lists_and_integers_are_taken_as_input() -> None:
    np.testing.assert_allclose(identity(2).apply([3, 4]), [0.6, 0.8], rtol=1e-6)


def test_layers_do_what_the_definition_says(rng: np.random.Generator) -> None:
    adapter, x = residual(rng), rng.standard_normal(5)
    first, second = (each.weights.astype(float) for each in adapter.layers)
    x /= np.linalg.norm(x)
    hidden = gelu(first @ [*x, 1])
    y = second @ [*hidden, *x, 1]
    np.testing.assert_allclose(adapter.apply(x), y / np.linalg.norm(y), rtol=1e-4, atol=1e-6)


def test_input_has_unit_length_only_if_the_adapter_says_so(rng: np.random.Generator) -> None:
    adapter, x = affine(rng), rng.standard_normal(5)
    np.testing.assert_allclose(adapter.apply(100 * x), adapter.apply(x), rtol=1e-4, atol=1e-5)
    as_given = replace(adapter, normalize_input=False)
    weights = adapter.layers[0].weights
    np.testing.assert_allclose(as_given.apply(100 * x), weights @ [*(100 * x), 1], rtol=1e-4, atol=1e-3)


def test_output_has_unit_length_if_the_last_layer_says_so(rng: np.random.Generator) -> None:
    y = affine(rng, normalize=True).apply(rng.standard_normal((9, 5)))
    np.testing.assert_allclose(np.linalg.norm(y, axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("size", [1e30, 3e38, 1e19, 1e-22, 1e-30])
@pytest.mark.parametrize("shape", [(4,), (2, 4)])
def test_unit_length_holds_whatever_the_size_of_the_input(size: float, shape: tuple[int, ...]) -> None:
    x = np.full(shape, size, np.float32)
    np.testing.assert_allclose(identity(4).apply(x), np.full(shape, 0.5), rtol=1e-6)


def test_large_outputs_are_scaled_to_unit_length(rng: np.random.Generator) -> None:
    small = affine(rng, normalize=True)
    large = replace(small, layers=(replace(small.layers[0], weights=small.layers[0].weights * 1e30),))
    x = rng.standard_normal(5)
    np.testing.assert_allclose(large.apply(x), small.apply(x), rtol=1e-5)


def test_large_values_are_only_scaled_where_asked() -> None:
    x = np.full(4, 1e30, np.float32)
    np.testing.assert_array_equal(identity(4, normalize_input=False).apply(x), x)


def test_gelu_matches_its_published_values() -> None:
    h = np.array([-2, -1, 0, 1, 2], np.float32)
    np.testing.assert_allclose(gelu(h), [-0.0454023, -0.1588080, 0, 0.8411920, 1.9545977], atol=1e-6)


def test_gelu_keeps_its_precision_far_below_zero() -> None:
    h = np.linspace(-6, 0, 50, dtype=np.float32)
    exact = h.astype(float)
    exact /= 1 + np.exp(-2 * 0.7978845608028654 * (exact + 0.044715 * exact**3))
    np.testing.assert_allclose(gelu(h), exact, rtol=1e-4)


def test_gelu_of_large_values_is_the_value_or_zero() -> None:
    h = np.array([1e30, -1e30, 100, -100], np.float32)
    np.testing.assert_allclose(gelu(h), [1e30, 0, 100, 0], rtol=1e-6, atol=1e-6)


def test_parameters_are_counted(rng: np.random.Generator) -> None:
    assert residual(rng).parameters == 7 * 6 + 3 * 13


# Mixtures


def constant_experts(route: Layer, source: int, count: int) -> Adapter:
    """Expert i maps everything to i."""
    biases = [np.append(np.zeros(source), i)[None] for i in range(count)]
    return Adapter((route, *(Layer(w, expert=i) for i, w in enumerate(biases))), source, 1)


def test_the_largest_logit_names_the_expert() -> None:
    adapter = constant_experts(Layer(np.eye(3, 4), is_route=True), 3, 3)
    x = [[1, 2, 0], [5, 1, 1], [0, 0, 1], [-1, -3, -2]]
    assert adapter.apply(x).ravel().tolist() == [1, 0, 2, 0]
    assert [float(adapter.apply(row)[0]) for row in x] == [1, 0, 2, 0]


def test_the_first_of_equal_logits_wins() -> None:
    route = Layer([[0, 0, 0], [1, 0, 0], [1, 0, 0], [0, 1, 0]], is_route=True)
    adapter = constant_experts(route, 2, 4)
    assert adapter.apply([[1, 0], [-1, -1], [1, 1]]).ravel().tolist() == [1, 0, 1]


def test_route_sees_its_input_at_unit_length() -> None:
    route = Layer([[0, 0, 2], [1, 0, 0]], is_route=True)
    assert constant_experts(route, 2, 2).apply([100, 0]) == [0]
    assert replace(constant_experts(route, 2, 2), normalize_input=False).apply([100, 0]) == [1]


def test_experts_differ_and_shared_layers_run_for_all(rng: np.random.Generator) -> None:
    adapter, x = mixture(rng), rng.standard_normal((50, 5))
    chosen = adapter.route(x / np.linalg.norm(x, axis=1, keepdims=True))
    assert set(chosen.tolist()) == {0, 1}
    for expert in (0, 1):
        alone = Adapter(tuple(replace(step, expert=None) for _, step in adapter.path(expert)), 5, 3)
        mine = chosen == expert
        np.testing.assert_allclose(adapter.apply(x)[mine], alone.apply(x)[mine], rtol=1e-5, atol=1e-6)


# What it refuses


@pytest.mark.parametrize(
    "weights",
    [np.zeros(3), np.zeros((0, 3)), np.zeros((3, 1)), np.zeros((2, 2, 2)), 1.0],
    ids=["1-D", "no outputs", "no inputs", "3-D", "scalar"],
)
def test_layers_refuse_weights_of_another_shape(weights: Any) -> None:
    with pytest.raises(InvalidDefinition, match="shape"):
        Layer(weights)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_layers_refuse_weights_that_are_not_finite(value: float) -> None:
    with pytest.raises(InvalidVector, match="NaN or infinity"):
        Layer([[1, value]])


def test_layers_refuse_an_unknown_activation() -> None:
    with pytest.raises(InvalidDefinition, match=r"'relu'.*identity, gelu"):
        Layer([[1, 1]], activation="relu")  # type: ignore[arg-type]


ONE = Layer(np.ones((2, 4)))  # 3 -> 2
EXPERT = [replace(ONE, expert=i) for i in range(3)]
ROUTE = Layer(np.ones((2, 4)), is_route=True)  # 3 -> 2 experts


@pytest.mark.parametrize(
    ("layers", "match"),
    [
        ([], "at least one layer"),
        ([ONE, ONE], "layer 1 takes 3 inputs, it is given 2"),
        ([ONE, Layer(np.ones((2, 3)), takes_input=True)], "layer 1 takes 2 inputs, it is given 5"),
        ([Layer(np.ones((2, 3)))], "layer 0 takes 2 inputs, it is given 3"),
        ([Layer(np.ones((5, 4)))], "last layer has 5 outputs"),
        ([ONE, ROUTE], "only the first layer may route"),
        ([ROUTE, ROUTE, *EXPERT[:2]], "only the first layer may route"),
        ([EXPERT[0]], "the route layer has 0"),
        ([ROUTE, EXPERT[0]], "the route layer has 2"),
        ([ROUTE, *EXPERT], "the route layer has 2"),
        ([ROUTE, EXPERT[0], replace(ONE, expert=-1)], "the route layer has 2"),
        ([ROUTE, ONE], "the route layer has 2"),
        ([ROUTE], "the route layer has 2"),
        ([replace(ROUTE, expert=0), *EXPERT[:2]], "belongs to no expert"),
        ([replace(ROUTE, normalize=True), *EXPERT[:2]], "belongs to no expert"),
        ([replace(ROUTE, weights=np.ones((2, 7)), takes_input=True), *EXPERT[:2]], "belongs to no expert"),
        ([replace(ROUTE, activation="gelu"), *EXPERT[:2]], "route layer"),
        ([replace(ROUTE, weights=np.ones((2, 3))), *EXPERT[:2]], "route layer takes 2 inputs"),
        ([ROUTE, EXPERT[0], replace(ONE, weights=np.ones((2, 5)), expert=1)], "layer 2 takes 4 inputs"),
        ([ROUTE, EXPERT[0], replace(ONE, weights=np.ones((1, 4)), expert=1)], "last layer has 1 outputs"),
    ],
)
def test_adapters_refuse_layers_that_do_not_fit(layers: list[Layer], match: str) -> None:
    with pytest.raises(InvalidDefinition, match=match):
        Adapter(tuple(layers), 3, 2)


@pytest.mark.parametrize(("source", "target"), [(0, 2), (3, 0), (-1, 2), (MAX_DIMENSIONS + 1, 2), (3, 4001)])
def test_adapters_refuse_dimensions_out_of_range(source: int, target: int) -> None:
    with pytest.raises(InvalidDefinition, match="1 to 4000"):
        Adapter((ONE,), source, target)


@pytest.mark.parametrize("shape", [(), (4,), (2, 4), (2, 2, 5), (5, 1), (0,)])
def test_apply_refuses_other_dimensions(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    with pytest.raises(WrongDimensions, match=r"takes \(5,\) or \(n, 5\)"):
        affine(rng).apply(np.ones(shape))


@pytest.mark.parametrize("bad", [[np.nan, 1], [np.inf, 1], [-np.inf, 1], [np.inf, -np.inf], [np.inf, np.nan]])
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("normalize_input", [False, True])
def test_apply_refuses_what_is_not_finite(bad: list[float], *, rows: bool, normalize_input: bool) -> None:
    with pytest.raises(InvalidVector, match="NaN or infinity"):
        identity(2, normalize_input=normalize_input).apply([[1, 1], bad] if rows else bad)


def test_apply_refuses_a_zero_vector_where_it_needs_a_direction() -> None:
    with pytest.raises(InvalidVector, match="zero length"):
        identity(2).apply([0, 0])
    with pytest.raises(InvalidVector, match="row 1: the vector has zero length"):
        identity(2).apply([[1, 0], [0, 0]])
    assert identity(2, normalize_input=False).apply([0, 0]).tolist() == [0, 0]


def test_a_layer_refuses_to_normalize_zero_outputs() -> None:
    zero = Adapter((Layer(np.zeros((2, 3)), normalize=True),), 2, 2)
    with pytest.raises(InvalidVector, match="zero length"):
        zero.apply([1, 0])


# What it leaves alone


def test_callers_weights_are_neither_frozen_nor_aliased() -> None:
    weights = np.eye(2, 3, dtype=np.float32)
    made = Layer(weights)
    weights[:] = 7
    assert made.weights.tolist() == [[1, 0, 0], [0, 1, 0]]
    with pytest.raises(ValueError, match="read-only"):
        made.weights[0, 0] = 7


@pytest.mark.parametrize("normalize_input", [False, True])
def test_input_is_left_as_it_was_and_output_is_the_callers(*, normalize_input: bool) -> None:
    x, adapter = np.array([3, 4], np.float32), identity(2, normalize_input=normalize_input)
    y = adapter.apply(x)
    assert x.tolist() == [3, 4]
    before = y.tolist()
    y[:] = 0
    assert adapter.apply(x).tolist() == before
    assert x.tolist() == [3, 4]


# Checksum


def variants(adapter: Adapter) -> list[Adapter]:
    """The same adapter with one thing changed."""
    hidden, last = adapter.layers
    nudged = last.weights.copy()
    nudged[-1, -1] = np.nextafter(nudged[-1, -1], np.float32(9))
    longer = Layer(np.eye(3, 4))
    return [
        replace(adapter, normalize_input=False),
        replace(adapter, layers=(hidden, replace(last, weights=nudged))),
        replace(adapter, layers=(hidden, replace(last, normalize=False))),
        replace(adapter, layers=(hidden, replace(last, activation="gelu"))),
        replace(adapter, layers=(replace(hidden, activation="identity"), last)),
        replace(adapter, layers=(hidden, last, longer)),
        replace(adapter, layers=(Layer(np.eye(5, 6)), hidden, last)),
        replace(adapter, layers=(replace(hidden, weights=hidden.weights[::-1]), last)),
        replace(adapter, layers=(hidden, replace(last, weights=last.weights[:2])), target_dimensions=2),
        replace(adapter, layers=(hidden, replace(last, weights=-last.weights))),
        replace(adapter, layers=(hidden, replace(last, weights=last.weights[:, 5:], takes_input=False))),
    ]


def test_checksum_tells_every_change_apart(rng: np.random.Generator) -> None:
    adapter = residual(rng)
    found = [adapter, *variants(adapter)]
    assert len({each.checksum for each in found}) == len(found)


def test_checksum_tells_positions_experts_and_route_apart() -> None:
    route, first, second = Layer([[0, 0], [1, 0]], is_route=True), Layer([[1, 2]]), Layer([[2, 1]])
    mixtures = [
        (route, replace(a, expert=i), replace(b, expert=1 - i))
        for a, b in [(first, second), (second, first)]
        for i in (0, 1)
    ]
    others = [(first, second), (second, first), (first,), (second,)]
    found = {Adapter(layers, 1, 1).checksum for layers in [*mixtures, *others]}
    assert len(found) == 8


def test_checksum_ignores_how_it_was_fitted(rng: np.random.Generator) -> None:
    adapter = residual(rng)
    assert replace(adapter, family="custom", details={}).checksum == adapter.checksum


def test_checksum_is_the_sha256_of_the_documented_bytes() -> None:
    adapter = Adapter((Layer([[1, 2, 0.5]], normalize=True),), 2, 1)
    canonical = b"drift_pg adapter 1\n2 1 t\n0 1 2 identity f t f -\n" + struct.pack(">3f", 1, 2, 0.5)
    assert adapter.checksum == hashlib.sha256(canonical).hexdigest()


# Files


@pytest.fixture
def saved(tmp_path: Path, rng: np.random.Generator) -> Path:
    """A file that holds an adapter."""
    path = tmp_path / "adapter.safetensors"
    residual(rng).save(path)
    return path


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Write the file again after `change(tensors, metadata)`."""
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    change(tensors, metadata)
    path.write_bytes(save(tensors, metadata))


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_loaded_is_what_was_saved(
    make: Callable[[np.random.Generator], Adapter], tmp_path: Path, rng: np.random.Generator
) -> None:
    adapter, path = make(rng), tmp_path / "adapter.safetensors"
    adapter.save(path)
    loaded, x = Adapter.load(str(path)), rng.standard_normal((10, 5))
    assert loaded.checksum == adapter.checksum
    assert (loaded.family, loaded.details) == (adapter.family, adapter.details)
    np.testing.assert_array_equal(loaded.apply(x), adapter.apply(x))
    assert list(tmp_path.iterdir()) == [path]


def test_a_saved_file_has_the_permissions_of_any_new_file(saved: Path) -> None:
    plain = saved.with_name("plain")
    plain.touch()
    assert saved.stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_exception_while_saving_leaves_the_old_file(
    step: str, saved: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(artifact.os, step, fail)
    with pytest.raises(OSError, match="disk full"):
        affine(rng).save(saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_load_refuses_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InvalidArtifact, match="there is no adapter file"):
        Adapter.load(tmp_path / "none.safetensors")
    with pytest.raises(InvalidArtifact, match="there is no adapter file"):
        Adapter.load(tmp_path)


@pytest.mark.parametrize("kept", [0, 4, 8, 100, -1])
def test_load_refuses_a_truncated_file(kept: int, saved: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:kept])
    with pytest.raises(InvalidArtifact, match="not a readable safetensors file"):
        Adapter.load(saved)


@pytest.mark.parametrize("content", [b"hello, world", b"PK\3\4" + bytes(100), b"\xff" * 64])
def test_load_refuses_what_is_not_safetensors(content: bytes, saved: Path) -> None:
    saved.write_bytes(content)
    with pytest.raises(InvalidArtifact, match="not a readable safetensors file"):
        Adapter.load(saved)


class Exploit:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_load_never_unpickles(saved: Path) -> None:
    proof = saved.with_name("proof")
    saved.write_bytes(pickle.dumps(Exploit(proof)))
    with pytest.raises(InvalidArtifact):
        Adapter.load(saved)
    assert not proof.exists()


@pytest.mark.parametrize("value", [None, "drift_pg adapter 0", "drift_pg adapter 2"])
def test_load_refuses_another_format(value: str | None, saved: Path) -> None:
    def change(_: object, metadata: dict[str, str]) -> None:
        metadata.pop("format") if value is None else metadata.update(format=value)

    rewrite(saved, change)
    with pytest.raises(InvalidArtifact, match="expected 'drift_pg adapter 1'"):
        Adapter.load(saved)


def test_load_refuses_a_file_of_another_tool(saved: Path) -> None:
    saved.write_bytes(save({"layer_0": np.ones((2, 3), np.float32)}))
    with pytest.raises(InvalidArtifact, match="has format None"):
        Adapter.load(saved)


def test_load_refuses_a_changed_weight(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[-4] ^= 1
    saved.write_bytes(content)
    with pytest.raises(InvalidArtifact, match="was changed after it was written"):
        Adapter.load(saved)


def test_load_refuses_a_weight_that_is_not_finite(saved: Path) -> None:
    rewrite(saved, lambda tensors, _: tensors["layer_0"].fill(np.nan))
    with pytest.raises(InvalidArtifact, match="does not describe an adapter"):
        Adapter.load(saved)


@pytest.mark.parametrize("missing", ["layer_0", "layer_1"])
def test_load_refuses_a_file_without_one_of_its_tensors(missing: str, saved: Path) -> None:
    rewrite(saved, lambda tensors, _: tensors.pop(missing))
    with pytest.raises(InvalidArtifact, match="does not describe an adapter"):
        Adapter.load(saved)


def describe(path: Path, **changes: Any) -> None:
    """Change entries of the description; None removes one."""

    def change(_: object, metadata: dict[str, str]) -> None:
        description = json.loads(metadata["description"]) | changes
        metadata["description"] = json.dumps({k: v for k, v in description.items() if v is not None})

    rewrite(path, change)


@pytest.mark.parametrize(
    "changes",
    [
        {"normalize_input": False},
        {"source_dimensions": 6},
        {"source_dimensions": "5"},
        {"source_dimensions": 5.0},
        {"target_dimensions": 4},
        {"target_dimensions": None},
        {"layers": None},
        {"layers": []},
        {"layers": 5},
        {"layers": ["identity"]},
        {"layers": [{"activation": "gelu"}, {"activation": "gelu", "takes_input": True}]},
        {"layers": [{"activation": "gelu"}, {"takes_input": True}]},
        {"layers": [{"activation": "relu"}, {"takes_input": True, "normalize": True}]},
        {"layers": [{"activation": "gelu"}, {"takes_input": True, "normalize": True, "expert": 0}]},
        {"layers": [{"activation": "gelu"}, {"takes_input": True, "normalize": True, "other": 1}]},
        {"checksum": None},
        {"checksum": "0" * 64},
        {"details": 5},
        {"family": 5},
        {"other": 1},
    ],
    ids=str,
)
def test_load_refuses_a_changed_description(changes: dict[str, Any], saved: Path) -> None:
    describe(saved, **changes)
    with pytest.raises(InvalidArtifact):
        Adapter.load(saved)


@pytest.mark.parametrize(
    "text",
    [None, "", "{", "[]", "5", "null", "[" * 100_000, '{"source_dimensions": ' + "9" * 5000 + "}"],
    ids=["missing", "empty", "cut", "list", "number", "null", "deep", "long number"],
)
def test_load_refuses_an_unreadable_description(text: str | None, saved: Path) -> None:
    def change(_: object, metadata: dict[str, str]) -> None:
        metadata.pop("description") if text is None else metadata.update(description=text)

    rewrite(saved, change)
    with pytest.raises(InvalidArtifact, match="description"):
        Adapter.load(saved)
