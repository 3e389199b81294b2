"""Options that a back end loads a model with: device, threads, configured shapes, parameters of its engine."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mqinfer.logs import log_once
from mqinfer.models.repository.config import Accelerators
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import ConfigError, ModelNotLoadable
from mqinfer.protocol.types import Scalar, TensorSpec

log = logging.getLogger("mqinfer.models")

_ONE = r"(CPU|GPU|NPU)(\.\d{1,3})?"
_OPENVINO = re.compile(rf"{_ONE}|(AUTO|MULTI|HETERO)(:-?{_ONE}(,-?{_ONE})*)?")
"""OpenVINO's device names: one device, or a plug-in with devices to choose from or to share; `-` excludes one."""


@dataclass(frozen=True, slots=True)
class RequestedDevice:
    """The device that the operator requested.

    Attributes:
        gpu: True for a GPU, False for the CPU, None for a GPU if the engine has one.
        index: Number of the GPU.
        openvino: A device by OpenVINO's own name (`AUTO:GPU,CPU`), for that engine only; empty: none.
    """

    gpu: bool | None = None
    index: int = 0
    openvino: str = ""

    def choose(self, gpus: int, engine: str) -> str:
        """Choose a device; where the requested GPU is missing, log it and choose the CPU.

        Args:
            gpus: How many GPUs the engine has.
            engine: Its name, for the log.

        Returns:
            `cpu` or `cuda:N`.

        Raises:
            ConfigError: The request is one for OpenVINO.
        """
        if self.openvino:
            raise ConfigError(f"device {self.openvino!r} is OpenVINO's: {engine} takes auto, cpu, cuda or cuda:N")
        if self.gpu is False or (self.gpu is None and self.index >= gpus):
            return "cpu"
        if self.index >= gpus:
            log_once(
                log,
                logging.WARNING,
                "requested but not available: cuda:%d (%s has %d GPUs); running on cpu",
                self.index,
                engine,
                gpus,
            )
            return "cpu"
        return f"cuda:{self.index}"


def parse_device(text: str) -> RequestedDevice:
    """Parse `auto`, `cpu`, `cuda` or `cuda:N`, or a device of OpenVINO's: `GPU.1`, `AUTO:GPU,CPU`, `HETERO:…`.

    Raises:
        ConfigError: It is none of these.
    """
    if text == "auto":
        return RequestedDevice()
    if text == "cpu":
        return RequestedDevice(gpu=False)
    if _OPENVINO.fullmatch(text):
        return RequestedDevice(openvino=text)
    found = re.fullmatch(r"cuda(?::(\d{1,3}))?", text)
    if not found:
        raise ConfigError(
            f"device {text!r}: expected auto, cpu, cuda or cuda:N; for OpenVINO also CPU, GPU, GPU.N, NPU, "
            "or AUTO, MULTI or HETERO with a list such as AUTO:GPU,CPU"
        )
    return RequestedDevice(gpu=True, index=int(found[1] or 0))


@dataclass(frozen=True, slots=True)
class TensorOptions:
    """Shape and datatype of one input or output from `model.toml`, each None if it is not configured."""

    shape: tuple[int, ...] | None = None
    datatype: Datatype | None = None


def default_threads() -> int:
    """Return 2, or 1 where the process may use one core only.

    More threads gained nothing for batch 1 on the networks that were measured, and every instance is a process with
    threads of its own.
    """
    return min(2, len(os.sched_getaffinity(0)))


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options for loading a model.

    Attributes:
        device: The requested device.
        threads: Threads of the engine for one operation.
        signature: Signature of a SavedModel; None: `serving_default`.
        inputs: Configured shapes and datatypes, by name.
        outputs: Configured shapes and datatypes of outputs, by name; for a frozen graph also the choice of its outputs.
        parameters: All of `parameters`, for settings that only one engine has.
        accelerators: Requested execution accelerators; only ONNX Runtime has them.
    """

    device: RequestedDevice = field(default_factory=RequestedDevice)
    threads: int = field(default_factory=default_threads)
    signature: str | None = None
    inputs: Mapping[str, TensorOptions] = field(default_factory=dict)
    outputs: Mapping[str, TensorOptions] = field(default_factory=dict)
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    accelerators: Accelerators = field(default_factory=Accelerators)

    @property
    def precision(self) -> str:
        """The configured precision, for engines that can't report theirs; `fp32` by default."""
        return str(self.parameters.get("precision", "fp32"))


def check_ranks(unknown: Iterable[str], configured: Mapping[str, TensorOptions], path: Path) -> None:
    """Check that inputs whose rank the file leaves open have a configured shape.

    Raises:
        ModelNotLoadable: One has none.
    """
    for name in unknown:
        if configured.get(name, TensorOptions()).shape is None:
            raise ModelNotLoadable(
                f"{path}: the file leaves the rank of the input {name!r} open; add its shape to model.toml: "
                f'[[input]] name = "{name}", dims = [...]'
            )


def with_configured_shapes(
    specs: Sequence[TensorSpec], configured: Mapping[str, TensorOptions], unknown: Sequence[str] = ()
) -> tuple[TensorSpec, ...]:
    """Replace discovered shapes by configured ones.

    Args:
        specs: Inputs or outputs as discovered.
        configured: From `model.toml`, batch axis included.
        unknown: Names whose rank the file leaves open: any configured shape fits there.

    Raises:
        ConfigError: The model has no such name, or another shape or datatype.
    """
    names = [spec.name for spec in specs]
    for name in configured:
        if name not in names:
            raise ConfigError(f"model.toml names {name!r}, the model has {', '.join(names)}")
    return tuple(_merge(spec, configured.get(spec.name, TensorOptions()), free=spec.name in unknown) for spec in specs)


def _merge(spec: TensorSpec, configured: TensorOptions, *, free: bool) -> TensorSpec:
    if configured.datatype not in {None, spec.datatype}:
        raise ConfigError(f"model.toml: {spec.name}: data_type {configured.datatype}, the model has {spec.datatype}")
    if configured.shape is None:
        return spec
    if not free and not sizes_fit(configured.shape, spec.shape):
        raise ConfigError(
            f"model.toml: {spec.name}: shape {list(configured.shape)} does not fit the model's {list(spec.shape)} "
            "(dims leave the batch axis out where max_batch_size is above 0)"
        )
    return TensorSpec(spec.name, spec.datatype, configured.shape)


def sizes_fit(configured: tuple[int, ...], discovered: tuple[int, ...]) -> bool:
    """Return whether two shapes agree where neither leaves a size open."""
    return len(configured) == len(discovered) and all(
        -1 in {one, other} or one == other for one, other in zip(configured, discovered, strict=True)
    )
