"""One name, one process: the one that started first gives way."""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.broker import MemoryBroker, MemoryLink
from mqinfer.broker.link import Message
from mqinfer.broker.presence import NameGuard, boot_number, connection_id

TOPIC = "mqinfer/v1/workers/w/state"


def state(boot: int, status: str = "ready", *, retain: bool = False) -> Message:
    """What a process publishes under the name."""
    return Message(TOPIC, json.dumps({"boot": boot, "status": status}).encode(), retain=retain)


class Holder:
    """One process that has the name, on a link of its own."""

    def __init__(self, broker: MemoryBroker, boot: int) -> None:
        self.said = 0
        self.gave_way = 0
        self._boot = boot
        self.link = MemoryLink(broker, client_id=connection_id("w", boot), on_connection=self._on_connection)
        self.guard = NameGuard("w", boot, self._say, lambda _: self._leave())
        self.guard.watch(self.link, TOPIC)

    def _on_connection(self, connected: bool) -> None:  # noqa: FBT001  the link's signature
        if connected:
            self._say()

    def _say(self) -> None:
        self.said += 1
        self.link.publish(state(self._boot, retain=True))

    def _leave(self) -> None:
        self.gave_way += 1


def test_a_later_start_has_a_larger_number() -> None:
    """And its connection another id, so that the two don't throw each other out."""
    first, second = boot_number(), boot_number()
    assert first <= second
    assert connection_id("w", 255) == "w~ff"


@pytest.mark.parametrize("message", [state(9, retain=True), Message(TOPIC, b""), Message(TOPIC, b"{"), state(5)])
def test_what_says_nothing(message: Message) -> None:
    """What the broker kept, what can't be read, and its own word: nothing follows."""
    said: list[str] = []
    guard = NameGuard("w", 5, lambda: said.append("again"), lambda _: said.append("gave way"))
    guard.heard(message)
    assert said == []
    assert guard.failure is None


@pytest.mark.parametrize("message", [state(4), state(4, "lost"), state(9, "lost"), state(9, "stopped")])
def test_the_last_word_is_kept(message: Message) -> None:
    """Neither an elder nor the will of somebody who is gone stands as the state of the name."""
    said: list[str] = []
    NameGuard("w", 5, lambda: said.append("again")).heard(message)
    assert said == ["again"]


@given(st.permutations([1, 2, 3]))
def test_whatever_the_order(boots: list[int]) -> None:
    """Of several on one broker the one with the largest number stays, each other gives way once, and it gets quiet."""
    broker = MemoryBroker()
    with ExitStack() as stack:
        holders: dict[int, Holder] = {}
        for boot in boots:
            holder = holders[boot] = Holder(broker, boot)
            stack.callback(holder.link.close)
            holder.link.open()
            settle(*holders.values())
        gave_way = {boot: holder.gave_way for boot, holder in holders.items()}
        assert gave_way == {1: 1, 2: 1, 3: 0}
        assert holders[3].said <= 3


def test_an_elder_that_comes_back() -> None:
    """It was cut off while another took its name: on its return it hears of it and gives way."""
    broker = MemoryBroker()
    elder, younger = Holder(broker, 1), Holder(broker, 2)
    with ExitStack() as stack:
        stack.callback(elder.link.close)
        stack.callback(younger.link.close)
        elder.link.open()
        elder.link.drop()
        younger.link.open()
        settle(elder, younger)
        assert elder.gave_way == 0
        elder.link.restore()
        settle(elder, younger)
        assert (elder.gave_way, younger.gave_way) == (1, 0)


def settle(*holders: Holder) -> None:
    """Let each link hand out what waits, until what follows from it is handed out too."""
    for _ in range(3):
        for holder in holders:
            holder.link._wait_for_events()
