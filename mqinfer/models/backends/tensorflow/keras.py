"""Load Keras models (`.keras`, and the older `.h5`), traced once as a TensorFlow function for inference.

Inputs have the names of their Input layers, outputs those of the layers that they come from, or a dictionary's keys.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mqinfer.extras import missing_extra
from mqinfer.models.backend import Backend
from mqinfer.models.backends.tensorflow.backend import TensorFlowBackend, TensorFlowModel, tensor_specs
from mqinfer.models.backends.tensorflow.keras_archive import check_keras
from mqinfer.models.backends.tensorflow.runtime import choose_device, import_tensorflow, loading
from mqinfer.models.load_options import LoadOptions
from mqinfer.protocol.errors import ModelNotLoadable

_PRECISIONS = {"float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}


def load(path: Path, options: LoadOptions) -> Backend:
    """Load a Keras file of Keras's own layers; custom objects and Lambda layers are refused.

    Raises:
        MissingExtra: TensorFlow or Keras is not installed.
        ModelNotLoadable: The file is damaged, contains code, or its model was never built.
        ConfigError: `model.toml` contradicts the model.
    """
    tensorflow = import_tensorflow()
    keras = _import_keras()
    check_keras(path)
    device = choose_device(tensorflow, options.device, options.threads)
    with loading(path):
        loaded = _read(keras, path)
        inputs, outputs = _ends(keras, loaded, path)
        function = _trace(keras, tensorflow, inputs, outputs)

    def call(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        results: Mapping[str, Any] = function(*(feeds[name] for name in inputs))
        return results

    model = TensorFlowModel(
        "tensorflow_keras",
        path,
        call,
        tensor_specs(dict(zip(inputs, function.inputs[: len(inputs)], strict=True)), options.inputs, path, ranked=True),
        tensor_specs(function.structured_outputs, options.outputs, path),
        str(options.parameters.get("precision", _precision(loaded))),
    )
    return TensorFlowBackend(tensorflow, model, device)


def _import_keras() -> Any:
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    try:
        import keras
    except ImportError as error:
        raise missing_extra("keras", "tensorflow") from error
    if keras.config.backend() != "tensorflow":
        raise ModelNotLoadable(f"KERAS_BACKEND is {keras.config.backend()!r}: expected 'tensorflow'")
    return keras


def _read(keras: Any, path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about the names of inputs in a dictionary
        return keras.saving.load_model(path, compile=False, safe_mode=True)


def _ends(keras: Any, model: Any, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the model's inputs and outputs by name."""
    try:
        inputs, outputs = list(model.inputs), list(model.outputs)
    except (AttributeError, TypeError, ValueError) as error:
        raise ModelNotLoadable(
            f"{path}: the model was never built, so it has no inputs; begin it with an Input layer, or call it, "
            "and save it again"
        ) from error
    named = getattr(model, "output", None)
    if not isinstance(named, dict) or len(named) != len(outputs):
        named = dict(zip(_distinct(keras.Model(inputs, outputs).output_names), outputs, strict=True))
    return {tensor.name: tensor for tensor in inputs}, named


def _distinct(names: Sequence[str]) -> list[str]:
    """Return names with a number where a layer has several outputs."""
    return [
        name if (before := names[:place].count(name)) == 0 else f"{name}_{before}" for place, name in enumerate(names)
    ]


def _trace(keras: Any, tensorflow: Any, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
    model = keras.Model(list(inputs.values()), list(outputs.values()))

    def infer(*tensors: Any) -> dict[str, Any]:
        return dict(zip(outputs, keras.tree.flatten(model(list(tensors), training=False)), strict=True))

    signature = [tensorflow.TensorSpec(tensor.shape, tensor.dtype, name) for name, tensor in inputs.items()]
    # Autograph would leave a file in the temporary folder; Keras's own layers do not need it.
    return tensorflow.function(infer, autograph=False).get_concrete_function(*signature)


def _precision(model: Any) -> str:
    found = (_PRECISIONS.get(str(getattr(layer, "compute_dtype", ""))) for layer in model.layers)
    return next((precision for precision in found if precision), "fp32")
