"""What a client counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mqinfer.protocol.types import Outcome

__all__ = ["Counters"]


@dataclass(frozen=True, slots=True)
class Counters:
    """What became of everything; `submitted == sum(outcomes) + pending` holds at any time.

    Attributes:
        submitted: Requests taken in.
        pending: Requests without an outcome.
        outcomes: Requests by outcome.
        retries: Sendings beyond each request's first.
        late: Replies to requests that already had an outcome (duplicates among them).
        malformed: Replies that could not be read, or were damaged on the way.
    """

    submitted: int
    pending: int
    outcomes: Mapping[Outcome, int]
    retries: int
    late: int
    malformed: int
