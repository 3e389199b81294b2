"""A link over NATS, with nats-py: a loop on a thread of its own owns the connection, all others pass messages to it."""

from __future__ import annotations

import logging

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import ConnectionHandler, Message
from mqinfer.broker.nats.loop import NatsLoop
from mqinfer.broker.routes import Routes
from mqinfer.broker.threaded.link import LinkThread, ThreadedLink
from mqinfer.broker.tls import make_tls_context
from mqinfer.extras import check_packages

_TLS_WORDS = "eof_received() has no effect when using ssl"  # asyncio's, at each end of a connection of nats-py
_LIMIT = ("largest message", "max_payload in the server's configuration")


def _says_more(record: logging.LogRecord) -> bool:
    return _TLS_WORDS not in record.getMessage()


class NatsLink(ThreadedLink):
    """A `Link` to a NATS server with JetStream.

    A payload must not be changed until it is acknowledged.

    Args:
        address: The server, and those that stand by.
        client_id: Unique among all connections to the server.
        will: Published by the server when it has heard nothing of the link for some seconds.
        on_connection: Called at each connection, once all subscriptions are made again, at each loss, and at the end,
            with `failure` set.

    Raises:
        ConfigError: A certificate can't be read.
    """

    def __init__(
        self,
        address: BrokerAddress,
        *,
        client_id: str,
        will: Message | None = None,
        on_connection: ConnectionHandler | None = None,
    ) -> None:
        check_packages({"nats": "nats-py"}, "nats")
        tls = make_tls_context(address.tls) if address.tls else None
        logging.getLogger("asyncio").addFilter(_says_more)

        def make_loop(thread: LinkThread, routes: Routes) -> NatsLoop:
            return NatsLoop(thread, address, client_id, will, routes, tls=tls)

        super().__init__(address, client_id, will, on_connection, make_loop=make_loop, limit=_LIMIT)
