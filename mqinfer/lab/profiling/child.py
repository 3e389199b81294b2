"""The process that measures one model: it imports the engine, loads the model, and runs it on request.

It sends one `Loaded` over its pipe, then a `Turn` for each batch size that it receives; or a text with the error
instead of either. It ends when the pipe closes.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

from mqinfer.lab.load import repeat
from mqinfer.lab.profiling.inputs import InputSource, RandomInputs
from mqinfer.lab.profiling.memory import gpu_bytes, peak_bytes, reset_peak, resident_bytes
from mqinfer.lab.profiling.results import Loaded, Turn
from mqinfer.models.backend import Backend
from mqinfer.models.backends.onnx import import_onnxruntime
from mqinfer.models.backends.tensorflow.runtime import import_tensorflow
from mqinfer.models.engines import choose_loader
from mqinfer.models.load_options import LoadOptions
from mqinfer.models.repository.files import check_model_files
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError

_MODULES = {"openvino": "openvino", "pytorch": "torch"}
"""Engine to Python module."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model in an engine.

    Attributes:
        name: Name in tables.
        path: Model file, or folder of a SavedModel.
        engine: A name in `engines.BACKENDS`; None for the default engine.
        options: Options for loading.
        inputs: Source of the inputs.
    """

    name: str
    path: Path
    engine: str | None = None
    options: LoadOptions = field(default_factory=LoadOptions)
    inputs: InputSource = field(default_factory=RandomInputs)


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a measurement.

    Attributes:
        batches: Batch sizes, ascending, since engines rarely free memory.
        rounds: Turns of each subject at each batch size.
        seconds: Duration of a turn.
        least: Smallest number of runs in a turn, however long they take.
        warm_up: Runs at the start of each batch size, which are not measured.
        limit_s: Seconds without a message after which a subject is killed.
    """

    batches: tuple[int, ...] = (1,)
    rounds: int = 5
    seconds: float = 0.3
    least: int = 3
    warm_up: int = 3
    limit_s: float = 300.0

    def __post_init__(self) -> None:
        if not self.batches or min(self.batches) < 1 or list(self.batches) != sorted(set(self.batches)):
            raise ConfigError(f"batch sizes {list(self.batches)}: expected numbers of at least 1, ascending")
        if self.rounds < 1 or self.seconds <= 0 or self.least < 1:
            raise ConfigError(
                f"{self.rounds} rounds of {self.seconds} s and {self.least} runs: expected at least 1 round, more than "
                "0 s and at least 1 run"
            )


def run_child(subject: Subject, plan: Plan, pipe: Connection) -> None:
    """Run the process: its entry point. Its parent ends it."""
    try:
        backend, loaded = _load(subject)
    except Exception as error:  # noqa: BLE001 - root of the process: the parent receives the reason
        pipe.send(f"{error}" or type(error).__name__)
        return
    pipe.send(loaded)
    runner = TurnRunner(backend, subject.inputs, plan)
    while True:
        try:
            batch = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            pipe.send(runner.turn(batch))
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
    elif engine == "onnxruntime":
        import_onnxruntime()
    elif engine in _MODULES:
        import_module(_MODULES[engine])


class TurnRunner:
    """Runs a model and keeps the inputs of the current batch size."""

    def __init__(self, backend: Backend, inputs: InputSource, plan: Plan) -> None:
        self._backend = backend
        self._source = inputs
        self._plan = plan
        self._batch = 0
        self._inputs: Mapping[str, Array] = {}

    def turn(self, batch: int) -> Turn:
        """Run the model until the turn is over."""
        if batch != self._batch:
            self._begin(batch)
        gc.collect()
        used = time.process_time_ns()
        drive = repeat(self._run, self._plan.seconds, self._plan.least)
        used = time.process_time_ns() - used
        on_gpu = 0 if self._backend.device == "cpu" else gpu_bytes()
        return Turn(drive.latencies_ns, peak_bytes(), on_gpu, used)

    def _begin(self, batch: int) -> None:
        self._inputs = self._source.make(self._backend.inputs, batch)
        reset_peak()
        for _ in range(self._plan.warm_up):
            self._run()
        self._batch = batch

    def _run(self) -> None:
        self._backend.infer(self._inputs)
