"""The four ONNX models of the bench, written node by node: they need `onnx` and no training framework.

Weights are random (seeded) and outputs mean nothing: what counts is what a request carries, and how long the model
takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError, MissingExtra

__all__ = ["MODELS", "build_models"]

_OPSET = 17
_IR_VERSION = 9


class _Graph:
    """Collects the nodes of a chain: each takes the one before it as its first input."""

    def __init__(
        self, dtype: type[np.generic], input_shape: Sequence[int | str], output_shape: Sequence[int | str]
    ) -> None:
        self._onnx = _onnx()
        self._element = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._shapes = input_shape, output_shape
        self._random = np.random.default_rng(7)
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._last = "input"

    def then(self, operator: str, *constants: Array, **attributes: object) -> None:
        """Append a node.

        Args:
            operator: ONNX's name for it.
            constants: Its inputs after the first.
            attributes: As ONNX names them.
        """
        names = [f"{operator}_{len(self._nodes)}_{number}" for number in range(len(constants))]
        self._constants += map(self._onnx.numpy_helper.from_array, constants, names)
        output = f"{operator}_{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(operator, [self._last, *names], [output], **attributes))
        self._last = output

    def weights(self, *shape: int) -> Array:
        """Make weights that keep the size of what passes through (He et al. 2015): the first axis is the output's."""
        fan_in = np.prod(shape[1:]) if len(shape) > 1 else 1
        weights: Array = (self._random.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32)
        return weights

    def convolve(self, filters: int, channels: int, kernel: Sequence[int], **attributes: object) -> None:
        """Append a convolution that keeps the size (but for its strides), and a ReLU."""
        padding = [size // 2 for size in kernel] * 2
        groups = attributes.get("group", 1)
        per_group = channels // groups if isinstance(groups, int) else channels
        self.then("Conv", self.weights(filters, per_group, *kernel), pads=padding, **attributes)
        self.then("Relu")

    def multiply(self, inputs: int, outputs: int) -> None:
        """Append a dense layer without bias."""
        self.then("MatMul", self.weights(outputs, inputs).T.copy())

    def save(self, path: Path) -> None:
        """Check the model and write it."""
        helper = self._onnx.helper
        self._nodes.append(helper.make_node("Identity", [self._last], ["output"]))
        ends = [
            helper.make_tensor_value_info(name, self._element, list(shape))
            for name, shape in zip(("input", "output"), self._shapes, strict=True)
        ]
        graph = helper.make_graph(self._nodes, path.parts[-3], ends[:1], ends[1:], self._constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
        self._onnx.checker.check_model(model)
        self._onnx.save(model, path)


def _small() -> _Graph:
    """Sixteen numbers, one dense layer: as good as nothing to compute."""
    graph = _Graph(np.float32, ("n", 16), ("n", 16))
    graph.multiply(16, 16)
    graph.then("Relu")
    return graph


def _frame() -> _Graph:
    """A raw frame in and a mask's bytes out, by one copy: nothing but the way to the model and back takes time."""
    graph = _Graph(np.uint8, (1, 608, 968, 3), (1, 608, 968))
    graph.then("Reshape", np.array([3, 608, 968]))
    graph.then("Slice", np.array([0]), np.array([1]), np.array([0]))
    return graph


def _classifier() -> _Graph:
    """MobileNet (Howard et al. 2017, table 1) at width 0.5, batch normalisation folded away."""
    graph = _Graph(np.float32, ("n", 3, 224, 224), ("n", 1000))
    channels = 16
    graph.convolve(channels, 3, (3, 3), strides=[2, 2])
    for filters, stride in [
        (32, 1),
        (64, 2),
        (64, 1),
        (128, 2),
        (128, 1),
        (256, 2),
        *[(256, 1)] * 5,
        (512, 2),
        (512, 1),
    ]:
        graph.convolve(channels, channels, (3, 3), group=channels, strides=[stride, stride])
        graph.convolve(filters, channels, (1, 1))
        channels = filters
    graph.then("GlobalAveragePool")
    graph.then("Flatten")
    graph.multiply(channels, 1000)
    return graph


def _vae() -> _Graph:
    """A convolutional auto-encoder over the 100 particles of a jet, three momenta each, through ten numbers."""
    graph = _Graph(np.float32, ("n", 3, 100), ("n", 3, 100))
    graph.convolve(32, 3, (3,))
    graph.convolve(16, 32, (3,))
    graph.then("Flatten")
    for inputs, outputs in ((1600, 64), (64, 10), (10, 64), (64, 1600)):
        graph.multiply(inputs, outputs)
        graph.then("Relu")
    graph.then("Reshape", np.array([0, 16, 100]))
    graph.convolve(32, 16, (3,))
    graph.then("Conv", graph.weights(3, 32, 3), pads=[1, 1])
    return graph


MODELS: dict[str, Callable[[], _Graph]] = {
    "small_16": _small,
    "frame_mask": _frame,
    "classifier_224": _classifier,
    "vae_like": _vae,
}
"""What makes each model, by its name in the repository."""


def build_models(repository: Path, names: Sequence[str] = tuple(MODELS)) -> None:
    """Write models as `<repository>/<name>/1/model.onnx`.

    Args:
        repository: Made if need be.
        names: Keys of `MODELS`.

    Raises:
        MissingExtra: onnx is not installed.
        ConfigError: The folder can't be written.
    """
    for name in names:
        path = repository / name / "1" / "model.onnx"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            MODELS[name]().save(path)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror or error}; name another folder") from error


def _onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise MissingExtra.of("onnx", "bench") from error
    return onnx
