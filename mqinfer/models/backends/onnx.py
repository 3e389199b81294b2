"""ONNX models through ONNX Runtime, on the CPU or an NVIDIA GPU."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mqinfer.models.backend import Backend
from mqinfer.models.device import DeviceWish
from mqinfer.models.load_options import LoadOptions, state_shape
from mqinfer.models.model_file import describe
from mqinfer.protocol.datatypes import Array, Datatype
from mqinfer.protocol.errors import BadTensor, MissingExtra, ModelFailed, ModelNotLoadable
from mqinfer.protocol.types import TensorSpec

__all__ = ["OnnxBackend", "load", "providers_for", "settle_device"]

log = logging.getLogger("mqinfer.models")

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"
_MANY_GPUS = 1000  # ONNX Runtime says whether it can use GPUs, not how many there are

_DATATYPES = {
    "tensor(bool)": Datatype.BOOL,
    "tensor(uint8)": Datatype.UINT8,
    "tensor(uint16)": Datatype.UINT16,
    "tensor(uint32)": Datatype.UINT32,
    "tensor(uint64)": Datatype.UINT64,
    "tensor(int8)": Datatype.INT8,
    "tensor(int16)": Datatype.INT16,
    "tensor(int32)": Datatype.INT32,
    "tensor(int64)": Datatype.INT64,
    "tensor(float16)": Datatype.FP16,
    "tensor(float)": Datatype.FP32,
    "tensor(double)": Datatype.FP64,
    "tensor(string)": Datatype.BYTES,
}


def settle_device(wish: DeviceWish, providers: Sequence[str]) -> str:
    """Decide on `cpu` or `cuda:N`, given the execution providers that this ONNX Runtime was built with."""
    return wish.settle(_MANY_GPUS if CUDA in providers else 0, "ONNX Runtime")


def providers_for(device: str) -> list[Any]:
    """Give the execution providers for a settled device (`cpu` or `cuda:N`), in order of preference."""
    if device == "cpu":
        return [CPU]
    # cuDNN's exhaustive search would make the first inference of every new shape take seconds.
    return [(CUDA, {"device_id": int(device[5:]), "cudnn_conv_algo_search": "HEURISTIC"}), CPU]


def load(path: Path, options: LoadOptions) -> Backend:
    """Load an ONNX model.

    External data must lie in the model's folder; ONNX Runtime itself refuses paths and links that lead out of it.

    Raises:
        MissingExtra: onnxruntime is not installed.
        ModelNotLoadable: The file is damaged, or needs what this ONNX Runtime doesn't have.
        ConfigError: `model.toml` contradicts the file.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra.of("onnxruntime", "worker") from error
    wanted = settle_device(options.device, onnxruntime.get_available_providers())
    session = _session_on(onnxruntime, path, wanted, options.threads)
    device = wanted if CUDA in session.get_providers() else "cpu"
    if device != wanted:
        log.warning("%s: ONNX Runtime could not use %s: running on the CPU", path, wanted)
    return OnnxBackend(session, f"onnxruntime {onnxruntime.__version__}", device, path, options)


def _session_on(onnxruntime: Any, path: Path, device: str, threads: int) -> Any:
    """Open a session on a device, or on the CPU where the GPU's libraries or the GPU itself fail."""
    if device != "cpu" and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # finds the CUDA libraries that pip installed
    try:
        return _session(onnxruntime, path, providers_for(device), threads)
    except ModelNotLoadable as error:
        if device == "cpu":
            raise
        log.warning("%s", error)
        return _session(onnxruntime, path, providers_for("cpu"), threads)


def _session(onnxruntime: Any, path: Path, providers: list[Any], threads: int) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    settings.log_severity_level = 4  # what matters comes as an exception
    # Threads that spin between runs took 1.2 ms of CPU for a run that takes 0.6 ms, and 3 to 4 ms where runs have a
    # pause of 5 ms between them, for at most 5 % of latency: a worker's other threads need the cores more.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        # Its fallback would move a session to the CPU while it serves, and say so on stdout only.
        return onnxruntime.InferenceSession(path, settings, providers=providers, enable_fallback=0)
    except Exception as error:  # its classes share no base below Exception
        raise ModelNotLoadable(f"{path}: ONNX Runtime can't load it ({error}); found {describe(path)}") from error


def _spec(path: Path, argument: Any) -> TensorSpec:
    datatype = _DATATYPES.get(argument.type)
    if datatype is None:
        raise ModelNotLoadable(
            f"{path}: {argument.name!r} is {argument.type}, which the Open Inference Protocol has no datatype for; "
            "export the model with a cast to one that it has"
        )
    return TensorSpec(argument.name, datatype, tuple(size if isinstance(size, int) else -1 for size in argument.shape))


class OnnxBackend:
    """One ONNX Runtime session.

    Strings must be UTF-8: ONNX Runtime's Python interface takes and gives text only.
    """

    platform = "onnx_onnxv1"
    concurrency = 1

    def __init__(self, session: Any, engine: str, device: str, path: Path, options: LoadOptions) -> None:
        self._session = session
        self._path = path
        self.engine = engine
        self.device = device
        self.precision = options.precision
        self.inputs = _specs(path, session.get_inputs(), options.inputs)
        self.outputs = _specs(path, session.get_outputs(), options.outputs)
        self._strings = frozenset(spec.name for spec in self.inputs if spec.datatype is Datatype.BYTES)
        self._names = [spec.name for spec in self.outputs]

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Run the model once.

        Raises:
            BadTensor: A string is not UTF-8.
            ModelFailed: ONNX Runtime raised.
        """
        names = list(outputs) or self._names
        feeds = {name: _as_text(name, array) if name in self._strings else array for name, array in inputs.items()}
        try:
            results = self._session.run(names, feeds)
        except Exception as error:  # its classes share no base below Exception
            raise ModelFailed(f"{self._path.name}: ONNX Runtime: {error}") from error
        return {name: _as_bytes(result) for name, result in zip(names, results, strict=True)}

    def close(self) -> None:
        """Give back the session's memory."""
        self._session = None


def _specs(path: Path, arguments: Sequence[Any], stated: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
    # An unknown rank and rank 0 look the same here: an empty shape.
    unknown = [argument.name for argument in arguments if not argument.shape]
    return state_shape([_spec(path, argument) for argument in arguments], stated, unknown)


def _as_text(name: str, array: Array) -> Array:
    try:
        text = [element.decode() if isinstance(element, bytes) else str(element) for element in array.flat]
    except UnicodeDecodeError as error:
        raise BadTensor(f"input {name!r}: ONNX Runtime takes strings in UTF-8 only: {error}") from error
    return _objects(text, array.shape)


def _as_bytes(result: Any) -> Array:
    array = np.asarray(result)
    if array.dtype.kind not in "OU":
        return array
    return _objects([str(element).encode() for element in array.flat], array.shape)


def _objects(elements: Sequence[object], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array.reshape(shape)
