"""Load SavedModels of TensorFlow 1 and 2 by one of their signatures.

`tf.saved_model.load` makes functions of a graph, and refuses some graphs that a session runs: signatures that return a
variable itself, and graphs of before 2017, whose placeholders have no shapes (TensorFlow Serving's own test models
`saved_model_counter` and `saved_model_half_plus_three` are of these kinds), and models of Keras 2 that were stored with
their optimizer. Those run in a session of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mqinfer.logs import log_once
from mqinfer.models.backend import Backend
from mqinfer.models.backends.tensorflow.backend import (
    TensorFlowBackend,
    TensorFlowModel,
    tensor_specs,
)
from mqinfer.models.backends.tensorflow.file_operations import check_saved_model
from mqinfer.models.backends.tensorflow.runtime import choose_device, import_tensorflow, loading
from mqinfer.models.load_options import LoadOptions
from mqinfer.protocol.card import Signature, SignatureTensor
from mqinfer.protocol.errors import ConfigError, ModelNotLoadable
from mqinfer.protocol.types import TensorSpec

log = logging.getLogger("mqinfer.models")

DEFAULT_SIGNATURE = "serving_default"
_OWN = "__saved_model"
"""Prefix of TensorFlow's own signatures, which are for initialising and training."""
_STRING = 7
"""`DT_STRING` of tensorflow/core/framework/types.proto."""


def load(path: Path, options: LoadOptions) -> Backend:
    """Load a SavedModel's folder; if TensorFlow 2's loader can't, in a session, as TensorFlow 1 does.

    Raises:
        MissingExtra: TensorFlow is not installed.
        ModelNotLoadable: The folder is incomplete or damaged, or has no signature.
        ConfigError: `model.toml` contradicts the model.
    """
    tensorflow = import_tensorflow()
    device = choose_device(tensorflow, options.device, options.threads)
    with loading(path):
        check_saved_model(path, options)
        functions = _functions_of(tensorflow, path)
        definitions = _definitions(path)
    types = {
        name: [each.dtype.as_datatype_enum for each in function.inputs.values()] for name, function in functions.items()
    }
    chosen = choose_signature(types, options.signature, path)
    served = _model(path, chosen, functions[chosen], options, definitions.get(chosen))
    others = []
    for name in sorted(set(functions) - {chosen}) if served.signature else ():
        try:
            others.append(_model(path, name, functions[name], LoadOptions(), definitions.get(name)))
        except ModelNotLoadable as error:
            log_once(log, logging.INFO, "signature %s can't be requested: %s", name, error)
    return TensorFlowBackend(
        tensorflow, served, device, [TensorFlowBackend(tensorflow, other, device) for other in others]
    )


def _model(path: Path, name: str, function: Function, options: LoadOptions, definition: Any) -> TensorFlowModel:
    is_described = definition is not None and not _has_sparse(function, definition)
    # Without a signature nothing would tell callers that any rank will do.
    inputs = tensor_specs(function.inputs, options.inputs, path, ranked=not is_described)
    outputs = tensor_specs(function.outputs, options.outputs, path)
    signature = None
    if is_described:
        signature = Signature(
            name,
            definition.method_name,
            _described(inputs, definition.inputs, function.inputs, options.inputs),
            _described(outputs, definition.outputs, function.outputs, options.outputs),
        )
    return TensorFlowModel("tensorflow_savedmodel", path, function.call, inputs, outputs, options.precision, signature)


def _has_sparse(function: Function, definition: Any) -> bool:
    """Return whether a signature has sparse tensors, which have three names here: requests can't ask for it by name."""
    return not (set(function.inputs) <= set(definition.inputs) and set(function.outputs) <= set(definition.outputs))


def _functions_of(tensorflow: Any, path: Path) -> Mapping[str, Function]:
    try:
        return _functions(_load(tensorflow, path))
    except Exception as error:  # noqa: BLE001 - of whatever class, AttributeError among them
        try:
            signatures = load_in_session(tensorflow, path)
        except Exception:  # noqa: BLE001 - the first error is clearer about a damaged model
            raise error from None
        log_once(
            log,
            logging.INFO,
            "%s: TensorFlow 2's loader refuses it (%s); running in a session",
            path,
            type(error).__name__,
        )
        return signatures


def _load(tensorflow: Any, path: Path) -> Any:
    try:
        return tensorflow.saved_model.load(path)
    except ValueError:
        # Several graphs in one SavedModel (for training, for serving): take the one for serving.
        return tensorflow.saved_model.load(path, tags=["serve"])


def _functions(loaded: Any) -> dict[str, Function]:
    def call(name: str, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        # The variables live as long as the loaded object, which this function keeps.
        results: Mapping[str, Any] = loaded.signatures[name](**feeds)
        return results

    return {
        name: Function(function.structured_input_signature[1], function.structured_outputs, partial(call, name))
        for name, function in loaded.signatures.items()
    }


def choose_signature(types: Mapping[str, Collection[int]], configured: str | None, path: Path) -> str:
    """Return a SavedModel's signature: the configured one, `serving_default`, or the first that takes no strings.

    Args:
        types: The inputs' datatypes by the signature's name, as tensorflow/core/framework/types.proto numbers them.
        configured: `parameters.signature` of `model.toml`.
        path: For messages.

    Raises:
        ConfigError: There is no signature of the configured name.
        ModelNotLoadable: There is no signature at all.
    """
    if not types:
        raise ModelNotLoadable(f"{path}: a SavedModel without signatures; export it with one for serving")
    if configured is not None:
        if configured not in types:
            raise ConfigError(
                f"model.toml: parameters.signature = {configured!r}: {path} has {', '.join(sorted(types))}"
            )
        return configured
    if DEFAULT_SIGNATURE in types:
        return DEFAULT_SIGNATURE
    chosen = min(types, key=lambda name: (_STRING in types[name], name))
    log_once(
        log,
        logging.WARNING,
        "%s: no signature %s; taking %s (parameters.signature chooses another)",
        path,
        DEFAULT_SIGNATURE,
        chosen,
    )
    return chosen


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """One of a SavedModel's functions.

    Attributes:
        inputs: TensorFlow's tensors, or their specifications, by name.
        outputs: TensorFlow's tensors of the outputs, or their specifications, by name.
        call: Takes TensorFlow's tensors; returns tensors, or arrays.
    """

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    call: Callable[[Mapping[str, Any]], Mapping[str, Any]]


def load_in_session(tensorflow: Any, path: Path) -> dict[str, Function]:
    """Load a SavedModel as TensorFlow 1 does: variables, assets, tables, and what else the model initialises.

    The session has the devices and threads that the process has; it lives as long as the signatures do.

    Raises:
        Exception: Of any class, where TensorFlow can't load it.
    """
    graph = tensorflow.Graph()
    session = tensorflow.compat.v1.Session(graph=graph)
    with graph.as_default():
        loaded = tensorflow.compat.v1.saved_model.load(session, serving_tags(path), str(path))
    return {
        name: _signature(session, definition)
        for name, definition in loaded.signature_def.items()
        if not name.startswith(_OWN)
    }


def serving_tags(path: Path) -> list[str]:
    """Return the tags of the graph to serve: TensorFlow loads it by exactly its tags, such as `serve` and `gpu`."""
    graph = _graph_to_serve(path)
    return ["serve"] if graph is None else list(graph.meta_info_def.tags)


def _definitions(path: Path) -> Mapping[str, Any]:
    """Return the SignatureDefs of a SavedModel's file, by name."""
    graph = _graph_to_serve(path) if (path / "saved_model.pb").is_file() else None
    return {} if graph is None else graph.signature_def


def _graph_to_serve(path: Path) -> Any:
    from tensorflow.core.protobuf import saved_model_pb2

    content = saved_model_pb2.SavedModel()
    content.ParseFromString((path / "saved_model.pb").read_bytes())
    graphs = list(content.meta_graphs)
    return next((graph for graph in graphs if "serve" in graph.meta_info_def.tags), graphs[0] if graphs else None)


def _described(
    specs: Sequence[TensorSpec], infos: Mapping[str, Any], tensors: Mapping[str, Any], configured: Collection[str]
) -> tuple[SignatureTensor, ...]:
    """Return tensors of a signature with the names that the file has for them.

    Datatypes and shapes are those that run: old files state others. A rank that nothing states is that of each request.
    """
    shapes = {
        spec.name: None if tensors[spec.name].shape.rank is None and spec.name not in configured else spec.shape
        for spec in specs
    }
    return tuple([SignatureTensor(one.name, one.datatype, shapes[one.name], infos[one.name].name) for one in specs])


def _signature(session: Any, definition: Any) -> Function:
    inputs = _tensors(session.graph, definition.inputs)
    outputs = _tensors(session.graph, definition.outputs)
    run = session.make_callable(list(outputs.values()), list(inputs.values()))

    def call(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        return dict(zip(outputs, run(*(feeds[name].numpy() for name in inputs)), strict=True))

    return Function(inputs, outputs, call)


def tensor_names(infos: Mapping[str, Any]) -> dict[str, str]:
    """Return the tensors of a signature by name; a sparse one is three, named as by TensorFlow 2's loader.

    Args:
        infos: `inputs` or `outputs` of a SignatureDef.
    """
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
    return names


def _tensors(graph: Any, infos: Mapping[str, Any]) -> dict[str, Any]:
    return {name: graph.get_tensor_by_name(tensor) for name, tensor in tensor_names(infos).items()}
