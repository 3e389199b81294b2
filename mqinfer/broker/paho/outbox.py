"""What waits for a link's own thread: messages to send, and questions to the broker."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from mqinfer.broker.link import Ack, Message
from mqinfer.broker.packets import Head
from mqinfer.broker.paho.session import Session

__all__ = ["MOST_WAITING", "Outbox", "Outgoing", "Question"]

MOST_WAITING = 65_535
"""Messages that may wait for the link's thread: a backstop, the sender's window is far smaller."""
Question = Callable[[Session], Future[None]]
"""Asks the broker for something; the future has its answer."""


class Outgoing(NamedTuple):
    """A message that waits for the link's thread; void when its connection is gone by then."""

    epoch: int
    message: Message
    head: Head
    on_ack: Ack


@dataclass(frozen=True, slots=True)
class _Command:
    """A subscription to make or to give back, and where the broker's answer goes."""

    question: Question
    answer: Future[None]

    def put_to(self, session: Session) -> None:
        """Ask, or leave it to the next connection, which goes by the table of routes."""
        if session.accepted and session.alive:
            self.question(session).add_done_callback(self._pass_on)
        else:
            self.answer.set_result(None)

    def _pass_on(self, asked: Future[None]) -> None:
        error = asked.exception()
        if error is None:
            self.answer.set_result(None)
        else:
            self.answer.set_exception(error)


class Outbox:
    """Any thread puts in; the link's thread takes out."""

    def __init__(self) -> None:
        self._messages: deque[Outgoing] = deque()
        self._commands: deque[_Command] = deque()
        self.dropped = 0
        """Messages whose connection was lost before they could leave."""

    def __len__(self) -> int:
        """Count the messages that wait."""
        return len(self._messages)

    def put(self, outgoing: Outgoing) -> None:
        """Let a message wait."""
        self._messages.append(outgoing)

    def ask(self, question: Question) -> Future[None]:
        """Let a question wait; gives where its answer will be."""
        command = _Command(question, Future())
        self._commands.append(command)
        return command.answer

    def can_empty(self, session: Session) -> bool:
        """Whether the link's thread could hand something to the session now."""
        return bool(self._commands) or (bool(self._messages) and session.has_room)

    def empty_into(self, session: Session, epoch: int) -> None:
        """Hand over all questions, and the messages of this connection as far as its window goes."""
        while self._commands:
            self._commands.popleft().put_to(session)
        while self._messages and session.has_room:
            outgoing = self._messages.popleft()
            if outgoing.epoch == epoch:
                session.send(outgoing.message, outgoing.head, outgoing.on_ack)
            else:
                self.dropped += 1

    def clear(self) -> None:
        """Drop the messages, and leave the questions to the next connection: this one is lost."""
        self.dropped += len(self._messages)
        self._messages.clear()
        while self._commands:
            self._commands.popleft().answer.set_result(None)
