from __future__ import annotations

import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mqinfer import Client
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.client.control import ControlClient
from mqinfer.cloud_worker.supervision.child import Phase
from mqinfer.cloud_worker.supervision.planning import plan
from mqinfer.models.repository import Repository
from mqinfer.protocol.errors import ConfigError, ModelNotFound, ModelNotLoadable, Superseded
from mqinfer.protocol.types import Outcome
from tests.patience import PATIENT
from tests.system.load import Load, X

pytestmark = [pytest.mark.broker, pytest.mark.slow]
WriteEcho = Callable[..., Path]


def test_versions_are_swapped_under_load(write_echo: WriteEcho, managed: Callable[..., Any], broker_url: str) -> None:
    """Version 1, 2 and 1 again while 16 requests are in flight: none fails, and each load takes effect.

    A client that is held up sends to a worker that has left: the broker turns that away, and it is sent again.
    """
    repository = write_echo("echo", delay_ms=1)
    server = managed(repository)
    server.control.load("echo")
    with Client(broker_url, root=server.topics.root, options=PATIENT) as client:
        load = Load(client, least=2000)
        try:
            write_echo("echo", version=2, delay_ms=1)
            server.control.load("echo")
            after_first = {client.infer("echo", {"x": X}).model_version for _ in range(32)}
            card = client.card("echo")
            shutil.rmtree(repository / "echo" / "2")
            server.control.load("echo")
            after_second = {client.infer("echo", {"x": X}).model_version for _ in range(32)}
        finally:
            results = load.finish()
        counters = client.counters()
        assert client.card("echo").version == "1"

    seen = Counter(result.model_version for result in results)
    assert after_first == {"2"}
    assert after_second == {"1"}
    assert card.version == "2"
    assert len(results) >= 2000
    assert set(seen) == {"1", "2"}
    assert counters.outcomes[Outcome.OK] == counters.submitted
    assert counters.pending == 0
    assert counters.late <= counters.retries <= 2 * 16, "what was in flight at the two switches, and no more"


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
        load = Load(client, least=200)
        try:
            write_echo("echo", version=2)
            server.control.load("echo")
            latest = {client.infer("echo", {"x": X}).model_version for _ in range(16)}
            first = {client.infer("echo", {"x": X}, version=1).model_version for _ in range(16)}
            assert client.card("echo").versions == ("1", "2")
        finally:
            results = load.finish()

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


LONG = "model_warmup = { count = 200 }\n"
"""With runs of 20 ms and batches of 1 and 8 a load of at least 8 seconds."""


@contextmanager
def load_beside(server: Any, url: str, model: str) -> Iterator[Future[Any]]:
    """Load a model over another operator's connection, and return the future of the replies."""
    with ControlClient(url, root=server.topics.root) as control, ThreadPoolExecutor(1) as pool:
        yield pool.submit(control.load, model)


def await_phase(server: Any, version: int, phase: Phase) -> None:
    """Wait until a process of a version is in a phase."""
    tick = threading.Event()
    for _ in range(6000):
        if any(view.spec.version == version and view.phase is phase for view in server.supervisor.processes):
            return
        tick.wait(0.01)
    raise AssertionError(f"version {version} never was {phase}")


def write_long(write_echo: WriteEcho, version: int) -> None:
    """Write a version whose load takes long."""
    folder = write_echo("echo", version=version, delay_ms=20) / "echo" / str(version)
    (folder / "model.toml").write_text(LONG, encoding="utf-8")


@pytest.mark.full
def test_a_swap_in_the_middle_of_a_long_load(
    write_echo: WriteEcho, managed: Callable[..., Any], broker_url: str
) -> None:
    """A later load ends an earlier one that has not finished; an equal one shares it; no request notices."""
    server = managed(write_echo("echo", delay_ms=1))
    server.control.load("echo")
    with Client(broker_url, root=server.topics.root) as client:
        load = Load(client, least=200)
        try:
            write_long(write_echo, 2)
            with load_beside(server, broker_url, "echo") as first:
                await_phase(server, 2, Phase.STARTING)
                write_echo("echo", version=3, delay_ms=1)
                server.control.load("echo")
                assert isinstance(first.exception(60), Superseded)
            after = {client.infer("echo", {"x": X}).model_version for _ in range(16)}
            shutil.rmtree(server.template.repository / "echo" / "3")
            with load_beside(server, broker_url, "echo") as first, load_beside(server, broker_url, "echo") as equal:
                assert first.result(120) == equal.result(120)
            later = {client.infer("echo", {"x": X}).model_version for _ in range(16)}
        finally:
            results = load.finish()
    assert (after, later) == ({"3"}, {"2"})
    assert {result.outcome for result in results} == {Outcome.OK}
    assert len(server.supervisor.pids) == 1


def test_an_unload_in_the_middle_of_a_long_load(
    write_echo: WriteEcho, managed: Callable[..., Any], broker_url: str
) -> None:
    """The load ends as superseded, its process is killed at once, and the model is not served afterwards."""
    write_echo("other")
    write_long(write_echo, 2)
    server = managed(write_echo("third"), load=False)
    with load_beside(server, broker_url, "echo") as loading:
        await_phase(server, 2, Phase.STARTING)
        server.control.unload("echo")
        assert isinstance(loading.exception(60), Superseded)
    assert server.supervisor.pids == {}


def test_a_swap_during_a_broker_outage(write_echo: WriteEcho, managed: Callable[..., Any]) -> None:
    """The new version waits with its model loaded, the old one stays; the swap is completed once the broker is back."""
    with MosquittoServer() as broker:
        server = managed(write_echo("echo"), url=broker.url)
        assert server.events.get(timeout=60).kind == "ready"
        write_long(write_echo, 2)
        specs = plan(Repository(server.template.repository), server.template)
        loading = server.supervisor.roll_out("echo", specs, server.name)  # no order could be replied to
        await_phase(server, 2, Phase.STARTING)
        broker.kill()
        waiting = server.events.get(timeout=60)
        assert (waiting.kind, waiting.model) == ("waiting", "echo version 2")
        assert [view.spec.version for view in server.supervisor.processes if view.phase is Phase.READY] == [1]
        broker.start()
        assert [server.events.get(timeout=60).kind for _ in range(2)] == ["ready", "stopped"]
        assert loading.exception(60) is None
        with Client(broker.url, root=server.topics.root) as client:
            assert client.infer("echo", {"x": X}, timeout=30).model_version == "2"


def test_a_repository_that_vanishes(write_echo: WriteEcho, managed: Callable[..., Any], broker_url: str) -> None:
    """Without it models are served on, a load is refused, and a process that crashed starts when it is back."""
    repository = write_echo("echo")
    server = managed(repository, load=False, poll=0.1)
    assert server.events.get(timeout=60).kind == "ready"
    away = repository.with_name("away")
    with Client(broker_url, root=server.topics.root) as client:
        repository.rename(away)
        repository.mkdir()  # as if the disk were not mounted
        assert client.infer("echo", {"x": X}).outcome is Outcome.OK
        with pytest.raises(ModelNotFound, match="has no model 'echo'; it has: none"):
            server.control.load("echo")
        repository.rmdir()
        with pytest.raises(ConfigError, match="there is no such folder"):
            server.control.load("echo")
        assert client.infer("echo", {"x": X}).outcome is Outcome.OK
        ((_, pid),) = server.supervisor.pids.items()
        os.kill(pid, signal.SIGKILL)
        assert "exit code -9" in server.events.get(timeout=60).detail
        again = server.events.get(timeout=60)
        assert (again.kind, again.crashed) == ("crashed", 0)
        assert "model_not_loadable" in again.detail
        away.rename(repository)
        while (event := server.events.get(timeout=120)).kind == "crashed":
            assert event.crashed == 0
        assert event.kind == "ready"
        assert client.infer("echo", {"x": X}, timeout=30).outcome is Outcome.OK


def test_a_model_that_vanishes_while_it_loads(
    write_echo: WriteEcho, managed: Callable[..., Any], broker_url: str
) -> None:
    """Its load fails with the reason, the version before serves on, and the next load succeeds."""
    repository = write_echo("echo")
    server = managed(repository)
    assert server.events.get(timeout=60).kind == "ready"
    write_echo("echo", version=2)
    away = repository.with_name("away")
    specs = plan(Repository(repository), server.template)
    repository.rename(away)
    with pytest.raises(ModelNotLoadable, match="echo version 2: model_not_loadable"):
        server.supervisor.roll_out("echo", specs, server.name).result(60)
    with Client(broker_url, root=server.topics.root) as client:
        assert client.infer("echo", {"x": X}, timeout=30).model_version == "1"
        away.rename(repository)
        server.control.load("echo")
        assert client.infer("echo", {"x": X}).model_version == "2"
