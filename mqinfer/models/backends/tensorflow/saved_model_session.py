"""SavedModels that only TensorFlow 1's loader opens, run in a session of their own.

`tf.saved_model.load` makes functions of a graph, and refuses some that a session runs: signatures that give a variable
itself, and graphs of before 2017, whose placeholders say nothing of their shape (TensorFlow Serving's own test models
`saved_model_counter` and `saved_model_half_plus_three` are of these kinds).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Signature", "load_in_session"]

_OWN = "__saved_model"
"""How the names of signatures begin that TensorFlow keeps for itself: its operations for initialising and training."""


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """One of a SavedModel's functions.

    Attributes:
        inputs: TensorFlow's tensors, or their specifications, by name.
        outputs: Likewise.
        call: Takes TensorFlow's tensors; gives tensors, or arrays.
    """

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    call: Callable[[Mapping[str, Any]], Mapping[str, Any]]


def load_in_session(tensorflow: Any, path: Path) -> dict[str, Signature]:
    """Load a SavedModel as TensorFlow 1 does: variables, assets, tables, whatever the model initialises.

    The session has the devices and threads that the process has; it lives as long as the signatures do.

    Raises:
        Exception: Those of `load_errors`.
    """
    graph = tensorflow.Graph()
    session = tensorflow.compat.v1.Session(graph=graph)
    with graph.as_default():
        loaded = tensorflow.compat.v1.saved_model.load(session, _tags(path), str(path))
    return {
        name: _signature(session, definition)
        for name, definition in loaded.signature_def.items()
        if not name.startswith(_OWN)
    }


def _tags(path: Path) -> list[str]:
    """Find the graph to serve: it is only given for exactly its tags, such as `serve` and `gpu`."""
    from tensorflow.core.protobuf import saved_model_pb2

    content = saved_model_pb2.SavedModel()
    content.ParseFromString((path / "saved_model.pb").read_bytes())
    found = [list(graph.meta_info_def.tags) for graph in content.meta_graphs]
    return next((tags for tags in found if "serve" in tags), found[0] if found else ["serve"])


def _signature(session: Any, definition: Any) -> Signature:
    inputs = _tensors(session.graph, definition.inputs)
    outputs = _tensors(session.graph, definition.outputs)
    run = session.make_callable(list(outputs.values()), list(inputs.values()))

    def call(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        return dict(zip(outputs, run(*(feeds[name].numpy() for name in inputs)), strict=True))

    return Signature(inputs, outputs, call)


def _tensors(graph: Any, infos: Mapping[str, Any]) -> dict[str, Any]:
    """Look tensors up by name; a sparse one is three, named as TensorFlow 2's loader names them."""
    names: dict[str, str] = {}
    for name in sorted(infos):
        info = infos[name]
        if info.WhichOneof("encoding") == "coo_sparse":
            sparse = info.coo_sparse
            names[f"{name}_indices"] = sparse.indices_tensor_name
            names[f"{name}_values"] = sparse.values_tensor_name
            names[f"{name}_dense_shape"] = sparse.dense_shape_tensor_name
        else:
            names[name] = info.name
    return {name: graph.get_tensor_by_name(tensor) for name, tensor in names.items()}
