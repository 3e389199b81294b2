"""What waits for a link's thread, emptied into a session that notes what it gets."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mqinfer.broker.link import Ack, Message, ignore_ack
from mqinfer.broker.packets import Head, encode_head
from mqinfer.broker.threaded.link import LinkSession, Outbox, Outgoing, Question
from mqinfer.protocol.errors import NotAuthorized


class Connection:
    """As much of a session as an outbox sees: a window, and what came through it.

    Attributes:
        took: Payloads of messages, and names of questions, in their order.
    """

    def __init__(self, window: int = 100, *, accepted: bool = True, alive: bool = True) -> None:
        self.window, self.accepted, self.alive = window, accepted, alive
        self.took: list[Any] = []
        self.acks: list[Ack] = []

    @property
    def has_room(self) -> bool:
        """Whether one more message fits."""
        return len(self.acks) < self.window

    def send(self, message: Message, head: Head, on_ack: Ack) -> None:
        """Take a message."""
        assert self.has_room
        assert head == encode_head(message)
        self.took.append(message.payload)
        self.acks.append(on_ack)

    def unsubscribe(self, name: str, answer: Future[None]) -> None:
        """Take a question; the answer comes when the test gives it."""
        self.took.append(name)
        self.answer = answer


def session(connection: Connection) -> LinkSession:
    """Pass for a session."""
    return cast("LinkSession", connection)


def outgoing(number: int, epoch: int = 1) -> Outgoing:
    """A message of one connection."""
    message = Message("t", b"%d" % number)
    return Outgoing(epoch, message, encode_head(message), ignore_ack)


def question(name: str) -> Question:
    """Ask for the end of a subscription."""
    return lambda session, answer: session.unsubscribe(name, answer)


def test_messages_leave_in_their_order() -> None:
    """First in, first out, each with its own acknowledgement; then nothing waits."""
    outbox, connection = Outbox(), Connection()
    acked: list[list[int]] = [[], [], []]
    for number, codes in enumerate(acked):
        outbox.put(replace(outgoing(number), on_ack=codes.append))
    assert (len(outbox), outbox.can_empty(session(connection))) == (3, True)
    outbox.empty_into(session(connection), 1)
    assert connection.took == [b"0", b"1", b"2"]
    for number, on_ack in enumerate(connection.acks):
        on_ack(number)
    assert acked == [[0], [1], [2]]
    assert (len(outbox), outbox.dropped, outbox.can_empty(session(connection))) == (0, 0, False)


def test_messages_of_an_earlier_connection_are_dropped_and_counted() -> None:
    """They were promised to a connection that is gone: whoever sent them was told, and sends them again."""
    outbox, connection = Outbox(), Connection()
    for number, epoch in enumerate([1, 2, 1, 2]):
        outbox.put(outgoing(number, epoch))
    outbox.empty_into(session(connection), 2)
    assert connection.took == [b"1", b"3"]
    assert (len(outbox), outbox.dropped) == (0, 2)


def test_no_more_leave_than_the_window_takes() -> None:
    """The others wait, and nothing can be emptied, until an acknowledgement makes room."""
    outbox, connection = Outbox(), Connection(window=2)
    for number in range(4):
        outbox.put(outgoing(number))
    outbox.empty_into(session(connection), 1)
    assert (connection.took, len(outbox)) == ([b"0", b"1"], 2)
    assert not outbox.can_empty(session(connection))
    connection.acks.pop()
    assert outbox.can_empty(session(connection))
    outbox.empty_into(session(connection), 1)
    assert (connection.took, len(outbox)) == ([b"0", b"1", b"2"], 1)


def test_what_is_withdrawn_does_not_leave() -> None:
    """Nothing keeps its memory, it takes nobody's place and is no loss; once it has left it can't be withdrawn."""
    outbox, connection = Outbox(), Connection(window=2)
    messages = [outgoing(number) for number in range(4)]
    for each in messages:
        outbox.put(each)
    messages[1].withdraw()
    assert messages[1].message is None
    outbox.empty_into(session(connection), 1)
    messages[0].withdraw()
    assert (connection.took, len(outbox), outbox.dropped) == ([b"0", b"2"], 1, 0)


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 5)))
def test_each_message_is_sent_dropped_or_waits(epochs: list[int], windows: list[int]) -> None:
    """Whatever the windows: none is lost or doubled, what is sent is of this connection, and their order is kept."""
    outbox, took = Outbox(), []
    for number, epoch in enumerate(epochs):
        outbox.put(outgoing(number, epoch))
    for window in windows:
        connection = Connection(window)
        outbox.empty_into(session(connection), 1)
        took += connection.took
    mine = [b"%d" % number for number, epoch in enumerate(epochs) if epoch == 1]
    assert took == mine[: len(took)]
    assert len(took) + outbox.dropped + len(outbox) == len(epochs)


def test_questions_go_first() -> None:
    """Whoever waits for the answer waits for no message, and needs no window."""
    outbox, connection = Outbox(), Connection(window=1)
    outbox.put(outgoing(0))
    outbox.put(outgoing(1))
    for name in ("a", "b"):
        outbox.ask(question(name))
    outbox.empty_into(session(connection), 1)
    assert connection.took == ["a", "b", b"0"]
    outbox.ask(question("c"))
    assert outbox.can_empty(session(connection))
    outbox.empty_into(session(connection), 1)
    assert connection.took == ["a", "b", b"0", "c"]


def test_the_brokers_answer_is_passed_on() -> None:
    """Its yes, and its no with what it says."""
    outbox, connection = Outbox(), Connection()
    granted = outbox.ask(question("a"))
    outbox.empty_into(session(connection), 1)
    assert not granted.done()
    connection.answer.set_result(None)
    assert granted.result(0) is None
    refused = outbox.ask(question("b"))
    outbox.empty_into(session(connection), 1)
    connection.answer.set_exception(NotAuthorized("no"))
    with pytest.raises(NotAuthorized, match="no"):
        refused.result(0)


@pytest.mark.parametrize(("accepted", "alive"), [(False, True), (True, False)])
def test_a_question_without_a_connection_is_left_to_the_next(*, accepted: bool, alive: bool) -> None:
    """Nobody is asked, and nobody waits: the next connection goes by the table of routes."""
    outbox, connection = Outbox(), Connection(accepted=accepted, alive=alive)
    answer = outbox.ask(question("a"))
    outbox.empty_into(session(connection), 1)
    assert answer.done()
    assert connection.took == []


def test_clear_counts_the_messages_and_frees_who_asked() -> None:
    """The connection is lost: nothing of it comes to the next one."""
    outbox, connection = Outbox(), Connection()
    for number in range(3):
        outbox.put(outgoing(number))
    answers = [outbox.ask(question(name)) for name in "ab"]
    outbox.clear()
    assert (len(outbox), outbox.dropped) == (0, 3)
    assert all(answer.done() for answer in answers)
    assert not outbox.can_empty(session(connection))
    outbox.empty_into(session(connection), 1)
    assert connection.took == []
