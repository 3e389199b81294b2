"""The contract of a link to a broker: what `PahoLink`, `NatsLink` and `MemoryLink` all do, and nothing more.

Narrow on purpose, so that another engine is one new file. `tests/broker/test_link_contract.py` runs over every link.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from mqinfer.protocol.errors import LinkError
from mqinfer.protocol.types import Buffer


class ReasonCode(IntEnum):
    """The MQTT 5 reason codes of a PUBACK that mqinfer acts on."""

    SUCCESS = 0x00
    NO_MATCHING_SUBSCRIBERS = 0x10
    UNSPECIFIED = 0x80
    NOT_AUTHORIZED = 0x87


class Message(Struct, frozen=True, eq=False):
    """One MQTT publication with the MQTT 5 properties that mqinfer uses.

    Attributes:
        topic: Without wildcards.
        payload: Its tail included, at most what fits into a packet of the link's `max_packet_size`.
        tail: What follows the payload, in pieces that need not lie together in memory: a sender's large arrays travel
            without a copy. They must stay as they are until the message is acknowledged. Received messages have none.
        qos: 0 or 1; QoS 2 is never used.
        retain: Whether the broker keeps it for later subscribers.
        content_type: Media type of the payload.
        response_topic: Where the reply goes.
        correlation_data: What the reply repeats.
        expiry_s: Message Expiry Interval in seconds.
        user_properties: Pairs in order; a name may come twice.
    """

    topic: str
    payload: Buffer
    qos: int = 1
    retain: bool = False
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    expiry_s: int | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    tail: tuple[Buffer, ...] = ()

    def joined(self) -> Message:
        """Return the message with all of its payload in one piece."""
        return replace(self, payload=b"".join((self.payload, *self.tail)), tail=()) if self.tail else self


MessageHandler = Callable[[Message], None]
ConnectionHandler = Callable[[bool], None]
Ack = Callable[[int], None]
Withdraw = Callable[[], None]
"""What gives up a message that has not begun to leave: it is not sent, and its memory is free. Else nothing changes."""


def ignore_ack(reason_code: int) -> None:
    """Ignore a PUBACK: for messages that are repeated anyway, such as states."""


def already_sent() -> None:
    """Withdraw nothing: for links that pass a message on at once."""


class Link(Protocol):
    """A connection to a broker that reconnects by itself. Any thread may call any method; no handler may call `close`.

    Handlers run on the link's own thread and must be short. A handler that raises is logged and loses one message.
    """

    @property
    def connected(self) -> bool:
        """Whether a publication would be sent now."""

    @property
    def failure(self) -> LinkError | None:
        """Why the link has given up for good, before it was closed; None while it reconnects by itself.

        The connection's handler is called with `False` once more when it is set.
        """

    @property
    def max_packet_size(self) -> int | None:
        """Largest packet that may be sent, in bytes: the broker's Maximum Packet Size, or a receiver's if smaller.

        None while unknown, and with MQTT 3.1.1.
        """

    def open(self, timeout: float = 10.0) -> None:
        """Connect, and wait until the broker has accepted.

        Args:
            timeout: In seconds.

        Raises:
            BrokerUnreachable: No broker answered in time.
            NotAuthorized: The broker refused the credentials.
        """

    def publish(self, message: Message, on_ack: Ack = ignore_ack) -> Withdraw:
        """Send a message; return before it has left.

        Args:
            message: What to send.
            on_ack: Called with the PUBACK's reason code, on the link's thread; never for QoS 0 or when the
                connection is lost first (`on_connection` reports that), or it is withdrawn.

        Returns:
            What gives it up.

        Raises:
            NotConnected: The link is down; the message is not kept.
            MessageTooLarge: The message is above `max_packet_size`; it is not sent.
        """

    def subscribe(
        self, topic_filter: str, handler: MessageHandler, *, share: str | None = None, retained: bool = True
    ) -> None:
        """Receive the messages of a filter, also after each reconnect; wait for the broker's answer while connected.

        Args:
            topic_filter: May hold `+` and `#`. Filters of one link must not overlap.
            handler: Called with each message, on the link's thread.
            share: Name of the group whose members compete for the messages (`$share/{share}/{filter}`).
            retained: Whether what the broker kept comes first; with False only what is published from now on comes
                (Retain Handling 2). MQTT 3.1.1 has no such option: there it comes, with `retain` set.

        Raises:
            NotAuthorized: The broker refused the subscription.
        """

    def unsubscribe(self, topic_filter: str, *, share: str | None = None) -> None:
        """Stop receiving; messages that the broker has already sent may still come until this returns."""

    def close(self, timeout: float = 5.0) -> None:
        """Wait until all that was published is acknowledged, at most `timeout` seconds, then disconnect cleanly."""
