"""Small models that the gateway's tests are served by, written as ONNX; names and shapes as in Triton's examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["IDENTITIES", "SLOW_S", "build_repository"]

IDENTITIES = {
    "BOOL": "BOOL", "UINT8": "UINT8", "UINT16": "UINT16", "UINT32": "UINT32", "UINT64": "UINT64", "INT8": "INT8",
    "INT16": "INT16", "INT32": "INT32", "INT64": "INT64", "FP16": "FLOAT16", "FP32": "FLOAT", "FP64": "DOUBLE",
    "BYTES": "STRING",
}  # fmt: skip
"""Inputs of `all_types`, called by their datatypes, with ONNX's names of these."""

SLOW_S = 2.0
"""How long one run of the model `slow` takes; it runs one request at a time."""

_BATCHED = "max_batch_size: 8\n"
_DENSENET = """max_batch_size: 0
input: [{
  name: "data_0", data_type: TYPE_FP32, format: FORMAT_NCHW, dims: [3, 8, 8], reshape: { shape: [1, 3, 8, 8] }
}]
output: [{
  name: "fc6_1", data_type: TYPE_FP32, dims: [3], reshape: { shape: [1, 3, 1, 1] }, label_filename: "labels.txt"
}]
"""


def build_repository(folder: Path) -> Path:
    """Write the repository and return its folder.

    `simple` and `simple_string` return sums and differences (`INPUT0`, `INPUT1` [-1, 16] to `OUTPUT0`, `OUTPUT1`);
    `identity_fp32` (versions 1 and 2, any two axes) and `identity_bytes` return `INPUT0` as `OUTPUT0`; `all_types`
    returns each of its inputs, any one axis; `densenet_onnx` takes pictures as the model of that name in Triton's quick
    start does, and returns the mean of each of their colours, with labels; `slow` returns `x` [-1, 4] after `SLOW_S`.
    """
    _write(folder, "simple", _sums("INT32"), _BATCHED)
    _write(folder, "simple_string", _sums("STRING"), _BATCHED)
    identity = _identities({"INPUT0": "FLOAT"}, ["a", "b"], {"INPUT0": "OUTPUT0"})
    _write(folder, "identity_fp32", identity, "max_batch_size: 0\nversion_policy: { all: {} }\n", versions=(1, 2))
    _write(folder, "identity_bytes", _identities({"INPUT0": "STRING"}, ["n", "a"], {"INPUT0": "OUTPUT0"}), _BATCHED)
    names = {datatype: f"{datatype}_OUT" for datatype in IDENTITIES}
    _write(folder, "all_types", _identities(IDENTITIES, ["n"], names), "max_batch_size: 0\n")
    _write(folder, "densenet_onnx", _colour_means(), _DENSENET)
    (folder / "densenet_onnx" / "labels.txt").write_text("RED\nGREEN\nBLUE\n")
    slow = folder / "slow" / "1" / "model.echo"
    slow.parent.mkdir(parents=True)
    slow.write_text(f'delay_ms = {SLOW_S * 1000}\n[[input]]\nname = "x"\ndatatype = "TYPE_FP32"\nshape = [-1, 4]\n')
    return folder


def _write(folder: Path, name: str, model: bytes, config: str, versions: tuple[int, ...] = (1,)) -> None:
    for version in versions:
        path = folder / name / str(version) / "model.onnx"
        path.parent.mkdir(parents=True)
        path.write_bytes(model)
    (folder / name / "config.pbtxt").write_text(f'name: "{name}"\nplatform: "onnxruntime_onnx"\n{config}')


def _sums(kind: str) -> bytes:
    """Return a model of sums and differences; of strings, it computes with the numbers that they state."""
    from onnx import helper

    text, nodes, operands = kind == "STRING", [], ["INPUT0", "INPUT1"]
    if text:
        nodes = [helper.make_node("Cast", [name], [f"{name}_N"], to=_type("INT32")) for name in operands]
        operands = [f"{name}_N" for name in operands]
    for operation, output in (("Add", "OUTPUT0"), ("Sub", "OUTPUT1")):
        nodes.append(helper.make_node(operation, operands, [f"{output}_N" if text else output]))
        if text:
            nodes.append(helper.make_node("Cast", [f"{output}_N"], [output], to=_type("STRING")))
    return _model(nodes, {"INPUT0": kind, "INPUT1": kind}, {"OUTPUT0": kind, "OUTPUT1": kind}, ["n", 16])


def _colour_means() -> bytes:
    from onnx import helper

    nodes = [helper.make_node("GlobalAveragePool", ["data_0"], ["fc6_1"])]
    ends = [
        helper.make_tensor_value_info(name, _type("FLOAT"), [1, 3, *sides])
        for name, sides in (("data_0", [8, 8]), ("fc6_1", [1, 1]))
    ]
    return _serialised(helper.make_graph(nodes, "colours", ends[:1], ends[1:]))


def _identities(inputs: dict[str, str], axes: list[str], outputs: dict[str, str]) -> bytes:
    from onnx import helper

    nodes = [helper.make_node("Identity", [name], [outputs[name]]) for name in inputs]
    # Each has axes of its own: their sizes may differ.
    return _model(nodes, inputs, {outputs[name]: kind for name, kind in inputs.items()}, axes, own_axes=True)


def _model(
    nodes: list[Any], inputs: dict[str, str], outputs: dict[str, str], axes: list[Any], *, own_axes: bool = False
) -> bytes:
    from onnx import helper

    def described(tensors: dict[str, str]) -> list[Any]:
        return [
            helper.make_tensor_value_info(name, _type(kind), [f"{axis}{number}" if own_axes else axis for axis in axes])
            for number, (name, kind) in enumerate(tensors.items())
        ]

    return _serialised(helper.make_graph(nodes, "small", described(inputs), described(outputs)))


def _serialised(graph: Any) -> bytes:
    from onnx import helper

    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    ).SerializeToString()
    return made


def _type(kind: str) -> int:
    from onnx import TensorProto

    number: int = getattr(TensorProto, kind)
    return number
