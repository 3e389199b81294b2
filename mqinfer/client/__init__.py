"""Clients: blocking and asyncio callers, streams, the requests between them, and an operator's side of control."""

from mqinfer.client.aio import AsyncClient
from mqinfer.client.client import Client
from mqinfer.client.control import ControlClient
from mqinfer.client.options import ClientOptions
from mqinfer.client.result import InferResult, PictureResult
from mqinfer.client.stream import AsyncStream, Stream
from mqinfer.client.watching import AsyncWatch, DropReason, SeenPreview, SeenResult, Watch, WatchCounters
from mqinfer.client.window import Policy

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "AsyncWatch",
    "Client",
    "ClientOptions",
    "ControlClient",
    "DropReason",
    "InferResult",
    "PictureResult",
    "Policy",
    "SeenPreview",
    "SeenResult",
    "Stream",
    "Watch",
    "WatchCounters",
]
