"""Fixtures that every folder of tests may use."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from mqinfer.broker.server import MosquittoServer, find_mosquitto
from mqinfer.protocol.errors import MissingExtra

_numbers = count()


@pytest.fixture(scope="session")
def mosquitto() -> Iterator[MosquittoServer]:
    """A private Mosquitto with the repository's configuration, for tests that leave it running."""
    try:
        find_mosquitto()
    except MissingExtra as missing:
        pytest.skip(str(missing))
    with MosquittoServer() as server:
        yield server


@pytest.fixture(scope="session")
def broker_url(mosquitto: MosquittoServer) -> str:
    """URL of the session's Mosquitto. Tests share it: take names from `unique`."""
    return mosquitto.url


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Make a name that no other test uses: `unique("worker")` gives `worker-4711-3`."""
    return lambda prefix="t": f"{prefix}-{os.getpid()}-{next(_numbers)}"


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Every thread that mqinfer starts within a test is joined when the test ends."""
    before = set(threading.enumerate())
    yield
    left = [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("mqinfer-")]
    assert not left, f"threads left running: {left}"
