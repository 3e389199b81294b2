"""The models' own channels: where requests go while no worker of theirs is known. Pure: the owner passes the time.

The broker deals what comes there to any worker that subscribes, and states with the PUBACK that none does. Then the
channel is closed, and one request at a time finds out whether that has changed.
"""

from __future__ import annotations

from dataclasses import dataclass

from mqinfer.client.dispatch.lane import LONGEST_PAUSE_S, Lane
from mqinfer.client.options import Silence
from mqinfer.smoothing import smoothed

Channel = tuple[str, str | None]
"""Model and version asked for."""


@dataclass(slots=True)
class _Unserved:
    """A channel without subscribers: since when, when it is tried again, and how long it then rests."""

    since: float
    closed_until: float
    pause: float


class SharedChannels:
    """The channels by model and version, as far as something is known of them. Not thread-safe.

    Args:
        silence: When a missing reply means something.
    """

    def __init__(self, silence: Silence) -> None:
        self._silence = silence
        self._times: dict[str, float] = {}  # smoothed seconds from publication to reply, by model
        self._unserved: dict[Channel, _Unserved] = {}

    def is_closed(self, channel: Channel, now: float) -> bool:
        """Return whether nothing is sent there now, since nobody subscribed."""
        unserved = self._unserved.get(channel)
        return unserved is not None and now < unserved.closed_until

    def sent(self, channel: Channel, now: float) -> float:
        """Record a request that is being sent; return when it counts as unanswered."""
        if unserved := self._unserved.get(channel):
            unserved.closed_until = now + unserved.pause  # one at a time while nobody is known to subscribe
        usual = self._times.get(channel[0])
        if usual is None:
            return now + self._silence.attempt_unknown
        return now + max(self._silence.attempt_shared, self._silence.attempt_factor * usual)

    def replied(self, model: str, seconds: float) -> None:
        """Record how long a reply took that came over a model's channel: somebody subscribes."""
        if self._unserved:
            self._unserved = {channel: each for channel, each in self._unserved.items() if channel[0] != model}
        self._times[model] = smoothed(self._times.get(model, 0.0), seconds)

    def close(self, channel: Channel, now: float, pause: float) -> float:
        """Hold back everything for a channel without subscribers; one request tries again later.

        Args:
            channel: Model and version.
            now: The clock's reading.
            pause: Seconds until the first new attempt; doubled each time, at most one second.

        Returns:
            Since when it has no subscribers.
        """
        state = self._unserved.setdefault(channel, _Unserved(now, now, pause))
        state.closed_until = now + state.pause
        state.pause = min(2 * state.pause, LONGEST_PAUSE_S)
        return state.since

    def reopen(self, channel: Channel, at: float) -> None:
        """Allow the next attempt at a time, if it would not be sooner."""
        if unserved := self._unserved.get(channel):
            unserved.closed_until = min(unserved.closed_until, at)

    def open_for(self, lane: Lane) -> None:
        """Open the channels that a worker serves, if it takes requests."""
        if lane.open and self._unserved:
            self._unserved = {each: state for each, state in self._unserved.items() if not lane.serves(*each)}

    def openings(self, since: float) -> list[float]:
        """Return when the channels open again that were closed at a time."""
        return [each.closed_until for each in self._unserved.values() if each.closed_until > since]

    def clear(self) -> None:
        """Open all of them: on a new connection nothing is known of their subscribers."""
        self._unserved.clear()
