"""Why nobody serves a model: what the servers say that could not load it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any

from mqinfer.broker.link import Message, ReasonCode
from mqinfer.client.requester import Requester
from mqinfer.logs import printable
from mqinfer.protocol.control import Call, ModelState, Operation
from mqinfer.protocol.decoding import parse_json
from mqinfer.protocol.errors import LinkError, ModelNotFound, MqinferError, NoWorker
from mqinfer.protocol.header import error_message
from mqinfer.protocol.topics import EVERY_SERVER, nearest

_ASK_S = 1.0
"""How long replies are waited for; an edge's login may not ask, which the broker says at once, or never."""
RETAINED_S = 0.3
"""Time for the cards that the broker keeps to come."""
_LIST_S = 0.5
"""How long replies are waited for that say whether a server has a model at all."""
_FRESH_S = 10.0
"""The servers are not asked again so soon."""
_MOST = 64
"""Reasons that are kept of one question."""


class Absence:
    """Asks the servers of a site over a requester's own connection. Thread-safe."""

    def __init__(self, requester: Requester) -> None:
        """Receive the replies from now on."""
        self._requester = requester
        self._asking = threading.Lock()
        self._changed = threading.Condition()
        self._asked_at = -_FRESH_S
        self._question = b""
        self._is_refused = False
        self._found: list[tuple[str, str]] = []  # models, each with the reason
        self._asked: Collection[str] = ()
        self._replies, self._is_listed = 0, False
        requester.on_control = self.on_reply

    def explained(self, error: ModelNotFound | NoWorker, model: str, timeout: float) -> ModelNotFound | NoWorker:
        """Return an error with the reasons in its message, where servers state some within the time, in seconds."""
        reasons = self.reasons([model], min(timeout, _ASK_S)) if timeout > 0 else ""
        return type(error)(f"{error}; {reasons}") if reasons else error

    def is_mistyped(self, model: str) -> bool:
        """Return whether a card is kept of a model of nearly this name, and no worker or server has this one.

        The cards must have had their time to come. Where no server replies, a model may be there that has no card yet.
        """
        known = self._requester.registry
        if known.card(model) or known.models.knows(model) or known.models.was_known(model):
            return False
        if not nearest(model, sorted(known.cards)):
            return False
        with self._asking:
            self._ask([model], _LIST_S)
            self._asked_at = -_FRESH_S  # for the reasons they are asked anew
            with self._changed:
                return self._replies > 0 and not self._is_listed

    def reasons(self, models: Collection[str], timeout: float = 2 * _ASK_S) -> str:
        """Return which servers could not load one of these models, and why; empty where none says so in time."""
        if not self._asking.acquire(timeout=timeout):
            return ""
        try:
            if time.monotonic() - self._asked_at >= _FRESH_S:
                self._ask(models, timeout)
            with self._changed:
                return "; ".join(dict.fromkeys(reason for model, reason in self._found if model in models))
        finally:
            self._asking.release()

    def _ask(self, models: Collection[str], timeout: float) -> None:
        requester, question = self._requester, os.urandom(16)
        with self._changed:
            self._question, self._is_refused, self._found = question, False, []
            self._asked, self._replies, self._is_listed = models, 0, False
        call = Message(
            topic=requester.topics.control(EVERY_SERVER, requester.name, Call(Operation.INDEX).path),
            payload=b"{}",
            content_type="application/json",
            response_topic=requester.topics.control_result(requester.name, question.hex()),
            correlation_data=question,
            expiry_s=1,
        )
        with suppress(LinkError):
            requester.link.publish(call, self._on_ack)
            with self._changed:
                self._changed.wait_for(lambda: self._is_refused or self._names_any(models), timeout)
        self._asked_at = time.monotonic()

    def _names_any(self, models: Collection[str]) -> bool:
        return any(model in models for model, _ in self._found)

    def _on_ack(self, code: int) -> None:
        with self._changed:
            self._is_refused = code != ReasonCode.SUCCESS
            self._changed.notify_all()

    def on_reply(self, message: Message) -> None:
        """Take a server's reply; one to another question is left alone. Called on the link's thread."""
        with suppress(MqinferError), self._changed:  # a reply that can't be read is no reason
            if message.topic.rpartition("/")[2] == self._question.hex():
                index = parse_json(message.payload, "control reply")
                entries = [each for each in index if isinstance(each, dict)] if isinstance(index, list) else []
                self._found = [*self._found, *_failures(entries)][:_MOST]
                self._replies += 1
                self._is_listed |= any(str(each.get("name")) in self._asked for each in entries)
                self._changed.notify_all()


def _failures(index: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the models of a server's index that it could not load, each with the reason."""
    for entry in index:
        name, reason = str(entry.get("name")), str(entry.get("reason") or "")
        if entry.get("state") != ModelState.READY and reason not in {"", "not loaded"}:
            yield name, printable(error_message(f"server {entry.get('server')} can't load model {name!r}: {reason}"))
