"""From an address to a requester that is connected and receives its replies."""

from __future__ import annotations

import secrets

from mqinfer.broker import make_link
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import ConnectionHandler, Link
from mqinfer.broker.presence import Presence, make_client_id
from mqinfer.client.options import ClientOptions
from mqinfer.client.requester import Requester
from mqinfer.protocol.topics import Topics, check_name

__all__ = ["connect", "random_name"]


def random_name() -> str:
    """Return a client name that no other client has."""
    return f"client-{secrets.token_hex(6)}"


def connect(  # noqa: PLR0913 - what a client is
    url: str | BrokerAddress,
    name: str,
    topics: Topics | None = None,
    options: ClientOptions | None = None,
    *,
    timeout: float = 10.0,
    presence: Presence | None = None,
) -> Requester:
    """Return a requester that is connected and receives its replies.

    Args:
        url: The broker.
        name: The client's name in its topics; must be unique.
        topics: Below the root of the site.
        options: How it sends.
        timeout: For the connection, in seconds.
        presence: The client's state on the broker; None for none.

    Raises:
        BrokerUnreachable: No broker answers at the address.
        NotAuthorized: The broker refused the credentials.
        BadTopic: The name breaks the naming rules.
    """
    check_name("client", name)
    client_id, will = (presence.client_id, presence.will) if presence else (make_client_id(name), None)

    def make(on_connection: ConnectionHandler) -> Link:
        def tell(connected: bool) -> None:  # noqa: FBT001  the link's signature
            if connected and presence:
                presence.publish()
            on_connection(connected)

        return make_link(url, client_id=client_id, will=will, on_connection=tell)

    requester = Requester(make, name, topics or Topics(), options or ClientOptions())
    if presence:
        presence.attach(requester.link, requester.give_up)
        presence.watch()
    try:
        requester.open(timeout)
    except BaseException:
        requester.close(timeout=0.0)
        raise
    return requester
