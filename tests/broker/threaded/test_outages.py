from __future__ import annotations

import threading

import pytest

from mqinfer.broker.threaded.outages import Outages
from mqinfer.protocol.errors import BrokerUnreachable
from tests.clock import Clock

BROKER = "mqtt://host:1883"
ENDED = BrokerUnreachable(f"{BROKER} ended the connection: Unspecified error")
SILENT = BrokerUnreachable(f"no broker answers at {BROKER} ([Errno 111] Connection refused)")


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock(1000.0)


def test_an_outage_is_one_line_then_one_a_minute(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """A link that tries again every second for two and a half minutes leaves four lines."""
    outages = Outages(clock)
    outages.failed(BROKER, 1, ENDED)
    for _ in range(150):
        clock.now += 1
        outages.failed(BROKER, 1, SILENT)
    clock.now += 4.1
    outages.ended(BROKER, 1, connected=True)
    assert caplog.messages == [
        f"lost the connection to {BROKER}: it ended the connection: Unspecified error; trying again",
        f"still no connection to {BROKER} after 1 min: {SILENT}",
        f"still no connection to {BROKER} after 2 min: {SILENT}",
        f"connected again to {BROKER} after 154.1 s",
    ]


def test_the_links_of_a_process_share_an_outage(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """Twenty links that lose one broker leave one line; the last one that is back ends the outage."""
    outages = Outages(clock)
    threads = [threading.Thread(target=outages.failed, args=(BROKER, n, ENDED)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outages.failed("mqtt://other:1883", 0, SILENT)
    for n in range(19):
        outages.ended(BROKER, n, connected=True)
    assert len(caplog.messages) == 2
    outages.ended(BROKER, 19, connected=True)
    outages.ended(BROKER, 19, connected=True)  # a first connection, or a second report
    assert caplog.messages[2:] == [f"connected again to {BROKER} after 0.0 s"]


def test_a_link_that_is_closed_ends_its_outage_silently(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """A program that ends while there is no broker does not claim to be connected."""
    outages = Outages(clock)
    outages.failed(BROKER, 1, ENDED)
    outages.ended(BROKER, 1, connected=False)
    clock.now += 100
    outages.failed(BROKER, 2, ENDED)
    assert [message.split()[0] for message in caplog.messages] == ["lost", "lost"]
