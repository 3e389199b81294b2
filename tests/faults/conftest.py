"""Fixtures of the fault-injection suite, and the table that `--faults-report FILE` writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.fault_proxy import FaultProxy
from benchmarks.faults.soak import as_markdown
from benchmarks.faults.traffic import EchoTraffic
from benchmarks.faults.workers import Workers
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.client.options import Silence
from mqinfer.protocol.topics import Topics
from tests.faults.figures import Figures
from tests.patience import LONG_SILENCE

FULL = os.environ.get("MQINFER_FAULTS") == "full"
"""Whether this run is with the full counts, which take minutes."""
_MARK = "<!-- figures -->"
"""The table replaces what follows this mark in a document."""
_figures = pytest.StashKey[Figures]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--faults-report`."""
    parser.addoption("--faults-report", type=Path, help="Markdown file for the figures of the faults.")


def pytest_configure(config: pytest.Config) -> None:
    """Start with an empty list of figures.

    Raises:
        UsageError: The figures would be taken beside other tests.
    """
    if config.getoption("--faults-report", default=None) and config.getoption("numprocesses", default=None):
        raise pytest.UsageError("--faults-report measures one fault after the other; leave out -n")
    config.stash[_figures] = Figures()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test here as long and as needing a broker; extend the timeout of the full counts."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.broker)
            item.add_marker(pytest.mark.full)
            if FULL:
                item.add_marker(pytest.mark.timeout(900))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the table of figures."""
    path = session.config.getoption("--faults-report", default=None)
    figures = session.config.stash.get(_figures, Figures()).recorded
    if path and figures:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        head = before.partition(_MARK)[0] + _MARK if _MARK in before else ""
        path.write_text(head + "\n\n" * bool(head) + as_markdown(figures), encoding="utf-8")


@pytest.fixture(scope="session")
def pick() -> Callable[[int, int], int]:
    """Return the first of two counts, `pick(200, 1000)`, or the second if MQINFER_FAULTS=full."""
    return lambda suite, table: table if FULL else suite


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figures:
    """The figures of this run, for the table."""
    return request.config.stash.setdefault(_figures, Figures())


@pytest.fixture(scope="session")
def silence(request: pytest.FixtureRequest) -> Silence:
    """When a worker is silent: as by default for the table, which an idle machine measures, else after long."""
    return Silence() if request.config.getoption("--faults-report", default=None) else LONG_SILENCE


@pytest.fixture
def own_broker() -> Iterator[MosquittoServer]:
    """A Mosquitto for this test alone, which may kill it."""
    with MosquittoServer() as server:
        yield server


@pytest.fixture
def topics(unique: Callable[[str], str]) -> Topics:
    """A topic root for this test alone."""
    return Topics(unique("faults"))


@pytest.fixture
def workers(tmp_path: Path, broker_url: str, topics: Topics) -> Iterator[Callable[..., Workers]]:
    """Start one worker process for each delay and wait until all are ready: `workers(20, 20, 100, url=...)`."""
    numbers = count()
    with ExitStack() as stack:

        def start(*delays_ms: float, url: str = broker_url, **options: Any) -> Workers:
            folder = tmp_path / f"workers-{next(numbers)}"
            return stack.enter_context(Workers(folder, url, delays_ms, topics, **options))

        yield start


@pytest.fixture
def traffic(broker_url: str, topics: Topics) -> Iterator[Callable[..., EchoTraffic]]:
    """Connect a client that records every outcome, after `first` requests: `traffic(url=..., first=10, window=16)`."""
    with ExitStack() as stack:

        def start(url: str = broker_url, *, first: int = 0, **options: Any) -> EchoTraffic:
            client = stack.enter_context(EchoTraffic(url, topics, **options))
            client.burst(first)
            client.wait()
            return client

        yield start


@pytest.fixture
def proxy() -> Iterator[Callable[[str], FaultProxy]]:
    """Put a proxy before a broker: `proxy(url)`."""
    with ExitStack() as stack:

        def start(url: str, seed: int = 0) -> FaultProxy:
            scheme, _, place = url.partition("://")
            return stack.enter_context(FaultProxy(int(place.rpartition(":")[2]), seed, scheme))

        yield start
