"""From a Keras model to the files that workers serve: frozen graph, SavedModel, ONNX.

All get one input `input` and one output `output`, as the seeds' models have them, and are traced as inference
functions: the training switch of batch normalisation is no part of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mqinfer.models.zoo.layers import tensorflow
from mqinfer.protocol.errors import MissingExtra

__all__ = ["Inference", "write_frozen_graph", "write_onnx", "write_saved_model"]

Inference = Callable[[Any], Any]
"""From the input tensor to the output tensor."""
_OPSET = 17
"""tf2onnx 1.17 refuses 19 and above."""


def write_frozen_graph(inference: Inference, shape: Sequence[int | None], dtype: str, path: Path) -> None:
    """Write a `.pb` with all variables as constants, `input:0` and `output:0`.

    Args:
        inference: What the graph does.
        shape: Of the input; None for any size.
        dtype: Of the input, such as `uint8`.
        path: File to write.
    """
    path.write_bytes(_frozen(inference, shape, dtype).SerializeToString())


def write_saved_model(inference: Inference, shape: Sequence[int | None], dtype: str, path: Path, owner: Any) -> None:
    """Write a SavedModel folder with one signature, `serving_default`.

    Args:
        inference: What the signature does.
        shape: Of the input; None for any size.
        dtype: Of the input.
        path: Folder to write.
        owner: The Keras model whose variables the inference uses.
    """
    tf = tensorflow()
    module = tf.Module()
    module.variables_of = owner.variables  # a SavedModel keeps the variables that it can reach
    function = tf.function(lambda input: {"output": inference(input)})  # noqa: A006 - the argument names the input
    signature = function.get_concrete_function(tf.TensorSpec(shape, dtype, "input"))
    tf.saved_model.save(module, str(path), signatures={"serving_default": signature})


def write_onnx(inference: Inference, shape: Sequence[int | None], dtype: str, path: Path) -> None:
    """Write an ONNX file, by way of the frozen graph.

    Args:
        inference: What the model does.
        shape: Of the input; None for any size.
        dtype: Of the input.
        path: File to write.

    Raises:
        MissingExtra: tf2onnx is not installed.
    """
    try:
        import tf2onnx
    except ImportError as error:
        raise MissingExtra.of("tf2onnx", "tensorflow") from error
    model, _ = tf2onnx.convert.from_graph_def(
        _frozen(inference, shape, dtype), input_names=["input:0"], output_names=["output:0"], opset=_OPSET
    )
    _rename(model.graph, {"input:0": "input", "output:0": "output"})
    path.write_bytes(model.SerializeToString())


def _frozen(inference: Inference, shape: Sequence[int | None], dtype: str) -> Any:
    tf = tensorflow()
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    function = tf.function(lambda pixels: tf.identity(inference(pixels), "output"))
    concrete = function.get_concrete_function(tf.TensorSpec(shape, dtype, "input"))
    graph = convert_variables_to_constants_v2(concrete).graph.as_graph_def()
    # A traced function ends in an `Identity` of its own behind `output`.
    inner = [node for node in graph.node if node.name not in ("Identity", "NoOp")]
    del graph.node[:]
    graph.node.extend(inner)
    return graph


def _rename(graph: Any, names: dict[str, str]) -> None:
    """Rename tensors throughout an ONNX graph."""
    for value in [*graph.input, *graph.output]:
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
