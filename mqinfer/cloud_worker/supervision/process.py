"""A worker process: loads one version of one model, says how that went, serves until it is told to stop.

The status pipe carries a `Report` to the supervisor, then answers to its `Order`s, and a last `Report` where the
process ends for good. Its other end's disappearance means that the supervisor is gone: then the process stops by
itself, so that no orphan goes on answering.
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

__all__ = ["Order", "ProcessSpec", "Report", "find_version", "run_process", "serve"]

log = logging.getLogger("mqinfer.cloud_worker")


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What one worker process does.

    Attributes:
        repository: Folder of the models.
        model: Name of the model.
        version: Of the model.
        broker: Where to connect to.
        options: The worker's name and bounds.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        log_level: Of the process.
        found: The version as the repository had it when this was planned, so that a process that is started again
            serves the same; None to look for it at the start.
        versions: Those that the model's card names; empty for this one.
        content: Hash of the version's files when this was planned: other content calls for another process.
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


_WATCH_S = 0.5
"""How often a process looks whether its connection has given up."""
_DRAIN_S, _IN_VAIN_S = 30.0, 0.0
"""How long it finishes what it has in hand, and where no reply can leave any more."""


class Order(Enum):
    """What a supervisor asks of a process that serves."""

    STATISTICS = "answer with its ModelStatistics"
    ANNOUNCE = "publish state and card again"


@dataclass(frozen=True, slots=True)
class Report:
    """What a process tells its supervisor: the card of what it serves, or why it ends.

    Attributes:
        error: Why it ends; empty while it serves.
        card: Of the model.
        is_final: Whether starting it again would not help.
    """

    error: str = ""
    card: ModelCard | None = None
    is_final: bool = False


def find_version(repository: Repository, model: str, version: int) -> tuple[ModelVersion, list[int]]:
    """Find one version of a model, and the numbers of all that are served.

    Raises:
        ModelNotFound: The repository has no such version.
    """
    versions = [candidate for candidate in repository.models() if candidate.name == model]
    for candidate in versions:
        if candidate.version == version:
            return candidate, [served.version for served in versions]
    raise ModelNotFound(f"there is no version {version} of model {model!r} in the repository any more")


def serve(spec: ProcessSpec) -> Worker:
    """Load, warm up, connect; the caller stops the worker.

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
    """Be the worker process."""
    # The lines of all processes come out on one terminal: each says whose it is.
    logging.basicConfig(level=spec.log_level, format=f"%(levelname)s {spec.model} %(name)s: %(message)s")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's start-up chatter
    waker, stop = Waker().open(signals=True), threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor decides
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        worker = serve(spec)
    except MqinferError as error:
        _tell(pipe, Report(error=f"{error.code}: {error}"))
        return
    _tell(pipe, Report(card=worker.card))
    with contextlib.suppress(EOFError, OSError):  # the supervisor is gone
        while not stop.is_set() and not worker.failure:
            if pipe in wait([pipe, waker.fileno()], _WATCH_S):
                _obey(pipe, worker)
            waker.drain()
    failure = worker.failure
    worker.stop(timeout=_IN_VAIN_S if failure else _DRAIN_S)
    if failure:
        log.critical("worker %s ends: %s", worker.name, failure)
    if isinstance(failure, NameTaken):
        _tell(pipe, Report(error=f"{failure.code}: {failure}", is_final=True))
    logging.shutdown()
    # TensorFlow takes seconds to take itself down; everything that matters is done, and the system frees the rest.
    os._exit(1 if failure else 0)  # after a failure its supervisor starts it again


def _tell(pipe: Connection, report: Report) -> None:
    with contextlib.suppress(OSError):  # the supervisor is gone, which is found out next
        pipe.send(report)


def _obey(pipe: Connection, worker: Worker) -> None:
    if pipe.recv() is Order.STATISTICS:
        pipe.send(worker.statistics(_resident_bytes()))
    else:
        worker.announce()


def _resident_bytes() -> int:
    """Resident memory of this process; 0 where the system does not say (Linux does)."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
