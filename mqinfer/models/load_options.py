"""How a back end is asked to load a model: device, threads, and the shapes that an operator states."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mqinfer.models.repository.config import Accelerators
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import Scalar, TensorSpec

__all__ = ["DeviceWish", "LoadOptions", "Stated", "default_threads", "parse_device", "state_shape"]

log = logging.getLogger("mqinfer.models")

_ONE = r"(CPU|GPU|NPU)(\.\d{1,3})?"
_OPENVINO = re.compile(rf"{_ONE}|(AUTO|MULTI|HETERO)(:-?{_ONE}(,-?{_ONE})*)?")
"""OpenVINO's device names: one device, or a plug-in that chooses or divides; `-` before one that it must not use."""


@dataclass(frozen=True, slots=True)
class DeviceWish:
    """What was asked for.

    Attributes:
        gpu: True for a GPU, False for the CPU, None for a GPU where the engine really offers one.
        index: Number of the GPU.
        openvino: A device by OpenVINO's own name (`AUTO:GPU,CPU`), for that engine alone; empty: none.
    """

    gpu: bool | None = None
    index: int = 0
    openvino: str = ""

    def settle(self, gpus: int, engine: str) -> str:
        """Decide on a device; one that was asked for and isn't there gives a log line and the CPU.

        Args:
            gpus: How many GPUs the engine offers.
            engine: Its name, for the log.

        Returns:
            `cpu` or `cuda:N`.

        Raises:
            ConfigError: The wish is one for OpenVINO.
        """
        if self.openvino:
            raise ConfigError(f"device {self.openvino!r} is OpenVINO's: {engine} takes auto, cpu, cuda or cuda:N")
        if self.gpu is False or (self.gpu is None and self.index >= gpus):
            return "cpu"
        if self.index >= gpus:
            log.warning(
                "asked for, but not to be had: cuda:%d (%s offers %d GPUs): running on cpu", self.index, engine, gpus
            )
            return "cpu"
        return f"cuda:{self.index}"


def parse_device(text: str) -> DeviceWish:
    """Read `auto`, `cpu`, `cuda` or `cuda:N`, or a device of OpenVINO's: `GPU.1`, `AUTO:GPU,CPU`, `HETERO:…`.

    Raises:
        ConfigError: It is none of these.
    """
    if text == "auto":
        return DeviceWish()
    if text == "cpu":
        return DeviceWish(gpu=False)
    if _OPENVINO.fullmatch(text):
        return DeviceWish(openvino=text)
    found = re.fullmatch(r"cuda(?::(\d{1,3}))?", text)
    if not found:
        raise ConfigError(
            f"device {text!r}: must be auto, cpu, cuda or cuda:N; for OpenVINO also CPU, GPU, GPU.N, NPU, "
            "or AUTO, MULTI or HETERO with a list such as AUTO:GPU,CPU"
        )
    return DeviceWish(gpu=True, index=int(found[1] or 0))


@dataclass(frozen=True, slots=True)
class Stated:
    """What `model.toml` says of one input or output; None where it says nothing."""

    shape: tuple[int, ...] | None = None
    datatype: Datatype | None = None


def default_threads() -> int:
    """Two threads for one caller, or one where the process may use one core only.

    More of them gained nothing for batch 1 on the networks that were measured, and every instance is a process that
    wants its own.
    """
    return min(2, len(os.sched_getaffinity(0)))


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load a model.

    Attributes:
        device: Wanted.
        threads: Of the engine, for one operation.
        signature: Of a SavedModel; None: `serving_default`.
        inputs: Stated by the operator, by name.
        outputs: Likewise; for a frozen graph, where given, the tensors to give back.
        parameters: All of `parameters`, for settings that only one engine has.
        accelerators: Wanted beside the plain engine; ONNX Runtime has them.
    """

    device: DeviceWish = field(default_factory=DeviceWish)
    threads: int = field(default_factory=default_threads)
    signature: str | None = None
    inputs: Mapping[str, Stated] = field(default_factory=dict)
    outputs: Mapping[str, Stated] = field(default_factory=dict)
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    accelerators: Accelerators = field(default_factory=Accelerators)

    @property
    def precision(self) -> str:
        """What the operator says that the model computes in, for engines that can't tell; `fp32` unless stated."""
        return str(self.parameters.get("precision", "fp32"))


def state_shape(
    specs: Sequence[TensorSpec], stated: Mapping[str, Stated], unknown: Sequence[str] = ()
) -> tuple[TensorSpec, ...]:
    """Put stated shapes in place of discovered ones.

    Args:
        specs: As discovered.
        stated: As in `model.toml`, batch axis included.
        unknown: Names whose rank the file leaves open: any stated shape will do there.

    Raises:
        ConfigError: A name that isn't there, or a shape or datatype that contradicts the file's.
    """
    names = [spec.name for spec in specs]
    for name in stated:
        if name not in names:
            raise ConfigError(f"model.toml names {name!r}, the model has {', '.join(names)}")
    return tuple(_merge(spec, stated.get(spec.name, Stated()), free=spec.name in unknown) for spec in specs)


def _merge(spec: TensorSpec, stated: Stated, *, free: bool) -> TensorSpec:
    if stated.datatype not in {None, spec.datatype}:
        raise ConfigError(f"model.toml: {spec.name}: data_type {stated.datatype}, the model has {spec.datatype}")
    if stated.shape is None:
        return spec
    if not free and not _fits(stated.shape, spec.shape):
        raise ConfigError(
            f"model.toml: {spec.name}: shape {list(stated.shape)} does not fit the model's {list(spec.shape)} "
            "(dims leave the batch axis out where max_batch_size is above 0)"
        )
    return TensorSpec(spec.name, spec.datatype, stated.shape)


def _fits(stated: tuple[int, ...], discovered: tuple[int, ...]) -> bool:
    return len(stated) == len(discovered) and all(
        -1 in {one, other} or one == other for one, other in zip(stated, discovered, strict=True)
    )
