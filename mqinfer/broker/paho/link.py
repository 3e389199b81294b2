"""A link over MQTT, with paho-mqtt: one thread owns the connection, all others pass their messages to it."""

from __future__ import annotations

import asyncio

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import ConnectionHandler, Message
from mqinfer.broker.paho.client import check_paho
from mqinfer.broker.paho.connecting import Identity
from mqinfer.broker.paho.loop import Loop
from mqinfer.broker.routes import Routes
from mqinfer.broker.threaded.link import LinkThread, ThreadedLink
from mqinfer.broker.tls import make_tls_context

_LIMIT = ("Maximum Packet Size", "max_packet_size in mosquitto.conf")


class PahoLink(ThreadedLink):
    """A `Link` to an MQTT broker: MQTT 5, or 3.1.1 where the broker refuses it.

    A payload is not copied: a `bytearray` must not be changed until it is acknowledged.

    Args:
        address: The broker.
        client_id: Unique among all connections to the broker.
        will: Published by the broker when the link is lost without `close`.
        on_connection: Called at each connection, once all subscriptions are made again, at each loss, and at the end,
            with `failure` set.
        host: A loop whose thread reads and writes, and runs the handlers, in place of the link's own; it must never be
            blocked for long, and none of its tasks may open or close the link but by another thread. None for none.
    """

    def __init__(
        self,
        address: BrokerAddress,
        *,
        client_id: str,
        will: Message | None = None,
        on_connection: ConnectionHandler | None = None,
        host: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        check_paho()
        tls = None if address.tls is None else make_tls_context(address.tls)
        identity = Identity(address, client_id, will, tls=tls)

        def make_loop(thread: LinkThread, routes: Routes) -> Loop:
            return Loop(thread, identity, routes)

        super().__init__(address, client_id, will, on_connection, make_loop=make_loop, limit=_LIMIT, host=host)
