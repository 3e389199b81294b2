"""From a URL to a link; what outside of this room needs an engine for."""

from __future__ import annotations

import asyncio
import logging
from threading import Lock
from weakref import WeakValueDictionary

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import ConnectionHandler, Link, Message
from mqinfer.broker.memory import MemoryBroker, MemoryLink
from mqinfer.broker.nats.link import NatsLink
from mqinfer.broker.paho.connecting import Identity
from mqinfer.broker.paho.link import PahoLink
from mqinfer.broker.paho.standby import Lookout, answers
from mqinfer.broker.process import abandon_in_children

__all__ = ["Identity", "Lookout", "answers", "make_link", "resolve"]

_log = logging.getLogger("mqinfer.broker")


class _MemoryBrokers:
    """The brokers of `memory://name`: each name means one broker within a process, and none of its parent's.

    The table keeps nothing alive: a broker goes when its last link goes.
    """

    def __init__(self) -> None:
        self.abandon()
        abandon_in_children(self)

    def abandon(self) -> None:
        """Start with an empty table."""
        self._lock = Lock()
        self._brokers: WeakValueDictionary[str, MemoryBroker] = WeakValueDictionary()

    def get(self, name: str) -> MemoryBroker:
        """Return the broker of a name."""
        with self._lock:
            broker = self._brokers.get(name)
            if broker is None:
                broker = self._brokers[name] = MemoryBroker()
            return broker


_memory_brokers = _MemoryBrokers()


def resolve(url: str | BrokerAddress) -> BrokerAddress:
    """Return the address that a URL stands for; log a warning where the client's own certificate ends soon.

    Raises:
        ConfigError: The URL has a fault, or the certificate can't be read.
    """
    address = BrokerAddress.parse(url) if isinstance(url, str) else url
    if warning := address.expiry_warning():
        _log.warning("%s", warning)
    return address


def make_link(
    url: str | BrokerAddress,
    *,
    client_id: str,
    will: Message | None = None,
    on_connection: ConnectionHandler | None = None,
    host: asyncio.AbstractEventLoop | None = None,
) -> Link:
    """Return the link that a URL stands for, which still has to be opened.

    Args:
        url: As `BrokerAddress.parse` takes it, or what it returns.
        client_id: Unique among all connections to the broker.
        will: Published by the broker when the link is lost without `close`.
        on_connection: Called at each connection and each loss, on the link's thread.
        host: As of `PahoLink`; of no effect in memory, where there is nothing to read and write, and with NATS.

    Raises:
        ConfigError: The URL has a fault, or a certificate can't be read.
    """
    address = BrokerAddress.parse(url) if isinstance(url, str) else url
    if address.transport == "memory":
        return MemoryLink(
            _memory_brokers.get(address.host), client_id=client_id, will=will, on_connection=on_connection
        )
    if address.transport == "nats":
        return NatsLink(address, client_id=client_id, will=will, on_connection=on_connection)
    return PahoLink(address, client_id=client_id, will=will, on_connection=on_connection, host=host)
