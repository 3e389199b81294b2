"""Inference over MQTT: edge agents publish frames, cloud workers answer them, each request ends in exactly one outcome."""

from mqinfer._version import __version__

__all__ = ["__version__"]
