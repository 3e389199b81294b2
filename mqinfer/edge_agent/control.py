"""An edge's side of the control topic: operators ask for an operation by the edge's own name."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from mqinfer.broker.link import Message, ignore_ack
from mqinfer.client.requester import Requester
from mqinfer.logs import log_call, log_dropped
from mqinfer.protocol.control import Operation, read_body
from mqinfer.protocol.decoding import write_json
from mqinfer.protocol.errors import BadTopic, LinkError, ModelNotLoadable, MqinferError, Rejected
from mqinfer.protocol.topics import answer_topic

log = logging.getLogger("mqinfer.edge_agent")
_CLOSE_S = 10.0
"""How long the end of a run waits for an answer that takes a while."""


class EdgeControl:
    """Subscribes to one operation, and answers calls of it on the link's thread; those that take a while have a thread.

    Args:
        requester: Of the edge, connected.
        operation: What is answered.
        answer: Returns the content of the reply to a call with these parameters; raises an MqinferError to refuse.
        slow: The parameter with which a call takes a while.
    """

    def __init__(
        self,
        requester: Requester,
        operation: Operation,
        answer: Callable[[Mapping[str, object]], dict[str, object]],
        slow: str = "",
    ) -> None:
        self._operation, self._answer, self._slow = operation, answer, slow
        self._name, self._topics, self._link = requester.name, requester.topics, requester.link
        self._ignored = 0
        self._working: threading.Thread | None = None
        self._calls = self._topics.control.filter(server=self._name, path=operation)
        try:
            self._link.subscribe(self._calls, self._receive, retained=False)
        except LinkError as error:
            log.info("%s; %s takes no calls", error, operation)
        log.info("%s ready: operators reach it as %s", operation, self._name)

    def close(self) -> None:
        """Receive no more calls."""
        with suppress(LinkError):
            self._link.unsubscribe(self._calls)
        if self._working:
            self._working.join(_CLOSE_S)

    def _receive(self, message: Message) -> None:
        try:
            topic = self._reply_topic(message)
        except MqinferError as error:
            self._ignored += 1
            log_dropped(log, f"a message on {message.topic}: {error}", "dropped_control", self._ignored)
            return
        changes: dict[str, object] = {}
        try:
            body = read_body(message.payload)
            changes = {key: (body.parameters or {})[key] for key in body.further}
            if self._slow in changes:
                self._begin(topic, message, changes)
                return
            reply = self._answer(changes)
        except MqinferError as error:
            reply = self._refusal(error)
        self._publish(topic, message, changes, reply)

    def _begin(self, topic: str, message: Message, changes: Mapping[str, object]) -> None:
        """Answer on a thread, and reply from there."""
        if self._working and self._working.is_alive():
            raise Rejected(f"the edge works on another {self._slow}; try again when it has finished")

        def work() -> None:
            try:
                reply = self._answer(changes)
            except Exception as error:  # noqa: BLE001 - an engine may raise anything; what was before goes on
                reply = self._refusal(error if isinstance(error, MqinferError) else ModelNotLoadable(repr(error)))
            self._publish(topic, message, changes, reply)

        self._working = threading.Thread(target=work, name=f"mqinfer-{self._operation}-{self._slow}", daemon=True)
        self._working.start()

    def _reply_topic(self, message: Message) -> str:
        if message.retain:
            raise BadTopic("a control request must not be retained")
        stated = message.response_topic or read_body(message.payload).response_topic
        return answer_topic(self._topics.edge_reply, stated, self._name)

    def _publish(self, topic: str, message: Message, changes: Mapping[str, object], reply: dict[str, object]) -> None:
        caller = self._topics.control.parse(message.topic)["client"]
        log_call(caller, self._operation, reply, changes=changes or None, proven=None)
        payload = write_json({**reply, "server": self._name}, "control reply")
        try:
            self._link.publish(
                Message(
                    topic,
                    payload,
                    content_type="application/json",
                    correlation_data=message.correlation_data,
                    user_properties=(("server", self._name),),
                ),
                ignore_ack,
            )
        except LinkError as error:
            log.warning("the reply on %s was not published: %s", topic, error)

    def _refusal(self, error: MqinferError) -> dict[str, object]:
        log.warning("%s: refused a change: %s", self._operation, error)
        return {"error": str(error)[:4000], "code": error.code}
