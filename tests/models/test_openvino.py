"""The OpenVINO back end, on models that OpenVINO and ONNX wrote, and on what is no model."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mqinfer.errors import ConfigError, ModelFailed, ModelNotLoadable
from mqinfer.models.backend import Backend
from mqinfer.models.backends.openvino import load, precision_of
from mqinfer.models.backends.openvino_settings import choose_device, properties
from mqinfer.models.backends.openvino_signature import check_saved_model, dangling, read_nodes
from mqinfer.models.load_options import LoadOptions, TensorOptions, parse_device
from mqinfer.models.loading import load_model
from mqinfer.models.repository import ModelVersion
from mqinfer.models.repository.config import ModelConfig
from mqinfer.models.warmup import warm_up
from mqinfer.protocol.datatypes import Datatype, dtype_of
from mqinfer.protocol.types import TensorSpec

WriteOnnx = Callable[..., Path]
WriteIr = Callable[..., Path]
NUMBERS = [datatype for datatype in Datatype if datatype is not Datatype.BYTES]
TYPES = {"BOOL": "boolean", "FP16": "f16", "FP32": "f32", "FP64": "f64", "BYTES": "string"}


@pytest.fixture
def write_ir(tmp_path: Path) -> WriteIr:
    """Write an IR that returns its input `x` twice, along the first axis, as `y`; one that adds 1 has weights."""
    import openvino
    from openvino import opset13 as op

    def write(datatype: str = "FP32", shape: list[int] | None = None, *, weights: bool = False) -> Path:
        kind = TYPES.get(datatype) or datatype.lower().replace("uint", "u").replace("int", "i")
        axes = openvino.PartialShape.dynamic() if shape is None else openvino.PartialShape(shape)
        x = op.parameter(axes, getattr(openvino.Type, kind), name="x")
        added = op.constant(np.arange(4, dtype=np.float32))
        y = op.add(x, added) if weights else x if datatype == "BYTES" or shape == [] else op.concat([x, x], 0)
        result = op.result(y)
        x.output(0).tensor.set_names({"x"})
        result.output(0).tensor.add_names({"y"})
        path = tmp_path / "model.xml"
        openvino.save_model(openvino.Model([result], [x], "test"), path, compress_to_fp16=False)
        return path

    return write


def loaded(path: Path, **options: Any) -> Backend:
    """Load a file on the CPU."""
    return load(path, LoadOptions(**options))


@pytest.mark.parametrize("rows", [2, 0])
@pytest.mark.parametrize("datatype", NUMBERS)
def test_numbers_of_every_datatype(write_ir: WriteIr, datatype: Datatype, rows: int) -> None:
    """What goes in comes out, with its dtype, from memory that is read-only and not aligned, and without rows."""
    backend = loaded(write_ir(datatype, [-1, 4]))
    array = np.arange(rows * 4).reshape(rows, 4).astype(dtype_of(datatype))
    payload = b"\0" + array.tobytes()
    result = backend.infer({"x": np.frombuffer(payload, np.uint8)[1:].view(array.dtype).reshape(rows, 4)})["y"]
    assert result.dtype == array.dtype
    assert np.array_equal(result, np.concatenate([array, array]))
    assert backend.inputs == (TensorSpec("x", datatype, (-1, 4)),)
    assert backend.outputs == (TensorSpec("y", datatype, (-1, 4)),)


def test_a_tensor_without_axes(write_onnx: WriteOnnx, tmp_path: Path) -> None:
    """Shape [] stays []."""
    result = loaded(write_onnx(tmp_path / "model.onnx", "FP32", ())).infer({"x": np.array(1.5, np.float32)})["y"]
    assert (result.shape, result.item()) == ((), 1.5)


def test_strings_are_left_to_other_engines(write_ir: WriteIr) -> None:
    """The message names engines that take them."""
    with pytest.raises(ModelNotLoadable, match=r"' is string.*tensorflow"):
        loaded(write_ir("BYTES", [-1]))


def test_onnx_where_it_is_asked_for(write_onnx: WriteOnnx, tmp_path: Path) -> None:
    """`backend = "openvino"` on an ONNX file: the card has the engine and the precision."""
    path = write_onnx(tmp_path / "model.onnx")
    model = load_model(ModelVersion("m", 1, path, ModelConfig(backend="openvino")), device="cpu")
    card = model.card
    assert (card.platform, card.parameters.device, card.parameters.precision) == ("onnx_onnxv1", "cpu", "fp32")
    assert card.parameters.backend.startswith("openvino 20")
    assert (card.inputs[0].name, card.outputs[0].name) == ("x", "y")
    warm_up(model.backend, card)


def test_wrong_inputs_fail_and_the_next_run_works(write_ir: WriteIr) -> None:
    """A missing input is not that of the run before, another datatype is not cast."""
    backend = loaded(write_ir("FP32", [-1, 4]))
    right = {"x": np.ones((1, 4), np.float32)}
    assert backend.infer(right)["y"].sum() == 8
    for wrong in ({}, {"z": right["x"]}, {"x": np.ones((1, 4))}, {"x": np.ones((1, 5), np.float32)}):
        with pytest.raises(ModelFailed, match=r"model\.xml: "):
            backend.infer(wrong)
    assert backend.infer(right, ["y"])["y"].sum() == 8
    backend.close()
    with pytest.raises(ModelFailed, match="closed"):
        backend.infer(right)


def test_results_outlive_the_next_run(write_ir: WriteIr) -> None:
    """OpenVINO writes to the same memory again; returned outputs stay."""
    backend = loaded(write_ir("FP32", [-1, 4]))
    first = backend.infer({"x": np.ones((1, 4), np.float32)})["y"]
    backend.infer({"x": np.zeros((1, 4), np.float32)})
    assert first.sum() == 8


def test_several_callers_at_once(write_ir: WriteIr) -> None:
    """With streams there are several requests, and every caller gets its own answer."""
    backend = loaded(write_ir("FP32", [-1, 4]), parameters={"NUM_STREAMS": "2"})
    assert backend.concurrency == 2

    def ask(number: int) -> bool:
        array = np.full((3, 4), number, np.float32)
        return bool((backend.infer({"x": array})["y"] == number).all())

    with ThreadPoolExecutor(8) as callers:
        assert all(callers.map(ask, range(400)))


def test_stated_shapes(write_ir: WriteIr) -> None:
    """An open rank must be configured; a configured shape narrows the model, and one that contradicts it is refused."""
    open_rank = write_ir("FP32", None)
    with pytest.raises(ModelNotLoadable, match=r"rank of the input 'x' open.*model\.toml"):
        loaded(open_rank)
    backend = loaded(open_rank, inputs={"x": TensorOptions((3, 4))})
    assert (backend.inputs[0].shape, backend.outputs[0].shape) == ((3, 4), (6, 4))
    path = write_ir("FP32", [-1, 4])
    assert loaded(path, inputs={"x": TensorOptions((3, 4))}).outputs[0].shape == (6, 4)
    for wrong in (
        {"z": TensorOptions()},
        {"x": TensorOptions((1, 3))},
        {"x": TensorOptions((1,))},
        {"x": TensorOptions(datatype=Datatype.INT8)},
    ):
        with pytest.raises(ConfigError, match=r"model\.toml"):
            loaded(path, inputs=wrong)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "bin"), (b"", "both again"), (b"version https://git-lfs", "LFS"), (b"\0\0", "both")],
)
def test_weights_that_are_not_there(write_ir: WriteIr, content: bytes | None, message: str) -> None:
    """The .bin beside the .xml is looked at too."""
    path = write_ir("FP32", [-1, 4], weights=True)
    weights = path.with_suffix(".bin")
    weights.unlink()
    if content is not None:
        weights.write_bytes(content)
    with pytest.raises(ModelNotLoadable, match=message):
        loaded(path)


def test_weights_elsewhere_are_refused(write_ir: WriteIr, tmp_path: Path) -> None:
    """A link can't lead out of the model's folder."""
    path = write_ir("FP32", [-1, 4], weights=True)
    (tmp_path / "m").mkdir()
    moved = path.rename(tmp_path / "m" / "model.xml")
    (tmp_path / "m" / "model.bin").symlink_to(tmp_path / "model.bin")
    with pytest.raises(ModelNotLoadable, match="leads out"):
        loaded(moved)


def test_what_is_no_model(write_ir: WriteIr, write_onnx: WriteOnnx, tmp_path: Path) -> None:
    """Text, a truncated IR, a truncated ONNX file: each with its reason."""
    text = tmp_path / "text.xml"
    text.write_text("no XML at all")
    with pytest.raises(ModelNotLoadable, match=r"not an OpenVINO IR.*bytes of text"):
        loaded(text)
    path = write_ir("FP32", [-1, 4])
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ModelNotLoadable, match=r"can't load it.*both again"):
        loaded(path)
    onnx = write_onnx(tmp_path / "model.onnx")
    onnx.write_bytes(onnx.read_bytes()[:40])
    with pytest.raises(ModelNotLoadable, match="can't load it"):
        loaded(onnx)


def test_a_signature_that_it_can_not_choose(tmp_path: Path) -> None:
    """OpenVINO reads a SavedModel's serving signature only; the error explains that."""
    with pytest.raises(ConfigError, match="'other': OpenVINO reads a SavedModel's serving_default only"):
        loaded(tmp_path, signature="other")


@pytest.mark.slow
def test_a_placeholder_that_nothing_needs(tf: Any, tmp_path: Path) -> None:
    """OpenVINO makes an input and an output of it, so that no request would be complete; it is neither."""
    v1, path = tf.compat.v1, tmp_path / "model.pb"
    with tf.Graph().as_default() as graph:
        v1.placeholder(tf.float32, [2], name="dangling")
        tf.add(v1.placeholder(tf.float32, [None, 3], name="x"), 1.0, name="y")
    path.write_bytes(graph.as_graph_def().SerializeToString())
    backend = loaded(path)
    assert [spec.name for spec in (*backend.inputs, *backend.outputs)] == ["x", "y"]
    assert backend.infer({"x": np.zeros((1, 3), np.float32)})["y"].tolist() == [[1, 1, 1]]


def test_weights_of_a_frozen_graph_are_not_copied(tmp_path: Path) -> None:
    """Names, operations and inputs are read where they lie, whatever the size of the attributes between them."""

    def field(number: int, content: bytes) -> bytes:
        size, length = len(content), b""
        while size > 0x7F:
            length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
        return bytes([number << 3 | 2]) + length + bytes([size]) + content

    weights = field(1, field(1, b"w") + field(2, b"Const") + field(5, bytes(8 << 20)))
    alone = field(1, field(1, b"x") + field(2, b"Placeholder"))
    needed = field(1, field(1, b"y") + field(2, b"Placeholder"))
    total = field(1, field(1, b"sum") + field(2, b"AddV2") + field(3, b"y") + field(3, b"w:0"))
    (tmp_path / "model.pb").write_bytes(weights + alone + needed + total)
    tracemalloc.start()
    nodes = read_nodes(tmp_path / "model.pb")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20
    assert {name: (node.op, node.input) for name, node in nodes.items()} == {
        "w": ("Const", ()),
        "x": ("Placeholder", ()),
        "y": ("Placeholder", ()),
        "sum": ("AddV2", ("y", "w:0")),
    }
    assert dangling(nodes) == {"x"}
    for damaged in (b"", weights[:-1], field(1, field(1, b"\xff"))):
        (tmp_path / "model.pb").write_bytes(damaged)
        with pytest.raises(ModelNotLoadable, match="no model that can be read"):
            read_nodes(tmp_path / "model.pb")


def test_what_is_no_tensorflow_lite_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """OpenVINO's other readers do not try it: they print what they find, byte by byte."""
    path = tmp_path / "model.tflite"
    path.write_bytes(b"\x1c\0\0\0TFL2" + b"\xc8" * 100)
    with pytest.raises(ModelNotLoadable, match=r"model\.tflite: not a TensorFlow Lite file; found 108 bytes"):
        loaded(path)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_saved_model_with_other_names_than_its_own(tf: Any, tmp_path: Path) -> None:
    """One that is as the model itself serves; one that has lost an input is refused, with both lists of names."""
    module = tf.Module()
    module.double = tf.function(lambda x, y: {"sum": x + y})
    specs = [tf.TensorSpec([None, 2], name=name) for name in "xy"]
    tf.saved_model.save(module, tmp_path / "m", signatures=module.double.get_concrete_function(*specs))
    backend = loaded(tmp_path / "m")
    ones = np.ones((1, 2), np.float32)
    assert backend.infer({"x": ones, "y": ones})["sum"].tolist() == [[2, 2]]
    from tensorflow.core.protobuf import saved_model_pb2

    file = tmp_path / "m" / "saved_model.pb"
    content = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    signature = content.meta_graphs[0].signature_def["serving_default"]
    signature.inputs["z"].CopyFrom(signature.inputs["y"])
    del signature.inputs["y"]
    file.write_bytes(content.SerializeToString())
    with pytest.raises(ModelNotLoadable, match="OpenVINO reads the inputs x, y, the model has x, z; use the back end"):
        check_saved_model(tmp_path / "m", ["x", "y"], ["sum"])


@pytest.mark.slow
def test_tensorflow_lite(tf: Any, tmp_path: Path) -> None:
    """A TFLite file serves under the names of its tensors."""
    given = tf.keras.layers.Input((4,), name="given")
    model = tf.keras.Model(given, tf.keras.layers.Rescaling(2.0)(given))
    path = tmp_path / "model.tflite"
    path.write_bytes(tf.lite.TFLiteConverter.from_keras_model(model).convert())
    backend = loaded(path)
    (x,), (y,) = backend.inputs, backend.outputs
    assert (backend.platform, x.shape, y.shape) == ("tensorflow_lite", (-1, 4), (-1, 4))
    assert backend.infer({x.name: np.ones((2, 4), np.float32)})[y.name].tolist() == [[2] * 4] * 2
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ModelNotLoadable, match=r"model\.tflite"):
        loaded(path)


@pytest.mark.shared_data
def test_a_saved_model_that_it_can_not_convert(shared_models: Path) -> None:
    """The message has a way that works."""
    with pytest.raises(ModelNotLoadable, match="convert it to ONNX"):
        loaded(shared_models / "half_plus_two_2_versions" / "00000123")


@pytest.mark.shared_data
def test_a_frozen_graph_of_others(shared_models: Path, digits: Any) -> None:
    """The public graph gets as many digits as under TensorFlow, and the same names; a configured output cuts it."""
    path = shared_models / "tf2onnx_fc-layers.pb"
    backend = loaded(path)
    pixels, labels = digits
    guesses = backend.infer({"X": pixels / 255})["output"].argmax(1)
    assert int((guesses == labels).sum()) == 958
    assert [spec.name for spec in loaded(path, outputs={"model/pred/BiasAdd": TensorOptions()}).outputs] == [
        "model/pred/BiasAdd"
    ]
    with pytest.raises(ConfigError, match="no node 'nowhere'"):
        loaded(path, outputs={"nowhere": TensorOptions()})


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 2}),
        ({"precision": "bf16"}, {"INFERENCE_PRECISION_HINT": "bf16"}),
        ({"HINT_BF16": "YES"}, {"INFERENCE_PRECISION_HINT": "bf16"}),
        ({"precision": "bf16", "INFERENCE_PRECISION_HINT": "f16"}, {"INFERENCE_PRECISION_HINT": "f16"}),
        ({"precision": "int8"}, {"INFERENCE_PRECISION_HINT": "f32"}),
        ({"PERFORMANCE_HINT": "THROUGHPUT"}, {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_NUM_THREADS": None}),
        ({"NUM_STREAMS": "4", "INFERENCE_NUM_THREADS": "8"}, {"NUM_STREAMS": "4", "INFERENCE_NUM_THREADS": "8"}),
        ({"RESHAPE_IO_LAYERS": "yes", "TARGET_DEVICE": "CPU", "signature": "x"}, {"RESHAPE_IO_LAYERS": None}),
    ],
)
def test_properties(parameters: dict[str, Any], expected: dict[str, Any]) -> None:
    """Triton's keys become OpenVINO's properties; f32 and least latency by default."""
    given = properties(LoadOptions(threads=2, parameters=parameters), "CPU")
    assert {name: given.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("device", "cpu"), [("CPU", None), ("AUTO:GPU,CPU", {"ENABLE_CPU_PINNING": False, "INFERENCE_NUM_THREADS": 2})]
)
def test_properties_of_the_cpu(device: str, cpu: dict[str, Any] | None) -> None:
    """Processes do not all pin themselves to the same cores; plug-ins hand the CPU's properties to it alone."""
    given = properties(LoadOptions(threads=2), device)
    assert given.get("DEVICE_PROPERTIES") == (cpu and {"CPU": cpu})
    assert given.get("ENABLE_CPU_PINNING") is (None if cpu else False)
    assert "INFERENCE_NUM_THREADS" not in properties(LoadOptions(), "GPU.0")


@pytest.mark.parametrize("wrong", [{"NUM_STREAM": "2"}, {"precision": "int3"}, {"CPU_EXTENSION_PATH": "/x.so"}])
def test_parameters_that_there_are_not(wrong: dict[str, Any]) -> None:
    """A misspelt name is no setting, and no library is loaded because a model's configuration names it."""
    with pytest.raises(ConfigError, match=f"parameters.{next(iter(wrong))}"):
        properties(LoadOptions(parameters=wrong), "CPU")


def test_a_property_that_openvino_refuses(write_ir: WriteIr) -> None:
    """What was set stands in the message."""
    with pytest.raises(ModelNotLoadable, match="NUM_STREAMS = many"):
        loaded(write_ir("FP32", [-1, 4]), parameters={"NUM_STREAMS": "many"})


@pytest.mark.parametrize(
    ("requested", "available", "device", "lines"),
    [
        ("auto", ["CPU"], "CPU", 0),
        ("auto", ["CPU", "GPU.0", "GPU.1"], "GPU.0", 0),
        ("cpu", ["CPU", "GPU"], "CPU", 0),
        ("cuda:1", ["CPU", "GPU.0", "GPU.1"], "GPU.1", 0),
        ("cuda", ["CPU"], "CPU", 1),
        ("GPU", ["CPU", "GPU.0"], "GPU", 0),
        ("GPU.0", ["CPU", "GPU"], "GPU.0", 0),
        ("AUTO", ["CPU", "GPU"], "AUTO:CPU,GPU", 0),
        ("AUTO:GPU,CPU", ["CPU", "GPU"], "AUTO:GPU,CPU", 0),
        ("AUTO:GPU,CPU", ["CPU"], "AUTO:CPU", 1),
        ("HETERO:GPU.1,CPU", ["CPU", "GPU.0", "GPU.1"], "HETERO:GPU.1,CPU", 0),
        ("AUTO:-GPU,CPU", ["CPU"], "AUTO:CPU", 0),
    ],
)
def test_devices(
    requested: str, available: list[str], device: str, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenVINO's own names and the common ones; what isn't there is left out with a line."""
    with caplog.at_level(logging.WARNING, "mqinfer.models"):
        assert choose_device(parse_device(requested), available) == device
    assert len(caplog.records) == lines


@pytest.mark.parametrize("requested", ["GPU", "AUTO:GPU", "NPU", "GPU.1"])
def test_devices_that_are_not_there(requested: str) -> None:
    """A missing device that was requested by OpenVINO's name is an error, not a reason to use the CPU."""
    with pytest.raises(ConfigError, match="OpenVINO has CPU here"):
        choose_device(parse_device(requested), ["CPU"])


@pytest.mark.parametrize("requested", ["AUTO:CPU", "HETERO:CPU", "MULTI:CPU"])
def test_devices_that_choose(write_ir: WriteIr, requested: str) -> None:
    """The back end reports what they chose."""
    backend = loaded(write_ir("FP32", [-1, 4]), device=parse_device(requested))
    assert (backend.device, backend.precision) == ("cpu", "fp32")


def node(layer: str, precision: str) -> SimpleNamespace:
    """Make a node of a compiled model's graph."""
    values = {"layerType": layer, "runtimePrecision": precision}
    info = {key: SimpleNamespace(astype=lambda _, value=value: value) for key, value in values.items()}
    return SimpleNamespace(get_rt_info=lambda: info)


@pytest.mark.parametrize(
    ("nodes", "precision"),
    [
        ([("Convolution", "f32"), ("Reorder", "bf16")], "fp32"),
        ([("Convolution", "bf16"), ("Convolution", "f32"), ("Eltwise", "f32")], "bf16"),
        ([("Convolution", "i8"), ("FullyConnected", "bf16")], "int8"),
        ([("Eltwise", "f16")], "fp16"),
        ([("Eltwise", "u8"), ("Input", "bf16")], "fp32"),
    ],
)
def test_precision_is_that_which_runs(nodes: list[tuple[str, str]], precision: str) -> None:
    """Read off the operations that do the work."""
    graph = SimpleNamespace(get_ops=lambda: [node(*each) for each in nodes])
    assert precision_of(SimpleNamespace(get_runtime_model=lambda: graph)) == precision
