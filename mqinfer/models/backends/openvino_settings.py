"""Translate `model.toml` for OpenVINO: the device, and the properties that a model is compiled with.

The keys of `parameters` are those of Triton's OpenVINO back end (github.com/triton-inference-server/openvino_backend),
which are OpenVINO's properties (docs.openvino.ai, "Query device properties, configuration") but for `HINT_BF16`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from mqinfer.logs import log_once
from mqinfer.models.load_options import LoadOptions, RequestedDevice
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import Scalar

log = logging.getLogger("mqinfer.models")

_PROPERTIES = frozenset(
    {
        "CACHE_DIR",
        "COMPILATION_NUM_THREADS",
        "CPU_DENORMALS_OPTIMIZATION",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE",
        "ENABLE_CPU_PINNING",
        "ENABLE_HYPER_THREADING",
        "EXECUTION_MODE_HINT",
        "INFERENCE_NUM_THREADS",
        "INFERENCE_PRECISION_HINT",
        "NUM_STREAMS",
        "PERFORMANCE_HINT",
        "PERFORMANCE_HINT_NUM_REQUESTS",
        "SCHEDULING_CORE_TYPE",
    }
)
_OF_CPU = frozenset(
    {"CPU_DENORMALS_OPTIMIZATION", "ENABLE_CPU_PINNING", "ENABLE_HYPER_THREADING", "INFERENCE_NUM_THREADS"}
)
_READ_ELSEWHERE = frozenset({"HINT_BF16", "TARGET_DEVICE"})
_NOT_NEEDED = frozenset({"ENABLE_BATCH_PADDING", "RESHAPE_IO_LAYERS", "SKIP_OV_DYNAMIC_BATCHSIZE"})
_PRECISIONS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16", "int8": "f32"}
"""An INT8 model has its INT8 layers marked; the others run in f32."""


def properties(options: LoadOptions, device: str) -> dict[str, Any]:
    """Return the properties to compile with: by default f32, one stream and the least latency.

    OpenVINO's own defaults are bf16 if the CPU has it, and threads pinned to the first cores: the same ones in every
    process, of which a worker has one for each model.

    Args:
        options: The model's options.
        device: From `choose_device`.

    Raises:
        ConfigError: A parameter in capitals is none of OpenVINO's, or none that this back end passes on.
    """
    given = _given(options.parameters)
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": _precision(options)} | given
    cpu: dict[str, Scalar] = {"ENABLE_CPU_PINNING": False}
    if settings["PERFORMANCE_HINT"] != "THROUGHPUT":  # whose several streams share all cores
        cpu["INFERENCE_NUM_THREADS"] = options.threads
    cpu |= {name: settings.pop(name) for name in _OF_CPU & given.keys()}
    plugin, _, listed = device.rpartition(":")
    if plugin == "AUTO":
        settings["ENABLE_STARTUP_FALLBACK"] = False  # else it starts on the CPU and does not report when it leaves it
    if "CPU" not in listed.split(","):
        return settings
    return settings | ({"DEVICE_PROPERTIES": {"CPU": cpu}} if plugin else cpu)


def _given(parameters: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the parameters for OpenVINO: those in capitals."""
    given = {name: value for name, value in parameters.items() if name.isupper()}
    for name in given.keys() - _PROPERTIES - _READ_ELSEWHERE - _NOT_NEEDED:
        raise ConfigError(f"model.toml: parameters.{name}: expected one of OpenVINO's {', '.join(sorted(_PROPERTIES))}")
    if unused := sorted(given.keys() & _NOT_NEEDED):
        log_once(
            log, logging.INFO, "parameters.%s: not needed, since shapes and batches of any size are accepted", unused[0]
        )
    return {name: value for name, value in given.items() if name in _PROPERTIES}


def _precision(options: LoadOptions) -> str:
    if str(options.parameters.get("HINT_BF16", "NO")).upper() == "YES":
        return "bf16"
    if options.precision not in _PRECISIONS:
        raise ConfigError(
            f"model.toml: parameters.precision = {options.precision!r}: expected one of {', '.join(_PRECISIONS)}"
        )
    return _PRECISIONS[options.precision]


def choose_device(requested: RequestedDevice, available: Sequence[str]) -> str:
    """Return a device by OpenVINO's name.

    Args:
        requested: The requested device.
        available: The devices that OpenVINO found: `CPU`, `GPU.0`, ….

    Returns:
        A device, or a plug-in with its available devices; missing ones are logged.

    Raises:
        ConfigError: None of the devices requested by OpenVINO's names is available.
    """
    if not requested.openvino:
        gpus = [device for device in available if device.startswith("GPU")]
        chosen = requested.choose(len(gpus), "OpenVINO")
        return "CPU" if chosen == "cpu" else gpus[int(chosen.removeprefix("cuda:"))]
    return _named_device(requested.openvino, available)


def _named_device(requested: str, available: Sequence[str]) -> str:
    plugin, _, listed = requested.rpartition(":")
    if not plugin and listed in {"AUTO", "MULTI", "HETERO"}:
        return f"{listed}:{','.join(available)}"
    there = [name for name in listed.split(",") if _is_available(name, available)]
    if all(name.startswith("-") for name in there):
        raise ConfigError(f"device {requested!r}: OpenVINO has {', '.join(available)} here")
    if missing := [name for name in listed.split(",") if name not in there and not name.startswith("-")]:
        log_once(log, logging.WARNING, "device %s: OpenVINO has no %s here; left out", requested, ", ".join(missing))
    return f"{plugin}:{','.join(there)}" if plugin else listed


def _is_available(name: str, available: Sequence[str]) -> bool:
    """Return whether `GPU` (any of them, such as `GPU.0`), `GPU.1` or `-GPU` is one of the devices."""
    wanted = name.removeprefix("-")
    return any(device in {wanted, f"{wanted}.0"} or (wanted == f"{device}.0") for device in available)
