"""Read a model file with OpenVINO: IR, ONNX, TensorFlow's frozen graphs and SavedModels.

Inputs and outputs have the names that the format's own engine uses, so that clients see no difference: the `input:0` of
a frozen graph is `input`. An IR's names stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from mqinfer.models.backends.openvino_signature import FrozenNode, check_graph, check_saved_model, dangling, read_nodes
from mqinfer.models.engines import platform_of
from mqinfer.models.load_options import LoadOptions, TensorOptions, check_ranks, with_configured_shapes
from mqinfer.models.repository.files import check_model_files, describe
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import ConfigError, ModelNotLoadable
from mqinfer.protocol.types import TensorSpec

_DATATYPES = {
    "boolean": Datatype.BOOL,
    "u8": Datatype.UINT8,
    "u16": Datatype.UINT16,
    "u32": Datatype.UINT32,
    "u64": Datatype.UINT64,
    "i8": Datatype.INT8,
    "i16": Datatype.INT16,
    "i32": Datatype.INT32,
    "i64": Datatype.INT64,
    "f16": Datatype.FP16,
    "f32": Datatype.FP32,
    "f64": Datatype.FP64,
}
_BY_ONNX = "; convert it to ONNX (tf2onnx), which OpenVINO and ONNX Runtime read, or use the back end `tensorflow`"
_ADVICE = {
    "tensorflow_graphdef": _BY_ONNX,
    "tensorflow_savedmodel": _BY_ONNX,
    "openvino_ir": "; the .xml and the .bin beside it belong together: copy both again",
}


def read_model(openvino: Any, core: Any, path: Path, options: LoadOptions) -> Any:
    """Read a file; of a frozen graph only what the configured outputs need.

    Raises:
        ModelNotLoadable: The file is damaged, OpenVINO can't convert it, or makes other inputs and outputs of it than
            the model has.
        ConfigError: `model.toml` contradicts the model.
    """
    platform = platform_of(path)
    if platform == "openvino_ir":
        _check_ir(path)
    if platform == "tensorflow_lite":
        _check_lite(path)
    if platform == "tensorflow_savedmodel" and options.signature not in {None, "serving_default"}:
        raise ConfigError(
            f"model.toml: parameters.signature = {options.signature!r}: OpenVINO reads a SavedModel's serving_default "
            "only; use the back end `tensorflow`"
        )
    try:
        model = core.read_model(path)
        if platform == "tensorflow_graphdef":
            return _graph(openvino, model, path, read_nodes(path), options.outputs)
        if platform == "tensorflow_savedmodel":
            check_saved_model(path, _names(model.inputs, path), _names(model.outputs, path))
        _drop_unused(model)
    except RuntimeError as error:
        advice = _ADVICE.get(platform, "")
        raise ModelNotLoadable(
            f"{path}: OpenVINO can't load it ({reason(error)}){advice}; found {describe(path)}"
        ) from error
    return model


def _graph(
    openvino: Any, model: Any, path: Path, nodes: Mapping[str, FrozenNode], configured: Mapping[str, TensorOptions]
) -> Any:
    """Return a frozen graph with the inputs and outputs that TensorFlow finds in it, or with the configured outputs."""
    if configured.keys() not in (set(), set(_names(model.outputs, path))):
        model = _cut(openvino, path, configured)
    else:
        _drop_results(model, dangling(nodes))
    _drop_unused(model)
    check_graph(path, nodes, _names(model.inputs, path), _names(model.outputs, path), configured)
    return model


def _check_lite(path: Path) -> None:
    """Check the file's identifier: OpenVINO would try all its other readers, which print what they find."""
    with path.open("rb") as file:
        if file.read(8)[4:] != b"TFL3":  # the identifier of the FlatBuffers schema
            raise ModelNotLoadable(f"{path}: not a TensorFlow Lite file; found {describe(path)}")


def _check_ir(path: Path) -> None:
    """Check both files of an IR: OpenVINO would try all its other readers on a broken one."""
    with path.open("rb") as file:
        if not file.read(64).lstrip().startswith(b"<"):
            raise ModelNotLoadable(f"{path}: not an OpenVINO IR file, which is XML; found {describe(path)}")
    weights = path.with_suffix(".bin")
    if weights.exists() and weights.stat().st_size:  # a model without constants has an empty one
        check_model_files(weights)
        if weights.resolve().parent != path.resolve().parent:
            raise ModelNotLoadable(f"{weights}: leads out of the model's folder; copy the weights into it")


def _cut(openvino: Any, path: Path, configured: Mapping[str, TensorOptions]) -> Any:
    """Convert only what the configured outputs of a frozen graph need."""
    frontend = openvino.frontend.FrontEndManager().load_by_model(str(path))
    graph = frontend.load(str(path))
    places = {name: graph.get_place_by_tensor_name(name if ":" in name else f"{name}:0") for name in configured}
    for name, place in places.items():
        if place is None:
            raise ConfigError(f"model.toml: the graph has no node {name!r} for an output")
    graph.override_all_outputs(list(places.values()))
    return frontend.convert(graph)


def _drop_results(model: Any, placeholders: Collection[str]) -> None:
    """Remove the outputs that OpenVINO makes of placeholders that nothing consumes."""
    for result in model.get_results():
        source = result.input_value(0).get_node()
        if source.get_type_name() == "Parameter" and source.friendly_name.partition(":")[0] in placeholders:
            model.remove_result(result)


def _drop_unused(model: Any) -> None:
    for parameter in model.get_parameters():
        if not parameter.output(0).get_target_inputs():
            model.remove_parameter(parameter)


def reshape(model: Any, inputs: Sequence[TensorSpec], path: Path) -> None:
    """Set a model's configured shapes, where they differ from the file's.

    Raises:
        ModelNotLoadable: The model can't have these shapes.
    """
    shapes = {port: list(spec.shape) for port, spec in enumerate(inputs) if _shape(model.inputs[port]) != spec.shape}
    try:
        if shapes:
            model.reshape(shapes)
    except RuntimeError as error:
        raise ModelNotLoadable(
            f"{path}: it can't take the shapes in model.toml, {list(shapes.values())}: {reason(error)}"
        ) from error


def tensor_specs(
    ports: Sequence[Any], configured: Mapping[str, TensorOptions], path: Path, *, ranked: bool = False
) -> tuple[TensorSpec, ...]:
    """Return the specifications of inputs or outputs; one of unknown rank has the configured shape, by default [-1].

    With `ranked` it needs one, as inputs do.

    Raises:
        ModelNotLoadable: This back end does not take the datatype, or the rank is neither in the file nor configured.
        ConfigError: A configured shape or name contradicts the model.
    """
    named = _names(ports, path)
    unknown = [name for name, port in named.items() if _shape(port) is None]
    if ranked:
        check_ranks(unknown, configured, path)
    return with_configured_shapes([_spec(name, port, path) for name, port in named.items()], configured, unknown)


def _names(ports: Sequence[Any], path: Path) -> dict[str, Any]:
    suffix = ":0" if platform_of(path) == "tensorflow_graphdef" else ""
    named = {_name(port).removesuffix(suffix): port for port in ports}
    if len(named) != len(ports):
        raise ModelNotLoadable(
            f"{path}: several inputs or outputs have the same name, of {', '.join(named)}; rename them"
        )
    return named


def _name(port: Any) -> str:
    """Return the node's name if its tensor has it too, as an output's in ONNX; else a name of the tensor."""
    name = str(port.node.friendly_name).removesuffix("/sink_port_0")
    names = sorted(port.names)
    return names[0] if names and name not in names else name


def _spec(name: str, port: Any, path: Path) -> TensorSpec:
    kind = port.element_type.get_type_name()
    if kind not in _DATATYPES:
        raise ModelNotLoadable(
            f"{path}: {name!r} is {kind}, which this back end does not take; for strings use `tensorflow` or "
            "`onnxruntime`, cast other types in the model"
        )
    return TensorSpec(name, _DATATYPES[kind], (-1,) if (shape := _shape(port)) is None else shape)


def _shape(port: Any) -> tuple[int, ...] | None:
    shape = port.partial_shape
    if shape.rank.is_dynamic:
        return None
    return tuple(-1 if size.is_dynamic else size.get_length() for size in shape)


def reason(error: Exception) -> str:
    """Return the message of an exception without its place in OpenVINO's sources."""
    lines = [line.strip() for line in str(error).splitlines()]
    kept = [line for line in lines if line and not line.startswith("Exception from ")]
    plain = [line for line in kept if not line.startswith("Check '")]
    return "; ".join(plain or kept)[:400] or type(error).__name__
