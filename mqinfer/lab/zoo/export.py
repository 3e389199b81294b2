"""Exports a network to the formats that workers serve: frozen graph, SavedModel and ONNX.

Inputs and outputs have the same names in all three. Networks are traced as inference functions, without the training
mode of batch normalisation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mqinfer.extras import import_extra
from mqinfer.lab.zoo.layers import tensorflow
from mqinfer.models.backends.tensorflow.graph_nodes import reaching

Inference = Callable[[Any], Any]
"""Function from the input tensor to the output tensor."""
_OPSET = 17
"""ONNX opset; tf2onnx 1.17 refuses 19 and above."""


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a network.

    Attributes:
        name: Name of the placeholder.
        shape: Shape, with None for a dynamic axis.
        dtype: numpy name of the datatype.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Network:
    """A network to export.

    Attributes:
        infer: Function from the input tensors, in order, to the output tensors by name.
        inputs: Inputs of the function.
        outputs: Names of the outputs.
        variables: Variables that it uses.
        losses: Loss of each step of its training; empty for one that is not trained.
    """

    infer: Callable[..., Mapping[str, Any]]
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    variables: Sequence[Any] = ()
    losses: Sequence[float] = ()

    def write(self, path: Path) -> None:
        """Write the network in the format of the file's suffix: `.pb`, `.savedmodel` or `.onnx`."""
        _WRITERS[path.suffix](self, path)


def of_pictures(inference: Inference, shape: tuple[int | None, ...], model: Any) -> Network:
    """Return a network with one uint8 input `input` and one output `output`.

    Args:
        inference: Function from the input tensor to the output tensor.
        shape: Shape of the input, with None for a dynamic axis.
        model: Keras model whose variables the inference uses.
    """
    pictures = Input("input", shape, "uint8")
    return Network(lambda pixels: {"output": inference(pixels)}, (pictures,), ("output",), model.variables)


def _write_frozen_graph(network: Network, path: Path) -> None:
    """Write a frozen graph (`.pb`): variables are constants, and each input and output names a node."""
    path.write_bytes(_frozen(network).SerializeToString())


def _write_saved_model(network: Network, path: Path) -> None:
    """Write a SavedModel folder with one signature, `serving_default`."""
    tf = tensorflow()
    module = tf.Module()
    module.variables_of = network.variables  # a SavedModel keeps only variables that its module refers to
    function = tf.function(lambda **inputs: network.infer(*(inputs[each.name] for each in network.inputs)))
    signature = function.get_concrete_function(**{each.name: _spec(each) for each in network.inputs})
    tf.saved_model.save(module, str(path), signatures={"serving_default": signature})


def _write_onnx(network: Network, path: Path) -> None:
    """Write an ONNX file, converted from the frozen graph.

    Raises:
        MissingExtra: tf2onnx is not installed.
    """
    tf2onnx = import_extra("tf2onnx", "tensorflow")
    inputs, outputs = (
        [f"{name}:0" for name in each] for each in ([given.name for given in network.inputs], network.outputs)
    )
    model, _ = tf2onnx.convert.from_graph_def(
        _frozen(network),
        input_names=inputs,
        output_names=outputs,
        opset=_OPSET,
        tensors_to_rename={tensor: tensor.removesuffix(":0") for tensor in (*inputs, *outputs)},
    )
    path.write_bytes(model.SerializeToString())


_WRITERS = {".pb": _write_frozen_graph, ".savedmodel": _write_saved_model, ".onnx": _write_onnx}


def _frozen(network: Network) -> Any:
    tf = tensorflow()
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    def named(*tensors: Any) -> list[Any]:
        results = network.infer(*tensors)
        return [tf.identity(results[name], name) for name in network.outputs]

    concrete = tf.function(named).get_concrete_function(*map(_spec, network.inputs))
    graph = convert_variables_to_constants_v2(concrete).graph.as_graph_def()
    # A traced function adds `Identity` nodes behind the named ones.
    needed = reaching({node.name: node for node in graph.node}, network.outputs)
    kept = [node for node in graph.node if node.name in needed]
    del graph.node[:]
    graph.node.extend(kept)
    return graph


def _spec(given: Input) -> Any:
    return tensorflow().TensorSpec(given.shape, given.dtype, given.name)
