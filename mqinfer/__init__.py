"""Inference over MQTT: edge agents send frames, cloud workers reply, each request has exactly one outcome."""

from mqinfer._version import __version__
from mqinfer.client import AsyncClient, Client, ClientOptions, InferResult
from mqinfer.protocol.types import Capture, Outcome, Timings

__all__ = ["AsyncClient", "Capture", "Client", "ClientOptions", "InferResult", "Outcome", "Timings", "__version__"]
