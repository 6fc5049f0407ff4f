"""The canonical form of an adapter: a short list of affine layers, evaluated by numpy.

    h_0 = x                                       (unit length if the adapter says so)
    h_i = phi_i( W_i . [h_{i-1} ; x if the layer takes the input ; 1] )     (unit length if the layer says so)
    y   = h_last

A *mixture* begins with a route layer, whose largest output names the expert; later layers that carry
an expert run only for their own. The SQL evaluator `drift.adapt` does the same, step for step.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from drift_pg import artifact
from drift_pg.errors import InvalidArtifact, InvalidDefinition, InvalidVector, WrongDimensions

Activation = Literal["identity", "gelu"]
Float32 = NDArray[np.float32]

MAX_DIMENSIONS = 4000
"""The most dimensions of a model: what pgvector can index (HNSW over halfvec)."""

MAX_INPUTS = 16_000
"""The most values, the appended 1 counted, that a layer can see: pgvector's longest vector."""


SMALL, LARGE = 1e-30, 1e30
"""Between these a sum of squares is right in single precision: nothing under- or overflowed. NaN is not between."""


def gelu(h: Float32) -> Float32:
    """Gaussian error linear unit in its tanh form (Hendrycks & Gimpel, 2016), elementwise."""
    c = np.clip(h, -10, 10)
    return np.asarray(h / (1 + np.exp(-1.5957691216057308 * (c + 0.044715 * c * c * c))), dtype=np.float32)


def lengths(h: Float32) -> NDArray[np.float64]:
    """Euclidean lengths of rows, (n, d) -> (n,), in double precision so that no square overflows."""
    return np.asarray(np.sqrt(np.einsum("nd,nd->n", h, h, dtype=np.float64)))


def unit(h: Float32) -> Float32:
    """Scale a vector (d,) or rows (n, d) to unit length.

    Raises:
        InvalidVector: one has zero length, so no direction, or holds NaN or infinity.
    """
    if h.ndim == 1:
        square = float(np.vdot(h, h))  # unlike dot it overflows to infinity without a warning
        if SMALL < square < LARGE:
            # Queries mostly come in unit length: to the last bits of a float there is nothing to do.
            if abs(square - 1) < 2e-7:
                return h
            return np.asarray(h * np.float32(1 / math.sqrt(square)), dtype=np.float32)
        return unit(h[None]).reshape(-1)
    row_lengths = lengths(h)
    usable = np.isfinite(row_lengths) & (row_lengths > 0)
    if not usable.all():
        raise InvalidVector(f"row {int(usable.argmin())}: {_why_no_direction(row_lengths[usable.argmin()])}")
    return np.asarray(h / row_lengths[:, None], dtype=np.float32)


def _why_no_direction(length: float) -> str:
    return "the vector has zero length, so no direction" if length == 0 else "the vector holds NaN or infinity"


@dataclass(frozen=True, eq=False)
class Layer:
    """One affine step.

    Attributes:
        weights: (outputs, inputs + 1), float32; the last column is the bias.
        activation: applied elementwise to the outputs.
        takes_input: whether the layer sees [h ; x] instead of h.
        normalize: whether the outputs are scaled to unit length.
        expert: the expert that the layer belongs to, None if it runs for all.
        is_route: whether the layer's outputs choose the expert; it sees x and leaves h as it is.
    """

    weights: Float32
    activation: Activation = "identity"
    takes_input: bool = False
    normalize: bool = False
    expert: int | None = None
    is_route: bool = False

    def __post_init__(self) -> None:
        weights = np.array(self.weights, dtype=np.float32, order="C")  # a copy, since it is frozen below
        if weights.ndim != 2 or weights.shape[0] < 1 or weights.shape[1] < 2:
            raise InvalidDefinition(f"a layer's weights have shape {weights.shape}, expected (outputs, inputs + 1)")
        if not np.isfinite(weights).all():
            raise InvalidVector("a layer's weights hold NaN or infinity")
        if self.activation not in get_args(Activation):
            raise InvalidDefinition(f"unknown activation {self.activation!r}; known: {', '.join(get_args(Activation))}")
        weights.flags.writeable = False
        object.__setattr__(self, "weights", weights)

    @property
    def outputs(self) -> int:
        """How many units the layer has."""
        return int(self.weights.shape[0])

    @property
    def inputs(self) -> int:
        """How many values the layer sees, the appended 1 not counted."""
        return int(self.weights.shape[1]) - 1

    @cached_property
    def matrix(self) -> Float32:
        """The linear part, transposed to (inputs, outputs), so that rows multiply from the left."""
        return np.ascontiguousarray(self.weights[:, :-1]).T

    @cached_property
    def bias(self) -> Float32 | None:
        """(outputs,), or None if it is zero."""
        bias = np.ascontiguousarray(self.weights[:, -1])
        return bias if bias.any() else None

    def apply(self, h: Float32, x: Float32) -> Float32:
        """Map hidden values (d,) or (n, d), given the adapter's input x."""
        out = (np.concatenate([h, x], axis=-1) if self.takes_input else h).dot(self.matrix)
        if self.bias is not None:
            out += self.bias
        if self.activation == "gelu":
            out = gelu(out)
        return unit(out) if self.normalize else out

    def header(self, position: int) -> bytes:
        """What the checksum says of the layer besides its weights."""
        expert = "-" if self.expert is None else self.expert
        flags = (self.takes_input, self.normalize, self.is_route)
        letters = " ".join("t" if flag else "f" for flag in flags)
        return f"{position} {self.outputs} {self.inputs} {self.activation} {letters} {expert}\n".encode()


def affine(matrix: Float32, bias: Float32 | None, normalize: bool, x: Float32) -> Float32 | None:
    """One vector, scaled to unit length, through one layer; None where a length needs double precision.

    What `unit` and `Layer.apply` do, unrolled: most adapters are one layer, and at 384 dimensions a call
    costs a twentieth of the product. vdot does not warn of overflow; dot is the cheapest way to scale.
    """
    square = np.vdot(x, x)
    if not 0.9999998 < square < 1.0000002:  # else of unit length already, to the last bits
        if not SMALL < square < LARGE:
            return None
        x = x.dot(square**-0.5)
    y: Float32 = x.dot(matrix)
    if bias is not None:
        y += bias
    if normalize:
        square = y.dot(y)
        if square < SMALL:
            return None
        y = y.dot(square**-0.5)
    return y


@dataclass(frozen=True, eq=False)
class Adapter:
    """A map from a source model's space (m,) to a target model's space (k,), in canonical form.

    Attributes:
        layers: in the order they run.
        source_dimensions: m.
        target_dimensions: k.
        normalize_input: whether x is scaled to unit length first.
        family: how it was fitted; information only, nothing depends on it.
        details: how it was fitted, as JSON values; not part of the checksum.
    """

    layers: tuple[Layer, ...]
    source_dimensions: int
    target_dimensions: int
    normalize_input: bool = True
    family: str = "custom"
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        for side, dimensions in (("source", self.source_dimensions), ("target", self.target_dimensions)):
            if not 1 <= dimensions <= MAX_DIMENSIONS:
                raise InvalidDefinition(
                    f"an adapter's {side} has {dimensions} dimensions, allowed are 1 to {MAX_DIMENSIONS}"
                )
        self._check_routing()
        for expert in self.branches:
            self._check_path(expert)

    def _check_routing(self) -> None:
        routes = [i for i, layer in enumerate(self.layers) if layer.is_route]
        if routes not in ([], [0]):
            raise InvalidDefinition(f"route layers at positions {routes}; only the first layer may route")
        carried = {layer.expert for layer in self.layers if layer.expert is not None}
        if carried != set(self.experts):
            raise InvalidDefinition(f"layers carry experts {sorted(carried)}, the route layer has {len(self.experts)}")
        route = self.layers[0] if routes else None
        if route and (
            route.takes_input or route.normalize or route.expert is not None or route.activation != "identity"
        ):
            raise InvalidDefinition(
                "a route layer belongs to no expert, takes x alone, and gives its outputs as they are"
            )

    def _check_path(self, expert: int | None) -> None:
        """Follow the dimensions through one expert's layers."""
        path = self.path(expert)
        if not path:
            raise InvalidDefinition(
                "an adapter needs at least one layer" + (f" for expert {expert}" if expert is not None else "")
            )
        width = self.source_dimensions
        if self.experts and self.layers[0].inputs != width:
            raise InvalidDefinition(f"the route layer takes {self.layers[0].inputs} inputs, the adapter has {width}")
        for position, layer in path:
            expected = width + (self.source_dimensions if layer.takes_input else 0)
            if layer.inputs != expected:
                raise InvalidDefinition(f"layer {position} takes {layer.inputs} inputs, it is given {expected}")
            if layer.inputs >= MAX_INPUTS:
                raise InvalidDefinition(
                    f"layer {position} takes {layer.inputs} inputs, at most {MAX_INPUTS - 1} can be stored"
                )
            width = layer.outputs
        if width != self.target_dimensions:
            raise InvalidDefinition(
                f"the last layer has {width} outputs, the adapter's target {self.target_dimensions} dimensions"
            )

    @cached_property
    def experts(self) -> range:
        """The experts' numbers; empty if the adapter is no mixture."""
        routed = bool(self.layers) and self.layers[0].is_route
        return range(self.layers[0].outputs if routed else 0)

    @property
    def branches(self) -> Sequence[int | None]:
        """What `path` takes, in order: each expert, or None alone if the adapter is no mixture."""
        return self.experts or (None,)

    def path(self, expert: int | None) -> list[tuple[int, Layer]]:
        """The layers that run for one expert, with their positions."""
        return [
            (i, layer) for i, layer in enumerate(self.layers) if not layer.is_route and layer.expert in (None, expert)
        ]

    @cached_property
    def _quick(self) -> tuple[tuple[int], Callable[[Float32], Float32 | None] | None]:
        """The shape of one vector, and its short way through the adapter, if there is one."""
        shape, (layer, *more) = (self.source_dimensions,), self.layers
        small = float(np.linalg.norm(layer.weights.astype(np.float64))) < LARGE**0.5  # then no output overflows
        if more or layer.activation != "identity" or layer.takes_input or not self.normalize_input or not small:
            return shape, None
        return shape, partial(affine, layer.matrix, layer.bias, layer.normalize)  # unlike a closure it can be pickled

    @cached_property
    def _paths(self) -> list[list[Layer]]:
        return [[layer for _, layer in self.path(expert)] for expert in self.branches]

    @property
    def parameters(self) -> int:
        """How many weights are stored."""
        return sum(layer.weights.size for layer in self.layers)

    @property
    def multiply_adds(self) -> int:
        """Multiply–add operations per vector: those of the costliest expert, and of the route layer."""
        route = self.layers[0].weights.size if self.experts else 0
        return route + max(sum(layer.weights.size for layer in path) for path in self._paths)

    def apply(self, x: ArrayLike) -> Float32:
        """Map one vector (m,) -> (k,), or rows (n, m) -> (n, k), in float32.

        Raises:
            WrongDimensions: the last axis is not m, or there are more than two.
            InvalidVector: NaN or infinity, or a zero vector where unit length is asked for.
        """
        x = np.asarray(x, dtype=np.float32)
        shape, quick = self._quick
        if quick and x.shape == shape and (y := quick(x)) is not None:
            return y
        if not 1 <= x.ndim <= 2 or x.shape[-1] != self.source_dimensions:
            raise WrongDimensions(
                f"input has shape {x.shape}, the adapter takes ({self.source_dimensions},) or (n, {self.source_dimensions})"
            )
        if self.normalize_input:
            x = unit(x)
        elif not np.isfinite(x).all():
            raise InvalidVector("input holds NaN or infinity")
        if not self.experts:
            return self._run(self._paths[0], x)
        return self._routed(x)

    @staticmethod
    def _run(path: list[Layer], x: Float32) -> Float32:
        h = x
        for layer in path:
            h = layer.apply(h, x)
        return h

    def route(self, x: Float32) -> NDArray[np.int64]:
        """The expert of a row, of rows that are already of unit length if the adapter says so."""
        return cast("NDArray[np.int64]", np.asarray(self.layers[0].apply(x, x).argmax(-1)))

    def _routed(self, x: Float32) -> Float32:
        chosen = self.route(x)
        if x.ndim == 1:
            return self._run(self._paths[int(chosen)], x)
        y = np.empty((len(x), self.target_dimensions), dtype=np.float32)
        for expert in self.experts:
            mine = chosen == expert
            if mine.any():
                y[mine] = self._run(self._paths[expert], x[mine])
        return y

    @cached_property
    def checksum(self) -> str:
        """SHA-256 (hexadecimal) of the canonical bytes: headers, and weights as big-endian float32.

        The database computes the same from the rows it stores (`drift.checksum`).
        """
        flag = "t" if self.normalize_input else "f"
        digest = hashlib.sha256(
            f"{artifact.FORMAT}\n{self.source_dimensions} {self.target_dimensions} {flag}\n".encode()
        )
        for position, layer in enumerate(self.layers):
            digest.update(layer.header(position))
            digest.update(layer.weights.astype(">f4").tobytes())
        return digest.hexdigest()

    def save(self, path: str | Path) -> None:
        """Write the adapter to a safetensors file, atomically."""
        artifact.write(Path(path), {_tensor(i): layer.weights for i, layer in enumerate(self.layers)}, self._describe())

    def _describe(self) -> dict[str, Any]:
        layers = [{k: v for k, v in asdict(layer).items() if k != "weights"} for layer in self.layers]
        return {
            "checksum": self.checksum,
            "details": dict(self.details),
            "family": self.family,
            "layers": layers,
            "normalize_input": self.normalize_input,
            "source_dimensions": self.source_dimensions,
            "target_dimensions": self.target_dimensions,
        }

    @classmethod
    def load(cls, path: str | Path) -> Adapter:
        """Read an adapter from a file that `save` wrote.

        Raises:
            InvalidArtifact: the file is missing or damaged, or its weights are not those of its checksum.
        """
        tensors, description = artifact.read(Path(path))
        expected = description.pop("checksum", None)
        try:
            layers = [Layer(tensors[_tensor(i)], **spec) for i, spec in enumerate(description.pop("layers"))]
            adapter = cls(tuple(layers), **description)
            if not isinstance(adapter.details, dict) or not isinstance(adapter.family, str):
                raise TypeError("its details are no object, or its family is no text")
        except (KeyError, TypeError, InvalidDefinition, InvalidVector) as error:
            raise InvalidArtifact(f"{str(path)!r} does not describe an adapter", detail=str(error)) from error
        if adapter.checksum != expected:
            raise InvalidArtifact(
                f"{str(path)!r} was changed after it was written: its checksum is {adapter.checksum}, it says {expected}",
                hint="export it again: drift-pg export ID FILE",
            )
        return adapter


def _tensor(position: int) -> str:
    return f"layer_{position}"
