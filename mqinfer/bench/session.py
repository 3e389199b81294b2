"""The ONNX Runtime session that the contestants beside mqinfer use, with the options that mqinfer's back end uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mqinfer.models.load_options import default_threads
from mqinfer.protocol.errors import MissingExtra

__all__ = ["open_session"]


def open_session(path: Path) -> Any:
    """Open a model on the CPU.

    Raises:
        MissingExtra: onnxruntime is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra.of("onnxruntime", "worker") from error
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = default_threads()
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
