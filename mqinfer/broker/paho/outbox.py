"""The queue of a link's thread: messages to send, and questions to the broker."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from mqinfer.broker.link import Ack, Message
from mqinfer.broker.packets import Head
from mqinfer.broker.paho.session import Session

_log = logging.getLogger("mqinfer.broker")

MOST_QUEUED = 65_535
"""Messages that may be queued for the link's thread: a backstop, since the sender's window is far smaller."""
Question = Callable[[Session], Future[None]]
"""Asks the broker for something; the future has its answer."""


class Outgoing(NamedTuple):
    """A message for the link's thread; dropped if its connection is gone by then."""

    epoch: int
    message: Message
    head: Head
    on_ack: Ack


@dataclass(frozen=True, slots=True)
class _Command:
    """A subscription to make or to remove, and where the broker's answer goes."""

    question: Question
    answer: Future[None]

    def put_to(self, session: Session) -> None:
        """Ask the broker, or leave it to the next connection, which goes by the table of routes."""
        if not (session.accepted and session.alive):
            self.answer.set_result(None)
            return
        try:
            asked = self.question(session)
        except Exception as error:  # noqa: BLE001 - what paho refuses to send is the asker's fault, not the link's
            self.answer.set_exception(error)
        else:
            asked.add_done_callback(self._pass_on)

    def _pass_on(self, asked: Future[None]) -> None:
        error = asked.exception()
        if error is None:
            self.answer.set_result(None)
        else:
            self.answer.set_exception(error)


class Outbox:
    """The queue between all threads, which put in, and the link's thread, which takes out."""

    def __init__(self) -> None:
        self._messages: deque[Outgoing] = deque()
        self._commands: deque[_Command] = deque()
        self.dropped = 0
        """Messages whose connection was lost before they could leave, and those that changed meanwhile."""

    def __len__(self) -> int:
        """Count the queued messages."""
        return len(self._messages)

    def put(self, outgoing: Outgoing) -> None:
        """Queue a message."""
        self._messages.append(outgoing)

    def ask(self, question: Question) -> Future[None]:
        """Queue a question; return where its answer will be."""
        command = _Command(question, Future())
        self._commands.append(command)
        return command.answer

    def can_empty(self, session: Session) -> bool:
        """Return whether the link's thread could pass something to the session now."""
        return bool(self._commands) or (bool(self._messages) and session.has_room)

    def empty_into(self, session: Session, epoch: int) -> None:
        """Pass on all questions, and the messages of this connection as far as its window allows."""
        while self._commands:
            self._commands.popleft().put_to(session)
        while self._messages and session.has_room:
            outgoing = self._messages.popleft()
            if outgoing.epoch != epoch or not _send(session, outgoing):
                self.dropped += 1

    def clear(self) -> None:
        """Drop the messages and leave the questions to the next connection: this one is lost."""
        self.dropped += len(self._messages)
        self._messages.clear()
        while self._commands:
            self._commands.popleft().answer.set_result(None)


def _send(session: Session, outgoing: Outgoing) -> bool:
    """Send a message; return False where its payload can no longer be read, since its owner released the memory."""
    try:
        session.send(outgoing.message, outgoing.head, outgoing.on_ack)
    except Exception:  # noqa: BLE001 - one message's fault must not end the link
        _log.exception("topic %s: the message can't be sent and is lost", outgoing.message.topic)
        return False
    return True
