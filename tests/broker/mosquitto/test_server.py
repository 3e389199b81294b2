"""The private Mosquitto and its configuration."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from queue import SimpleQueue

import pytest

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto.configuration import render
from mqinfer.broker.mosquitto.server import MosquittoServer, find_mosquitto, keepalive_warning
from mqinfer.broker.paho.link import PahoLink
from mqinfer.protocol.errors import BrokerUnreachable, ConfigError, MissingExtra
from tests.broker.attempts import options
from tests.patience import PATIENCE_S, wait_until
from tests.ports import free_port

ROOT = Path(__file__).parents[3]


def test_the_root_has_the_packaged_text() -> None:
    """`mosquitto.conf` at the root is the text that a wheel carries."""
    packaged = files("mqinfer.broker.mosquitto").joinpath("mosquitto.conf").read_text(encoding="utf-8")
    assert (ROOT / "mosquitto.conf").read_text(encoding="utf-8") == packaged


def test_rendering() -> None:
    """Other ports, another address, and no websockets listener unless it is asked for."""
    assert options(render(1883, websockets_port=9001)) == options((ROOT / "mosquitto.conf").read_text(encoding="utf-8"))
    text = options(render(5, websockets_port=6, bind="::1"))
    assert [line for line in text if line.startswith("listener")] == ["listener 5 ::1", "listener 6 ::1"]
    assert not any("websockets" in line or "listener 9001" in line for line in options(render(5)))


def test_all_limits_are_stated() -> None:
    """Nothing that loses messages is left to a default, and no option is used that Mosquitto 2.1 has given up."""
    names = {line.split()[0] for line in options(render(5))}
    assert names >= {
        "max_packet_size",
        "max_inflight_messages",
        "max_inflight_bytes",
        "max_queued_messages",
        "max_queued_bytes",
        "memory_limit",
        "set_tcp_nodelay",
        "persistence",
        "allow_anonymous",
        "max_connections",
        "max_qos",
        "persistent_client_expiration",
        "check_retain_source",
    }
    assert not names & {"per_listener_settings", "acl_file", "password_file", "message_size_limit"}
    assert "max_keepalive" not in names, "Mosquitto 2.0.21 ends connections whose keep-alive is equal to it"


@pytest.mark.parametrize(
    ("version", "line", "is_warned"),
    [
        ("2.0.21", "max_keepalive 60", True),
        ("2.0.21", "  max_keepalive\t600", True),
        ("2.0.21", "max_keepalive 0", False),
        ("2.0.21", "# max_keepalive 60", False),
        ("2.0.20", "max_keepalive 60", False),
        ("2.0.22", "max_keepalive 60", False),
        ("2.1.2", "max_keepalive 60", False),
    ],
)
def test_a_keepalive_that_ends_connections(version: str, line: str, *, is_warned: bool) -> None:
    """Mosquitto 2.0.21 is warned of where a configuration has max_keepalive, which no other version minds."""
    log = f"2026-01-01T00:00:00: mosquitto version {version} starting\n"
    assert bool(keepalive_warning(log, f"listener 1883\n{line}\n")) is is_warned


@pytest.mark.broker
def test_the_warning_of_a_keepalive(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever starts Mosquitto with another's configuration reads the warning where this Mosquitto is the one."""
    with MosquittoServer(configuration=lambda port: render(port) + "max_keepalive 60\n") as server:
        assert ("max_keepalive" in caplog.text) is ("mosquitto version 2.0.21 " in server.log())


@pytest.mark.broker
def test_it_loads_without_a_warning() -> None:
    """Mosquitto has nothing to say against the configuration, websockets listener included."""
    websockets_port = free_port()
    with MosquittoServer(configuration=lambda port: render(port, websockets_port=websockets_port)) as server:
        log = server.log()
    assert " running" in log
    assert not any(word in log.lower() for word in ("warning", "error", "deprecated", "unknown"))


@pytest.mark.broker
def test_it_returns_on_its_port() -> None:
    """After `kill` and `start` it is another process on the same port; `stop` ends it for good."""
    with MosquittoServer() as server:
        url, pid = server.url, server.pid
        server.kill()
        server.start()
        assert server.url == url
        assert server.pid != pid
        port = server.port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.broker
def test_it_ends_with_its_owner() -> None:
    """Also when that one is killed: a broker that nobody guards would keep the port of the next one."""
    command = [sys.executable, "-u", "-m", "mqinfer", "broker", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        port = int(next(line for line in process.stdout if "broker ready" in line).rpartition(":")[2])
        assert is_open(port)
        process.kill()
    wait_until(lambda: not is_open(port))


def is_open(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.broker
def test_a_port_that_is_taken() -> None:
    """A wanted port that is taken is an error of the configuration."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"{port}.*taken.*--port"):
            MosquittoServer(port).start()


@pytest.mark.broker
def test_another_port_that_is_taken() -> None:
    """The error names the port that is, not the one that `--port` chose."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = MosquittoServer(configuration=lambda chosen: render(chosen, websockets_port=port))
        with pytest.raises(ConfigError, match=rf"^port {port} is taken; .*mosquitto\.conf"):
            server.start()


@pytest.mark.broker
def test_a_free_port_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where somebody else takes the free port first, another one is tried."""
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        ports = [taken.getsockname()[1], free.getsockname()[1]]
        free.close()
        monkeypatch.setattr("mqinfer.broker.mosquitto.server.free_port", lambda _: ports.pop(0))
        with MosquittoServer() as server:
            assert ports == []
            assert server.port


@pytest.mark.broker
def test_a_newcomer_gets_all_that_is_retained() -> None:
    """However many states a site has: more than may be unacknowledged, none is dropped."""
    count, came, link_of = 5000, threading.Semaphore(0), BrokerAddress.parse
    with MosquittoServer() as server, ExitStack() as stack:
        sender, newcomer = (PahoLink(link_of(server.url), client_id=name) for name in ("sender", "newcomer"))
        for link in (sender, newcomer):
            link.open()
            stack.callback(link.close)
        for number in range(count):
            sender.publish(Message(f"clients/car-{number}/state", b"ready", retain=True), lambda _: came.release())
        for _ in range(count):
            assert came.acquire(timeout=PATIENCE_S)
        states = SimpleQueue[str]()
        newcomer.subscribe("clients/+/state", lambda message: states.put(message.topic))
        assert len({states.get(timeout=PATIENCE_S) for _ in range(count)}) == count


@pytest.mark.broker
def test_a_configuration_that_is_wrong() -> None:
    """The error repeats what Mosquitto said."""
    with pytest.raises(BrokerUnreachable, match="no_such_option"):
        MosquittoServer(configuration=lambda port: render(port) + "no_such_option 1\n").start()


@pytest.mark.broker
def test_whoever_watches_the_log_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    """One line reports it; the log is read all the same, since Mosquitto waits for its reader."""

    def fail(line: str) -> None:
        raise ValueError(line)

    with MosquittoServer(on_line=fail) as server:
        socket.create_connection(("127.0.0.1", server.port)).close()
        wait_until(lambda: "New connection from" in server.log())
    assert caplog.text.count("the broker's log is no longer watched, the broker goes on") == 1


def test_a_server_that_was_not_started() -> None:
    """Asking for its log or process is refused, stopping it is not."""
    server = MosquittoServer(bind="::1", port=1883)
    assert server.url == "mqtt://[::1]:1883"
    for ask in (server.log, server.wait, lambda: server.pid):
        with pytest.raises(BrokerUnreachable, match="not started"):
            ask()
    server.stop()


def test_mosquitto_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the command that installs it."""
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(MissingExtra, match="apt-get install mosquitto"):
        find_mosquitto()


@pytest.mark.broker
def test_it_keeps_the_memory_of_large_payloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocator is told not to give memory back after each message."""
    program = tmp_path / "mosquitto"  # its environment is not for others to read once it has taken on its own account
    program.write_text(f'#!/bin/sh\nenv >{tmp_path}/environment\nexec {find_mosquitto()} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with MosquittoServer():
        environment = (tmp_path / "environment").read_text()
    assert "MALLOC_TRIM_THRESHOLD_=" in environment
    assert "MALLOC_MMAP_THRESHOLD_=" in environment
