"""A client whose loop reads and writes the connection itself, over a real broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mqinfer import AsyncClient, Outcome
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.paho.link import PahoLink
from mqinfer.errors import Cancelled, Expired
from tests.asynchronous import in_loop
from tests.broker.heard import Inbox, Told

Unique = Callable[[str], str]
pytestmark = pytest.mark.broker

X = np.arange(4, dtype=np.float32).reshape(1, 4)


@pytest.fixture
def url(broker_url: str) -> str:
    """URL of the session's Mosquitto: in memory there is nothing to read and write."""
    return broker_url


@in_loop
async def test_a_reply_changes_no_thread(url: str, hand: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply is received on the loop's thread, and no other one is woken for it."""
    async with AsyncClient(url, in_loop=True) as client:
        requester, threads = client.connection.requester, set[int]()
        finish = requester._finish

        def note(*arguments: Any) -> None:
            threads.add(threading.get_ident())
            finish(*arguments)

        monkeypatch.setattr(requester, "_finish", note)
        task = client.submit("manual", {"x": X}, timeout=60)
        hand.answer(await asyncio.to_thread(hand.next), {"y": X})
        assert (await task).outcome is Outcome.OK
        assert threads == {threading.get_ident()}


@in_loop
async def test_cancelling_expiring_and_closing(url: str, hand: Any) -> None:
    """Each ends its request at once, and the worker is told of what was cancelled; the books are even."""
    client = AsyncClient(url, in_loop=True)
    await client.open()
    task = client.submit("manual", {"x": X}, timeout=60)
    await asyncio.to_thread(hand.next)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(Expired):
        await client.infer("manual", {"x": X}, timeout=0.05)
    task = client.submit("manual", {"x": X}, timeout=60)
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(Cancelled):
        await task
    counters = client.counters()
    assert counters.submitted == sum(counters.outcomes.values()) == 3
    assert counters.pending == counters.in_flight == 0


@in_loop
async def test_a_broker_that_comes_back(unique: Unique) -> None:
    """The link's thread connects again, and hands the new connection to the loop."""
    loop, told, inbox = asyncio.get_running_loop(), Told(), Inbox()
    with MosquittoServer() as server:
        link = PahoLink(BrokerAddress.parse(server.url), client_id=unique("client"), on_connection=told, host=loop)
        await asyncio.to_thread(link.open)
        try:
            await asyncio.to_thread(link.subscribe, "topic", inbox)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(told.wait_for_states, True, False)
            await asyncio.to_thread(server.start)
            await asyncio.to_thread(told.wait_for_states, True, False, True)
            link.publish(Message("topic", b"x"))
            assert await asyncio.to_thread(inbox.payloads, 1) == [b"x"]
        finally:
            await asyncio.to_thread(link.close)


def test_a_loop_that_is_closed_first(url: str, unique: Unique) -> None:
    """The link's thread serves on: messages come and go, and closing does not hang."""
    loop, inbox = asyncio.new_event_loop(), Inbox()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    link = PahoLink(BrokerAddress.parse(url), client_id=unique("client"), host=loop)
    link.open()
    try:
        link.subscribe(unique("topic"), inbox)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        topic = unique("topic")
        link.subscribe(topic, inbox)
        link.publish(Message(topic, b"x"))
        assert inbox.payloads(1) == [b"x"]
    finally:
        link.close()
