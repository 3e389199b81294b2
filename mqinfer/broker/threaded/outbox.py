"""What waits for a link's thread: messages, and questions to the broker."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from mqinfer.broker.link import Ack, Message
from mqinfer.broker.packets import Head
from mqinfer.broker.routes import Route

_log = logging.getLogger("mqinfer.broker")

MOST_QUEUED = 65_535
"""Messages that may be queued for the link's thread: a backstop, since the sender's window is far smaller."""


class LinkSession(Protocol):
    """As much of a connection as its outbox sees."""

    @property
    def accepted(self) -> bool:
        """Whether the broker has accepted the connection."""

    @property
    def alive(self) -> bool:
        """Whether the connection has not ended."""

    @property
    def has_room(self) -> bool:
        """Whether one more message may be sent now."""

    def send(self, message: Message, head: Head, on_ack: Ack) -> None:
        """Send a message."""

    def subscribe(self, route: Route, answer: Future[None]) -> None:
        """Make a subscription; the broker's answer goes into the future."""

    def unsubscribe(self, name: str, answer: Future[None]) -> None:
        """Remove a subscription; likewise."""

    def cut(self, answer: Future[None]) -> None:
        """Break the connection, as a cut cable would."""


Question = Callable[[LinkSession, Future[None]], None]
"""Asks the broker for something; its answer goes into the future."""


class Outgoing(Struct, eq=False):
    """A message for the link's thread; dropped if its connection is gone by then.

    Attributes:
        epoch: Number of its connection.
        message: The message; None once it is withdrawn.
        head: Its packet but for the payload.
        on_ack: Called with the PUBACK's reason code.
    """

    epoch: int
    message: Message | None
    head: Head
    on_ack: Ack

    def withdraw(self) -> None:
        """Give up the message, unless the link's thread has passed it on."""
        self.message = None


@dataclass(frozen=True, slots=True)
class _Command:
    """A subscription to make or to remove, and where the broker's answer goes."""

    question: Question
    answer: Future[None]

    def put_to(self, session: LinkSession) -> None:
        """Ask the broker, or leave it to the next connection, which goes by the table of routes."""
        if not (session.accepted and session.alive):
            self.answer.set_result(None)
            return
        try:
            self.question(session, self.answer)
        except Exception as error:  # noqa: BLE001 - what paho refuses to send is the asker's fault, not the link's
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

    def can_empty(self, session: LinkSession) -> bool:
        """Return whether the link's thread could pass something to the session now."""
        return bool(self._commands) or (bool(self._messages) and session.has_room)

    def empty_into(self, session: LinkSession, epoch: int) -> None:
        """Pass on all questions, and the messages of this connection as far as its window allows."""
        while self._commands:
            self._commands.popleft().put_to(session)
        while self._messages and session.has_room:
            outgoing = self._messages.popleft()
            message = outgoing.message  # another thread may withdraw it now
            if message is None:
                continue
            if outgoing.epoch != epoch or not _send(session, message, outgoing):
                self.dropped += 1

    def clear(self) -> None:
        """Drop the messages and leave the questions to the next connection: this one is lost."""
        self.dropped += len(self._messages)
        self._messages.clear()
        while self._commands:
            self._commands.popleft().answer.set_result(None)


def _send(session: LinkSession, message: Message, outgoing: Outgoing) -> bool:
    """Send a message; return False where its payload can no longer be read, since its owner released the memory."""
    try:
        session.send(message, outgoing.head, outgoing.on_ack)
    except Exception:  # noqa: BLE001 - one message's fault must not end the link
        _log.exception("topic %s: the message can't be sent and is lost", message.topic)
        return False
    return True
