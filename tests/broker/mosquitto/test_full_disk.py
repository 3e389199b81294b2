"""A broker whose disk is full: ours stores nothing; one that was set to store keeps serving, and so does the log's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto.configuration import render
from mqinfer.broker.mosquitto.server import MosquittoServer, find_mosquitto
from mqinfer.broker.paho.link import PahoLink
from mqinfer.client import Client
from mqinfer.protocol.types import Outcome
from tests.patience import wait_until

pytestmark = pytest.mark.broker

FULL_BYTES = 64 * 512  # blocks of `ulimit`
X = np.zeros((1, 25_000), np.float32)
FULL = """\
#!/bin/sh
trap '' XFSZ
ulimit -f 64
exec {program} "$@"
"""


@pytest.fixture
def full(open_place: Path, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where Mosquitto's writes fail above 32 KiB a file, as on a full disk."""
    program = find_mosquitto()
    place = open_place / unique("full")
    place.mkdir()
    place.chmod(0o777)  # Mosquitto that root starts is another user
    wrapper = place / "bin" / "mosquitto"
    wrapper.parent.mkdir()
    wrapper.write_text(FULL.format(program=program))
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", str(wrapper.parent), prepend=":")
    return place


@pytest.fixture
def storing(full: Path) -> Iterator[MosquittoServer]:
    """A broker that stores after each fifth change, and writes its log to a file too."""

    def configuration(port: int) -> str:
        stores = f"persistence true\npersistence_location {full}/\nautosave_on_changes true\nautosave_interval 5\n"
        text = render(port).replace("persistence false\n", stores)
        return text.replace("log_dest stderr\n", f"log_dest stderr\nlog_dest file {full}/log\nlog_type all\n")

    server = MosquittoServer(configuration=configuration)
    server.start()
    yield server
    server.stop()


def _size(file: Path) -> int:
    """Return the size of a file that Mosquitto removes before it writes it again."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def test_nothing_is_stored() -> None:
    """The packaged configuration writes no file at all, so a full disk is nothing to it."""
    lines = render(1).splitlines()
    assert "persistence false" in lines
    assert [line for line in lines if line.startswith("log_dest")] == ["log_dest stderr"]


def test_a_broker_that_stores(
    storing: MosquittoServer, full: Path, serve: Any, write_echo: Callable[..., Path], unique: Callable[[str], str]
) -> None:
    """Each save fails, with a line in the log, and requests and states go on; also after it has come back."""
    serve(storing.url, write_echo("echo", ("x", "FP32", [-1, 25_000])))
    for _ in range(2):
        link = PahoLink(BrokerAddress.parse(storing.url), client_id=unique("kept"))
        link.open()
        link.publish(Message("kept", bytes(100_000), retain=True))  # no later save fits, and none was kept
        link.close()
        with Client(storing.url) as client:
            for _ in range(50):
                assert client.infer("echo", {"x": X}, timeout=60).outcome is Outcome.OK
        assert storing.log().count("Saving in-memory database") > 10
        assert "File too large" in storing.log()
        assert (full / "log").stat().st_size == FULL_BYTES
        wait_until(lambda: _size(full / "mosquitto.db.new") == FULL_BYTES)
        storing.kill()
        storing.start()
