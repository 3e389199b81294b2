"""Whether a model answers, as the connection and the outcomes of requests show it. Pure: no thread, no I/O, no clock.

A model is silent from a lost connection or a request without a reply until its next reply, so also in the seconds of a
reconnect. Meanwhile one frame at a time tries it all the same, the probe; the edge answers the others where it can.
"""

from __future__ import annotations

from dataclasses import replace

from mqinfer.client.registry import Registry
from mqinfer.client.result import InferResult
from mqinfer.protocol.errors import (
    Corrupted,
    Expired,
    LinkError,
    MessageTooLarge,
    MqinferError,
    NotAuthorized,
    NotConnected,
    NoWorker,
    Rejected,
    error_from_code,
)
from mqinfer.protocol.types import ErrorInfo, Outcome

__all__ = ["Reach", "absence", "because", "was_there"]

_ABSENT = (Expired, Rejected, Corrupted, NoWorker, LinkError)
_PRESENT = (MessageTooLarge, NotAuthorized)
"""Errors of a link that are no sign of a model that is gone."""


def absence(result: InferResult) -> MqinferError | None:
    """Return why a model can't be reached, by the error of an outcome; None for any other outcome."""
    if result.error is None:
        return None
    error = error_from_code(result.error.code, result.error.message)
    return error if isinstance(error, _ABSENT) and not isinstance(error, _PRESENT) else None


def was_there(registry: Registry, model: str, version: str | None) -> bool:
    """Return whether there has been a worker of a model or, where one is given, of its version or label."""
    card, known = registry.card(model), set(registry.models.versions(model))
    if card is not None:
        known.update(card.versions, card.parameters.labels)
    return registry.models.was_known(model) or (bool(known) if version is None else version in known)


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

    def ended(self, number: int, result: InferResult) -> MqinferError | None:
        """Learn from the outcome of a frame, and have the next one try the model if this one was the probe.

        Returns:
            The silence that the outcome is owed to; None where the model, or the frame itself, is its reason.
        """
        if self._probe == number:
            self._probe = None
        if result.outcome is Outcome.OK:
            self.silence = None
            return None
        if result.outcome is Outcome.SUPERSEDED:  # of a model that answers nothing, the edge makes more
            return self.silence
        is_cut_off = result.outcome is Outcome.CANCELLED and not self.is_connected
        why = _not_connected() if is_cut_off else absence(result)
        self.silence = why or self.silence
        return why


def because(result: InferResult, why: MqinferError) -> InferResult:
    """Return an outcome with the silence that it is owed to as its error."""
    return replace(result, error=ErrorInfo(why.code, str(why)))


def _not_connected() -> NotConnected:
    return NotConnected("there is no connection to the broker")
