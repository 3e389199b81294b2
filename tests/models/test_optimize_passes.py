"""Graph passes: the same outputs from fewer nodes, checked with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from mqinfer.images.placement import to_model_input
from mqinfer.lab.optimize.passes import (
    fix_batch,
    fuse_argmax,
    fuse_normalisation,
    open_argmax,
    prune,
    resize_before,
    sort,
)
from mqinfer.protocol.card import ColourOrder, ImageContract, Layout
from mqinfer.protocol.datatypes import Datatype

Array = np.ndarray[Any, Any]
CLASSES = 5
LOGITS = np.random.default_rng(1).normal(size=(2, CLASSES, 6, 8)).astype(np.float32)
"""NCHW."""


def model_of(nodes: list[Any], given: Any, output: Any, **constants: Array) -> Any:
    """Make a model of nodes, one input, one output and constants."""
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "test", [given], [output], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def run(model: Any, array: Array) -> Array:
    """Run a model on ONNX Runtime, after ONNX's own check."""
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    result: Array = session.run(None, {session.get_inputs()[0].name: array})[0]
    return result


def segmentation(*, resized: bool = False, transposed: bool = True, argmax: bool = False) -> Any:
    """Build the end of a converted network: logits, a resize, a transpose to NHWC, optionally an argmax."""
    nodes, last = [helper.make_node("Identity", ["x"], ["logits"])], "logits"
    if resized:
        given = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
        nodes.append(helper.make_node("Resize", [last, "", "scales"], ["resized"], **given))
        last = "resized"
    if transposed:
        nodes.append(helper.make_node("Transpose", [last], ["nhwc"], perm=[0, 2, 3, 1]))
        last = "nhwc"
    kind, shape = TensorProto.FLOAT, ["n", None, None, CLASSES] if transposed else ["n", CLASSES, None, None]
    if argmax:
        axis = 3 if transposed else 1
        nodes += [
            helper.make_node("ArgMax", [last], ["best"], axis=axis, keepdims=0),
            helper.make_node("Cast", ["best"], ["narrow"], to=TensorProto.INT32),
        ]
        last, kind = "narrow", TensorProto.UINT8
        del shape[axis]
    end = helper.make_node("Cast", [last], ["y"], to=kind)
    given_x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", CLASSES, 6, 8])
    output = helper.make_tensor_value_info("y", kind, shape)
    return model_of([*nodes, end], given_x, output, scales=np.array([1, 1, 2, 2], np.float32))


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("resized", [True, False])
def test_logits_become_a_mask(*, resized: bool, transposed: bool) -> None:
    """The fused mask is the argmax of the logits, uint8, in the order of axes that the logits had."""
    model = segmentation(resized=resized, transposed=transposed)
    axis = 3 if transposed else 1
    expected = run(model, LOGITS).argmax(axis)
    fuse_argmax(model, "y", axis)
    mask = run(model, LOGITS)
    assert mask.dtype == np.uint8
    assert np.array_equal(mask, expected)


def test_logits_are_not_transposed_for_a_mask() -> None:
    """The argmax runs before any transpose, so no float tensor is transposed."""
    model = segmentation()
    model.graph.node[-1].op_type = "Identity"
    model.graph.node[-1].ClearField("attribute")
    fuse_argmax(model, "y", 3)
    prune(model)
    (argmax,) = (node for node in model.graph.node if node.op_type == "ArgMax")
    assert list(argmax.input) == ["x"]  # through the identity too


@pytest.mark.parametrize("transposed", [True, False])
def test_an_argmax_can_be_opened(*, transposed: bool) -> None:
    """A graph that ends in an argmax gets its logits back; fused again it returns the same mask."""
    model = segmentation(resized=True, transposed=transposed, argmax=True)
    expected = run(model, LOGITS)
    axis = open_argmax(model, "y")
    assert axis == (3 if transposed else 1)
    logits = run(model, LOGITS)
    assert logits.dtype == np.float32
    assert np.array_equal(logits.argmax(axis), expected)
    fuse_argmax(model, "y", axis)
    assert np.array_equal(run(model, LOGITS), expected)


def test_no_argmax_to_open() -> None:
    """A graph without an argmax does not change."""
    model = segmentation()
    before = model.SerializeToString()
    assert open_argmax(model, "y") is None
    assert model.SerializeToString() == before


@pytest.mark.parametrize("sizes", [True, False])
def test_argmax_before_the_resize(*, sizes: bool) -> None:
    """The early mask is that of the small logits, each pixel doubled; by scales and by sizes."""
    model = segmentation(resized=True, argmax=True)
    if sizes:
        resize = next(node for node in model.graph.node if node.op_type == "Resize")
        resize.input[:] = ["logits", "", "", "sizes"]
        model.graph.initializer.append(numpy_helper.from_array(np.array([2, CLASSES, 12, 16], np.int64), "sizes"))
    axis = open_argmax(model, "y")
    assert axis == 3
    assert resize_before(model, "y").op_type == "Resize"
    fuse_argmax(model, "y", axis, early=True)
    prune(model)
    small = LOGITS.argmax(1)
    assert np.array_equal(run(model, LOGITS), small.repeat(2, axis=1).repeat(2, axis=2))


def test_no_resize_before_the_argmax() -> None:
    """Logits without a resize have none to move."""
    assert resize_before(segmentation(), "y") is None


@given(
    layout=st.sampled_from(list(Layout)),
    scale=st.sampled_from([1.0, 1 / 255, 1 / 127.5]),
    mean=st.lists(st.floats(-1, 1, width=16), min_size=3, max_size=3),
    std=st.lists(st.floats(0.125, 2, width=16), min_size=3, max_size=3),
)
def test_normalisation_goes_into_the_graph(layout: Layout, scale: float, mean: list[float], std: list[float]) -> None:
    """uint8 pixels yield the result of the worker's normalisation in every layout; names stay."""
    mono = layout is Layout.NHW
    channels = 1 if mono else 3
    shapes = {Layout.NHWC: [1, 4, 5, 3], Layout.NCHW: [1, 3, 4, 5], Layout.NHW: [1, 4, 5]}
    colour = ColourOrder.MONO if mono else ColourOrder.RGB
    contract = ImageContract("x", 5, 4, colour, layout, scale, tuple(mean[:channels]), tuple(std[:channels]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[layout]) for name in "xy"]
    model = model_of([helper.make_node("Identity", ["x"], ["y"])], *ends)
    picture = np.random.default_rng(0).integers(0, 256, (4, 5, channels), np.uint8)
    encoding = "mono8" if mono else "rgb8"
    expected = to_model_input(picture, encoding, contract, Datatype.FP32)
    fuse_normalisation(model, contract, channels)
    plain = ImageContract("x", 5, 4, colour, layout)
    given_pixels = to_model_input(picture, encoding, plain, Datatype.UINT8)
    assert given_pixels.dtype == np.uint8
    assert np.allclose(run(model, given_pixels), expected, rtol=1e-5, atol=1e-4)


def test_nothing_to_normalise_adds_a_cast_only() -> None:
    """A contract with scale 1, mean 0 and std 1 adds no node."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 5, 3]) for name in "xy"]
    model = model_of([helper.make_node("Identity", ["x"], ["y"])], *ends)
    fuse_normalisation(model, ImageContract("x", 5, 4), 3)
    assert {node.op_type for node in model.graph.node} == {"Cast", "Identity"}


def test_batch_is_fixed() -> None:
    """Dynamic first axes get the size; other axes stay dynamic."""
    model = segmentation()
    fix_batch(model, 1)
    shapes = [
        [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in [model.graph.input[0], *model.graph.output]
    ]
    assert shapes == [[1, CLASSES, 6, 8], [1, 0, 0, CLASSES]]


def test_prune_removes_what_no_output_needs() -> None:
    """A dangling node and a constant are removed; inputs of a subgraph stay."""
    inner_output = helper.make_tensor_value_info("z", TensorProto.FLOAT, [2])
    then = helper.make_graph([helper.make_node("Add", ["x", "w"], ["z"])], "then", [], [inner_output])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["z"])], "else", [], [inner_output])
    nodes = [
        helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other),
        helper.make_node("Add", ["x", "unused"], ["nowhere"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    constants = {"w": np.ones(2, np.float32), "unused": np.ones(2, np.float32), "flag": np.array(True)}
    model = model_of(nodes, *ends, **constants)
    assert prune(model) == 2
    assert {each.name for each in model.graph.initializer} == {"w", "flag"}
    assert run(model, np.zeros(2, np.float32)).tolist() == [1, 1]


@given(st.permutations(range(6)))
def test_nodes_are_put_into_order(order: list[int]) -> None:
    """Shuffled nodes are sorted so that each follows its inputs."""
    names = ["x", "a", "b", "c", "d", "e", "y"]
    nodes = [helper.make_node("Identity", [names[n]], [names[n + 1]]) for n in range(6)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    model = model_of([nodes[n] for n in order], *ends)
    sort(model)
    assert [node.output[0] for node in model.graph.node] == names[1:]


def test_a_cycle_is_named() -> None:
    """A cycle is an error, not an endless loop."""
    nodes = [helper.make_node("Identity", [one], [other], name=other) for one, other in (("a", "y"), ("y", "a"))]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    with pytest.raises(ValueError, match="cycle through 'y'"):
        sort(model_of(nodes, *ends))
