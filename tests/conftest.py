"""Fixtures that every folder of tests may use."""

from __future__ import annotations

import logging
import os
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from mqinfer import Client, logs
from mqinfer.broker import make_link
from mqinfer.broker.link import ConnectionHandler, Link, Message
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.client.options import ClientOptions
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.codecs import encode_tensor
from mqinfer.models.loading import LoadedModel, load_model
from mqinfer.models.repository import Repository
from mqinfer.models.repository.traffic import Shadow
from tests.patience import PATIENCE_S
from tests.ports import free_port

_numbers = count()

# No deadline, since the test machines are shared; fixtures of every test (below) are fine. More is tried with --full.
settings.register_profile(
    "mqinfer",
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=100 if os.environ.get("MQINFER_FAULTS") == "full" else 40,
)
settings.load_profile("mqinfer")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files with the longest tests first, then those with most slow ones, and quick ones at the end.

    So no process is left with a long file when the others have ended. A test that may take long has a time limit of its
    own.
    """
    slow, broker = (
        Counter(item.path for item in items if item.get_closest_marker(mark)) for mark in ("slow", "broker")
    )
    every = Counter(item.path for item in items)
    limits: dict[Path, float] = {}
    for item in items:
        if limit := item.get_closest_marker("timeout"):
            limits[item.path] = max(limits.get(item.path, 0), limit.args[0])
    items.sort(key=lambda item: (-limits.get(item.path, 0), *(-count[item.path] for count in (slow, broker, every))))


@pytest.fixture(scope="session", autouse=True)
def ports_of_our_own() -> Iterator[None]:
    """Start every broker of this process on a port that it gets again after it was killed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mqinfer.broker.mosquitto.server.free_port", free_port)
        patch.setattr("mqinfer.broker.mosquitto.serving.free_port", free_port)
        patch.setattr("mqinfer.broker.nats.server.free_port", free_port)
        yield


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """Wait longer than users do where a call states no time: the machine may stand still for seconds."""
    _, *others = ClientOptions.__init__.__defaults__ or ()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientOptions.__init__, "__defaults__", (2 * PATIENCE_S, *others))
        patch.setattr(MosquittoServer.start, "__defaults__", (PATIENCE_S,))
        patch.setattr("mqinfer.cloud_worker.supervision.supervisor._STATISTICS_TIMEOUT_S", PATIENCE_S)
        yield


@pytest.fixture(autouse=True)
def _fresh_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test sees every message of mqinfer, whatever commands of other tests and libraries did to logging."""
    monkeypatch.setattr(logs, "_settings", logs.LogSettings())
    monkeypatch.setattr(logs, "_logged", set())
    monkeypatch.setattr(logs, "_forward", None)
    logging.captureWarnings(capture=False)
    root = logging.getLogger()
    for handler in [each for each in root.handlers if isinstance(each, logs._Stderr)]:
        root.removeHandler(handler)
    root.setLevel(logging.WARNING)
    for logger in list(logging.Logger.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger) and logger.name.startswith("mqinfer"):
            logger.disabled, logger.propagate = False, True
            logger.setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def _own_messages(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Keep from a test what is logged by threads that were there before it, such as those of links that tests share."""
    others = set(threading.enumerate()) - {threading.current_thread()}

    def is_own(_: logging.LogRecord) -> bool:
        return threading.current_thread() not in others

    caplog.handler.addFilter(is_own)
    yield
    caplog.handler.removeFilter(is_own)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server of S3 in this process, to which its environment leads."""
    store = pytest.importorskip("s3fs").S3FileSystem
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    store.clear_instance_cache()
    yield server
    store.clear_instance_cache()
    server.stop()


@pytest.fixture(scope="session")
def mosquitto() -> Iterator[MosquittoServer]:
    """A private Mosquitto with the repository's configuration, for tests that leave it running."""
    with MosquittoServer() as server:
        yield server


@pytest.fixture(scope="session")
def broker_url(mosquitto: MosquittoServer) -> str:
    """URL of the session's Mosquitto. Tests share it: take names from `unique`."""
    return mosquitto.url


@pytest.fixture
def server() -> Iterator[MosquittoServer]:
    """A Mosquitto of this test's own, which it may end and start, and whose log is that of its connections alone."""
    with MosquittoServer() as server:
        yield server


@pytest.fixture
def url(unique: Callable[[str], str]) -> str:
    """URL of an in-memory broker of this test's own."""
    return f"memory://{unique('broker')}"


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Return a name that no other test uses: `unique("worker")` returns `worker-4711-3`."""

    def name(prefix: str) -> str:
        return f"{prefix}-{os.getpid()}-{next(_numbers)}"

    return name


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Assert that every thread that mqinfer starts in a test has ended with it."""
    before = set(threading.enumerate())
    yield
    started = (thread.name for thread in set(threading.enumerate()) - before)
    # A Mosquitto of a wider scope may have been started by this test's fixtures.
    left = [name for name in started if name.startswith("mqinfer-") and name != "mqinfer-broker-log"]
    assert not left, f"threads left running: {left}"


@pytest.fixture
def takes_at_most() -> Callable[[int], AbstractContextManager[None]]:
    """Return a context manager that asserts a limit on Python's peak allocation, in bytes."""

    @contextmanager
    def bounded(most: int) -> Iterator[None]:
        tracemalloc.start()
        try:
            yield
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak <= most, f"{peak} bytes were allocated, expected at most {most}"

    return bounded


@pytest.fixture
def write_echo(tmp_path: Path) -> Callable[..., Path]:
    """Write an echo model into a repository: `write_echo("name", ("x", "FP32", [-1, 4]), config="...")`."""

    def write(
        model: str = "echo",
        *inputs: tuple[str, str, list[int]],
        version: int = 1,
        delay_ms: float = 0,
        fail_every: int = 0,
        config: str = "",
    ) -> Path:
        repository = tmp_path / "repository"
        folder = repository / model / str(version)
        folder.mkdir(parents=True)
        tables = [
            f'[[input]]\nname = "{name}"\ndatatype = "TYPE_{datatype}"\nshape = {shape}\n'
            for name, datatype, shape in inputs or [("x", "FP32", [-1, 4])]
        ]
        head = f"delay_ms = {delay_ms}\nfail_every = {fail_every}\n"
        (folder / "model.echo").write_text(head + "".join(tables), encoding="utf-8")
        if config:
            (repository / model / "model.toml").write_text(config, encoding="utf-8")
        return repository

    return write


def _load(repository: Path, model: str, version: int | None) -> tuple[LoadedModel, bool]:
    found = [each for each in Repository(repository).models() if each.name == model]
    chosen = next(each for each in found if version in {None, each.version})
    return load_model(chosen, device="cpu"), chosen.is_default


@pytest.fixture
def serve() -> Iterator[Callable[..., Worker]]:
    """Start workers, stopped after the test: `serve(url, repository_or_loaded_model, model="echo", capacity=4)`.

    A list passed as `links` receives the worker's link.
    """
    workers: list[Worker] = []

    def start(
        url: str,
        source: Path | LoadedModel,
        model: str = "echo",
        *,
        version: int | None = None,
        links: list[Link] | None = None,
        service_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        shadow: Shadow | None = None,
        connect_shadow: Callable[[], Client] | None = None,
        **options: Any,
    ) -> Worker:
        def connect(name: str, will: Message, handler: ConnectionHandler) -> Link:
            link = make_link(url, client_id=name, will=will, on_connection=handler)
            if links is not None:
                links.append(link)
            return link

        loaded, is_default = _load(source, model, version) if isinstance(source, Path) else (source, version is None)
        options.setdefault("name", f"worker-{os.getpid()}-{next(_numbers)}")
        worker = Worker(
            loaded,
            connect,
            WorkerOptions(**options),
            is_default=is_default,
            service_s=service_s,
            clock=clock,
            shadow=shadow,
            connect_shadow=connect_shadow,
        )
        worker.start()
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.stop()


class _StallingCamera(BaseHTTPRequestHandler):
    """Sends pictures, then nothing more, until the client leaves."""

    def do_GET(self) -> None:
        """Send as many pictures as the path says."""
        jpeg = encode_tensor("image", np.full((1, 48, 64, 3), 90, np.uint8), "jpeg").data
        head = f"--b\r\nContent-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=b")
        self.end_headers()
        for _ in range(int(self.path.strip("/"))):
            self.wfile.write(head + jpeg + b"\r\n")
        with suppress(ConnectionError):
            self.rfile.read(1)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def stalling() -> Iterator[Callable[[int], str]]:
    """URL of a camera that stalls after some frames: `stalling(20)`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _StallingCamera) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, name="stalling-camera")
        thread.start()
        yield lambda frames: f"http://127.0.0.1:{server.server_port}/{frames}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def tf() -> Any:
    """TensorFlow, imported as mqinfer imports it."""
    from mqinfer.models.backends.tensorflow.runtime import import_tensorflow

    return import_tensorflow()


def _save_tf1(tf: Any, path: Path, build: Callable[[Any], tuple[dict[str, Any], Any]], *, old: bool = False) -> Path:
    v1 = tf.compat.v1
    builder = v1.saved_model.Builder(str(path))
    with v1.Session(graph=tf.Graph()) as session:
        signatures, main_op = build(v1)
        session.run(v1.global_variables_initializer())
        assets = v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS)
        builder.add_meta_graph_and_variables(
            session, ["serve"], signature_def_map=signatures, assets_collection=assets, main_op=main_op
        )
    builder.save()
    if old:
        _make_old(path / "saved_model.pb")
    return path


def _make_old(path: Path) -> None:
    from tensorflow.core.protobuf import saved_model_pb2

    content = saved_model_pb2.SavedModel()
    content.ParseFromString(path.read_bytes())
    for graph in content.meta_graphs:
        graph.graph_def.versions.producer = 21
        for node in graph.graph_def.node:
            node.attr.pop("_output_shapes", None)
            if node.op == "Placeholder":
                node.attr["shape"].shape.Clear()
    path.write_bytes(content.SerializeToString())


@pytest.fixture(scope="session")
def save_tf1(tf: Any) -> Callable[..., Path]:
    """Write a SavedModel as TensorFlow 1 does: `save_tf1(folder, build)`; `build(v1)` returns signatures and main op.

    With `old=True` it looks like a graph of before 2017, when an empty shape of a placeholder meant an unknown rank.
    """
    return lambda path, build, **how: _save_tf1(tf, path, build, **how)
