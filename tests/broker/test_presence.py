"""One name, one process: the one that started first gives it up."""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.broker import MemoryBroker, MemoryLink
from mqinfer.broker.link import Message, ReasonCode
from mqinfer.broker.presence import Presence, make_client_id, new_incarnation, reads_back
from mqinfer.protocol.errors import NameTaken

TOPIC = "mqinfer/v1/workers/w/state"


def encode(status: str, incarnation: int) -> bytes:
    """Encode the least that a state holds."""
    return json.dumps({"boot": incarnation, "status": status}).encode()


def state(incarnation: int, status: str = "ready", *, retain: bool = False) -> Message:
    """What a process publishes under the name."""
    return Message(TOPIC, encode(status, incarnation), retain=retain)


class Holder:
    """One process that has the name, on a link of its own."""

    def __init__(self, broker: MemoryBroker, incarnation: int) -> None:
        self.published = 0
        self.taken: list[NameTaken] = []
        self.presence = Presence("w", TOPIC, self._encode, status="ready", incarnation=incarnation)
        self.link = MemoryLink(broker, client_id=self.presence.client_id, on_connection=self._on_connection)
        self.presence.attach(self.link, self.taken.append)
        self.presence.watch()

    def _encode(self, status: str, incarnation: int) -> bytes:
        self.published += 1
        return encode(status, incarnation)

    def _on_connection(self, connected: bool) -> None:  # noqa: FBT001  the link's signature
        if connected:
            self.presence.publish()


def test_a_later_start_has_a_larger_number() -> None:
    """Of two starts the later one has at least the number of the earlier one."""
    assert new_incarnation() <= new_incarnation()


def test_nobody_can_guess_a_client_id() -> None:
    """It begins with the name and holds 64 random bits, whatever else is equal; a process keeps its own."""
    presences = [Presence("w", TOPIC, encode, incarnation=255) for _ in range(100)]
    assert [presence.client_id for presence in presences] == [presence.client_id for presence in presences]
    ids = {presence.client_id for presence in presences} | {make_client_id("w") for _ in range(100)}
    assert len(ids) == 200
    secrets = [client_id.removeprefix("w~") for client_id in ids]
    assert {len(bytes.fromhex(secret)) for secret in secrets} == {8}
    for bit in range(64):  # each of the bits is 0 in some and 1 in others
        assert {int(secret, 16) >> bit & 1 for secret in secrets} == {0, 1}


@pytest.mark.parametrize("message", [state(9, retain=True), Message(TOPIC, b"{"), state(5)])
def test_states_without_effect(message: Message) -> None:
    """What the broker kept, what can't be read, and the process's own state: nothing follows."""
    holder = Holder(MemoryBroker(), 5)
    holder.presence.receive(message)
    assert holder.published == 0
    assert holder.taken == []
    assert holder.presence.failure is None


@pytest.mark.parametrize(
    "message", [state(4), state(4, "lost"), state(9, "lost"), state(9, "stopped"), Message(TOPIC, b"")]
)
def test_the_last_state_is_this_ones(message: Message) -> None:
    """Neither a process that started earlier nor the will of one that is gone stands as the state of the name."""
    broker = MemoryBroker()
    with ExitStack() as stack:
        holder = Holder(broker, 5)
        stack.callback(holder.link.close)
        holder.link.open()
        assert holder.published == 1
        holder.presence.receive(message)
        assert holder.published == 2
        assert holder.taken == []


def test_nothing_is_published_without_a_status() -> None:
    """Before the first status, after `withdraw`, and once the name is another's; the PUBACK's code is passed on."""
    codes: list[int] = []
    presence = Presence("w", TOPIC, encode, incarnation=5, on_ack=codes.append)
    broker = MemoryBroker()
    link = MemoryLink(broker, client_id=presence.client_id, will=presence.will)
    presence.attach(link)
    with ExitStack() as stack:
        stack.callback(link.close)
        link.open()
        presence.publish()
        presence.publish("ready")
        presence.withdraw()
        presence.publish()
        presence.publish("ready")
        presence.receive(state(9))
        presence.publish("stopped")
        link.settle()
        assert codes == [ReasonCode.NO_MATCHING_SUBSCRIBERS] * 2
        assert not presence.is_refused()
        assert isinstance(presence.failure, NameTaken)


def test_a_process_that_ends_leaves_no_state() -> None:
    """It publishes `stopped` for those who listen, and removes what the broker keeps; another of the name keeps its."""
    broker = MemoryBroker()
    elder, younger = Holder(broker, 1), Holder(broker, 2)
    watcher, seen = MemoryLink(broker, client_id="watcher"), list[bytes]()
    late, kept = MemoryLink(broker, client_id="late"), list[bytes]()
    with ExitStack() as stack:
        for link in (elder.link, watcher, younger.link, late):
            stack.callback(link.close)
            link.open()
            settle(elder, younger)
            if link is watcher:
                link.subscribe(TOPIC, lambda message: seen.append(bytes(message.payload)))
        elder.presence.end()  # it has lost the name, so it removes nothing
        younger.presence.receive(Message(TOPIC, b""))  # as an earlier release would
        younger.presence.end()
        younger.presence.end()
        settle(elder, younger)
        watcher.settle()
        assert [b'"stopped"' in payload for payload in seen[-2:]] == [True, False]
        assert seen[-1] == b""
        assert seen.count(b"") == 1
        late.subscribe(TOPIC, lambda message: kept.append(bytes(message.payload)))
        late.settle()
        assert kept == []


def test_a_message_to_oneself() -> None:
    """It comes back where the topic may be read, and leaves no subscription behind."""
    link = MemoryLink(MemoryBroker(), client_id="w")
    codes: list[int] = []
    with ExitStack() as stack:
        stack.callback(link.close)
        link.open()
        assert reads_back(link, "t")
        link.publish(Message("t", b""), codes.append)
        link.settle()
    assert codes == [ReasonCode.NO_MATCHING_SUBSCRIBERS]


@given(st.permutations([1, 2, 3]))
def test_whatever_the_order(incarnations: list[int]) -> None:
    """Of several on one broker the one with the largest number stays, each other ends once, and publishing ends."""
    broker = MemoryBroker()
    with ExitStack() as stack:
        holders: dict[int, Holder] = {}
        for incarnation in incarnations:
            holder = holders[incarnation] = Holder(broker, incarnation)
            stack.callback(holder.link.close)
            holder.link.open()
            settle(*holders.values())
        taken = {incarnation: len(holder.taken) for incarnation, holder in holders.items()}
        assert taken == {1: 1, 2: 1, 3: 0}
        assert holders[3].published <= 3


def test_an_elder_that_comes_back() -> None:
    """It was cut off while another took its name: on its return it receives the other's state and gives the name up."""
    broker = MemoryBroker()
    elder, younger = Holder(broker, 1), Holder(broker, 2)
    with ExitStack() as stack:
        stack.callback(elder.link.close)
        stack.callback(younger.link.close)
        elder.link.open()
        elder.link.drop()
        younger.link.open()
        settle(elder, younger)
        assert elder.taken == []
        elder.link.restore()
        settle(elder, younger)
        assert (len(elder.taken), len(younger.taken)) == (1, 0)


def settle(*holders: Holder) -> None:
    """Let each link hand out what waits, until what follows from it is handed out too."""
    for _ in range(3):
        for holder in holders:
            holder.link.settle()


def test_two_processes_that_drain_do_not_answer_each_other() -> None:
    """A later one that leaves is answered once it has stopped; answered before, both would answer without end."""
    earlier, later = Holder(MemoryBroker(), 5), Holder(MemoryBroker(), 9)
    earlier.presence.receive(state(9, "draining"))
    assert earlier.published == 0
    later.presence.receive(state(5, "draining"))
    assert later.published == 1
    for number, status in enumerate(("stopped", "lost"), 1):
        earlier.presence.receive(state(9, status))
        assert earlier.published == number
    assert earlier.presence.failure is None
