from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer import Client
from mqinfer.client.result import InferResult
from mqinfer.protocol.errors import ModelNotLoadable
from mqinfer.protocol.types import Outcome

pytestmark = [pytest.mark.broker, pytest.mark.slow]
WriteEcho = Callable[..., Path]
X = np.zeros((1, 4), np.float32)


class Stream:
    """A thread that keeps sixteen requests in flight until `finish`."""

    def __init__(self, client: Client, model: str, least: int) -> None:
        self.client, self.model, self.least = client, model, least
        self.futures: list[Future[InferResult]] = []
        self.window = threading.Semaphore(16)
        self.enough = threading.Event()
        self.thread = threading.Thread(target=self._run, name="stream")
        self.thread.start()

    def _run(self) -> None:
        while not self.enough.is_set() or len(self.futures) < self.least:
            self.window.acquire()
            future = self.client.submit(self.model, {"x": X}, timeout=30)
            future.add_done_callback(lambda _: self.window.release())
            self.futures.append(future)

    def finish(self) -> list[InferResult]:
        """Stop sending and return all results; raise the error of a failed one."""
        self.enough.set()
        self.thread.join()
        return [future.result(60) for future in self.futures]


def test_versions_are_swapped_under_load(write_echo: WriteEcho, managed: Callable[..., Any], broker_url: str) -> None:
    """Version 1, 2 and 1 again while 16 requests are in flight: none fails, and each load takes effect."""
    repository = write_echo("echo", delay_ms=1)
    server = managed(repository)
    server.control.load("echo")
    with Client(broker_url, root=server.topics.root) as client:
        stream = Stream(client, "echo", least=2000)
        try:
            write_echo("echo", version=2, delay_ms=1)
            server.control.load("echo")
            after_first = {client.infer("echo", {"x": X}).model_version for _ in range(32)}
            card = client.card("echo")
            shutil.rmtree(repository / "echo" / "2")
            server.control.load("echo")
            after_second = {client.infer("echo", {"x": X}).model_version for _ in range(32)}
        finally:
            results = stream.finish()
        counters = client.counters()
        assert client.card("echo").version == "1"

    seen = Counter(result.model_version for result in results)
    assert after_first == {"2"}
    assert after_second == {"1"}
    assert card.version == "2"
    assert len(results) >= 2000
    assert set(seen) == {"1", "2"}
    assert counters.outcomes[Outcome.OK] == counters.submitted
    assert (counters.pending, counters.late, counters.retries) == (0, 0, 0)


def test_a_load_that_fails_leaves_what_serves(
    write_echo: WriteEcho, managed: Callable[..., Any], broker_url: str
) -> None:
    """A broken version 2 is reported with server and reason; version 1 keeps serving, and its card stays."""
    repository = write_echo("echo")
    server = managed(repository)
    server.control.load("echo")
    write_echo("echo", version=2)
    (repository / "echo" / "2" / "model.echo").write_text("no toml at all", encoding="utf-8")
    with pytest.raises(ModelNotLoadable, match=rf"server {server.name}: echo version 2: model_not_loadable: .*TOML"):
        server.control.load("echo")
    with Client(broker_url, root=server.topics.root) as client:
        assert client.infer("echo", {"x": X}).model_version == "1"
        assert client.card("echo").version == "1"


def test_an_older_version_that_stays_hands_over_the_default(
    write_echo: WriteEcho, managed: Callable[..., Any], broker_url: str
) -> None:
    """With all versions served, a new one takes over the default channel, the old one keeps its own; none fails."""
    write_echo("echo", config="version_policy = { all = {} }\n")
    server = managed(write_echo("other"))
    server.control.load("echo")
    with Client(broker_url, root=server.topics.root) as client:
        stream = Stream(client, "echo", least=200)
        try:
            write_echo("echo", version=2)
            server.control.load("echo")
            latest = {client.infer("echo", {"x": X}).model_version for _ in range(16)}
            first = {client.infer("echo", {"x": X}, version=1).model_version for _ in range(16)}
            assert client.card("echo").versions == ("1", "2")
        finally:
            results = stream.finish()

    assert (latest, first) == ({"2"}, {"1"})
    assert {result.outcome for result in results} == {Outcome.OK}
    assert {view.spec.model for view in server.supervisor.processes} == {"echo", "other"}


def test_a_repository_that_is_watched(write_echo: WriteEcho, managed: Callable[..., Any], broker_url: str) -> None:
    """With `poll`, models are loaded, changed and unloaded with their folders, without a request."""
    repository = write_echo("first")
    server = managed(repository, load=False, poll=0.2)
    assert server.events.get(timeout=60).model == "first version 1"
    with Client(broker_url, root=server.topics.root) as client:
        write_echo("second", version=4)
        assert server.events.get(timeout=60).model == "second version 4"
        assert client.infer("second", {"x": X}).model_version == "4"
        shutil.rmtree(repository / "first")
        gone = server.events.get(timeout=60)
        assert (gone.kind, gone.model) == ("stopped", "first version 1")
        assert client.infer("second", {"x": X}).outcome is Outcome.OK
