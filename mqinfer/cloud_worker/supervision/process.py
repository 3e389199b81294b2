"""A worker process: loads one version of one model, reports the outcome, and serves until it is asked to stop.

Through the status pipe the process sends a `ProcessReport` when it serves, when it waits for the broker, and before it
ends in order; it replies to `Command`s. A process that ends without a last report has crashed. If the pipe closes, the
supervisor has exited: the process drains and stops too, so that no orphan keeps serving. One that hangs is killed: by
its supervisor, which sees that its progress stands still, and after the supervisor's exit by the system.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqinfer.broker import make_link
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import ConnectionHandler, Link, Message
from mqinfer.broker.waker import Waker
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.serving.pipeline import RunningRequests
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.logs import LogSettings, Notice, forward_notices, set_up
from mqinfer.models.loading import load_model
from mqinfer.models.repository import ModelVersion, Repository
from mqinfer.models.repository.traffic import Traffic
from mqinfer.models.warmup import WarmedUp, warm_up
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.control import ModelStatistics
from mqinfer.protocol.errors import (
    BrokerUnreachable,
    LinkError,
    ModelNotFound,
    MqinferError,
    NameTaken,
    NotAuthorized,
    NotConnected,
    Unanswered,
)
from mqinfer.telemetry.exporting import make_tracer

if TYPE_CHECKING:
    from mqinfer.client import Client
    from mqinfer.cloud_worker.serving.remote import RemoteModels
    from mqinfer.telemetry.tracer import Tracer

log = logging.getLogger("mqinfer.cloud_worker")


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """Model, version and options of one worker process.

    Attributes:
        repository: Model repository.
        model: Model name.
        version: Version number.
        broker: Broker to connect to.
        options: Name and limits of the worker.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        logs: How the process logs, under its own name.
        found: The version as the repository had it when the process was planned, so that a restarted process serves
            the same; its labels may change while it runs; None to look it up at the start.
        versions: Versions that the model's card lists; empty for this one alone.
        content: Hash of the version's files when the process was planned; other content needs a new process.
        run_timeout: Seconds after which a process is killed if a request does not end, or if its main thread hangs;
            0 for never, None for `max(60, 20 * usual time of a run)`.
        incarnation: Number of the process's start; None for a new one.
        otlp: Where spans are sent to, as `telemetry.exporting.check_endpoint` returns it.
        share_with: Models that its process may have at most where the server has many; 1 for one of its own.
    """

    repository: Path
    model: str
    version: int
    broker: BrokerAddress
    options: WorkerOptions
    device: str = "auto"
    logs: LogSettings = field(default_factory=LogSettings)
    found: ModelVersion | None = None
    versions: tuple[int, ...] = ()
    content: str = ""
    run_timeout: float | None = None
    incarnation: int | None = None
    otlp: str | None = None
    share_with: int = 1

    @property
    def title(self) -> str:
        """Model and version, for messages."""
        return f"{self.model} version {self.version}"

    @property
    def traffic(self) -> Traffic | None:
        """Labels of the model's versions; None where the version is looked up at the start."""
        return self.found.traffic if self.found else None


_CHECK_S = 0.5
"""Interval at which a process reports its progress and checks whether its connection has failed for good."""
_DRAIN_CHECK_S = 0.05
"""Interval at which a process that drains checks whether it has answered everything."""
_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 5.0
"""Pause before attempt n to reach a broker that is away: `min(_LAST_RETRY_S, 2**n * _FIRST_RETRY_S)`."""
MODEL_THREAD = "mqinfer-model-"
"""How the names of the threads begin that serve one of several models of a process."""
_SHADOW_PATIENCE_S, _SHADOW_CONNECTS_S = 0.5, 2.0
"""How long a copy for a shadow version waits for a worker with room, and the client that sends it for the broker."""
_ASKED = "it was asked to stop by a signal"
_DRAIN_S, _NO_DRAIN_S = 30.0, 0.0
"""Time to finish accepted requests; none if the connection has failed, since no reply could be sent."""


class Command(Enum):
    """Command of the supervisor to a serving process."""

    STATISTICS = "send ModelStatistics back"
    ANNOUNCE = "publish state and card again"
    DRAIN = "accept nothing more, and send DrainReport back when all is answered"
    UNDRAIN = "serve again, and send DrainReport back"
    STOP = "drain and end: what SIGTERM says to a process with one model"


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """Report of a process to its supervisor: the card of the model it serves, what it waits for, or why it ends.

    Attributes:
        error: Why it does not serve; empty while it serves.
        card: Card of the model.
        service_s: Time of one run in the warm-up, in seconds; 0 where unknown.
        untried: Why no run succeeded in the warm-up; empty if one did.
        is_final: Whether a restart would not help.
        is_waiting: Whether the model is loaded and waits for the broker; the process does not end.
    """

    error: str = ""
    card: ModelCard | None = None
    service_s: float = 0.0
    untried: str = ""
    is_final: bool = False
    is_waiting: bool = False


@dataclass(frozen=True, slots=True)
class DrainReport:
    """Reply of a process to `Command.DRAIN` or `UNDRAIN`.

    Attributes:
        drained: Whether it accepts nothing and has answered everything; False when it serves again.
        error: Why neither could be reached; empty otherwise.
    """

    drained: bool
    error: str = ""


@dataclass(slots=True)
class ModelPlace:
    """What a process and its supervisor have in common for one model.

    Attributes:
        pipe: This side's end of the status pipe.
        progress: Changes every half second unless a request does not end.
        memory: For `RunningRequests`.
    """

    pipe: Connection
    progress: ctypes.c_double
    memory: ctypes.Array[ctypes.c_ubyte]


def make_place(context: Any) -> tuple[ModelPlace, ModelPlace]:
    """Make a place as the supervisor and as the process has it, by the multiprocessing context that starts it."""
    ours, theirs = context.Pipe()
    progress = context.RawValue(ctypes.c_double)
    memory = context.RawArray(ctypes.c_ubyte, RunningRequests.SIZE)
    return ModelPlace(ours, progress, memory), ModelPlace(theirs, progress, memory)


def serve(spec: ProcessSpec, tracer: Tracer | None = None) -> Worker:
    """Load a model, warm it up and start a worker for it; the caller stops the worker, and closes the tracer.

    Raises:
        MqinferError: The model can't be loaded, or the broker can't be reached.
    """
    start, _ = _load(spec, tracer=tracer)
    return start()


def _load(
    spec: ProcessSpec, running: RunningRequests | None = None, tracer: Tracer | None = None
) -> tuple[Callable[[], Worker], WarmedUp]:
    """Load a model and warm it up; return a function that starts a worker for it, and what the warm-up found."""
    version = spec.found or Repository(spec.repository).find(spec.model, spec.version)
    remote = _remote_models(spec) if version.remote_parts else None
    model = load_model(
        version,
        device=spec.device,
        versions=spec.versions or (version.version,),
        find_remote=None if remote is None else remote.find,
    )
    stated = model.config.model_warmup
    warmed_up = warm_up(model.backend, model.card, stated.count, stated.samples)

    def connect(client_id: str, will: Message, on_connection: ConnectionHandler) -> Link:
        return make_link(spec.broker, client_id=client_id, will=will, on_connection=on_connection)

    def start() -> Worker:
        worker = Worker(
            model,
            connect,
            spec.options,
            is_default=version.is_default,
            share=version.traffic.share_of(version.version),
            service_s=warmed_up.run_s,
            incarnation=spec.incarnation,
            running=running,
            tracer=tracer,
            remote=remote,
            shadow=version.traffic.shadow_of(version.version),
            connect_shadow=partial(_shadow_client, spec),
        )
        worker.start()
        log.debug("%s runs on %s with %s", worker.name, model.backend.device, model.backend.engine)
        return worker

    return start, warmed_up


def _remote_models(spec: ProcessSpec) -> RemoteModels:
    from mqinfer.cloud_worker.serving.remote import RemoteModels

    longest = spec.run_timeout and 0.8 * spec.run_timeout  # it ends as expired before the process counts as hung
    return RemoteModels(spec.broker, spec.options.name, spec.options.topics.root, longest)


def _shadow_client(spec: ProcessSpec) -> Client:
    """Connect what sends copies of requests to a shadow version; it may not wait for one without room."""
    from mqinfer.client import Client, ClientOptions

    options, timeout = ClientOptions(patience=_SHADOW_PATIENCE_S), _SHADOW_CONNECTS_S
    return Client(
        spec.broker, name=spec.options.name, root=spec.options.topics.root, options=options, connect_timeout=timeout
    )


def run_process(spec: ProcessSpec, place: ModelPlace) -> None:
    """Run the worker process: its entry point."""
    set_up(replace(spec.logs, process=spec.options.name))
    forward_notices(lambda notice: _send(place.pipe, notice))  # all processes of a model report the same
    end_with_the_supervisor()
    stop = threading.Event()
    worker = serve_model(spec, place, waker=stop_on_sigterm([stop]), stop=stop)
    if worker is None:
        return
    logging.shutdown()
    # TensorFlow needs seconds to shut down; nothing is left to do, and the system frees the rest.
    os._exit(1 if worker.failure else 0)  # after a failure the supervisor restarts it


def serve_model(
    spec: ProcessSpec,
    place: ModelPlace,
    *,
    waker: Waker,
    stop: threading.Event,
    loading: AbstractContextManager[None] | None = None,
) -> Worker | None:
    """Load a model and serve it until it is to stop; return the worker that has stopped, None where none served.

    Args:
        spec: What to serve.
        place: The process's side of it.
        waker: Ends its waits.
        stop: Set where it is to stop.
        loading: Entered while the model is loaded.
    """
    tracer, pipe = make_tracer("mqinfer-worker", spec.options.name, spec.otlp), place.pipe
    try:
        with loading or contextlib.nullcontext():
            start, warmed_up = _load(spec, RunningRequests(place.memory), tracer)
        worker = _await_broker(start, pipe, waker, stop)
    except MqinferError as error:
        _send(pipe, ProcessReport(error=f"{error.code}: {error}", is_final=not _may_pass(error)))
        return None
    except Exception as error:  # a defect: the same start would fail in the same way
        log.exception("loading failed")
        _send(pipe, ProcessReport(error=f"internal: {error!r}", is_final=True))
        return None
    if worker is None:
        _send(pipe, ProcessReport(error=_ASKED))
        return None
    _send(pipe, ProcessReport(card=worker.card, service_s=warmed_up.run_s, untried=warmed_up.untried))
    with contextlib.suppress(EOFError, OSError):  # the supervisor has exited
        _serve(worker, place, waker, stop)
    _stop(worker, pipe)
    if tracer is not None:
        tracer.close()
    return worker


def stop_on_sigterm(stops: Sequence[threading.Event]) -> Waker:
    """Have SIGTERM set these events, those included that are added later; return what signals wake."""

    def stop_all(*_: object) -> None:
        for stop in stops:
            stop.set()

    waker = Waker().open(signals=True)
    signal.signal(signal.SIGTERM, stop_all)
    return waker


def _serve(worker: Worker, place: ModelPlace, waker: Waker, stop: threading.Event) -> None:
    """Report the progress and execute commands until the process is to stop or the worker has failed."""
    draining, pipe = False, place.pipe
    while not stop.is_set() and not worker.failure:
        place.progress.value = worker.progress()
        worker.refresh()
        draining = draining and not _report_drained(pipe, worker)
        if pipe in wait([pipe, waker.fileno()], _DRAIN_CHECK_S if draining else _CHECK_S):
            draining = _execute(pipe, worker, draining=draining)
        waker.drain()


def _stop(worker: Worker, pipe: Connection) -> None:
    """Report why the process ends, drain, and report the last statistics."""
    failure = worker.failure
    # Sent before it drains: from now on the supervisor bounds its time, and its end is no crash.
    why = f"{failure.code}: {failure}" if failure else _ASKED
    _send(pipe, ProcessReport(error=why, is_final=isinstance(failure, NameTaken)))
    try:
        worker.stop(timeout=_NO_DRAIN_S if failure else _DRAIN_S)
    except MqinferError as error:  # the link's thread hangs in a request
        log.error("worker %s could not drain: %s", worker.name, error)  # noqa: TRY400 - one line says it
    _send(pipe, worker.statistics())  # so that its last requests are among the server's sums
    if failure:
        log.debug("worker %s exits: %s", worker.name, failure)  # its supervisor logs the reason


def _await_broker(start: Callable[[], Worker], pipe: Connection, waker: Waker, stop: threading.Event) -> Worker | None:
    """Start a worker, later if the broker is away, so that the model is loaded once; None if the process is to stop."""
    pause = _FIRST_RETRY_S
    while not stop.is_set():
        try:
            return start()
        except (BrokerUnreachable, NotConnected) as error:
            _send(pipe, ProcessReport(error=f"{error.code}: {error}", is_waiting=True))
        if pipe in wait([pipe, waker.fileno()], pause):
            break  # the supervisor has exited: it sends nothing to a process that does not serve
        waker.drain()
        pause = min(_LAST_RETRY_S, 2 * pause)
    return None


def _may_pass(error: MqinferError) -> bool:
    """Return whether the same start may succeed later: no connection, no worker of a step yet, or too little memory."""
    if isinstance(error, LinkError):
        return not isinstance(error, NotAuthorized)
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, MemoryError | ModelNotFound | Unanswered):
        if any(words in str(cause) for words in _OUT_OF_MEMORY):
            return True
        cause = cause.__cause__
    return cause is not None


_OUT_OF_MEMORY = ("std::bad_alloc", "Failed to allocate memory", "out of memory", "OOM when allocating")
"""What ONNX Runtime, PyTorch, OpenVINO and TensorFlow write where they get no memory."""
_SET_PARENT_DEATH_SIGNAL = 1
"""`PR_SET_PDEATHSIG` of Linux's prctl(2)."""
_ORPHAN_S = 35
"""A process that outlives its supervisor is killed after so many seconds; it needs fewer than that to drain."""


def end_with_the_supervisor() -> None:
    """Have the system kill this process some time after its supervisor, even if no thread of it ever runs again.

    The process drains and ends by itself if its main thread can run (the status pipe closes). A hang may hold Python's
    lock, so no Python code can be relied on here: the system sends the real-time signal 35 when the supervisor exits,
    its handler is the C function `alarm`, whose argument, the signal's number, is the time in seconds, and nothing
    handles the alarm, so that it ends the process.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's start-up chatter
    # When memory runs out, the system is to choose this process before others: without that Linux killed, 6 ms after
    # the worker that had taken all memory, the supervisor beside it.
    with contextlib.suppress(OSError):  # no Linux, or another value is prescribed
        Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):  # a C library without them
        libc = ctypes.CDLL(None)
        libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
        libc.signal(_ORPHAN_S, ctypes.cast(libc.alarm, ctypes.c_void_p))
        libc.prctl(_SET_PARENT_DEATH_SIGNAL, _ORPHAN_S)


def _send(pipe: Connection, report: ProcessReport | DrainReport | Notice | ModelStatistics) -> None:
    with contextlib.suppress(OSError):  # the supervisor has exited; the next read finds that out
        pipe.send(report)


def _execute(pipe: Connection, worker: Worker, *, draining: bool) -> bool:
    """Execute one command; return whether the process then drains and has not reported that it has drained."""
    match pipe.recv():
        case Traffic() as traffic:
            version = int(worker.card.version)
            shadow = traffic.shadow_of(version)
            worker.assign(traffic.labels, traffic.shares, traffic.share_of(version), shadow)
            pipe.send(traffic)
        case Command.STATISTICS:
            pipe.send(worker.statistics(_resident_bytes()))
        case Command.ANNOUNCE:
            worker.refresh(repeat=True)
        case Command.STOP:
            raise EOFError  # as where the supervisor has exited
        case Command.DRAIN | Command.UNDRAIN as command:
            return _drain(pipe, worker, on=command is Command.DRAIN)
    return draining


def _drain(pipe: Connection, worker: Worker, *, on: bool) -> bool:
    try:
        worker.drain(on=on)
    except MqinferError as error:  # the broker does not answer; the operator tries again
        _send(pipe, DrainReport(not on, str(error)))
        return False
    if not on:
        _send(pipe, DrainReport(drained=False))
    return on


def _report_drained(pipe: Connection, worker: Worker) -> bool:
    """Send a `DrainReport` once the worker has drained, or can't; return whether it was sent."""
    try:
        if not worker.is_drained():
            return False
        report = DrainReport(drained=True)
    except MqinferError as error:
        report = DrainReport(drained=False, error=str(error))
    _send(pipe, report)
    return True


def _resident_bytes() -> int:
    """Return the resident memory of this process in bytes, one model's part of it; 0 on systems without /proc."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    models = sum(thread.name.startswith(MODEL_THREAD) for thread in threading.enumerate())
    return int(pages) * os.sysconf("SC_PAGE_SIZE") // max(1, models)
