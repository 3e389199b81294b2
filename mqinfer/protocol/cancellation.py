"""What a client sends to take requests back: ids, and whether they were cancelled or superseded."""

from __future__ import annotations

from dataclasses import dataclass

from mqinfer.protocol.errors import BadEnvelope
from mqinfer.protocol.fields import text, texts
from mqinfer.protocol.json_text import parse_object, write_object
from mqinfer.protocol.types import Buffer, Outcome

__all__ = ["Cancellation"]

_MAX_BYTES = 64 << 10
_REASONS = (Outcome.CANCELLED, Outcome.SUPERSEDED)


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Requests that nobody waits for any more. Workers that have them skip them, and send no reply.

    Attributes:
        ids: Of the sender's own requests.
        outcome: What the sender counted them as: `cancelled` or `superseded`.
    """

    ids: tuple[str, ...]
    outcome: Outcome = Outcome.CANCELLED

    def to_json(self) -> bytes:
        """Write it as JSON."""
        return write_object({"ids": self.ids, "outcome": self.outcome}, "cancellation")

    @classmethod
    def from_json(cls, payload: Buffer) -> Cancellation:
        """Read it from JSON.

        Raises:
            BadEnvelope: It is no cancellation: what is missing or of the wrong type is named.
            LimitExceeded: It is longer than 64 KiB.
        """
        where = "cancellation"
        fields = parse_object(payload, where, _MAX_BYTES)
        named = text(fields, "outcome", where, Outcome.CANCELLED.value)
        if named not in _REASONS:
            raise BadEnvelope(f"{where}: 'outcome' is {named[:40]!r}; it must be one of {', '.join(_REASONS)}")
        return cls(texts(fields, "ids", where), Outcome(named))
