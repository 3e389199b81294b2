"""Inference over MQTT: edges publish frames, workers answer them, each request ends in exactly one outcome."""

from mqinfer._version import __version__
from mqinfer.client import AsyncClient, Client, ClientOptions, InferResult
from mqinfer.protocol.types import Capture, Outcome, Timings

__all__ = ["AsyncClient", "Capture", "Client", "ClientOptions", "InferResult", "Outcome", "Timings", "__version__"]
