"""Small ONNX models that tests make of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

__all__ = ["Ends", "make_onnx", "save_onnx"]

Ends = Mapping[str, tuple[int, Any]]
"""Type and shape of inputs or outputs by name: `{"x": (TensorProto.FLOAT, ["n", 4])}`."""


def make_onnx(
    nodes: Sequence[Any],
    inputs: Ends,
    outputs: Ends,
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    ir: int = 9,
) -> Any:
    """Make a model of nodes, and of arrays and numbers by name."""
    first, last = (
        [helper.make_tensor_value_info(name, *end) for name, end in ends.items()] for ends in (inputs, outputs)
    )
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(nodes, "test", first, last, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


def save_onnx(
    path: Path, nodes: Sequence[Any], inputs: Ends, outputs: Ends, constants: Mapping[str, Any] | None = None
) -> Path:
    """Make a model that keeps to ONNX's rules, and write it to a file in a folder that is made for it."""
    model = make_onnx(nodes, inputs, outputs, constants)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path
