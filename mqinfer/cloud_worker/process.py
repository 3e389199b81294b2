"""A worker process: loads one version of one model, says how that went, serves until it is told to stop.

The status pipe to the supervisor carries one `Report`, and its other end's disappearance means that the supervisor is
gone: then the process stops by itself, so that no orphan goes on answering.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from mqinfer.broker import make_link
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import ConnectionHandler, Link, Message
from mqinfer.cloud_worker.options import WorkerOptions
from mqinfer.cloud_worker.worker import Worker
from mqinfer.models.loading import load_model
from mqinfer.models.repository import ModelVersion, Repository
from mqinfer.models.warmup import warm_up
from mqinfer.protocol.errors import ModelNotFound, MqinferError

__all__ = ["ProcessSpec", "Report", "find_version", "run_process", "serve"]

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
    """

    repository: Path
    model: str
    version: int
    broker: BrokerAddress
    options: WorkerOptions
    device: str = "auto"
    log_level: int = logging.WARNING


@dataclass(frozen=True, slots=True)
class Report:
    """What a process tells its supervisor once: an empty error means that it serves."""

    error: str = ""
    device: str = ""
    engine: str = ""


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
    version, versions = find_version(Repository(spec.repository), spec.model, spec.version)
    model = load_model(version, device=spec.device, versions=versions)
    warm_up(model.backend, model.card, model.config.model_warmup.count)

    def connect(client_id: str, will: Message, on_connection: ConnectionHandler) -> Link:
        return make_link(spec.broker, client_id=client_id, will=will, on_connection=on_connection)

    worker = Worker(model, connect, spec.options, is_default=version.is_default)
    worker.start()
    log.info("%s runs on %s with %s", spec.options.name, model.backend.device, model.backend.engine)
    return worker


def run_process(spec: ProcessSpec, pipe: Connection) -> None:
    """Be the worker process."""
    logging.basicConfig(level=spec.log_level, format="%(levelname)s %(name)s: %(message)s")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's start-up chatter
    stop = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor decides
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        worker = serve(spec)
    except MqinferError as error:
        _tell(pipe, Report(error=f"{error.code}: {error}"))
        return
    _tell(pipe, Report(device=worker.card.device, engine=worker.card.backend))
    threading.Thread(target=_watch, args=(pipe, stop), name="mqinfer-orphan-watch", daemon=True).start()
    stop.wait()
    worker.stop()


def _tell(pipe: Connection, report: Report) -> None:
    with contextlib.suppress(OSError):  # the supervisor is gone, which `_watch` finds out next
        pipe.send(report)


def _watch(pipe: Connection, stop: threading.Event) -> None:
    with contextlib.suppress(EOFError, OSError):
        pipe.recv()
    stop.set()
