"""paho's client with its reading and writing replaced."""

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.paho_client import PlainClient

FastClient = PlainClient


def fits(a: BrokerAddress) -> bool:
    return False
