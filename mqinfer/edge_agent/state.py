"""What an edge says of itself, retained: dashboards list the edges by it."""

from __future__ import annotations

import json

from mqinfer.broker.link import Message
from mqinfer.client.connection import Presence
from mqinfer.client.requester import RequesterConfig

__all__ = ["presence", "state_message"]


def state_message(config: RequesterConfig, status: str, source: str, model: str) -> Message:
    """Make the message that says how an edge is.

    Args:
        config: Of the edge's client.
        status: `ready`, `stopped`, or `lost` (the will).
        source: What it reads.
        model: What it asks.
    """
    state = {"client": config.name, "status": status, "source": source, "model": model, "window": config.window}
    return Message(config.topics.client_state(config.name), json.dumps(state).encode(), retain=True)


def presence(config: RequesterConfig, source: str, model: str) -> Presence:
    """Say `ready` at each connection, and let the broker say `lost`."""
    return Presence(
        will=state_message(config, "lost", source, model), state=lambda: state_message(config, "ready", source, model)
    )
