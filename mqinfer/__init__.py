"""Inference over MQTT: edges publish frames, workers answer them, each request ends in exactly one outcome."""

from mqinfer._version import __version__

__all__ = ["__version__"]
