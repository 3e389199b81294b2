"""What a client publishes about itself: its retained state, and in it what it waits for and, of an edge, its streams.

The requests that wait are in the clients, and no broker counts them. So clients that stay, such as edges and gateways,
state them, and whoever reads all states knows how much waits for a model (`mqinfer status`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from mqinfer.broker.presence import Presence
from mqinfer.client.requester import Requester
from mqinfer.logs import without_logins
from mqinfer.protocol.states import ClientState, PendingRequests, ProcessStatus, StreamState, fitting_streams
from mqinfer.protocol.topics import Topics

_REFRESH_S = 2.0
"""Time between two states that differ in their figures alone, as for workers."""
_MOST_MODELS = 128
"""Models in one state, those with most requests first: a state has at most 64 KiB."""


class ClientAnnouncer:
    """The state of one client, and its name.

    Attributes:
        presence: The client's name on the broker.
        pending: Returns what waits, by model; by default what the requester has. Called on any thread.
        streams: Returns what becomes of each stream, for an edge; None for other clients. Called on any thread.

    Args:
        name: The client's name.
        topics: Below the root of the site.
        source: What dashboards show of it, such as the name of a bag.
        model: Name of the model that it sends to; several are separated by commas.
        window: Most requests that it has in flight.
        incarnation: Start number of the process; None for a new one.
        refresh_s: Time between two states that differ in their figures alone.
    """

    def __init__(  # noqa: PLR0913 - what is published of a client
        self,
        name: str,
        topics: Topics,
        source: str,
        model: str = "",
        *,
        window: int = 0,
        incarnation: int | None = None,
        refresh_s: float = _REFRESH_S,
    ) -> None:
        self.pending: Callable[[], Sequence[PendingRequests]] = tuple
        self.streams: Callable[[], Sequence[StreamState]] | None = None
        self._make = partial(ClientState, name, source=without_logins(source), model=model, window=window)
        self._refresh_s = refresh_s
        self._published: Sequence[PendingRequests] = ()
        self.presence = Presence(name, topics.client_state(name), self._encode, incarnation=incarnation)

    def attach(self, requester: Requester) -> None:
        """State what this requester has pending, from its `open` to its `close`."""
        self.pending = requester.pending
        self.presence.attach(requester.link, requester.give_up)
        requester.repeat(self._refresh_s, self._refresh)

    def _refresh(self) -> None:
        """Publish the state again while something waits, and once more when nothing does; of an edge always."""
        if self.streams is not None:
            self.presence.publish(qos=0)
            return
        waits = bool(self.pending())
        if waits or self._published:
            self.presence.publish(qos=0 if waits else 1)  # the last one before a silence is to arrive

    def _encode(self, status: str, incarnation: int) -> bytes:
        pending: tuple[PendingRequests, ...] | None = None
        streams: tuple[StreamState, ...] | None = None
        if status == ProcessStatus.READY:
            most = sorted(self.pending(), key=lambda each: each.count, reverse=True)
            pending = self._published = tuple(most[:_MOST_MODELS])
            if self.streams is not None:
                streams = fitting_streams(self.streams())
        take_over = self.presence.take_over
        return self._make(
            ProcessStatus(status), incarnation, take_over=take_over, pending=pending, streams=streams
        ).to_json()
