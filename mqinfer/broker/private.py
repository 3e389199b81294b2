"""The broker that a measurement on one machine starts for itself."""

from mqinfer.broker.mosquitto.server import MosquittoServer as PrivateBroker

__all__ = ["PrivateBroker"]
