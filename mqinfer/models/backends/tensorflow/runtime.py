"""Import TensorFlow quietly, choose its device, and convert its exceptions.

TensorFlow fixes devices and threads once a process, before its first operation. A worker process has one model
instance, so that is enough; a second model in one process (`--local`) runs on the device of the first one.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mqinfer.extras import missing_extra
from mqinfer.logs import log_once, without_lines
from mqinfer.models.load_options import RequestedDevice
from mqinfer.models.repository.files import describe
from mqinfer.protocol.errors import ModelFailed, ModelNotLoadable, MqinferError

log = logging.getLogger("mqinfer.models")


def import_tensorflow() -> Any:
    """Import TensorFlow without lines of its own on stderr, but for those of a TF_CPP_MIN_LOG_LEVEL in the environment.

    Raises:
        MissingExtra: It is not installed.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # fatal lines only: errors come as exceptions
    try:
        with _without_early_lines(), _without_keras():
            import tensorflow as tf
    except ImportError as error:
        raise missing_extra("tensorflow", "tensorflow") from error
    for name in ("tensorflow", "absl"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # as above; some errors would come with a traceback
    return tf


@contextmanager
def _without_early_lines() -> Iterator[None]:
    """Leave out what TensorFlow 2.21 prints as its libraries are loaded, before it reads its level of log."""
    level = os.environ["TF_CPP_MIN_LOG_LEVEL"]
    letters = "IWE"[: int(level)] if level.isdecimal() else ""
    if "tensorflow" in sys.modules or not letters:
        yield
        return
    prefixes = [f"{letter}0000 " for letter in letters] + ["WARNING: All log messages before absl::InitializeLog()"]
    with without_lines(prefixes):
        yield


@contextmanager
def _without_keras() -> Iterator[None]:
    """Keep TensorFlow from importing Keras at its start: no SavedModel and no frozen graph needs it.

    Keras imports scikit-learn and matplotlib where they are. With them a process starts in 4.4 CPU seconds with 599 MB,
    else in 2.3 with 516 MB, and without Keras in 2.0 with 478 MB (TensorFlow 2.21). `import keras` works as ever.
    """
    if (name := "TF_USE_LEGACY_KERAS") in os.environ:
        yield
        return
    os.environ[name] = "1"  # Keras 2, which is a package of its own and hardly anywhere
    try:
        yield
    finally:
        del os.environ[name]


def choose_device(tensorflow: Any, requested: RequestedDevice, threads: int) -> str:
    """Set the device and the number of threads of this process.

    On a GPU, memory is allocated as it is needed and not all at once, so that several processes can share it.

    Returns:
        The device that models really run on: `cpu` or `cuda:N`.
    """
    config = tensorflow.config
    gpus = config.list_physical_devices("GPU")
    device = requested.choose(len(gpus), "TensorFlow")
    visible = [] if device == "cpu" else [gpus[int(device.removeprefix("cuda:"))]]
    try:
        config.set_visible_devices(visible, "GPU")
        for gpu in visible:
            config.experimental.set_memory_growth(gpu, enable=True)
        config.threading.set_intra_op_parallelism_threads(threads)
        config.threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError:
        log_once(log, logging.INFO, "TensorFlow already runs in this process; its device and threads stay as they are")
    used = config.get_visible_devices("GPU")
    return f"cuda:{gpus.index(used[0])}" if used else "cpu"


@contextmanager
def loading(path: Path) -> Iterator[None]:
    """Convert TensorFlow's exceptions while it loads a model, which may be of any class, to ModelNotLoadable."""
    try:
        yield
    except MqinferError:
        raise
    except Exception as error:
        raise ModelNotLoadable(
            f"{path}: TensorFlow can't load it ({_first_line(error)}); found {describe(path)}"
        ) from error


@contextmanager
def running(tensorflow: Any, path: Path) -> Iterator[None]:
    """Convert TensorFlow's exceptions while it runs a model to ModelFailed."""
    try:
        yield
    except (tensorflow.errors.OpError, ValueError, TypeError, RuntimeError) as error:
        raise ModelFailed(f"{path.name}: TensorFlow: {_first_line(error)}") from error


_STACK = ("File ", "Graph execution error", "Detected at", "Node: ")


def _first_line(error: Exception) -> str:
    """Return the first line of a message that is not part of a stack of TensorFlow's own files."""
    lines = [line.strip() for line in str(error).splitlines()]
    kept = [line for line in lines if line and not line.startswith(_STACK)]
    return kept[0] if kept else type(error).__name__
