"""Which device a model shall run on, and which it then really runs on."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from mqinfer.protocol.errors import ConfigError

__all__ = ["DeviceWish", "parse_device"]

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
