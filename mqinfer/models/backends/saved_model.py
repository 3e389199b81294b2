"""TensorFlow SavedModels, of TensorFlow 1 and 2, through one of their signatures."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mqinfer.models.backend import Backend
from mqinfer.models.backends.tensorflow_backend import TensorFlowBackend, TensorFlowModel, input_specs, output_specs
from mqinfer.models.load_options import LoadOptions
from mqinfer.models.tensorflow_runtime import import_tensorflow, loading, settle_device
from mqinfer.protocol.errors import ConfigError, ModelNotLoadable

__all__ = ["choose_signature", "load"]

log = logging.getLogger("mqinfer.models")

DEFAULT_SIGNATURE = "serving_default"


def load(path: Path, options: LoadOptions) -> Backend:
    """Load a SavedModel's folder.

    Raises:
        MissingExtra: TensorFlow is not installed.
        ModelNotLoadable: The folder is incomplete or damaged, or has no signature.
        ConfigError: `model.toml` contradicts the model.
    """
    tensorflow = import_tensorflow()
    device = settle_device(tensorflow, options.device, options.threads)
    with loading(tensorflow, path):
        loaded = _load(tensorflow, path)
    numeric = {name: _takes_numbers(signature) for name, signature in loaded.signatures.items()}
    chosen = choose_signature(numeric, options.signature, path)
    function = loaded.signatures[chosen]

    def call(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        # The variables live as long as the loaded object: this function keeps it.
        results: Mapping[str, Any] = loaded.signatures[chosen](**feeds)
        return results

    model = TensorFlowModel(
        "tensorflow_savedmodel",
        path,
        call,
        input_specs(function.structured_input_signature[1], options.inputs, path),
        output_specs(function.structured_outputs, options.outputs, path),
        options.precision,
    )
    return TensorFlowBackend(tensorflow, model, device)


def _load(tensorflow: Any, path: Path) -> Any:
    try:
        return tensorflow.saved_model.load(path)
    except ValueError:
        # Several graphs in one SavedModel (for training, for serving): take the one for serving.
        return tensorflow.saved_model.load(path, tags=["serve"])


def _takes_numbers(signature: Any) -> bool:
    return all(spec.dtype.name != "string" for spec in signature.structured_input_signature[1].values())


def choose_signature(numeric: Mapping[str, bool], stated: str | None, path: Path) -> str:
    """Choose a SavedModel's signature: the stated one, `serving_default`, or the first that takes no strings.

    Args:
        numeric: Every signature's name, and whether all of its inputs are numbers.
        stated: `parameters.signature` of `model.toml`.
        path: For messages.

    Raises:
        ConfigError: There is no signature of the stated name.
        ModelNotLoadable: There is no signature at all.
    """
    if not numeric:
        raise ModelNotLoadable(f"{path}: a SavedModel without signatures; export it with one for serving")
    if stated is not None:
        if stated not in numeric:
            raise ConfigError(f"model.toml: parameters.signature = {stated!r}: {path} has {', '.join(sorted(numeric))}")
        return stated
    if DEFAULT_SIGNATURE in numeric:
        return DEFAULT_SIGNATURE
    chosen = min(numeric, key=lambda name: (not numeric[name], name))
    log.warning("%s: no signature %s; taking %s (parameters.signature chooses)", path, DEFAULT_SIGNATURE, chosen)
    return chosen
