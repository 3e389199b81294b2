"""A bridge: clients at one broker, workers at another."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from benchmarks.faults import EchoTraffic, Workers
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.bridge import Bridge
from mqinfer.broker.connect import make_link
from mqinfer.broker.link import ConnectionHandler, Link, Message
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.presence import make_client_id
from mqinfer.protocol.topics import Topics
from tests.patience import LONG_SILENCE, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def side(url: str, will: Message | None, on_connection: ConnectionHandler) -> Link:
    """Make a link of a bridge to one of its brokers."""
    return make_link(
        BrokerAddress.parse(url), client_id=make_client_id("bridge"), will=will, on_connection=on_connection
    )


def test_requests_and_a_lost_worker(tmp_path: Path, unique: Callable[[str], str]) -> None:
    """All requests are answered, those too that were in flight when a worker was killed or the bridge was cut."""
    topics = Topics(unique("bridge"))
    with MosquittoServer() as near, MosquittoServer() as far:
        with (
            Workers(tmp_path, far.url, (5, 5), topics) as workers,
            Bridge(partial(side, near.url), partial(side, far.url), "site", topics) as bridge,
            EchoTraffic(near.url, topics, silence=LONG_SILENCE) as client,
        ):
            client.burst(100)
            client.served()
            client.burst(100)
            workers.kill(0)
            client.served()
            bridge._far.cut()  # type: ignore[attr-defined]
            client.burst(100)
            client.served()
            wait_until(lambda: bridge.counters()["to_far"]["carried"] >= 300)
