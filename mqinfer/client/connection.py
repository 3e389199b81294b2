"""From an address to a requester that is connected and listens for its replies."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from mqinfer.broker import make_link
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import ConnectionHandler, Link, Message, ignore_ack
from mqinfer.broker.presence import NameGuard, boot_number, connection_id
from mqinfer.client.options import RequesterConfig
from mqinfer.client.requester import Requester
from mqinfer.protocol.errors import NotConnected
from mqinfer.protocol.topics import check_name

__all__ = ["Presence", "connect", "random_name"]


def random_name() -> str:
    """Make up a client name that no other client has."""
    return f"client-{secrets.token_hex(6)}"


@dataclass(frozen=True, slots=True)
class Presence:
    """How a client is seen on the broker.

    Attributes:
        boot: The number of this client's start, which its states carry.
        will: What the broker says when the client is lost.
        state: Gives what the client says of itself; published at each connection.
    """

    boot: int
    will: Message
    state: Callable[[], Message]


def connect(
    url: str | BrokerAddress, config: RequesterConfig, timeout: float = 10.0, presence: Presence | None = None
) -> Requester:
    """Make a requester and open its link.

    Args:
        url: The broker.
        config: The client's name and how it sends.
        timeout: For the connection, in seconds.
        presence: How the client is seen; None for not at all.

    Raises:
        BrokerUnreachable: No broker answers at the address.
        NotAuthorized: The broker refused the credentials.
        BadTopic: The name breaks the naming rules.
    """
    check_name("client", config.name)
    boot, will = (presence.boot, presence.will) if presence else (boot_number(), None)

    def announce() -> None:
        if presence and not requester.failure:
            with suppress(NotConnected):  # lost again already; the next connection says it
                requester.link.publish(presence.state(), ignore_ack)

    def make(on_connection: ConnectionHandler) -> Link:
        def tell(connected: bool) -> None:  # noqa: FBT001  the link's signature
            if connected:
                announce()
            on_connection(connected)

        return make_link(url, client_id=connection_id(config.name, boot), will=will, on_connection=tell)

    requester = Requester(make, config)
    if presence:
        guard = NameGuard(config.name, boot, announce, requester.give_up)
        guard.watch(requester.link, config.topics.client_state(config.name))
    try:
        requester.open(timeout)
    except BaseException:
        requester.close(timeout=0.0)
        raise
    return requester
