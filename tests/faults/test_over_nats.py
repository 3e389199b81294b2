"""Faults of workers and of the network with NATS in place of Mosquitto; their figures are in no table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.faults import Figures
from tests.broker.nats.server import NatsServer
from tests.faults.test_network import link, test_half_open_connection, test_twenty_cuts
from tests.faults.test_workers import (
    test_halted_worker,
    test_killed_workers,
    test_no_fault,
    test_poison,
    test_rolling_restart,
    test_zero_workers,
)

__all__ = [
    "link",
    "test_half_open_connection",
    "test_halted_worker",
    "test_killed_workers",
    "test_no_fault",
    "test_poison",
    "test_rolling_restart",
    "test_twenty_cuts",
    "test_zero_workers",
]


@pytest.fixture(scope="module")
def broker_url() -> Iterator[str]:
    """URL of a nats-server."""
    with NatsServer() as server:
        yield server.url


@pytest.fixture
def figure() -> Figures:
    """Figures that go into no table: that is Mosquitto's."""
    return Figures()
