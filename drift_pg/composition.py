"""Two adapters into one: second(first(x)), for a column that has lived through two model changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from drift_pg.adapter import Adapter, Float32, Layer
from drift_pg.errors import InvalidDefinition, WrongDimensions


def compose(first: Adapter, second: Adapter) -> Adapter:
    """Return one adapter that maps x as `second` maps `first`'s result, exactly.

    Affine layers that meet without a normalization between them are multiplied into one.

    Raises:
        WrongDimensions: `second` does not take what `first` gives.
        InvalidDefinition: `second` is a mixture and `first` is not a single affine layer, so that no
            single route layer can see x.
    """
    if first.target_dimensions != second.source_dimensions:
        raise WrongDimensions(
            f"the first adapter gives {first.target_dimensions} dimensions, the second takes {second.source_dimensions}"
        )
    head = _normalized(first) if second.normalize_input and not _ignores_length(second) else first
    tail, route = _without_input_layers(second), second.layers[0] if second.experts else None
    layers = [*head.layers, *tail]
    if route is not None:
        layers = [_route_through(head, route), *layers]
    return Adapter(
        tuple(_folded(layers)),
        first.source_dimensions,
        second.target_dimensions,
        first.normalize_input,
        family="composed",
        details={"first": first.checksum, "second": second.checksum},
    )


def _ignores_length(adapter: Adapter) -> bool:
    """Whether x and any positive multiple of x give the same result."""
    linear = all(layer.activation == "identity" and layer.bias is None for layer in adapter.layers)
    paths = [adapter.path(expert) for expert in adapter.branches]
    return linear and all(path[-1][1].normalize for path in paths)


def _normalized(adapter: Adapter) -> Adapter:
    """Scale the adapter's results to unit length: on the last layer of each path."""
    paths = [[i for i, _ in adapter.path(expert)] for expert in adapter.branches]
    last = {path[-1] for path in paths}
    if last & {i for path in paths for i in path[:-1]}:
        k = adapter.target_dimensions
        return replace(adapter, layers=(*adapter.layers, Layer(np.eye(k, k + 1, dtype=np.float32), normalize=True)))
    layers = [replace(layer, normalize=layer.normalize or i in last) for i, layer in enumerate(adapter.layers)]
    return replace(adapter, layers=tuple(layers))


def _route_through(head: Adapter, route: Layer) -> Layer:
    """Let the second adapter's route layer see x through a first one that is a single affine layer."""
    if len(head.layers) != 1 or head.layers[0].activation != "identity":
        raise InvalidDefinition("a mixture can only follow an adapter of a single affine layer")
    if head.layers[0].normalize and route.bias is not None:
        raise InvalidDefinition("a mixture whose route layer has a bias cannot follow a normalized adapter")
    return replace(
        route, weights=_product(route.weights, _without_input(head.layers[0], head.source_dimensions).weights)
    )


def _without_input_layers(second: Adapter) -> list[Layer]:
    """Rewrite layers [h ; x] of the second adapter, whose x is not the composed one's.

    x passes beside h through each layer in between. A GELU layer lets it through in two parts, since
    gelu(v) - gelu(-v) = v.
    """
    layers: list[Layer] = []
    for expert in second.branches:
        path = [layer for _, layer in second.path(expert)]
        wanted = max((i for i, layer in enumerate(path) if layer.takes_input), default=0)
        layers += [
            replace(layer, expert=expert) for layer in _carry(path[:wanted], path[wanted], second.source_dimensions)
        ]
        layers += [replace(layer, expert=expert) for layer in path[wanted + 1 :]]
    return layers


def _carry(before: list[Layer], taker: Layer, width: int) -> list[Layer]:
    """Carry x through the layers `before` the one that takes it."""
    if not before:
        return [_without_input(taker, width)]
    if any(layer.normalize or layer.takes_input for layer in before):
        raise InvalidDefinition(
            "the second adapter's layers normalize or take the input more than once before the last that takes it"
        )
    carried: list[Layer] = []
    signs: list[float] = [1.0]  # x arrives as these multiples, side by side, to be summed with the same signs
    for position, layer in enumerate(before):
        inner = layer.weights[:, :-1] if position == 0 else _widened(layer.weights[:, :-1], width * len(signs))
        new_signs = [1.0, -1.0] if layer.activation == "gelu" else [1.0]
        x_of = np.eye(width) if position == 0 else _restore(inner.shape[1] - width * len(signs), signs, width)
        rows = [inner, *(sign * x_of for sign in new_signs)]
        bias = np.concatenate([layer.weights[:, -1], np.zeros(width * len(new_signs))])
        carried.append(replace(layer, weights=np.column_stack([np.vstack(rows), bias])))
        signs = new_signs
    hidden = taker.inputs - width
    seen, bias = taker.weights[:, :-1], taker.weights[:, -1:]
    by_sign = [sign * seen[:, hidden:] for sign in signs]
    return [
        *carried,
        replace(taker, weights=np.hstack([seen[:, :hidden], *by_sign, bias]), takes_input=False),
    ]


def _without_input(layer: Layer, width: int) -> Layer:
    """A first layer [x ; x] sees x once, with the sum of both parts."""
    if not layer.takes_input:
        return layer
    both = layer.weights[:, :width] + layer.weights[:, width : 2 * width]
    return replace(layer, weights=np.column_stack([both, layer.weights[:, -1]]), takes_input=False)


def _widened(matrix: Float32, extra: int) -> Float32:
    return np.hstack([matrix, np.zeros((len(matrix), extra), np.float32)])


def _restore(hidden: int, signs: list[float], width: int) -> Float32:
    """The rows that give x again from [h ; s_1 x' ; s_2 x' …]."""
    rows = np.hstack([np.zeros((width, hidden)), *(sign * np.eye(width) for sign in signs)])
    return np.asarray(rows, dtype=np.float32)


def _product(after: Float32, before: Float32) -> Float32:
    """Weights of the affine layer `after` applied to `before`, in double precision."""
    lifted = np.vstack([before.astype(np.float64), np.append(np.zeros(before.shape[1] - 1), 1.0)])
    return np.asarray(after.astype(np.float64) @ lifted, dtype=np.float32)


def _folded(layers: list[Layer]) -> list[Layer]:
    """Multiply neighbouring affine layers into one where that makes them cheaper to evaluate."""
    folded: list[Layer] = []
    for layer in layers:
        if folded and _foldable(folded[-1], layer):
            folded[-1] = replace(layer, weights=_product(layer.weights, folded[-1].weights), takes_input=False)
        else:
            folded.append(layer)
    return folded


def _foldable(before: Layer, after: Layer) -> bool:
    plain = before.activation == "identity" and not (before.normalize or before.takes_input or before.is_route)
    alike = before.expert == after.expert and not (after.takes_input or after.is_route)
    return plain and alike and after.outputs * before.inputs <= before.weights.size + after.weights.size
