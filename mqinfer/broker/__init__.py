"""The link to a broker: by URL over MQTT with paho-mqtt, or to a broker within the process with the same contract."""

from mqinfer.broker.address import BrokerAddress, TlsOptions
from mqinfer.broker.connect import make_link
from mqinfer.broker.link import Ack, ConnectionHandler, Link, Message, MessageHandler, ReasonCode, ignore_ack
from mqinfer.broker.memory import MemoryBroker, MemoryLink

__all__ = [
    "Ack",
    "BrokerAddress",
    "ConnectionHandler",
    "Link",
    "MemoryBroker",
    "MemoryLink",
    "Message",
    "MessageHandler",
    "ReasonCode",
    "TlsOptions",
    "ignore_ack",
    "make_link",
]
