"""Reads ONNX, and converts TensorFlow models to it; inputs and outputs keep the names that their backend reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mqinfer.extras import import_extra, missing_extra
from mqinfer.models.repository import ModelVersion
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.errors import ConfigError, ModelNotLoadable

_OPSET = 17
"""ONNX opset; tf2onnx 1.17 refuses 19 and above."""
_EXPORT = """
import sys, keras
keras.saving.load_model(sys.argv[1], compile=False).export(sys.argv[2], verbose=False)
"""
"""Program that exports a Keras file as a SavedModel; training settings are left out."""


def import_onnx() -> Any:
    """Import onnx.

    Raises:
        MissingExtra: It is not installed.
    """
    return import_extra("onnx", "optimize")


def to_onnx(model: ModelVersion, card: ModelCard) -> Any:
    """Convert a model; an ONNX file is only read.

    TensorFlow runs in a separate process, so that its memory and its output end with it.

    Args:
        model: A frozen graph, SavedModel, Keras or ONNX file.
        card: Card of the model.

    Returns:
        The `ModelProto`.

    Raises:
        ConfigError: The format can't be converted.
        MissingExtra: onnx, tf2onnx or keras is not installed.
        ModelNotLoadable: The converter failed, or an input or output is missing.
    """
    convert = _ROUTES.get(card.platform)
    if convert is None:
        raise ConfigError(f"model {card.name}: {card.platform} can't be converted to ONNX; expected one of {_NAMES}")
    converted = convert(model, card)
    found = {value.name for value in (*converted.graph.input, *converted.graph.output)}
    lost = [spec.name for spec in (*card.inputs, *card.outputs) if spec.name not in found]
    if lost:
        raise ModelNotLoadable(
            f"{model.path}: the converted model lacks {', '.join(lost)}; it has {', '.join(sorted(found))}"
        )
    return converted


def _read(model: ModelVersion, _: ModelCard) -> Any:
    return import_onnx().load(str(model.path))


def _from_graph(model: ModelVersion, card: ModelCard) -> Any:
    tensors = {spec.name: _tensor(spec.name) for spec in (*card.inputs, *card.outputs)}
    return _tf2onnx(model.path, model.path, card, tensors)


def _from_saved_model(model: ModelVersion, card: ModelCard) -> Any:
    signature = str(model.config.parameters.get("signature", ""))
    with TemporaryDirectory() as folder:
        graph, inputs, outputs = _frozen(model.path, model.path, signature, Path(folder))
        return _tf2onnx(model.path, graph, card, inputs | outputs)


def _from_keras(model: ModelVersion, card: ModelCard) -> Any:
    with TemporaryDirectory() as folder:
        saved = Path(folder) / "exported"
        _run(model.path, "Keras can't export it", ["-c", _EXPORT, str(model.path), str(saved)])
        graph, inputs, outputs = _frozen(model.path, saved, "", Path(folder))
        # An exported signature renames inputs and outputs; their order stays.
        names = [spec.name for spec in (*card.inputs, *card.outputs)]
        return _tf2onnx(model.path, graph, card, dict(zip(names, (*inputs.values(), *outputs.values()), strict=True)))


_ROUTES: dict[str, Callable[[ModelVersion, ModelCard], Any]] = {
    "onnx_onnxv1": _read,
    "tensorflow_graphdef": _from_graph,
    "tensorflow_savedmodel": _from_saved_model,
    "tensorflow_keras": _from_keras,
}
_NAMES = ", ".join(_ROUTES)


def _tensor(name: str) -> str:
    return name if ":" in name else f"{name}:0"


def _frozen(path: Path, saved: Path, signature: str, folder: Path) -> tuple[Path, dict[str, str], dict[str, str]]:
    """Freeze a SavedModel; return the graph's file, and the tensors of its inputs and outputs by name."""
    graph = folder / "frozen.pb"
    program = ["-m", "mqinfer.lab.optimize.freezing", str(saved), signature, str(graph)]
    ends = json.loads(_run(path, "TensorFlow can't freeze it", program))
    return graph, ends["inputs"], ends["outputs"]


def _tf2onnx(path: Path, graph: Path, card: ModelCard, tensors: Mapping[str, str]) -> Any:
    if find_spec("tf2onnx") is None:
        raise missing_extra("tf2onnx", "optimize")
    inputs, outputs = ([spec.name for spec in specs] for specs in (card.inputs, card.outputs))
    ends = ["--inputs", ",".join(_shaped(tensors[spec.name], spec.shape) for spec in card.inputs)]
    ends += ["--outputs", ",".join(tensors[name] for name in outputs)]
    ends += ["--rename-inputs", ",".join(inputs), "--rename-outputs", ",".join(outputs)]
    with TemporaryDirectory() as folder:
        output = Path(folder) / "model.onnx"
        program = ["-m", "tf2onnx.convert", "--graphdef", str(graph), *ends, "--opset", str(_OPSET)]
        _run(path, "tf2onnx can't convert it", [*program, "--output", str(output)])
        return import_onnx().load(str(output))


def _shaped(tensor: str, shape: Sequence[int]) -> str:
    return f"{tensor}[{','.join(map(str, shape))}]" if shape else tensor


def _run(path: Path, failure: str, arguments: Sequence[str]) -> str:
    """Run a program of this Python, and return what it printed.

    Raises:
        ModelNotLoadable: It failed; the message ends with the last line that it wrote.
    """
    without_keras = {"TF_USE_LEGACY_KERAS": "1"}  # unless it is set: models/backends/tensorflow/runtime.py
    environment = without_keras | os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(  # noqa: S603 - this Python, with names from the repository as arguments
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise ModelNotLoadable(f"{path}: {failure} ({lines[-1] if lines else done.returncode})")
    return done.stdout
