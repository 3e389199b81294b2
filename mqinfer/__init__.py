"""Inference over MQTT: edge agents send frames, cloud workers reply, each request has exactly one outcome."""

from mqinfer._version import __version__
from mqinfer.broker.address import TlsOptions
from mqinfer.client import (
    AsyncClient,
    AsyncStream,
    AsyncWatch,
    Client,
    ClientOptions,
    ControlClient,
    DropReason,
    InferResult,
    PictureResult,
    Policy,
    SeenPreview,
    SeenResult,
    Stream,
    Watch,
    WatchCounters,
)
from mqinfer.protocol.types import Capture, Outcome, Timings

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "AsyncWatch",
    "Capture",
    "Client",
    "ClientOptions",
    "ControlClient",
    "DropReason",
    "InferResult",
    "Outcome",
    "PictureResult",
    "Policy",
    "SeenPreview",
    "SeenResult",
    "Stream",
    "Timings",
    "TlsOptions",
    "Watch",
    "WatchCounters",
    "__version__",
]
