"""A repository on a server of S3: load, poll, swap under load, and a server that fails; nothing half is served."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest

from mqinfer import Client
from mqinfer.models.repository.publishing import push
from mqinfer.protocol.types import Outcome
from tests.commands import command
from tests.patience import PATIENT, wait_until
from tests.system.load import Load, X

pytestmark = [pytest.mark.broker, pytest.mark.slow]
BIG = bytes(range(256)) * 2000


class Relay:
    """Passes connections on to a server; `most` bytes of replies each, then it dies, as far as a client can tell."""

    def __init__(self, port: int) -> None:
        self.most = 1 << 62
        self._port, self._open = port, [socket.create_server(("127.0.0.1", 0))]
        self.port = self._open[0].getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._open[0].accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                self._open += client, server
                for one, other, is_reply in ((client, server, False), (server, client, True)):
                    self._threads.append(threading.Thread(target=self._pass, args=(one, other, is_reply)))
                    self._threads[-1].start()

    def _pass(self, source: socket.socket, sink: socket.socket, is_reply: bool) -> None:  # noqa: FBT001 - which way
        passed = 0
        with suppress(OSError):
            while (piece := source.recv(4096)) and not (is_reply and passed > self.most):
                sink.sendall(piece)
                passed += len(piece)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it and its connections."""
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def relay(s3: Any) -> Iterator[Relay]:
    """A server of S3 behind a relay; the environment of this process leads to the server itself."""
    made = Relay(s3.get_host_and_port()[1])
    yield made
    made.close()


def test_a_server_of_s3(
    relay: Relay,
    write_echo: Callable[..., Path],
    broker_url: str,
    unique: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that dies in the middle, an object cut short: version 1 answers; when 2 is whole it does; none fails."""
    s3, root = fsspec.filesystem("s3"), unique("test")
    s3.mkdir("bucket")
    write_echo("echo", delay_ms=1)
    folder = write_echo("echo", version=2, delay_ms=1) / "echo"
    (folder / "2" / "weights.bin").write_bytes(BIG)
    later = (folder / "2").rename(tmp_path / "2")
    push(folder, "s3://bucket/site")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{relay.port}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    log = tmp_path / "log"
    options = ("--broker", broker_url, "--root", root, "--name", unique("server"), "--poll", "0.2", "--device", "cpu")
    with (
        log.open("w") as console,
        subprocess.Popen(command("worker", "--repository", "s3://bucket/site", *options), stderr=console) as worker,
    ):
        try:
            with Client(broker_url, root=root, options=PATIENT) as client:
                assert client.card("echo", 60).version == "1"
                load = Load(client, least=200)
                relay.most = len(BIG) // 2
                later.rename(folder / "2")
                push(folder, "s3://bucket/site")
                wait_until(lambda: "model echo did not arrive" in log.read_text())
                s3.pipe("bucket/site/echo/2/weights.bin", BIG[:-1])
                relay.most = 1 << 62
                wait_until(lambda: "than the manifest says" in log.read_text())
                assert not list((tmp_path / "cache").rglob("repositories/*/echo/2"))
                assert load.workers
                assert client.infer("echo", {"x": X}).model_version == "1"
                s3.pipe("bucket/site/echo/2/weights.bin", BIG)
                wait_until(lambda: client.infer("echo", {"x": X}).model_version == "2")
                seen = Counter(result.model_version for result in load.finish())
                counters = client.counters()
        finally:
            worker.terminate()
    assert set(seen) == {"1", "2"}
    assert counters.outcomes[Outcome.OK] == counters.submitted
    assert worker.returncode == 0
