"""The process in which one model is measured: imports its engine, loads it, then takes turns as it is told.

What it sends over its pipe: one `Loaded`, and a `Turn` for each order; or, in place of either, a text that says why
not. It ends when the pipe does.
"""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from mqinfer.lab.profiling.inputs import InputSource, RandomInputs
from mqinfer.lab.profiling.memory import forget_peak, gpu_bytes, peak_bytes, resident_bytes
from mqinfer.lab.profiling.results import Loaded, Turn
from mqinfer.models.backend import Backend
from mqinfer.models.backends.tensorflow.runtime import import_tensorflow
from mqinfer.models.engines import choose_loader
from mqinfer.models.load_options import LoadOptions
from mqinfer.models.repository.files import check_model_files
from mqinfer.protocol.datatypes import Array

__all__ = ["Order", "Subject", "run_child"]

_MODULES = {"onnxruntime": "onnxruntime", "openvino": "openvino", "pytorch": "torch"}
"""Engine to Python module."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model in an engine.

    Attributes:
        name: In tables.
        path: The model file, or a SavedModel's folder.
        engine: By the names of `engines.BACKENDS`; None: the one that is taken by itself.
        options: For loading.
        inputs: What it is given.
    """

    name: str
    path: Path
    engine: str | None = None
    options: LoadOptions = field(default_factory=LoadOptions)
    inputs: InputSource = field(default_factory=RandomInputs)


@dataclass(frozen=True, slots=True)
class Order:
    """One turn.

    Attributes:
        batch: How many inferences a run makes.
        seconds: No run begins after this time.
        least: Runs, however long they take.
        warm_up: Runs before the first turn of a batch size, which are not measured.
    """

    batch: int
    seconds: float
    least: int
    warm_up: int


def run_child(subject: Subject, pipe: Connection) -> None:
    """Be the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    try:
        backend, loaded = _load(subject)
    except Exception as error:  # noqa: BLE001 - the root of the process: the parent gets the reason
        pipe.send(f"{error}" or type(error).__name__)
        return
    pipe.send(loaded)
    measuring = _Measuring(backend, subject.inputs)
    while True:
        try:
            order = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            pipe.send(measuring.turn(order))
        except Exception as error:  # noqa: BLE001 - as above
            pipe.send(f"{error}" or type(error).__name__)


def _load(subject: Subject) -> tuple[Backend, Loaded]:
    check_model_files(subject.path)
    load = choose_loader(subject.path, subject.engine)
    _import(subject.engine)
    imported, began = resident_bytes(), time.perf_counter()
    backend = load(subject.path, subject.options)
    seconds = time.perf_counter() - began
    loaded = Loaded(backend.engine, backend.device, backend.precision, seconds, imported, resident_bytes())
    return backend, loaded


def _import(engine: str | None) -> None:
    if engine == "tensorflow":
        import_tensorflow()
    elif engine in _MODULES:
        import_module(_MODULES[engine])


class _Measuring:
    """Runs a model; keeps the inputs of one batch size."""

    def __init__(self, backend: Backend, inputs: InputSource) -> None:
        self._backend = backend
        self._source = inputs
        self._batch = 0
        self._inputs: Mapping[str, Array] = {}

    def turn(self, order: Order) -> Turn:
        """Run for a while."""
        if order.batch != self._batch:
            self._begin(order)
        gc.collect()
        latencies: list[int] = []
        end = time.perf_counter_ns() + order.seconds * 1e9
        used = time.process_time_ns()
        now = time.perf_counter_ns()
        while now < end or len(latencies) < order.least:
            self._backend.infer(self._inputs)
            since, now = now, time.perf_counter_ns()
            latencies.append(now - since)
        used = time.process_time_ns() - used
        on_gpu = 0 if self._backend.device == "cpu" else gpu_bytes()
        return Turn(np.array(latencies, np.int64), peak_bytes(), on_gpu, used)

    def _begin(self, order: Order) -> None:
        self._inputs = self._source.make(self._backend.inputs, order.batch)
        forget_peak()
        for _ in range(order.warm_up):
            self._backend.infer(self._inputs)
        self._batch = order.batch
