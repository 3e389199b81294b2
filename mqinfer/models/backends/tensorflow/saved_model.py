"""TensorFlow SavedModels, of TensorFlow 1 and 2, through one of their signatures."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mqinfer.models.backend import Backend
from mqinfer.models.backends.tensorflow.backend import TensorFlowBackend, TensorFlowModel, input_specs, output_specs
from mqinfer.models.backends.tensorflow.runtime import import_tensorflow, load_errors, loading, settle_device
from mqinfer.models.backends.tensorflow.saved_model_session import Signature, load_in_session
from mqinfer.models.load_options import LoadOptions
from mqinfer.protocol.errors import ConfigError, ModelNotLoadable

__all__ = ["choose_signature", "load"]

log = logging.getLogger("mqinfer.models")

DEFAULT_SIGNATURE = "serving_default"


def load(path: Path, options: LoadOptions) -> Backend:
    """Load a SavedModel's folder; where TensorFlow 2's loader can't, in a session, as TensorFlow 1 would.

    Raises:
        MissingExtra: TensorFlow is not installed.
        ModelNotLoadable: The folder is incomplete or damaged, or has no signature.
        ConfigError: `model.toml` contradicts the model.
    """
    tensorflow = import_tensorflow()
    device = settle_device(tensorflow, options.device, options.threads)
    with loading(tensorflow, path):
        signatures = _signatures(tensorflow, path)
    numeric = {name: _takes_numbers(signature) for name, signature in signatures.items()}
    signature = signatures[choose_signature(numeric, options.signature, path)]
    model = TensorFlowModel(
        "tensorflow_savedmodel",
        path,
        signature.call,
        input_specs(signature.inputs, options.inputs, path),
        output_specs(signature.outputs, options.outputs, path),
        options.precision,
    )
    return TensorFlowBackend(tensorflow, model, device)


def _signatures(tensorflow: Any, path: Path) -> Mapping[str, Signature]:
    try:
        return _functions(_load(tensorflow, path))
    except load_errors(tensorflow) as error:
        try:
            signatures = load_in_session(tensorflow, path)
        except load_errors(tensorflow):
            raise error from None  # of a damaged model the first one says more
        log.info("%s: TensorFlow 2's loader refuses it (%s): running in a session", path, type(error).__name__)
        return signatures


def _load(tensorflow: Any, path: Path) -> Any:
    try:
        return tensorflow.saved_model.load(path)
    except ValueError:
        # Several graphs in one SavedModel (for training, for serving): take the one for serving.
        return tensorflow.saved_model.load(path, tags=["serve"])


def _functions(loaded: Any) -> dict[str, Signature]:
    def call(name: str, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        # The variables live as long as the loaded object: this function keeps it.
        results: Mapping[str, Any] = loaded.signatures[name](**feeds)
        return results

    return {
        name: Signature(function.structured_input_signature[1], function.structured_outputs, partial(call, name))
        for name, function in loaded.signatures.items()
    }


def _takes_numbers(signature: Signature) -> bool:
    return all(spec.dtype.name != "string" for spec in signature.inputs.values())


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
