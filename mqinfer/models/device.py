"""Which device a model shall run on, and which it then really runs on."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from mqinfer.protocol.errors import ConfigError

__all__ = ["DeviceWish", "parse_device"]

log = logging.getLogger("mqinfer.models")


@dataclass(frozen=True, slots=True)
class DeviceWish:
    """What was asked for.

    Attributes:
        gpu: True for a GPU, False for the CPU, None for a GPU where the engine really offers one.
        index: Number of the GPU.
    """

    gpu: bool | None = None
    index: int = 0

    def settle(self, gpus: int, engine: str) -> str:
        """Decide on a device; one that was asked for and isn't there gives a log line and the CPU.

        Args:
            gpus: How many GPUs the engine offers.
            engine: Its name, for the log.

        Returns:
            `cpu` or `cuda:N`.
        """
        if self.gpu is False or (self.gpu is None and self.index >= gpus):
            return "cpu"
        if self.index >= gpus:
            log.warning("%s offers %d GPUs, cuda:%d was asked for: running on the CPU", engine, gpus, self.index)
            return "cpu"
        return f"cuda:{self.index}"


def parse_device(text: str) -> DeviceWish:
    """Read `auto`, `cpu`, `cuda` or `cuda:N`.

    Raises:
        ConfigError: It is none of these.
    """
    if text == "auto":
        return DeviceWish()
    if text == "cpu":
        return DeviceWish(gpu=False)
    found = re.fullmatch(r"cuda(?::(\d{1,3}))?", text)
    if not found:
        raise ConfigError(f"device {text!r}: must be auto, cpu, cuda or cuda:N")
    return DeviceWish(gpu=True, index=int(found[1] or 0))
