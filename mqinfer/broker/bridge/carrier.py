"""One direction of a bridge: messages on their way to a link, bounded, and what becomes of those that don't arrive."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from msgspec.structs import replace

from mqinfer.broker.link import Link, Message, ReasonCode
from mqinfer.protocol import envelope, header, oip_json
from mqinfer.protocol.checksum import checksum
from mqinfer.protocol.errors import BadTopic, MqinferError, NotAuthorized, NotConnected, Rejected
from mqinfer.protocol.topics import Topics, may_reply
from mqinfer.protocol.types import ErrorInfo, InferResponse

MARK = "bridge"
"""User property of all that a bridge has carried; its value is the site. No bridge carries such a message again."""
_MOST_MESSAGES, _MOST_BYTES = 4096, 256 << 20

Failed = Callable[[Message, MqinferError], None]
"""Called with a message that was not delivered, and why."""


def is_marked(message: Message) -> bool:
    """Return whether a bridge brought a message."""
    return any(name == MARK for name, _ in message.user_properties)


class Carrier:
    """Publishes over one link: at most 4096 messages and 256 MiB without an acknowledgement. Any thread may call it.

    Attributes:
        counters: Messages `carried`, and those dropped by the code of the error.

    Args:
        site: Value of the mark.
        link: Where to.
    """

    def __init__(self, site: str, link: Link) -> None:
        self.counters: Counter[str] = Counter()
        self._mark = ((MARK, site),)
        self._link = link
        self._lock = threading.Lock()
        self._on_way: dict[object, int] = {}
        self._bytes = 0

    @property
    def connected(self) -> bool:
        """Whether it can send now."""
        return self._link.connected

    def carry(self, message: Message, failed: Failed | None = None) -> None:
        """Send a message on with the mark, unless it has one."""
        if is_marked(message):
            self.drop(message, Rejected("a bridge has brought it here already; it is not carried on"), failed)
        else:
            self.send(replace(message, user_properties=message.user_properties + self._mark), failed)

    def send(self, message: Message, failed: Failed | None = None) -> None:
        """Send a message as it is, with QoS 1, so that it counts until the broker has it."""
        way, size = object(), len(message.payload)
        with self._lock:
            count = len(self._on_way)
            is_full = count >= _MOST_MESSAGES or self._bytes + size > _MOST_BYTES
            if not is_full:
                self._on_way[way] = size
                self._bytes += size
        if is_full:
            self.drop(message, Rejected(f"the bridge has {count} messages on their way; try later"), failed)
            return

        def acknowledged(code: int) -> None:
            self._leave(way)
            if code == ReasonCode.NO_MATCHING_SUBSCRIBERS and not message.retain:
                self.drop(message, Rejected("nobody behind the bridge takes it now"), failed)
            elif code >= ReasonCode.UNSPECIFIED:
                error = NotAuthorized(f"the broker behind the bridge refused {message.topic!r} with 0x{code:02x}")
                self.drop(message, error, failed)
            else:
                self.counters["carried"] += 1

        try:
            self._link.publish(replace(message, qos=1), acknowledged)
        except MqinferError as error:
            self._leave(way)
            self.drop(message, Rejected(str(error)) if isinstance(error, NotConnected) else error, failed)

    def drop(self, message: Message, error: MqinferError, failed: Failed | None = None) -> None:
        """Count a message that is not carried."""
        self.counters[f"dropped_{error.code}"] += 1
        if failed is not None:
            failed(message, error)

    def reset(self) -> None:
        """Forget what was on its way: the connection is lost."""
        with self._lock:
            self._on_way.clear()
            self._bytes = 0

    def _leave(self, way: object) -> None:
        with self._lock:
            self._bytes -= self._on_way.pop(way, 0)


def refusal(topics: Topics, request: Message, error: MqinferError) -> Message | None:
    """Return the reply that tells a sender why its request was not carried; None where it names no place for one."""
    where = request.response_topic or ""
    try:
        address = topics.parse_infer(request.topic)
    except BadTopic:
        return None
    if not may_reply(topics, where, address.model, address.client):
        return None
    return error_reply(where, address.model, request, error)


def error_reply(topic: str, model: str, about: Message, error: MqinferError) -> Message:
    """Return a reply that is an error, in the form and with the Correlation Data of a request or of another reply."""
    response = InferResponse(
        id=about.correlation_data.hex() if about.correlation_data else topic.rpartition("/")[2],
        model_name=model,
        outcome=error.outcome,
        error=ErrorInfo(error.code, str(error)),
    )
    if is_json := header.is_json(about.content_type, about.payload):
        payload = oip_json.encode_response(response, arrays={}, binary=False)[0]
    else:
        payload = envelope.encode_response(response)
    return Message(
        topic,
        payload,
        content_type=oip_json.CONTENT_TYPE if is_json else envelope.CONTENT_TYPE,
        correlation_data=about.correlation_data,
        user_properties=(checksum((payload,)),),
    )
