"""What an edge says of itself, retained: dashboards list the edges by it."""

from __future__ import annotations

from dataclasses import dataclass, field

from mqinfer.broker.link import Message
from mqinfer.broker.presence import boot_number
from mqinfer.client.connection import Presence
from mqinfer.client.options import RequesterConfig
from mqinfer.protocol.states import ClientState, ClientStatus

__all__ = ["EdgeState"]


@dataclass(frozen=True, slots=True)
class EdgeState:
    """One run of an edge.

    Attributes:
        config: Of its client.
        source: What it reads.
        model: What it asks.
        boot: The number of its start.
    """

    config: RequesterConfig
    source: str
    model: str
    boot: int = field(default_factory=boot_number)

    def message(self, status: str) -> Message:
        """Make the message that says how it is: `ready`, `stopped`, or `lost` (the will)."""
        config = self.config
        state = ClientState(config.name, ClientStatus(status), self.boot, self.source, self.model, window=config.window)
        return Message(config.topics.client_state(config.name), state.to_json(), retain=True)

    def presence(self) -> Presence:
        """Say `ready` at each connection, and let the broker say `lost`."""
        return Presence(self.boot, will=self.message("lost"), state=lambda: self.message("ready"))
