"""The link to a broker: paho-mqtt, an in-memory twin with the same contract, and a private Mosquitto."""

from mqinfer.broker.address import BrokerAddress, TlsOptions
from mqinfer.broker.connect import make_link
from mqinfer.broker.link import Ack, ConnectionHandler, Link, Message, MessageHandler, ReasonCode, ignore_ack
from mqinfer.broker.memory_broker import MemoryBroker
from mqinfer.broker.memory_link import MemoryLink
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.paho.link import PahoLink

__all__ = [
    "Ack",
    "BrokerAddress",
    "ConnectionHandler",
    "Link",
    "MemoryBroker",
    "MemoryLink",
    "Message",
    "MessageHandler",
    "MosquittoServer",
    "PahoLink",
    "ReasonCode",
    "TlsOptions",
    "ignore_ack",
    "make_link",
]
