"""Writes ONNX files node by node, with weights from one seed: the same code writes the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mqinfer.extras import import_extra
from mqinfer.protocol.datatypes import Array

_OPSET, _IR_VERSION = 17, 9
"""Versions that all current engines support."""

Shape = Sequence[int | str]
"""A string names a dynamic axis."""


class OnnxGraph:
    """A graph with one input, `input`, built node by node; tensors are referred to by name."""

    def __init__(self, dtype: str, shape: Shape, seed: int = 0) -> None:
        """Create a graph without nodes.

        Args:
            dtype: numpy name of the input's datatype.
            shape: Shape of the input.
            seed: Seed of the weights.

        Raises:
            MissingExtra: onnx is not installed.
        """
        onnx = import_extra("onnx", "bench")
        self._onnx = onnx
        self._rng = np.random.default_rng(seed)
        self._input = self._value("input", dtype, shape)
        self._outputs: list[Any] = []
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def constant(self, values: Array) -> str:
        """Add an array and return its name."""
        name = f"constant_{len(self._constants)}"
        self._constants.append(self._onnx.numpy_helper.from_array(values, name))
        return name

    def integers(self, *values: int) -> str:
        """Add an int64 array [n], for shapes, axes and slices."""
        return self.constant(np.array(values, np.int64))

    def weights(self, *shape: int, fan_in: int) -> str:
        """Add random float32 weights, scaled so that a layer with ReLU keeps the variance of its input (He, 2015)."""
        return self.constant(self._rng.normal(0, (2 / fan_in) ** 0.5, shape).astype(np.float32))

    def zeros(self, size: int) -> str:
        """Add a bias of zeros, float32 [size]."""
        return self.constant(np.zeros(size, np.float32))

    def node(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node with one output and return the output's name.

        Args:
            kind: ONNX operator.
            *inputs: Names of tensors.
            output: Name of the output; empty for a generated one.
            **attributes: Attributes of the operator.
        """
        name = output or f"{kind.lower()}_{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(kind, inputs, [name], **attributes))
        return name

    def dense(self, tensor: str, size_in: int, size_out: int, output: str = "") -> str:
        """Add a fully connected layer: [N,size_in] to [N,size_out]."""
        weights = self.weights(size_in, size_out, fan_in=size_in)
        return self.node("Gemm", tensor, weights, self.zeros(size_out), output=output)

    def add_output(self, name: str, dtype: str, shape: Shape) -> None:
        """Declare a tensor an output of the graph."""
        self._outputs.append(self._value(name, dtype, shape))

    def write(self, path: Path) -> None:
        """Check the graph and write it."""
        helper = self._onnx.helper
        graph = helper.make_graph(self._nodes, path.stem, [self._input], self._outputs, self._constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
        self._onnx.checker.check_model(model, full_check=True)
        path.write_bytes(model.SerializeToString(deterministic=True))

    def _value(self, name: str, dtype: str, shape: Shape) -> Any:
        helper = self._onnx.helper
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
