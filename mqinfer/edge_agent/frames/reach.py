"""Whether a model answers, as the connection and the outcomes of requests show it. Pure: no thread, no I/O, no clock.

A model is silent from a lost connection or a request without a reply until its next reply, so also in the seconds of a
reconnect. Meanwhile one frame at a time tries it all the same, the probe; the edge answers the others where it can.
"""

from __future__ import annotations

from mqinfer.protocol.errors import MqinferError, NotConnected

__all__ = ["Reach"]


class Reach:
    """What is known of one model. Not thread-safe.

    Attributes:
        silence: Why the model did not answer the last time; None while it answers.
        is_connected: Whether there is a connection.
    """

    def __init__(self, *, is_connected: bool = True) -> None:
        """Start with a model of which nothing is known, so that every frame may try it."""
        self.silence: MqinferError | None = None
        self.is_connected = is_connected
        self._probe: int | None = None

    def on_connection(self, *, is_connected: bool) -> None:
        """Follow the connection: once it was lost, only a reply ends the silence."""
        if not is_connected:
            self.silence = _not_connected()
        self.is_connected = is_connected

    def on_reply(self) -> None:
        """End the silence."""
        self.silence = None

    def on_absence(self, why: MqinferError) -> None:
        """Begin a silence: a request brought no reply."""
        self.silence = why

    def why_not(self, number: int) -> MqinferError | None:
        """Return why a frame is not to be sent; None if it may try the model, which makes it the probe in a silence."""
        if not self.is_connected:
            return _not_connected()
        if self.silence is None:
            self._probe = None
        elif self._probe is None:
            self._probe = number
        elif self._probe != number:
            return self.silence
        return None

    def ended(self, number: int) -> None:
        """Have the next frame try the model, if this one was the probe."""
        if self._probe == number:
            self._probe = None


def _not_connected() -> NotConnected:
    return NotConnected("there is no connection to the broker")
