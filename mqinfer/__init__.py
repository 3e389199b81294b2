"""Inference over MQTT: edge agents send frames, cloud workers reply, each request has exactly one outcome."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mqinfer._version import __version__

if TYPE_CHECKING:
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

_MODULES = {"TlsOptions": "broker.address", **dict.fromkeys(("Capture", "Outcome", "Timings"), "protocol.types")}
"""Modules of the names that are not the client's."""


if not TYPE_CHECKING:  # a type checker would take any name for one of them

    def __getattr__(name: str) -> Any:
        """Import a name when it is asked for: a command that needs none of them starts in a fifth of the time."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"mqinfer.{_MODULES.get(name, 'client')}"), name)
