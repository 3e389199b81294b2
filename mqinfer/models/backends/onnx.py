"""Run ONNX models with ONNX Runtime: on the CPU, an NVIDIA GPU, or with TensorRT or OpenVINO."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from mqinfer.extras import import_extra
from mqinfer.logs import log_once
from mqinfer.models.backend import Backend, prepared_sizes
from mqinfer.models.backends.onnx_binding import run_bound
from mqinfer.models.backends.onnx_file import refusal
from mqinfer.models.backends.onnx_providers import Attempt, attempts, describe_nodes
from mqinfer.models.load_options import LoadOptions, default_threads, with_configured_shapes
from mqinfer.models.repository.files import describe
from mqinfer.protocol.datatypes import Array, Datatype, dtype_of, nbytes
from mqinfer.protocol.errors import BadTensor, ModelFailed, ModelNotLoadable
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.protocol.types import TensorSpec

log = logging.getLogger("mqinfer.models")

_FATAL = 4
_REASON = 200
"""The most characters of a reason: some of ONNX Runtime's fill a page."""
_PLACE = re.compile(r"\S+\.(?:cc|h):\d+ [^()]*\([^()]*\)(?: const)?(?: \[with [^\]]*\])? ")
"""File, line and function, before what was wrong."""

_THREADS = "intra_op_thread_count"
_SHORT_S = 0.001
"""A model with fixed shapes gets one engine thread if one row runs in less time: waking another one takes longer than
what it computes (measured on an autoencoder of 100 points: 70 us with one thread, 90 us with two, 650 us with two while
the cores are busy)."""
_TRIALS = 4
_TOO_LONG_S = 0.02
"""After a run that takes longer no further one is tried."""

_RUNS_PER_SHRINKING = 256
"""On the CPU every 256th run frees what ONNX Runtime's arena keeps: one request with an output of 1 GB would otherwise
make the process larger by as much for good. To take outputs of 50 MB anew costs one run 30 ms, 2 % of all."""
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


def import_onnxruntime() -> Any:
    """Import ONNX Runtime without the reports that it sends its maker since 1.29, with names of models and graphs.

    The variable counts once, before the first session (github.com/microsoft/onnxruntime/pull/27379).

    Raises:
        MissingExtra: It is not installed.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    return import_extra("onnxruntime", "worker")


def load(path: Path, options: LoadOptions) -> Backend:
    """Load an ONNX model with the best requested execution provider; those that are not available are logged.

    External data must lie in the model's folder; ONNX Runtime itself refuses paths and links that lead out of it.

    Raises:
        MissingExtra: onnxruntime is not installed.
        ModelNotLoadable: The file is damaged, or needs what this ONNX Runtime doesn't have.
        ConfigError: `model.toml` contradicts the file, or an accelerator has no such parameter.
    """
    onnxruntime = import_onnxruntime()
    onnxruntime.set_default_logger_severity(_FATAL)  # errors come as exceptions
    session, attempt = _open(onnxruntime, path, options)
    is_stated = _THREADS in options.parameters or options.threads != default_threads()
    if (
        attempt.name == "cpu"
        and options.threads > 1
        and not is_stated
        and _is_short(session, _specs(path, session.get_inputs(), options.inputs))
    ):
        session = _session(onnxruntime, path, attempt, 1)
    backend = OnnxBackend(session, f"onnxruntime {onnxruntime.__version__}", attempt, path, options)
    if attempt.name == "cuda" and _has_convolutions(session):
        backend.prepare_sizes(lambda: _session(onnxruntime, path, attempt, options.threads))
    return backend


def _open(onnxruntime: Any, path: Path, options: LoadOptions) -> tuple[Any, Attempt]:
    """Return the first session that has its execution provider, of the requested ones, best first."""
    available = onnxruntime.get_available_providers()
    missing: list[str] = []
    *requested, plain = attempts(options, available)
    for attempt in requested:
        if attempt.provider not in available:
            missing.append(f"{attempt.label} (not in this ONNX Runtime)")
            continue
        session, reason = _try(onnxruntime, path, attempt, options.threads)
        if session is not None:
            return _with_warning(path, session, attempt, missing)
        missing.append(f"{attempt.label} ({reason})")
    return _with_warning(path, _session(onnxruntime, path, plain, options.threads), plain, missing)


def _try(onnxruntime: Any, path: Path, attempt: Attempt, threads: int) -> tuple[Any | None, str]:
    """Open a session with a provider whose libraries or device may be missing; return it, or None and the reason."""
    reason = _find_libraries(onnxruntime) if attempt.device != "cpu" else ""
    try:
        session = _session(onnxruntime, path, attempt, threads)
    except ModelNotLoadable as error:
        return None, reason or reason_of(error.__cause__)
    # ONNX Runtime leaves out a provider that it can't start.
    if attempt.provider in session.get_providers():
        return session, ""
    return None, reason or "it could not be started: is there such a device, and are its libraries installed?"


def reason_of(error: BaseException | None) -> str:
    """Return what ONNX Runtime reports, without the place in its source, which can be longer than a line of the log."""
    return _PLACE.sub("", " ".join(str(error).split()))[:_REASON]


def _find_libraries(onnxruntime: Any) -> str:
    """Load the CUDA libraries that pip installed; return what is missing, which ONNX Runtime only prints."""
    if not hasattr(onnxruntime, "preload_dlls"):
        return ""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        onnxruntime.preload_dlls()
    return next((line for line in printed.getvalue().splitlines() if line.startswith("Failed")), "")[:_REASON]


def _with_warning(path: Path, session: Any, attempt: Attempt, missing: Sequence[str]) -> tuple[Any, Attempt]:
    if missing:
        log_once(
            log,
            logging.WARNING,
            "%s: requested but not available: %s; running on %s",
            path,
            "; ".join(missing),
            attempt.label,
        )
    return session, attempt


def _session(onnxruntime: Any, path: Path, attempt: Attempt, threads: int) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    settings.log_severity_level = _FATAL
    # Threads that spin between runs took 1.2 ms of CPU for a run of 0.6 ms, and 3 to 4 ms with pauses of 5 ms between
    # runs, for at most 5 % of latency: a worker's other threads need the cores more.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    providers = [(name, dict(options)) for name, options in attempt.providers]
    try:
        # Its fallback would move a session to the CPU while it serves, and only print that.
        return onnxruntime.InferenceSession(path, settings, providers=providers, enable_fallback=0)
    except Exception as error:  # its classes share no base below Exception
        reason = refusal(str(error)) or f"ONNX Runtime can't load it ({error}); found {describe(path)}"
        raise ModelNotLoadable(f"{path}: {reason}") from error


def _zeros(spec: TensorSpec) -> Array | None:
    """Return one row of zeros for an input; None where its shape is open, or it takes text."""
    if spec.datatype is Datatype.BYTES or -1 in spec.shape[1:] or 0 in spec.shape:
        return None
    sizes = tuple(1 if size == -1 else size for size in spec.shape)
    too_large = nbytes(spec.datatype, sizes) > DEFAULT_LIMITS.tensor_bytes
    return None if too_large else np.zeros(sizes, dtype_of(spec.datatype))


def _is_short(session: Any, inputs: Sequence[TensorSpec]) -> bool:
    """Run one row of zeros a few times; False where the shapes are open, so that nothing is known of real requests."""
    feeds = {spec.name: _zeros(spec) for spec in inputs}
    if any(each is None for each in feeds.values()):
        return False
    shortest = _TOO_LONG_S
    for _ in range(_TRIALS):
        started = time.perf_counter()
        try:
            session.run(None, feeds)
        except Exception:  # noqa: BLE001 - its classes share no base below Exception; the warm-up reports it
            return False
        took = time.perf_counter() - started
        if took > _TOO_LONG_S:
            return False
        shortest = min(shortest, took)
    return shortest < _SHORT_S


def _nodes(session: Any) -> Counter[str]:
    """Return the number of the optimised graph's nodes by execution provider; empty if ONNX Runtime can't report it."""
    nodes: Counter[str] = Counter()
    if hasattr(session, "get_provider_graph_assignment_info"):
        for part in session.get_provider_graph_assignment_info():
            nodes[part.ep_name] += len(part.get_nodes())
    return nodes


def _has_convolutions(session: Any) -> bool:
    """Return whether a GPU computes convolutions for the session; True where ONNX Runtime can't report it."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return True
    parts = session.get_provider_graph_assignment_info()
    on_gpu = (part for part in parts if part.ep_name != "CPUExecutionProvider")
    return any("Conv" in node.op_type for part in on_gpu for node in part.get_nodes())


def _spec(path: Path, argument: Any) -> TensorSpec:
    datatype = _DATATYPES.get(argument.type)
    if datatype is None:
        raise ModelNotLoadable(
            f"{path}: {argument.name!r} is {argument.type}, for which the Open Inference Protocol has no datatype; "
            "export the model with a cast to one that it has"
        )
    return TensorSpec(argument.name, datatype, tuple(size if isinstance(size, int) else -1 for size in argument.shape))


class OnnxBackend:
    """One ONNX Runtime session.

    Strings must be UTF-8: ONNX Runtime's Python interface takes and returns text only.
    """

    platform = "onnx_onnxv1"
    concurrency = 1

    def __init__(self, session: Any, engine: str, attempt: Attempt, path: Path, options: LoadOptions) -> None:
        self._session = session
        self._path = path
        self.engine = engine + describe_nodes(attempt, _nodes(session), session.get_providers())
        self.device = attempt.device
        self.precision = options.precision if "precision" in options.parameters else attempt.precision
        self.inputs = _specs(path, session.get_inputs(), options.inputs)
        self.outputs = _specs(path, session.get_outputs(), options.outputs)
        self.first_axes = _first_axes(session.get_inputs())
        self._strings = frozenset(spec.name for spec in self.inputs if spec.datatype is Datatype.BYTES)
        self._names = [spec.name for spec in self.outputs]
        self._may_need_bytes = any(spec.datatype is Datatype.BYTES for spec in self.outputs)
        self._bound = self.device != "cpu" and not self._strings and not self._may_need_bytes
        # What `InferenceSession.run` calls once it has looked through the inputs, which the worker has checked already.
        self._native_run = getattr(getattr(session, "_sess", None), "run", None) or session.run
        self._run_options = cycle([None])
        self.batch_sizes: tuple[int, ...] = ()
        self._open_session: Callable[[], Any] = lambda: session
        self._sessions: dict[int, Any] = {}
        if self.device == "cpu":
            self._run_options = cycle([*[None] * (_RUNS_PER_SHRINKING - 1), _shrinking()])

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Run the model once.

        Raises:
            BadTensor: A string is not UTF-8.
            ModelFailed: ONNX Runtime raised.
        """
        names = list(outputs) or self._names
        if self._strings:
            inputs = {name: _as_text(name, array) if name in self._strings else array for name, array in inputs.items()}
        try:
            if len(inputs) != len(self.inputs):
                results: Sequence[Any] = self._session.run(names, inputs)  # reports what is missing; bound, it crashes
            elif self._bound:
                results = run_bound(self._session_of(inputs), names, inputs, self.device)
            else:
                results = self._native_run(names, inputs, next(self._run_options))
        except Exception as error:  # its classes share no base below Exception
            raise ModelFailed(f"{self._path.name}: ONNX Runtime: {error}") from error
        if self._may_need_bytes:
            return {name: _as_bytes(result) for name, result in zip(names, results, strict=True)}
        return dict(zip(names, results, strict=True))

    def prepare_sizes(self, open_session: Callable[[], Any]) -> None:
        """Run batches of each prepared size in a session of its own, if the size of a batch is open.

        ONNX Runtime has cuDNN plan every convolution anew when the shape differs from that of the run before
        (`cuda/nn/conv.cc`, `last_x_dims`): 90 ms for ResNet-50 on an H200, 0.07 to 1 s for a MobileNetV2. Each session
        costs the memory of the weights, so the sizes are few.

        Args:
            open_session: Opens a further session of the same file on the same device.
        """
        if self._bound:
            self.batch_sizes, self._open_session = prepared_sizes(self.device, self.inputs), open_session

    def _session_of(self, inputs: Mapping[str, Array]) -> Any:
        """Return the session for so many rows: the first one for a single row and for sizes that are not prepared."""
        rows = len(next(iter(inputs.values()))) if self.batch_sizes else 1
        if rows == 1 or rows not in self.batch_sizes:
            return self._session
        session = self._sessions.get(rows)
        if session is None:
            try:
                session = self._open_session()
            except ModelNotLoadable as error:  # no memory for it, say
                log.warning("%s: batches of %d rows get no session of their own: %s", self._path.name, rows, error)
                session = self._session
            self._sessions[rows] = session
        return session

    def close(self) -> None:
        """Free the sessions' memory."""
        self._session = self._native_run = None
        self._sessions.clear()


def _shrinking() -> Any:
    """Return the options of a run after which ONNX Runtime frees the memory that it keeps and that nothing uses."""
    options = import_onnxruntime().RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


def _specs(path: Path, arguments: Sequence[Any], configured: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
    # An unknown rank and rank 0 look the same here: an empty shape.
    unknown = [argument.name for argument in arguments if not argument.shape]
    return with_configured_shapes([_spec(path, argument) for argument in arguments], configured, unknown)


def _first_axes(arguments: Sequence[Any]) -> tuple[str, ...]:
    """Return the names that the file has for the first axes, where they are open."""
    return tuple(each.shape[0] for each in arguments if each.shape and isinstance(each.shape[0], str))


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
