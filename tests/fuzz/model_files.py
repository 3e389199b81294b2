"""Files of a model repository: its owner's, so of another trust, but files too are copied, cut and confused."""

from __future__ import annotations

import os
from pathlib import Path

from mqinfer.models.backends.onnx_file import external_locations
from mqinfer.models.repository.config_files import combine, read_layer

__all__ = ["onnx", "scratch", "toml", "triton"]

_FOLDER = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path("/tmp")  # noqa: S108  no secret: the input itself


def scratch(pid: int) -> Path:
    """Name the folder in which a process has its files; whoever started it takes the folder away."""
    return _FOLDER / f"mqinfer-fuzz-{pid}"


def toml(data: bytes) -> None:
    """Read a `model.toml`."""
    combine([read_layer(_written("model.toml", data))])


def triton(data: bytes) -> None:
    """Read a `config.pbtxt`."""
    combine([read_layer(_written("config.pbtxt", data))])


def onnx(data: bytes) -> None:
    """Look for external data in an ONNX file."""
    external_locations(_written("model.onnx", data))


def _written(name: str, data: bytes) -> Path:
    folder = scratch(os.getpid())
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    return folder / name
