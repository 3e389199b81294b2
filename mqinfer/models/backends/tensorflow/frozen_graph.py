"""Load TensorFlow's frozen graphs: a GraphDef whose variables have become constants.

The file does not mark inputs and outputs. Inputs are the placeholders that an output needs; outputs are the nodes that
no other consumes, or those that `model.toml` names. A tensor has its node's name, with `:n` only for a further output.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from mqinfer.logs import log_once
from mqinfer.models.backend import Backend
from mqinfer.models.backends.tensorflow.backend import (
    TensorFlowBackend,
    TensorFlowModel,
    has_datatype,
    tensor_specs,
)
from mqinfer.models.backends.tensorflow.file_operations import check_graph, without_leftovers
from mqinfer.models.backends.tensorflow.graph_nodes import reaching, unconsumed
from mqinfer.models.backends.tensorflow.runtime import choose_device, import_tensorflow, loading
from mqinfer.models.load_options import LoadOptions, TensorOptions
from mqinfer.protocol.errors import ConfigError, ModelNotLoadable

log = logging.getLogger("mqinfer.models")

_RANKS = 6
"""Number of ranks that are tried for a placeholder of unknown rank: 0 to 5 (a batch of colour films)."""
_VARIABLES = frozenset({"Variable", "VariableV2", "VarHandleOp"})


def load(path: Path, options: LoadOptions) -> Backend:
    """Load a frozen graph.

    Raises:
        MissingExtra: TensorFlow is not installed.
        ModelNotLoadable: The file is no whole GraphDef, is not frozen, or has no outputs.
        ConfigError: `model.toml` contradicts the graph.
    """
    tensorflow = import_tensorflow()
    device = choose_device(tensorflow, options.device, options.threads)
    with loading(path):
        definition = _read(tensorflow, path)
        ends = without_leftovers(definition, _ends(definition, options.outputs), options)
        check_graph(definition, path, options)
        scalars = _close_open_shapes(tensorflow, definition, options.inputs)
        wrapped = tensorflow.compat.v1.wrap_function(
            lambda: tensorflow.graph_util.import_graph_def(definition, name=""), []
        )
        for name in scalars:
            wrapped.graph.get_tensor_by_name(f"{name}:0").set_shape([])
        outputs = _outputs(wrapped.graph, ends, options.outputs, path)
        inputs = _inputs(wrapped.graph, definition, outputs, path)
        function = wrapped.prune(list(inputs.values()), list(outputs.values()))

    def call(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        return dict(zip(outputs, function(*(feeds[name] for name in inputs)), strict=True))

    model = TensorFlowModel(
        "tensorflow_graphdef",
        path,
        call,
        tensor_specs(inputs, options.inputs, path, ranked=True),
        tensor_specs(outputs, options.outputs, path),
        options.precision,
    )
    return TensorFlowBackend(tensorflow, model, device)


def _read(tensorflow: Any, path: Path) -> Any:
    definition = tensorflow.compat.v1.GraphDef()
    definition.ParseFromString(path.read_bytes())
    if not definition.node:
        raise ModelNotLoadable(f"{path}: a graph without nodes; copy or export the model again")
    return definition


def _close_open_shapes(tensorflow: Any, definition: Any, configured: Mapping[str, TensorOptions]) -> list[str]:
    """Set the shapes of placeholders of unknown rank, configured or deduced; TensorFlow infers all others from them.

    Returns:
        Names of those without axes: in a graph of before version 24 their shape still reads as an unknown rank.
    """
    scalars = []
    for node in definition.node:
        if node.op == "Placeholder" and _is_open(node, definition.versions.producer):
            shape = configured.get(node.name, TensorOptions()).shape
            if shape is None:
                tried = [(-1,) * rank for rank in range(_RANKS)]
                accepted = [each for each in tried if _accepts(tensorflow, definition, node, each)]
                shape = accepted[0] if len(accepted) == 1 else None
            _set_shape(tensorflow, node, shape)
            scalars += [node.name] if shape == () else []
    return scalars


def _accepts(tensorflow: Any, definition: Any, node: Any, shape: tuple[int, ...]) -> bool:
    """Return whether the graph's operations accept a placeholder of this shape: a convolution needs four axes."""
    _set_shape(tensorflow, node, shape)
    try:
        with tensorflow.Graph().as_default():
            tensorflow.graph_util.import_graph_def(definition, name="")
    except ValueError:
        return False
    return True


def _set_shape(tensorflow: Any, node: Any, shape: tuple[int, ...] | None) -> None:
    sizes = None if shape is None else [None if size == -1 else size for size in shape]
    node.attr["shape"].shape.CopyFrom(tensorflow.TensorShape(sizes).as_proto())


def _is_open(node: Any, producer: int) -> bool:
    shape = node.attr["shape"].shape
    # Before version 24 of GraphDef an empty shape meant an unknown rank (tensorflow/core/public/version.h).
    return bool("shape" not in node.attr or shape.unknown_rank or (producer < 24 and not shape.dim))


def _ends(definition: Any, configured: Collection[str]) -> list[str]:
    """Return the names of the nodes that are outputs."""
    return [name.partition(":")[0] for name in configured] or [node.name for node in unconsumed(definition.node)]


def _outputs(graph: Any, ends: Collection[str], configured: Mapping[str, TensorOptions], path: Path) -> dict[str, Any]:
    if configured:
        return {name: _named_tensor(graph, name) for name in configured}
    operations = [graph.get_operation_by_name(name) for name in ends]
    tensors = [tensor for operation in operations for tensor in operation.outputs if has_datatype(tensor)]
    if not tensors:
        raise ModelNotLoadable(
            f"{path}: no outputs found: every node is consumed or has no result; "
            "name the outputs by [[output]] tables in model.toml"
        )
    return {tensor.name.removesuffix(":0"): tensor for tensor in tensors}


def _named_tensor(graph: Any, name: str) -> Any:
    try:
        return graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
    except (KeyError, ValueError) as error:
        raise ConfigError(f"model.toml: the graph has no node {name!r} for an output") from error


def _inputs(graph: Any, definition: Any, outputs: Mapping[str, Any], path: Path) -> dict[str, Any]:
    nodes = {node.name: node for node in definition.node}
    needed = reaching(nodes, [name.partition(":")[0] for name in outputs])
    variables = sorted(name for name in needed if nodes[name].op in _VARIABLES)
    if variables:
        raise ModelNotLoadable(
            f"{path}: the graph is not frozen: {len(variables)} variables such as {variables[0]!r}; "
            "freeze it, or put the SavedModel here"
        )
    placeholders = [name for name in nodes if nodes[name].op == "Placeholder"]
    _log_unused(path, [name for name in placeholders if name not in needed])
    return {name: graph.get_tensor_by_name(f"{name}:0") for name in placeholders if name in needed}


def _log_unused(path: Path, unused: Sequence[str]) -> None:
    if unused:
        log_once(log, logging.INFO, "%s: no output needs the placeholders %s; left out", path, ", ".join(unused))
