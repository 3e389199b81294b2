"""Graph passes that move pre- and post-processing into an ONNX model.

Each pass changes the model in place. Names of inputs and outputs stay; their types and shapes may change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mqinfer.lab.conversion import import_onnx
from mqinfer.protocol.card import ImageContract, Layout
from mqinfer.protocol.datatypes import Array

PREFIX = "mqinfer_"
"""Prefix of the names of added tensors."""


def append(model: Any, kind: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
    """Append a node with one output and return the output's name; trailing empty inputs are dropped."""
    name = output or f"{PREFIX}{kind.lower()}_{len(model.graph.node)}"
    while inputs and not inputs[-1]:
        inputs = inputs[:-1]
    model.graph.node.append(import_onnx().helper.make_node(kind, inputs, [name], name, **attributes))
    return name


def constant(model: Any, values: Array) -> str:
    """Add an array to the graph and return its name."""
    name = f"{PREFIX}constant_{len(model.graph.initializer)}"
    model.graph.initializer.append(import_onnx().numpy_helper.from_array(np.asarray(values), name))
    return name


def producer(model: Any, name: str) -> Any:
    """Return the node that produces a tensor, or None for an input or a constant."""
    return next((node for node in model.graph.node if name in node.output), None)


def output_named(model: Any, name: str) -> Any:
    """Return the declaration of an output."""
    return next(each for each in model.graph.output if each.name == name)


def attributes(node: Any) -> dict[str, Any]:
    """Return the attributes of a node by name."""
    return {each.name: import_onnx().helper.get_attribute_value(each) for each in node.attribute}


def prune(model: Any) -> int:
    """Remove nodes, constants and declared shapes that no output needs.

    Returns:
        Number of removed nodes and constants.
    """
    graph = model.graph
    makers = {output: node for node in graph.node for output in node.output}
    needed: set[str] = set()
    waiting = [value.name for value in graph.output]
    while waiting:
        name = waiting.pop()
        if name and name not in needed:
            needed.add(name)
            waiting += reads(makers[name]) if name in makers else ()
    before = len(graph.node) + len(graph.initializer)
    _keep(graph.node, lambda node: any(output in needed for output in node.output))
    _keep(graph.initializer, lambda each: each.name in needed)
    del graph.value_info[:]  # shapes of changed tensors would be wrong; engines infer them again
    return before - len(graph.node) - len(graph.initializer)


def sort(model: Any) -> None:
    """Sort the nodes topologically, as ONNX requires."""
    made = {output for node in model.graph.node for output in node.output}
    known: set[str] = set()
    waiting, ordered = list(model.graph.node), []
    while waiting:
        ready: list[Any] = []
        rest: list[Any] = []
        for node in waiting:
            (rest if (made - known).intersection(reads(node)) - set(node.output) else ready).append(node)
        if not ready:
            raise ValueError(f"the graph has a cycle through {rest[0].name!r}")
        known |= {output for node in ready for output in node.output}
        ordered += ready
        waiting = rest
    copies = [import_onnx().NodeProto.FromString(node.SerializeToString()) for node in ordered]
    del model.graph.node[:]
    model.graph.node.extend(copies)


def reads(node: Any) -> list[str]:
    """Return the inputs of a node, and of its subgraphs (of a Loop or an If)."""
    inner = [graph for attribute in node.attribute for graph in (attribute.g, *attribute.graphs)]
    return [*node.input, *(name for graph in inner for each in graph.node for name in reads(each))]


def _keep(entries: Any, wanted: Callable[[Any], bool]) -> None:
    kept = [each for each in entries if wanted(each)]
    del entries[:]
    entries.extend(kept)


def fuse_argmax(model: Any, name: str, axis: int, *, early: bool = False) -> None:
    """Replace the logits of an output by the number of the best class, uint8.

    Transposes between the logits and the output are removed first, and the small mask is transposed instead.

    Args:
        model: Model with float logits at that output.
        name: Output name.
        axis: Class axis, with at most 256 classes.
        early: Take the best class before the last resize, and resize the mask to the nearest class: an
            approximation, wrong where a class would win only after the resize.
    """
    tensor, permutation = _behind_transposes(model, name)
    resize = resize_before(model, name) if early else None
    mask = append(model, "ArgMax", [resize.input[0] if resize else tensor], axis=permutation[axis], keepdims=1)
    mask = append(model, "Cast", [mask], to=import_onnx().TensorProto.UINT8)
    if resize:
        mask = _resized_mask(model, resize, mask, permutation[axis])
    if permutation != sorted(permutation):
        mask = append(model, "Transpose", [mask], perm=permutation)
    squeezed = append(model, "Squeeze", [mask, constant(model, np.array([axis], np.int64))])
    _replace_output(model, name, squeezed, axis)


def open_argmax(model: Any, name: str) -> int | None:
    """Remove an argmax at the end of the graph, so that the output is the logits again.

    Returns:
        The class axis of the logits, or None if the graph does not end in an argmax.
    """
    node = producer(model, name)
    passed = []
    while node is not None and node.op_type in {"Cast", "Identity"}:
        passed.append(node)
        node = producer(model, node.input[0])
    if node is None or node.op_type != "ArgMax":
        return None
    given = attributes(node)
    output = output_named(model, name)
    dims, keeps = output.type.tensor_type.shape.dim, given.get("keepdims", 1)
    axis: int = given.get("axis", 0) % (len(dims) + 1 - keeps)
    _insert_axis(dims, axis, replace=bool(keeps))
    output.type.tensor_type.elem_type = import_onnx().TensorProto.FLOAT
    for each in (*passed, node):
        model.graph.node.remove(each)
    append(model, "Identity", [node.input[0]], output=name)
    return axis


def resize_before(model: Any, name: str) -> Any:
    """Return the Resize node that produces an output's logits, or None."""
    tensor, _ = _behind_transposes(model, name)
    node = producer(model, tensor)
    return node if node is not None and node.op_type == "Resize" else None


def fuse_normalisation(model: Any, contract: ImageContract, channels: int) -> None:
    """Change an image input to uint8 pixels and normalise them in the graph: `(pixel * scale - mean) / std`.

    Args:
        model: Model with a float input.
        contract: Image contract with scale, mean and std.
        channels: Channels of the image.
    """
    entry = next(each for each in model.graph.input if each.name == contract.input).type.tensor_type
    inner, datatype = f"{PREFIX}{contract.input}", entry.elem_type
    for node in model.graph.node:
        node.input[:] = [inner if each == contract.input else each for each in node.input]
    entry.elem_type = import_onnx().TensorProto.UINT8
    std = np.array(contract.std, np.float64)
    pixels = append(model, "Cast", [contract.input], to=datatype)
    for kind, values, neutral in (("Mul", contract.scale / std, 1), ("Sub", np.array(contract.mean) / std, 0)):
        if np.any(values != neutral):
            shaped = _along(np.broadcast_to(values, channels), contract.layout, datatype)
            pixels = append(model, kind, [pixels, constant(model, shaped)])
    append(model, "Identity", [pixels], output=inner)
    sort(model)


def fix_batch(model: Any, size: int) -> None:
    """Fix the first axis of the inputs and outputs where it is dynamic."""
    for value in (*model.graph.input, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        if dims and not dims[0].HasField("dim_value"):
            dims[0].dim_value = size


def _behind_transposes(model: Any, name: str) -> tuple[str, list[int]]:
    """Return the tensor behind an output's transposes, and the axis of that tensor for each axis of the output."""
    permutation = list(range(len(output_named(model, name).type.tensor_type.shape.dim)))
    node = producer(model, name)
    while node is not None and node.op_type in {"Identity", "Transpose"}:
        if node.op_type == "Transpose":
            step = attributes(node)["perm"]
            permutation = [step[axis] for axis in permutation]
        name = node.input[0]
        node = producer(model, name)
    return name, permutation


def _resized_mask(model: Any, resize: Any, mask: str, axis: int) -> str:
    """Resize a mask like its logits, but to the nearest class; the class axis keeps its length of 1."""
    roi, scales, sizes = [*resize.input[1:], "", "", ""][:3]
    if sizes:
        where, one = constant(model, np.array([axis], np.int64)), constant(model, np.array([1], np.int64))
        sizes = append(model, "ScatterElements", [sizes, where, one])
    kept = {key: value for key, value in attributes(resize).items() if key == "coordinate_transformation_mode"}
    return append(model, "Resize", [mask, roi, scales, sizes], mode="nearest", **kept)


def _replace_output(model: Any, name: str, tensor: str, axis: int) -> None:
    """Make `tensor`, uint8 without the class axis, the output `name`."""
    output = output_named(model, name).type.tensor_type
    logits = f"{PREFIX}{name}_logits"
    for node in model.graph.node:
        node.input[:] = [logits if each == name else each for each in node.input]
        node.output[:] = [logits if each == name else name if each == tensor else each for each in node.output]
    output.elem_type = import_onnx().TensorProto.UINT8
    del output.shape.dim[axis]
    sort(model)


def _insert_axis(dims: Any, axis: int, *, replace: bool) -> None:
    """Insert a dynamic axis into an output's shape, or make the existing one dynamic."""
    dimension = import_onnx().TensorShapeProto.Dimension
    sizes = [dimension.FromString(each.SerializeToString()) for each in dims]
    sizes[axis : axis + int(replace)] = [dimension()]
    del dims[:]
    dims.extend(sizes)


def _along(values: Array, layout: Layout, datatype: int) -> Array:
    """Shape one number per channel so that it broadcasts over an image."""
    typed = values.astype(import_onnx().helper.tensor_dtype_to_np_dtype(datatype))
    shapes = {Layout.NCHW: (-1, 1, 1), Layout.NHWC: (-1,), Layout.NHW: (1,)}
    return typed.reshape(shapes[layout])
