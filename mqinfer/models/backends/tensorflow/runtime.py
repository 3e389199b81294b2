"""What the TensorFlow back ends share: a quiet import, the choice of the device, and TensorFlow's exceptions.

TensorFlow settles devices and threads once a process, before its first operation. A worker process holds one model
instance, so that is enough; a second model in one process (`--local`) runs on what the first one chose.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mqinfer.models.load_options import DeviceWish
from mqinfer.models.repository.files import describe
from mqinfer.protocol.errors import MissingExtra, ModelFailed, ModelNotLoadable

__all__ = ["import_tensorflow", "load_errors", "loading", "running", "settle_device"]

log = logging.getLogger("mqinfer.models")


def import_tensorflow() -> Any:
    """Import TensorFlow with as few notices on stderr as it lets itself be asked for.

    Two lines on oneDNN remain, which TensorFlow 2.21 prints before it reads any setting. What the environment already
    says of TF_CPP_MIN_LOG_LEVEL stands.

    Raises:
        MissingExtra: It is not installed.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # fatal lines only: errors reach us as exceptions
    try:
        import tensorflow as tf
    except ImportError as error:
        raise MissingExtra.of("tensorflow", "tensorflow") from error
    for name in ("tensorflow", "absl"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return tf


def settle_device(tensorflow: Any, wish: DeviceWish, threads: int) -> str:
    """Choose the device and the number of threads for this process.

    On a GPU, memory is taken as it is needed and not all at once, so that several processes can share it.

    Returns:
        What models really run on: `cpu` or `cuda:N`.
    """
    config = tensorflow.config
    gpus = config.list_physical_devices("GPU")
    wanted = wish.settle(len(gpus), "TensorFlow")
    visible = [] if wanted == "cpu" else [gpus[int(wanted.removeprefix("cuda:"))]]
    try:
        config.set_visible_devices(visible, "GPU")
        for gpu in visible:
            config.experimental.set_memory_growth(gpu, enable=True)
        config.threading.set_intra_op_parallelism_threads(threads)
        config.threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError:
        log.info("TensorFlow already runs in this process: its device and threads stay as they are")
    used = config.get_visible_devices("GPU")
    return f"cuda:{gpus.index(used[0])}" if used else "cpu"


def load_errors(tensorflow: Any) -> tuple[type[Exception], ...]:
    """List what TensorFlow raises on models that it can't load."""
    from google.protobuf.message import DecodeError

    return (tensorflow.errors.OpError, DecodeError, OSError, ValueError, TypeError, KeyError, RuntimeError)


@contextmanager
def loading(tensorflow: Any, path: Path) -> Iterator[None]:
    """Turn what TensorFlow raises while it loads a model into ModelNotLoadable."""
    try:
        yield
    except load_errors(tensorflow) as error:
        raise ModelNotLoadable(
            f"{path}: TensorFlow can't load it ({_first_line(error)}); found {describe(path)}"
        ) from error


@contextmanager
def running(tensorflow: Any, path: Path) -> Iterator[None]:
    """Turn what TensorFlow raises while it runs a model into ModelFailed."""
    try:
        yield
    except (tensorflow.errors.OpError, ValueError, TypeError, RuntimeError) as error:
        raise ModelFailed(f"{path.name}: TensorFlow: {_first_line(error)}") from error


_STACK = ("File ", "Graph execution error", "Detected at", "Node: ")


def _first_line(error: Exception) -> str:
    """Leave out the stack of TensorFlow's own files, which would make a message of many lines."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith(_STACK)]
    return told[0] if told else type(error).__name__
