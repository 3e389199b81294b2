"""Inference over MQTT: edge agents send frames, cloud workers reply, each request has exactly one outcome."""

from mqinfer._version import __version__
from mqinfer.broker.address import TlsOptions
from mqinfer.client import AsyncClient, AsyncStream, Client, ClientOptions, ControlClient, InferResult, Policy, Stream
from mqinfer.protocol.types import Capture, Outcome, Timings

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "Capture",
    "Client",
    "ClientOptions",
    "ControlClient",
    "InferResult",
    "Outcome",
    "Policy",
    "Stream",
    "Timings",
    "TlsOptions",
    "__version__",
]
