"""A worker process: loads one version of one model, reports the outcome, and serves until it is asked to stop.

Through the status pipe the process sends a `ProcessReport` when it serves or has failed, replies to `Command`s, and
sends a last report if a restart would not help. If the pipe closes, the supervisor has exited: the process stops too,
so that no orphan keeps serving.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from dataclasses import dataclass
from enum import Enum
from multiprocessing.connection import Connection, wait
from pathlib import Path

from mqinfer.broker import make_link
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import ConnectionHandler, Link, Message
from mqinfer.broker.waker import Waker
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.models.loading import load_model
from mqinfer.models.repository import ModelVersion, Repository
from mqinfer.models.warmup import warm_up
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.errors import ModelNotFound, MqinferError, NameTaken

__all__ = ["Command", "ProcessReport", "ProcessSpec", "find_version", "run_process", "serve"]

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
        log_level: Level of the process's log.
        found: The version as the repository had it when the process was planned, so that a restarted process serves
            the same; None to look it up at the start.
        versions: Versions that the model's card lists; empty for this one alone.
        content: Hash of the version's files when the process was planned; other content needs a new process.
    """

    repository: Path
    model: str
    version: int
    broker: BrokerAddress
    options: WorkerOptions
    device: str = "auto"
    log_level: int = logging.WARNING
    found: ModelVersion | None = None
    versions: tuple[int, ...] = ()
    content: str = ""


_CHECK_S = 0.5
"""Interval at which a process checks whether its connection has failed for good."""
_DRAIN_S, _NO_DRAIN_S = 30.0, 0.0
"""Time to finish accepted requests; none if the connection has failed, since no reply could be sent."""


class Command(Enum):
    """Command of the supervisor to a serving process."""

    STATISTICS = "send ModelStatistics back"
    ANNOUNCE = "publish state and card again"


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """Report of a process to its supervisor: the card of the model it serves, or why it ends.

    Attributes:
        error: Why it ends; empty while it serves.
        card: Card of the model.
        is_final: Whether a restart would not help.
    """

    error: str = ""
    card: ModelCard | None = None
    is_final: bool = False


def find_version(repository: Repository, model: str, version: int) -> tuple[ModelVersion, list[int]]:
    """Return one version of a model, and the numbers of all its served versions.

    Raises:
        ModelNotFound: The repository has no such version.
    """
    versions = [candidate for candidate in repository.models() if candidate.name == model]
    for candidate in versions:
        if candidate.version == version:
            return candidate, [served.version for served in versions]
    raise ModelNotFound(f"version {version} of model {model!r} is no longer in the repository")


def serve(spec: ProcessSpec) -> Worker:
    """Load a model, warm it up and start a worker for it; the caller stops the worker.

    Raises:
        MqinferError: The model can't be loaded, or the broker can't be reached.
    """
    version, versions = _version_of(spec)
    model = load_model(version, device=spec.device, versions=versions)
    stated = model.config.model_warmup
    service_s = warm_up(model.backend, model.card, stated.count, stated.samples)

    def connect(client_id: str, will: Message, on_connection: ConnectionHandler) -> Link:
        return make_link(spec.broker, client_id=client_id, will=will, on_connection=on_connection)

    worker = Worker(model, connect, spec.options, is_default=version.is_default, service_s=service_s)
    worker.start()
    log.info("%s runs on %s with %s", spec.options.name, model.backend.device, model.backend.engine)
    return worker


def _version_of(spec: ProcessSpec) -> tuple[ModelVersion, list[int]]:
    if spec.found:
        return spec.found, list(spec.versions)
    return find_version(Repository(spec.repository), spec.model, spec.version)


def run_process(spec: ProcessSpec, pipe: Connection) -> None:
    """Run the worker process: its entry point."""
    # All processes log to one terminal, so each line names the model.
    logging.basicConfig(level=spec.log_level, format=f"%(levelname)s {spec.model} %(name)s: %(message)s")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's start-up chatter
    waker, stop = Waker().open(signals=True), threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor decides
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        worker = serve(spec)
    except MqinferError as error:
        _send(pipe, ProcessReport(error=f"{error.code}: {error}"))
        return
    _send(pipe, ProcessReport(card=worker.card))
    with contextlib.suppress(EOFError, OSError):  # the supervisor has exited
        while not stop.is_set() and not worker.failure:
            if pipe in wait([pipe, waker.fileno()], _CHECK_S):
                _execute(pipe, worker)
            waker.drain()
    failure = worker.failure
    worker.stop(timeout=_NO_DRAIN_S if failure else _DRAIN_S)
    if failure:
        log.critical("worker %s exits: %s", worker.name, failure)
    if isinstance(failure, NameTaken):
        _send(pipe, ProcessReport(error=f"{failure.code}: {failure}", is_final=True))
    logging.shutdown()
    # TensorFlow needs seconds to shut down; nothing is left to do, and the system frees the rest.
    os._exit(1 if failure else 0)  # after a failure the supervisor restarts it


def _send(pipe: Connection, report: ProcessReport) -> None:
    with contextlib.suppress(OSError):  # the supervisor has exited; the next read finds that out
        pipe.send(report)


def _execute(pipe: Connection, worker: Worker) -> None:
    if pipe.recv() is Command.STATISTICS:
        pipe.send(worker.statistics(_resident_bytes()))
    else:
        worker.announce()


def _resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 on systems without /proc."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
