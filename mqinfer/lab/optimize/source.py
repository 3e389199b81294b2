"""Converts TensorFlow models to ONNX; inputs and outputs keep the names that their backend reports."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mqinfer.lab.optimize.graph import import_onnx
from mqinfer.models.repository import ModelVersion
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.errors import ConfigError, MissingExtra, ModelNotLoadable
from mqinfer.protocol.types import TensorSpec

__all__ = ["to_onnx"]

_OPSET = 17
"""ONNX opset; tf2onnx 1.17 refuses 19 and above."""
_EXPORT = """
import runpy, sys, keras
keras.saving.load_model(sys.argv[1]).export(sys.argv[2], verbose=False)
sys.argv[1:] = sys.argv[3:]
runpy.run_module("tf2onnx.convert", run_name="__main__", alter_sys=True)
"""
"""Program that exports a Keras file and converts it, in one process."""


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
    names = [[spec.name for spec in specs] for specs in (card.inputs, card.outputs)]
    ends = ["--inputs", ",".join(_shaped(spec) for spec in card.inputs)]
    ends += ["--outputs", ",".join(_tensor(name) for name in names[1])]
    ends += ["--rename-inputs", ",".join(names[0]), "--rename-outputs", ",".join(names[1])]
    return _tf2onnx(model.path, ["--graphdef", str(model.path), *ends])


def _from_saved_model(model: ModelVersion, _: ModelCard) -> Any:
    signature = str(model.config.parameters.get("signature", "serving_default"))
    return _tf2onnx(model.path, ["--saved-model", str(model.path), "--tag", "serve", "--signature_def", signature])


def _from_keras(model: ModelVersion, card: ModelCard) -> Any:
    with TemporaryDirectory() as folder:
        saved = str(Path(folder) / "exported")
        first = ["-c", _EXPORT, str(model.path), saved]
        converted = _tf2onnx(model.path, ["--saved-model", saved, "--tag", "serve"], first)
    # An exported signature renames inputs and outputs; their order stays.
    _rename(converted, [*converted.graph.input, *converted.graph.output], [*card.inputs, *card.outputs])
    return converted


_ROUTES: dict[str, Callable[[ModelVersion, ModelCard], Any]] = {
    "onnx_onnxv1": _read,
    "tensorflow_graphdef": _from_graph,
    "tensorflow_savedmodel": _from_saved_model,
    "tensorflow_keras": _from_keras,
}
_NAMES = ", ".join(_ROUTES)


def _tensor(name: str) -> str:
    return name if ":" in name else f"{name}:0"


def _shaped(spec: TensorSpec) -> str:
    return f"{_tensor(spec.name)}[{','.join(map(str, spec.shape))}]" if spec.shape else _tensor(spec.name)


def _rename(model: Any, values: Sequence[Any], specs: Sequence[TensorSpec]) -> None:
    names = {value.name: spec.name for value, spec in zip(values, specs, strict=True)}
    for value in values:
        value.name = names[value.name]
    for node in model.graph.node:
        node.input[:] = [names.get(each, each) for each in node.input]
        node.output[:] = [names.get(each, each) for each in node.output]


def _tf2onnx(path: Path, arguments: list[str], program: Sequence[str] = ("-m", "tf2onnx.convert")) -> Any:
    if find_spec("tf2onnx") is None:
        raise MissingExtra.of("tf2onnx", "optimize")
    with TemporaryDirectory() as folder:
        output = Path(folder) / "model.onnx"
        _run(path, [*program, *arguments, "--opset", str(_OPSET), "--output", str(output)])
        return import_onnx().load(str(output))


def _run(path: Path, arguments: Sequence[str]) -> None:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(  # noqa: S603 - this Python, with names from the repository as arguments
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=os.environ | quiet
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise ModelNotLoadable(f"{path}: tf2onnx can't convert it ({lines[-1] if lines else done.returncode})")
