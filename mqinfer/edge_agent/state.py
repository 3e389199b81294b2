"""An edge's state on the broker, retained: dashboards list the edges by it."""

from __future__ import annotations

from mqinfer.broker.presence import Presence
from mqinfer.client.options import RequesterConfig
from mqinfer.protocol.states import ClientState, ClientStatus

__all__ = ["edge_presence"]


def edge_presence(config: RequesterConfig, source: str, model: str, incarnation: int | None = None) -> Presence:
    """Return the presence of one run of an edge: `ready` at each connection, `lost` as its will.

    Args:
        config: Of its client.
        source: What it reads.
        model: Name of the model that it asks.
        incarnation: The number of its start; None for a new one.
    """

    def encode(status: str, incarnation: int) -> bytes:
        return ClientState(config.name, ClientStatus(status), incarnation, source, model, config.window).to_json()

    topic = config.topics.client_state(config.name)
    return Presence(config.name, topic, encode, status="ready", incarnation=incarnation)
