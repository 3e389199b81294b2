"""What `MemoryLink` has beyond the contract: loss at will, an injected clock, bounded queues."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from mqinfer.broker.connect import make_link
from mqinfer.broker.link import Message, ReasonCode
from mqinfer.broker.memory import MemoryBroker, MemoryLink
from mqinfer.protocol.errors import NotConnected

PATIENCE = 60.0


class Gate:
    """A handler that waits until it is let through, and keeps what it gets."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()
        self.messages: list[Message] = []

    def __call__(self, message: Message) -> None:
        """Keep a message."""
        self.entered.release()
        assert self.open.wait(PATIENCE)
        self.messages.append(message)


def test_a_name_is_one_broker() -> None:
    """Links to the same `memory://` name meet, links to another name don't."""
    got: list[Message] = []
    receiver, sender = make_link("memory://one", client_id="r"), make_link("memory://one", client_id="s")
    stranger = make_link("memory://two", client_id="s")
    for link in (receiver, sender, stranger):
        link.open()
    receiver.subscribe("t", got.append)
    stranger.publish(Message("t", b"stranger"))
    sender.publish(Message("t", b"friend"))
    for link in (receiver, sender, stranger):
        link.close()
    assert [message.payload for message in got] == [b"friend"]


def test_loss_and_return() -> None:
    """A lost link gets nothing, publishes nothing, and is subscribed again when it returns."""
    broker = MemoryBroker()
    told: list[bool] = []
    got: list[Message] = []
    link = MemoryLink(broker, on_connection=told.append)
    other = MemoryLink(broker)
    link.open()
    other.open()
    link.subscribe("t", got.append)
    link.drop()
    link.drop()
    assert not link.connected
    with pytest.raises(NotConnected):
        link.publish(Message("t", b"x"))
    acks: list[int] = []
    other.publish(Message("t", b"while away"), acks.append)
    link.restore()
    other.publish(Message("t", b"back"), acks.append)
    other.close()
    link.close()
    assert told == [True, False, True]
    assert [message.payload for message in got] == [b"back"]
    assert acks == [ReasonCode.NO_MATCHING_SUBSCRIBERS, ReasonCode.SUCCESS]


def test_what_was_queued_is_lost_with_the_connection() -> None:
    """Messages and acks of a lost connection are void, as with a session that expires at once."""
    broker, gate = MemoryBroker(), Gate()
    acks: list[int] = []
    link = MemoryLink(broker)
    link.open()
    link.subscribe("t", gate)
    link.publish(Message("t", b"first"), acks.append)
    assert gate.entered.acquire(timeout=PATIENCE)
    link.publish(Message("t", b"second"), acks.append)
    link.drop()
    link.restore()
    gate.open.set()
    link.close()
    assert [message.payload for message in gate.messages] == [b"first"]
    assert acks == []


def test_expiry() -> None:
    """A message that waits too long is not delivered; one that waits a while has fewer seconds left."""
    now = [100.0]
    broker = MemoryBroker(clock=lambda: now[0])
    got: list[Message] = []
    sender, link = MemoryLink(broker), MemoryLink(broker)
    sender.open()
    sender.publish(Message("short", b"", retain=True, expiry_s=2))
    sender.publish(Message("short", b"x", retain=True, expiry_s=2))
    sender.publish(Message("long", b"x", retain=True, expiry_s=60))
    now[0] += 2.5
    link.open()
    link.subscribe("short", got.append)
    link.subscribe("long", got.append)
    link.close()
    sender.close()
    assert [(message.topic, message.expiry_s, message.retain) for message in got] == [("long", 58, True)]


def test_a_full_queue() -> None:
    """What comes above the bound is dropped and counted, and its sender is told "success", as by Mosquitto."""
    broker, gate = MemoryBroker(max_queued=3), Gate()
    acks: list[int] = []
    receiver, sender = MemoryLink(broker), MemoryLink(broker)
    receiver.open()
    sender.open()
    receiver.subscribe("t", gate)
    sender.publish(Message("t", b"0"))
    assert gate.entered.acquire(timeout=PATIENCE)
    for number in range(1, 6):
        sender.publish(Message("t", b"%d" % number), acks.append)
    gate.open.set()
    sender.close()
    receiver.close()
    assert [message.payload for message in gate.messages] == [b"0", b"1", b"2", b"3"]
    assert broker.dropped == 2
    assert acks == [ReasonCode.SUCCESS] * 5


def test_a_twin_takes_over(caplog: pytest.LogCaptureFixture) -> None:
    """A second link with the same name ends the first, whose will is published."""
    broker = MemoryBroker()
    got: list[Message] = []
    watcher = MemoryLink(broker, client_id="watcher")
    watcher.open()
    watcher.subscribe("will", got.append)
    first = MemoryLink(broker, client_id="twin", will=Message("will", b"lost"))
    second = MemoryLink(broker, client_id="twin")
    first.open()
    second.open()
    assert (first.connected, second.connected) == (False, True)
    for link in (first, second, watcher):
        link.close()
    assert [message.payload for message in got] == [b"lost"]
    assert "taken over" in caplog.text


def test_no_copy_is_made(unique: Callable[[str], str]) -> None:
    """The receiver gets the very payload that was published."""
    payload = bytes(1000)
    got: list[Message] = []
    link = MemoryLink(MemoryBroker(), client_id=unique("c"))
    link.open()
    link.subscribe("t", got.append)
    link.publish(Message("t", payload))
    link.close()
    assert got[0].payload is payload


def test_a_failing_on_connection(caplog: pytest.LogCaptureFixture) -> None:
    """What `on_connection` raises is logged."""

    def fail(_: bool) -> None:  # noqa: FBT001 - the shape of a ConnectionHandler
        raise ValueError("no")

    link = MemoryLink(MemoryBroker(), on_connection=fail)
    link.open()
    assert link.connected
    link.close()
    assert any(record.exc_info for record in caplog.records)
