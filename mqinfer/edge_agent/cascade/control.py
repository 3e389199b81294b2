"""An edge's side of the control topic: operators read a cascade's settings there, and change some of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import suppress

from mqinfer.broker.link import Message, ignore_ack
from mqinfer.client.requester import Requester
from mqinfer.edge_agent.cascade.cascade import Cascade
from mqinfer.judging.settings import CascadeSettings, to_record
from mqinfer.logs import log_call, log_dropped
from mqinfer.protocol.control import Operation, read_body
from mqinfer.protocol.decoding import write_json
from mqinfer.protocol.errors import BadTopic, LinkError, ModelNotLoadable, MqinferError, Rejected
from mqinfer.protocol.topics import answer_topic

log = logging.getLogger("mqinfer.edge_agent")
_CLOSE_S = 10.0
"""How long the end of a run waits for a version that is being loaded."""


class CascadeControl:
    """Answers the call `cascade` to the edge's own name, on the link's thread; one that loads a version has its own."""

    def __init__(self, cascade: Cascade, requester: Requester) -> None:
        """Subscribe.

        Args:
            cascade: Whose settings are read and changed.
            requester: Of the edge, connected.
        """
        self._cascade = cascade
        self._name, self._topics, self._link = requester.name, requester.topics, requester.link
        self._ignored = 0
        self._loading: threading.Thread | None = None
        self._calls = self._topics.control.filter(server=self._name, path=Operation.CASCADE)
        try:
            self._link.subscribe(self._calls, self._receive, retained=False)
        except LinkError as error:
            log.info("%s; the cascade can't be changed while it runs", error)
        log.info("cascade ready: operators reach it as %s", self._name)

    def close(self) -> None:
        """Receive no more calls."""
        with suppress(LinkError):
            self._link.unsubscribe(self._calls)
        if self._loading:
            self._loading.join(_CLOSE_S)

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
            if "version" in changes:
                self._load(topic, message, changes)
                return
            reply = self._answer(changes)
        except MqinferError as error:
            reply = _refusal(error)
        self._publish(topic, message, changes, reply)

    def _load(self, topic: str, message: Message, changes: Mapping[str, object]) -> None:
        """Change the version on a thread, and reply from there: a model takes a while to load."""
        if self._loading and self._loading.is_alive():
            raise Rejected("the edge is loading another version; try again when it has finished")

        def load() -> None:
            try:
                reply = self._answer(changes)
            except Exception as error:  # noqa: BLE001 - an engine may raise anything; the version before goes on
                reply = _refusal(error if isinstance(error, MqinferError) else ModelNotLoadable(repr(error)))
            self._publish(topic, message, changes, reply)

        self._loading = threading.Thread(target=load, name="mqinfer-cascade-version", daemon=True)
        self._loading.start()

    def _answer(self, changes: Mapping[str, object]) -> dict[str, object]:
        """Return the settings, after these changes, and which small model runs here."""
        settings: CascadeSettings = self._cascade.change(changes) if changes else self._cascade.settings
        runs = self._cascade.runs
        return {**to_record(settings), **({"runs": runs} if runs else {})}

    def _reply_topic(self, message: Message) -> str:
        if message.retain:
            raise BadTopic("a control request must not be retained")
        stated = message.response_topic or read_body(message.payload).response_topic
        return answer_topic(self._topics.edge_reply, stated, self._name)

    def _publish(self, topic: str, message: Message, changes: Mapping[str, object], reply: dict[str, object]) -> None:
        caller = self._topics.control.parse(message.topic)["client"]
        log_call(caller, Operation.CASCADE, reply, changes=changes or None, proven=None)
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


def _refusal(error: MqinferError) -> dict[str, object]:
    log.warning("cascade: refused a change: %s", error)
    return {"error": str(error)[:4000], "code": error.code}
