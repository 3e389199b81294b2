"""What both fronts of the Open Inference Protocol answer about features of Triton that a gateway has in part or not.

Sentences are Triton's where it has one for the event.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from mqinfer._version import __version__
from mqinfer.gateway.core import Core
from mqinfer.gateway.errors import Unsupported
from mqinfer.gateway.messages import from_record
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.errors import ModelNotFound
from mqinfer.protocol.types import TensorSpec

EXTENSIONS = (
    "classification",
    "model_repository",
    "model_configuration",
    "schedule_policy",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
"""Extensions of the protocol, as Triton names them."""

NO_SHARED_MEMORY = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
"""Triton's sentence; a gateway and its workers are on other machines than its clients, so no option turns it on."""

NO_NAMED_REPOSITORY = "'repository_name' specification is not supported"


def check_region(kind: str, region: str) -> None:
    """Check that a caller asks about all regions of shared memory, `system` or `cuda`: there is none.

    Raises:
        ModelNotFound: It asks about one.
    """
    if region:
        raise ModelNotFound(f"Unable to find {kind} shared memory region: '{region}'")


def describe_server(settings: GatewaySettings) -> dict[str, Any]:
    """Return the server's metadata."""
    return {"name": settings.server_name, "version": __version__, "extensions": EXTENSIONS}


def describe_model(card: ModelCard) -> dict[str, Any]:
    """Return a model's metadata."""
    return {
        "name": card.name,
        "versions": card.versions,
        "platform": card.platform,
        "inputs": _describe_tensors(card.inputs),
        "outputs": _describe_tensors(card.outputs),
    }


def _describe_tensors(specs: Iterable[TensorSpec]) -> list[dict[str, Any]]:
    return [{"name": spec.name, "datatype": str(spec.datatype), "shape": spec.shape} for spec in specs]


def trace_settings(changes: Collection[str] = ()) -> dict[str, str]:
    """Return the trace settings: Triton's defaults, since its traces are not made here.

    Args:
        changes: Names of the settings that the caller wants to change.

    Raises:
        Unsupported: There are any.
    """
    _refuse(changes, "trace", "traces are an option of the gateway")
    return {
        "trace_level": "OFF",
        "trace_rate": "1000",
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": "",
        "trace_mode": "triton",
    }


def log_settings(changes: Collection[str] = ()) -> dict[str, bool | int | str]:
    """Return what the gateway logs, under Triton's names.

    Args:
        changes: Names of the settings that the caller wants to change.

    Raises:
        Unsupported: There are any.
    """
    _refuse(changes, "log", "start the gateway with --log-level")
    level = logging.getLogger("mqinfer").getEffectiveLevel()
    return {
        "log_file": "",
        "log_info": level <= logging.INFO,
        "log_warning": level <= logging.WARNING,
        "log_error": level <= logging.ERROR,
        "log_verbose_level": int(level <= logging.DEBUG),
        "log_format": "default",
    }


def _refuse(changes: Collection[str], what: str, instead: str) -> None:
    """Raise where a caller wants to change settings."""
    if f"{what}_file" in changes:
        raise Unsupported(f"{what} file location can not be updated through network protocol")
    if changes:
        raise Unsupported(f"the {what} settings {', '.join(sorted(changes))[:200]} can't be changed; {instead}")


async def config_of(core: Core, model: str, version: str | None) -> Any:
    """Return a model's configuration as Triton's message: servers report it under Triton's keys, and further ones.

    As with Triton, it states where the model runs, and not `KIND_AUTO`, and names platform and back end as Triton does.

    Raises:
        MqinferError: As for `Core.metadata`.
    """
    card, config = await core.metadata(model, version), await core.config(model, version)
    shaped = {key: _SHAPES[key](value) if key in _SHAPES else value for key, value in config.items()}
    kind = "KIND_GPU" if card.parameters.device.startswith("cuda") else "KIND_CPU"
    groups = [
        {"name": f"{card.name}_{place}", **group, "kind": kind if group.get("kind") in _ANY_KIND else group["kind"]}
        for place, group in enumerate(shaped.get("instance_group", []))
    ]
    own = {"instance_group": groups, "platform": "", "backend": config.get("backend", "")}
    if card.parameters.backend.startswith("openvino"):
        own["backend"] = "openvino"
    elif card.platform in _TRITON_NAMES:
        own["platform"], own["backend"] = _TRITON_NAMES[card.platform]
    return from_record("ModelConfig", shaped | own)


_ANY_KIND = (None, "KIND_AUTO")
_TRITON_NAMES = {
    "onnx_onnxv1": ("onnxruntime_onnx", "onnxruntime"),
    "pytorch_torchscript": ("pytorch_libtorch", "pytorch"),
    "tensorflow_graphdef": ("tensorflow_graphdef", "tensorflow"),
    "tensorflow_savedmodel": ("tensorflow_savedmodel", "tensorflow"),
    "ensemble": ("ensemble", ""),
}
"""Triton's `platform` and `backend` for a platform of the Open Inference Protocol."""


def _texts(value: Any) -> Any:
    return {key: str(each) for key, each in value.items()}


def _parameters(value: Any) -> Any:
    return {key: each if isinstance(each, dict) else {"string_value": str(each)} for key, each in value.items()}


def _steps(value: Any) -> Any:
    return {"step": value} if isinstance(value, list) else value


def _samples(value: Any) -> Any:
    samples = value.get("samples", []) if isinstance(value, dict) else value
    return [
        {**sample, "inputs": {name: _sample_input(each) for name, each in sample.get("inputs", {}).items()}}
        for sample in samples
    ]


def _sample_input(value: Any) -> Any:
    """Return an input of a warm-up sample with the one kind of data that it has."""
    kind = next((key for key in ("input_data_file", "random_data") if value.get(key)), "zero_data")
    data_type = str(value.get("data_type", "TYPE_INVALID"))
    name = data_type if data_type.startswith("TYPE_") else f"TYPE_{'STRING' if data_type == 'BYTES' else data_type}"
    return {"data_type": name, "dims": value.get("dims", []), kind: value.get(kind, True)}


def _optimization(value: Any) -> Any:
    kinds = {kind: value[kind] for kind in ("gpu", "cpu") if kind in value}
    if not kinds:
        return value
    return {
        "execution_accelerators": {
            f"{kind}_execution_accelerator": [
                {**each, "parameters": _texts(each.get("parameters", {}))} for each in accelerators
            ]
            for kind, accelerators in kinds.items()
        }
    }


_SHAPES: Mapping[str, Callable[[Any], Any]] = {  # of keys that servers report in a form of their own
    "parameters": _parameters,
    "ensemble_scheduling": _steps,
    "model_warmup": _samples,
    "optimization": _optimization,
}
