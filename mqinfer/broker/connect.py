"""From a URL to a link."""

from __future__ import annotations

from threading import Lock
from weakref import WeakValueDictionary

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import ConnectionHandler, Link, Message
from mqinfer.broker.memory import MemoryBroker, MemoryLink
from mqinfer.broker.paho.link import PahoLink

__all__ = ["make_link"]

# `memory://name` must mean the same broker wherever it is written, so this one table is the process's own. It keeps
# nothing alive: a broker goes when its last link goes.
_memory_brokers: WeakValueDictionary[str, MemoryBroker] = WeakValueDictionary()
_memory_brokers_lock = Lock()


def make_link(
    url: str | BrokerAddress,
    *,
    client_id: str,
    will: Message | None = None,
    on_connection: ConnectionHandler | None = None,
) -> Link:
    """Return the link that a URL stands for, which still has to be opened.

    Args:
        url: As `BrokerAddress.parse` takes it, or what it returns.
        client_id: Unique among all connections to the broker.
        will: Published by the broker when the link is lost without `close`.
        on_connection: Called at each connection and each loss, on the link's thread.

    Raises:
        ConfigError: The URL has a fault, or a certificate can't be read.
    """
    address = BrokerAddress.parse(url) if isinstance(url, str) else url
    if address.transport == "memory":
        return MemoryLink(_memory_broker(address.host), client_id=client_id, will=will, on_connection=on_connection)
    return PahoLink(address, client_id=client_id, will=will, on_connection=on_connection)


def _memory_broker(name: str) -> MemoryBroker:
    with _memory_brokers_lock:
        broker = _memory_brokers.get(name)
        if broker is None:
            broker = _memory_brokers[name] = MemoryBroker()
        return broker
