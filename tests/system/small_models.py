"""One small network, pictures to scores, in every format that is served; and seeded damage to its files."""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.onnx_files import save_onnx

__all__ = ["BUILDERS", "CHANNELS", "CLASSES", "SIDE", "build", "damage", "truth"]

Floats = npt.NDArray[np.float32]

SIDE, CHANNELS, FILTERS, CLASSES = 12, 3, 8, 5
_RANDOM = np.random.default_rng(20)
KERNEL: Floats = _RANDOM.normal(0, 0.3, (3, 3, CHANNELS, FILTERS)).astype(np.float32)
BIAS: Floats = _RANDOM.normal(0, 0.3, FILTERS).astype(np.float32)
DENSE: Floats = _RANDOM.normal(0, 0.3, (FILTERS, CLASSES)).astype(np.float32)
OFFSET: Floats = _RANDOM.normal(0, 0.3, CLASSES).astype(np.float32)
TORCHSCRIPT = """
[[input]]
name = "image"
dims = [-1, 12, 12, 3]
[[output]]
name = "scores"
"""


def truth(images: Floats) -> npt.NDArray[np.float64]:
    """Compute the network in double precision: convolution without padding, ReLU, mean, weights."""
    windows = np.lib.stride_tricks.sliding_window_view(images.astype(np.float64), (3, 3), axis=(1, 2))
    features = np.maximum(np.einsum("nyxchw,hwcf->nyxf", windows, KERNEL) + BIAS, 0).mean((1, 2))
    return np.asarray(features @ DENSE + OFFSET)


def _tensorflow() -> Any:
    from mqinfer.models.backends.tensorflow.runtime import import_tensorflow

    return import_tensorflow()


def _scores(tf: Any, image: Any, kernel: Any, bias: Any, dense: Any, offset: Any) -> Any:
    features = tf.nn.relu(tf.nn.conv2d(image, kernel, 1, "VALID") + bias)
    return tf.add(tf.reduce_mean(features, [1, 2]) @ dense, offset, name="scores")


def _frozen_graph(folder: Path) -> None:
    tf = _tensorflow()
    with tf.Graph().as_default() as graph:
        image = tf.compat.v1.placeholder("float32", [None, SIDE, SIDE, CHANNELS], "image")
        _scores(tf, image, KERNEL, BIAS, DENSE, OFFSET)
    (folder / "model.pb").write_bytes(graph.as_graph_def().SerializeToString())


def _saved_model(folder: Path) -> None:
    tf = _tensorflow()
    module = tf.Module()
    module.weights = [tf.Variable(each) for each in (KERNEL, BIAS, DENSE, OFFSET)]
    function = tf.function(lambda image: {"scores": _scores(tf, image, *module.weights)})
    signature = function.get_concrete_function(tf.TensorSpec([None, SIDE, SIDE, CHANNELS], tf.float32, "image"))
    tf.saved_model.save(module, str(folder / "model.savedmodel"), signatures={"serving_default": signature})


def _keras_model() -> Any:
    keras = _tensorflow().keras
    image = keras.Input((SIDE, SIDE, CHANNELS), name="image")
    features = keras.layers.Conv2D(FILTERS, 3, activation="relu")(image)
    average = keras.layers.GlobalAveragePooling2D()(features)
    model = keras.Model(image, keras.layers.Dense(CLASSES, name="scores")(average))
    model.set_weights([KERNEL, BIAS, DENSE, OFFSET])
    return model


def _keras(folder: Path) -> None:
    _keras_model().save(folder / "model.keras")


def _hdf5(folder: Path) -> None:
    _keras_model().save(folder / "model.h5")


def _tflite(folder: Path) -> None:
    converter = _tensorflow().lite.TFLiteConverter.from_keras_model(_keras_model())
    (folder / "model.tflite").write_bytes(converter.convert())


def _onnx(folder: Path) -> None:
    """Write the ONNX file, whose convolutions need the channels first."""
    from onnx import TensorProto, helper

    weights = {"kernel": KERNEL.transpose(3, 2, 0, 1), "bias": BIAS, "dense": DENSE, "offset": OFFSET}
    nodes = [
        helper.make_node("Transpose", ["image"], ["first"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["first", "kernel", "bias"], ["convolved"]),
        helper.make_node("Relu", ["convolved"], ["features"]),
        helper.make_node("ReduceMean", ["features"], ["average"], axes=[2, 3], keepdims=0),
        helper.make_node("Gemm", ["average", "dense", "offset"], ["scores"]),
    ]
    image = {"image": (TensorProto.FLOAT, ["n", SIDE, SIDE, CHANNELS])}
    scores = {"scores": (TensorProto.FLOAT, ["n", CLASSES])}
    constants = {name: np.ascontiguousarray(value) for name, value in weights.items()}
    save_onnx(folder / "model.onnx", nodes, image, scores, constants)


def _ort(folder: Path) -> None:
    import onnxruntime

    _onnx(folder)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "model.ort")
    onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    (folder / "model.onnx").unlink()


def _torchscript(folder: Path) -> None:
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
        torch.jit.trace(Network(), torch.zeros(1, SIDE, SIDE, CHANNELS)).save(str(folder / "model.pt"))
    (folder.parent / "model.toml").write_text(TORCHSCRIPT)


def _openvino(folder: Path) -> None:
    """Write the OpenVINO IR, with weights in single precision."""
    import openvino

    _onnx(folder)
    openvino.save_model(openvino.Core().read_model(folder / "model.onnx"), folder / "model.xml", compress_to_fp16=False)
    (folder / "model.onnx").unlink()


BUILDERS: dict[str, Callable[[Path], None]] = {
    "frozen-graph": _frozen_graph,
    "saved-model": _saved_model,
    "keras": _keras,
    "hdf5": _hdf5,
    "tflite": _tflite,
    "onnx": _onnx,
    "ort": _ort,
    "torchscript": _torchscript,
    "openvino": _openvino,
}
"""Functions that write the network into a version's folder, by the format's name."""


def build(repository: Path, name: str, kind: str) -> Path:
    """Write the network in a format into a repository, under a name; return the model's folder."""
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    BUILDERS[kind](folder)
    return folder.parent


def damage(model: Path, copy: Path, seed: int) -> str:
    """Copy a model, and cut, flip or zero a part of one of its version's files; return what was done, for messages."""
    shutil.copytree(model, copy)
    chance = random.Random(f"{model.name} {seed}")  # noqa: S311 - to be repeated, not to be secret
    files = sorted(path for path in (copy / "1").rglob("*") if path.is_file() and path.stat().st_size)
    file = chance.choice(files)
    content = bytearray(file.read_bytes())
    kind, start = ("cut", "flip", "zero")[seed % 3], chance.randrange(len(content))
    if kind == "cut":
        del content[start:]
    elif kind == "zero":
        length = min(chance.randrange(1, 4096), len(content) - start)
        content[start : start + length] = bytes(length)
    else:
        for _ in range(chance.choice((1, 4, 16))):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)
    return f"{file.relative_to(copy)}: {kind} at {start} of {file.stat().st_size}, seed {seed}"
