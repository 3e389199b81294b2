"""Fixtures that every folder of tests may use."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from hypothesis import HealthCheck, settings

from mqinfer.broker.server import MosquittoServer, find_mosquitto
from mqinfer.protocol.errors import MissingExtra

_numbers = count()

# No deadline, since the machines that run the tests are shared; fixtures for every test (below) are no fault of a test.
settings.register_profile("mqinfer", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
settings.load_profile("mqinfer")


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

    def name(prefix: str) -> str:
        return f"{prefix}-{os.getpid()}-{next(_numbers)}"

    return name


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Every thread that mqinfer starts within a test is joined when the test ends."""
    before = set(threading.enumerate())
    yield
    started = (thread.name for thread in set(threading.enumerate()) - before)
    # A Mosquitto of a wider scope may have been started by this test's fixtures.
    left = [name for name in started if name.startswith("mqinfer-") and name != "mqinfer-mosquitto-log"]
    assert not left, f"threads left running: {left}"
