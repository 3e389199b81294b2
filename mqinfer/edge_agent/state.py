"""An edge's state on the broker, retained: dashboards list the edges by it."""

from __future__ import annotations

from mqinfer.broker.presence import Presence
from mqinfer.protocol.states import ClientState, ClientStatus
from mqinfer.protocol.topics import Topics

__all__ = ["edge_presence"]


def edge_presence(  # noqa: PLR0913 - what is published of an edge
    name: str, topics: Topics, source: str, model: str, *, window: int, incarnation: int | None = None
) -> Presence:
    """Return the presence of one run of an edge: `ready` at each connection, `lost` as its will.

    Args:
        name: Of its client.
        topics: Below the root of the site.
        source: What it reads.
        model: Name of the model that it asks.
        window: Requests that it has in flight at a time.
        incarnation: The number of its start; None for a new one.
    """

    def encode(status: str, incarnation: int) -> bytes:
        return ClientState(name, ClientStatus(status), incarnation, source, model, window).to_json()

    return Presence(name, topics.client_state(name), encode, status="ready", incarnation=incarnation)
