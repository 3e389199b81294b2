"""Bounds and turns of the calls that a gateway accepts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.gateway.admission import CallAdmission, Ticket
from mqinfer.gateway.errors import Overloaded
from mqinfer.protocol.errors import LimitExceeded


class Gate:
    """An admission, and the order in which calls were started."""

    def __init__(self, max_pending: int = 8, max_bytes: int = 1000, room: int = 1, **options: Any) -> None:
        self.admission = CallAdmission(max_pending, max_bytes, lambda _: room, **options)
        self.started: list[Ticket] = []
        self.evicted: list[Ticket] = []
        self.inside: list[Ticket] = []

    def enter(self, caller: str, size: int = 1, model: str = "m") -> Ticket:
        """Accept a call."""
        ticket = self.admission.enter(model, caller, size)
        self.inside.append(ticket)
        if ticket.is_running:
            self.started.append(ticket)
        ticket.settle = self.settler(ticket)
        return ticket

    def settler(self, ticket: Ticket) -> Callable[[Overloaded | None], None]:
        """Return what is called when a ticket's turn comes or it is evicted."""

        def settle(error: Overloaded | None) -> None:
            (self.evicted if error else self.started).append(ticket)
            if error:
                self.inside.remove(ticket)

        return settle

    def leave(self, ticket: Ticket) -> None:
        """End a call."""
        self.inside.remove(ticket)
        self.admission.leave(ticket)


def test_what_callers_with_keys_have_sent() -> None:
    """Number and bytes of what was accepted, also of what has ended; an address has none, since there are many."""
    gate = Gate(max_pending=2, max_bytes=100)
    for size in (10, 20):
        gate.leave(gate.enter("key ann", size))
    gate.leave(gate.enter("192.0.2.7", 30))
    with pytest.raises(LimitExceeded):
        gate.enter("key ann", 1000)
    assert gate.admission.of_keys == {"ann": (2, 30)}


def test_callers_take_turns() -> None:
    """With room for one, of six calls of one caller and two of another the two come second and fourth."""
    gate = Gate(max_pending=16)
    for caller in "aaaaaabb":
        gate.enter(caller)
    while gate.inside:
        gate.leave(next(ticket for ticket in gate.inside if ticket.is_running))
    assert "".join(ticket.caller for ticket in gate.started) == "aababaaa"


def test_models_do_not_wait_for_each_other() -> None:
    """A model whose room is taken holds nobody up who asks for another one."""
    gate = Gate(max_pending=16)
    busy = [gate.enter("a", model="busy") for _ in range(3)]
    assert [ticket.is_running for ticket in busy] == [True, False, False]
    assert gate.enter("a", model="idle").is_running


def test_a_caller_with_fewer_calls_takes_the_place_of_one_with_more() -> None:
    """At the bound the newest call that waits of the largest caller is refused; among equals the new one is."""
    gate = Gate(max_pending=8)
    many = [gate.enter("many") for _ in range(6)]
    with pytest.raises(Overloaded, match="this caller has as much pending as one may have"):
        gate.enter("many")
    for _ in range(2):
        gate.enter("few")
    assert gate.admission.running + gate.admission.queued == 8
    gate.enter("new")
    assert gate.evicted == [many[-1]]
    gate.enter("new")
    assert gate.evicted == many[:3:-1]
    with pytest.raises(Overloaded, match=r"^Exceeds maximum queue size: 8 calls are pending"):
        gate.enter("few")
    state = gate.admission
    assert (state.running, state.queued, state.accepted) == (1, 7, 10)
    assert state.refused == {"share": 1, "evicted": 2, "count": 1}


def test_bytes_are_bounded_too() -> None:
    """A large call makes room by the calls of those who have more bytes waiting; what can never fit is at fault."""
    gate = Gate(max_pending=100, max_bytes=100)
    for _ in range(7):
        gate.enter("many", 10)
    with pytest.raises(Overloaded):
        gate.enter("many", 10)  # above three quarters
    gate.enter("few", 30)
    with pytest.raises(Overloaded, match="calls of 100 bytes are pending"):
        gate.enter("few", 20)
    assert not gate.evicted
    gate.enter("new", 20)
    assert len(gate.evicted) == 2
    with pytest.raises(LimitExceeded, match="at most 100"):
        gate.enter("new", 101)
    assert gate.admission.refused == {"share": 1, "evicted": 2, "bytes": 1}


def test_it_says_when_to_come_back() -> None:
    """By the time that the workers need for what is pending."""
    gate = Gate(max_pending=1, retry_after=lambda model, calls: {"m": 7.0}[model] * calls)
    gate.enter("a")
    with pytest.raises(Overloaded) as found:
        gate.enter("b")
    assert found.value.retry_after_s == 7.0


STEPS = st.tuples(
    st.sampled_from(["enter", "enter", "enter", "leave", "cancel"]),
    st.sampled_from("abc"),
    st.sampled_from(["m", "n"]),
    st.integers(1, 40),
    st.integers(0, 100),
)


@given(st.lists(STEPS, max_size=80), st.integers(1, 6), st.integers(1, 3))
def test_the_books_add_up(steps: list[Any], max_pending: int, room: int) -> None:
    """Whatever comes, the bounds hold, nobody waits where there is room, and each call is started once at most."""
    gate = Gate(max_pending, 100, room)
    for step, caller, model, size, which in steps:
        waiting = [ticket for ticket in gate.inside if not ticket.is_running]
        running = [ticket for ticket in gate.inside if ticket.is_running]
        if step == "enter":
            try:
                gate.enter(caller, size, model)
            except Overloaded:
                own = [ticket for ticket in waiting if ticket.caller == caller]
                assert len(gate.inside) + 1 > 0.75 * max_pending or sum(each.size for each in gate.inside) + size > 75
                assert len(own) <= len(waiting)
        elif chosen := (running if step == "leave" else waiting):
            gate.leave(chosen[which % len(chosen)])
        state = gate.admission
        assert state.running == sum(ticket.is_running for ticket in gate.inside)
        assert state.running + state.queued == len(gate.inside) <= max_pending
        assert state.bytes == sum(ticket.size for ticket in gate.inside) <= 100
        assert len(set(map(id, gate.started))) == len(gate.started)
        for each in "mn":
            busy = [ticket.is_running for ticket in gate.inside if ticket.model == each]
            assert sum(busy) <= room
            assert sum(busy) == min(room, len(busy))
    for ticket in list(gate.inside):
        gate.leave(ticket)
    state = gate.admission
    assert (state.running, state.queued, state.bytes) == (0, 0, 0)
    assert not gate.admission._callers
    assert len(gate.admission._lanes) <= 2
    assert state.accepted >= len(gate.started)


def test_what_waits_for_its_turn_is_known_by_model() -> None:
    """How many calls, and since when the first of them: the gateway states them as pending."""
    gate = Gate(room=1)
    running = gate.enter("a")
    for since, caller in ((5.0, "a"), (3.0, "b")):
        gate.enter(caller).since = since
    gate.enter("a", model="idle")
    assert gate.admission.waiting() == {"m": (2, 3.0)}
    gate.admission.leave(running)
    assert gate.admission.waiting()["m"][0] == 1
