"""One small network in every format and backend, through the broker: all agree with NumPy."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mqinfer import Client
from mqinfer.broker.address import BrokerAddress
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.planning import plan
from mqinfer.cloud_worker.supervision.process import ProcessSpec, serve
from mqinfer.models.engines import BACKENDS
from mqinfer.models.repository import Repository
from mqinfer.protocol.topics import Topics

pytestmark = [pytest.mark.broker, pytest.mark.slow]
Floats = npt.NDArray[np.float32]

SIDE, CHANNELS, FILTERS, CLASSES = 12, 3, 8, 5
_RNG = np.random.default_rng(20)
KERNEL: Floats = _RNG.normal(0, 0.3, (3, 3, CHANNELS, FILTERS)).astype(np.float32)
BIAS: Floats = _RNG.normal(0, 0.3, FILTERS).astype(np.float32)
DENSE: Floats = _RNG.normal(0, 0.3, (FILTERS, CLASSES)).astype(np.float32)
OFFSET: Floats = _RNG.normal(0, 0.3, CLASSES).astype(np.float32)
IMAGES: Floats = _RNG.random((4, SIDE, SIDE, CHANNELS), np.float32)

MODELS = {
    "graph": ("tensorflow_graphdef", "tensorflow"),
    "graph-openvino": ("tensorflow_graphdef", "openvino"),
    "saved": ("tensorflow_savedmodel", "tensorflow"),
    "saved-openvino": ("tensorflow_savedmodel", "openvino"),
    "keras": ("tensorflow_keras", "tensorflow"),
    "keras-h5": ("tensorflow_keras", "tensorflow"),
    "onnx": ("onnx_onnxv1", "onnxruntime"),
    "onnx-openvino": ("onnx_onnxv1", "openvino"),
    "ir": ("openvino_ir", "openvino"),
    "torchscript": ("pytorch_torchscript", "pytorch"),
}
"""Model in the test's repository, its format and its engine."""
TORCHSCRIPT = """
[[input]]
name = "image"
dims = [-1, 12, 12, 3]
[[output]]
name = "scores"
"""


def expected(images: Floats) -> npt.NDArray[np.float64]:
    """Compute the network in double precision: convolution without padding, ReLU, mean, weights."""
    windows = np.lib.stride_tricks.sliding_window_view(images.astype(np.float64), (3, 3), axis=(1, 2))
    features = np.maximum(np.einsum("nyxchw,hwcf->nyxf", windows, KERNEL) + BIAS, 0).mean((1, 2))
    return np.asarray(features @ DENSE + OFFSET)


def write_tensorflow(graph: Path, saved: Path) -> None:
    """Write the frozen graph and the SavedModel."""
    from mqinfer.models.backends.tensorflow.runtime import import_tensorflow

    tf = import_tensorflow()

    def scores(image: Any, kernel: Any, bias: Any, dense: Any, offset: Any) -> Any:
        features = tf.nn.relu(tf.nn.conv2d(image, kernel, 1, "VALID") + bias)
        return tf.add(tf.reduce_mean(features, [1, 2]) @ dense, offset, name="scores")

    with tf.Graph().as_default() as built:
        scores(tf.compat.v1.placeholder("float32", [None, SIDE, SIDE, CHANNELS], "image"), KERNEL, BIAS, DENSE, OFFSET)
    graph.write_bytes(built.as_graph_def().SerializeToString())

    module = tf.Module()
    module.weights = [tf.Variable(each) for each in (KERNEL, BIAS, DENSE, OFFSET)]
    function = tf.function(lambda image: {"scores": scores(image, *module.weights)})
    signature = function.get_concrete_function(tf.TensorSpec([None, SIDE, SIDE, CHANNELS], tf.float32, "image"))
    tf.saved_model.save(module, str(saved), signatures={"serving_default": signature})


def write_keras(*paths: Path) -> None:
    """Write the Keras formats."""
    import keras

    image = keras.Input((SIDE, SIDE, CHANNELS), name="image")
    features = keras.layers.Conv2D(FILTERS, 3, activation="relu")(image)
    average = keras.layers.GlobalAveragePooling2D()(features)
    model = keras.Model(image, keras.layers.Dense(CLASSES, name="scores")(average))
    model.set_weights([KERNEL, BIAS, DENSE, OFFSET])
    for path in paths:
        model.save(path)


def write_onnx(path: Path) -> None:
    """Write the ONNX file, whose convolutions need the channels first."""
    from onnx import TensorProto, helper, numpy_helper

    weights = {"kernel": KERNEL.transpose(3, 2, 0, 1), "bias": BIAS, "dense": DENSE, "offset": OFFSET}
    nodes = [
        helper.make_node("Transpose", ["image"], ["first"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["first", "kernel", "bias"], ["convolved"]),
        helper.make_node("Relu", ["convolved"], ["features"]),
        helper.make_node("ReduceMean", ["features"], ["average"], axes=[2, 3], keepdims=0),
        helper.make_node("Gemm", ["average", "dense", "offset"], ["scores"]),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", SIDE, SIDE, CHANNELS])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", CLASSES])
    constants = [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "matrix", [image], [scores], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())


def write_ir(onnx: Path, path: Path) -> None:
    """Write the OpenVINO IR, with weights in single precision."""
    import openvino

    openvino.save_model(openvino.Core().read_model(onnx), path, compress_to_fp16=False)


def write_torchscript(path: Path) -> None:
    """Write the TorchScript archive."""
    import torch

    class Network(torch.nn.Module):  # type: ignore[misc] # PyTorch's types are not read
        """Convolution, mean, weights."""

        def __init__(self) -> None:
            super().__init__()
            self.convolve = torch.nn.Conv2d(CHANNELS, FILTERS, 3)
            self.weigh = torch.nn.Linear(FILTERS, CLASSES)
            weights = (KERNEL.transpose(3, 2, 0, 1), BIAS, DENSE.T, OFFSET)
            for parameter, value in zip(self.parameters(), weights, strict=True):
                parameter.data = torch.tensor(value)

        def forward(self, image: Any) -> Any:
            """Return scores [N, classes] for pictures [N, H, W, C]."""
            return self.weigh(torch.relu(self.convolve(image.permute(0, 3, 1, 2))).mean((2, 3)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.trace(Network(), torch.zeros(1, SIDE, SIDE, CHANNELS)).save(str(path))


def write_repository(root: Path) -> None:
    """Write the network in every format, with a `model.toml` where another engine than the format's own is used."""
    folders = {model: root / model / "1" for model in MODELS}
    for model, folder in folders.items():
        folder.mkdir(parents=True)
        if model.endswith("-openvino"):
            (root / model / "model.toml").write_text('backend = "openvino"\n')
    (root / "torchscript" / "model.toml").write_text(TORCHSCRIPT)
    write_onnx(folders["onnx"] / "model.onnx")
    write_ir(folders["onnx"] / "model.onnx", folders["ir"] / "model.xml")
    write_torchscript(folders["torchscript"] / "model.pt")
    write_tensorflow(folders["graph"] / "model.pb", folders["saved"] / "model.savedmodel")
    write_keras(folders["keras"] / "model.keras", folders["keras-h5"] / "model.h5")
    for model in ("graph", "saved", "onnx"):
        (folder := folders[f"{model}-openvino"]).rmdir()
        folder.symlink_to(folders[model], target_is_directory=True)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, broker_url: str) -> Iterator[Client]:
    """Serve all models in this process on a real Mosquitto; return a client."""
    repository = tmp_path_factory.mktemp("matrix")
    write_repository(repository)
    topics = Topics(repository.name)
    template = ProcessSpec(
        repository, "", 0, BrokerAddress.parse(broker_url), WorkerOptions(repository.name, topics), device="cpu"
    )
    with ExitStack() as stack:
        for spec in plan(Repository(repository), template):
            stack.callback(serve(spec).stop)
        yield stack.enter_context(Client(broker_url, root=topics.root))


def test_nothing_is_left_out() -> None:
    """The matrix holds every format with every engine that reads it.

    Left out are the echo, and TensorFlow Lite, whose files name tensors otherwise (tests/models/test_openvino.py).
    """
    every = {(platform, engine) for platform, engines in BACKENDS.items() for engine in engines}
    assert set(MODELS.values()) == every - {("mqinfer_echo", "mqinfer_echo"), ("tensorflow_lite", "openvino")}


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("model", MODELS)
def test_every_back_end_agrees(client: Client, model: str, batch: int) -> None:
    """The same names, types and shapes, and the same scores within 1e-4, from the requested engine."""
    card = client.card(model)
    platform, engine = MODELS[model]
    name = {"pytorch": "torch"}.get(engine, engine)
    known = card.parameters
    assert (card.platform, known.backend.split()[0], known.device, known.precision) == (platform, name, "cpu", "fp32")
    assert [(spec.name, spec.shape) for spec in card.inputs] == [("image", (-1, SIDE, SIDE, CHANNELS))]
    assert [(spec.name, spec.shape) for spec in card.outputs] == [("scores", (-1, CLASSES))]

    scores = client.infer(model, {"image": IMAGES[:batch]}).outputs["scores"]

    assert (scores.dtype.name, scores.shape) == ("float32", (batch, CLASSES))
    assert np.abs(scores.astype(np.float64) - expected(IMAGES[:batch])).max() < 1e-4
