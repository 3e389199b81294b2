"""One small network, `x` [n, 8] to four scores, in every format that is served; and seeded damage to its files."""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["BUILDERS", "INPUTS", "OUTPUTS", "build", "damage", "truth"]

INPUTS, OUTPUTS = 8, 4
_HIDDEN = 64
_random = np.random.default_rng(7)
_FIRST = _random.normal(size=(INPUTS, _HIDDEN)).astype(np.float32)
_SECOND = _random.normal(size=(_HIDDEN, OUTPUTS)).astype(np.float32)


def truth(x: Any) -> Any:
    """Return what the network answers."""
    return np.maximum(x @ _FIRST, 0) @ _SECOND


def _tensorflow() -> Any:
    from mqinfer.models.backends.tensorflow.runtime import import_tensorflow

    return import_tensorflow()


def _frozen_graph(folder: Path) -> None:
    tf = _tensorflow()
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, INPUTS], "x")
        tf.matmul(tf.nn.relu(tf.matmul(x, tf.constant(_FIRST))), tf.constant(_SECOND), name="y")
    (folder / "model.pb").write_bytes(graph.as_graph_def().SerializeToString())


def _saved_model(folder: Path) -> None:
    tf = _tensorflow()
    module = tf.Module()
    module.first, module.second = tf.Variable(_FIRST), tf.Variable(_SECOND)
    served = tf.function(lambda x: {"y": tf.nn.relu(x @ module.first) @ module.second}, autograph=False)
    signature = served.get_concrete_function(tf.TensorSpec([None, INPUTS], name="x"))
    tf.saved_model.save(module, folder / "model.savedmodel", signatures=signature)


def _keras_model() -> Any:
    keras = _tensorflow().keras
    given = keras.layers.Input((INPUTS,), name="x")
    layers = [
        keras.layers.Dense(_HIDDEN, activation="relu", use_bias=False),
        keras.layers.Dense(OUTPUTS, use_bias=False),
    ]
    model = keras.Model(given, layers[1](layers[0](given)))
    model.set_weights([_FIRST, _SECOND])
    return model


def _keras(folder: Path) -> None:
    _keras_model().save(folder / "model.keras")


def _hdf5(folder: Path) -> None:
    _keras_model().save(folder / "model.h5")


def _tflite(folder: Path) -> None:
    converter = _tensorflow().lite.TFLiteConverter.from_keras_model(_keras_model())
    (folder / "model.tflite").write_bytes(converter.convert())


def _onnx(folder: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", INPUTS])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", OUTPUTS])
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["positive"]),
        helper.make_node("MatMul", ["positive", "second"], ["y"]),
    ]
    weights = [numpy_helper.from_array(_FIRST, "first"), numpy_helper.from_array(_SECOND, "second")]
    graph = helper.make_graph(nodes, "small", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    onnx.checker.check_model(model)


def _ort(folder: Path) -> None:
    import onnxruntime

    _onnx(folder)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "model.ort")
    onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    (folder / "model.onnx").unlink()


def _torchscript(folder: Path) -> None:
    import torch

    first, second = torch.nn.Linear(INPUTS, _HIDDEN, bias=False), torch.nn.Linear(_HIDDEN, OUTPUTS, bias=False)
    with torch.no_grad():
        first.weight.copy_(torch.from_numpy(_FIRST.T.copy()))
        second.weight.copy_(torch.from_numpy(_SECOND.T.copy()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(torch.nn.Sequential(first, torch.nn.ReLU(), second).eval(), torch.zeros(1, INPUTS))
    traced.save(str(folder / "model.pt"))
    tables = f'max_batch_size = 8\n[[input]]\nname = "INPUT__0"\ndims = [{INPUTS}]\ndata_type = "TYPE_FP32"\n'
    (folder.parent / "model.toml").write_text(tables)


def _openvino(folder: Path) -> None:
    import openvino
    from openvino import opset13 as op

    x = op.parameter(openvino.PartialShape([-1, INPUTS]), openvino.Type.f32, name="x")
    hidden = op.relu(op.matmul(x, op.constant(_FIRST), transpose_a=False, transpose_b=False))
    result = op.result(op.matmul(hidden, op.constant(_SECOND), transpose_a=False, transpose_b=False))
    openvino.save_model(openvino.Model([result], [x], "small"), folder / "model.xml", compress_to_fp16=False)


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
