"""The W3C trace context that travels beside a request and its reply, as MQTT user properties.

https://www.w3.org/TR/trace-context/: what is malformed is ignored, as if there were none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

_TRACEPARENT, _TRACESTATE = "traceparent", "tracestate"
"""Names of the user properties."""
_GRAMMAR = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[\x20-\x7e]*)?")
_FIRST_VERSION = "00"
_LONGEST = 512
"""Characters of a `traceparent` of a later version, and of a `tracestate`: those that W3C has everybody pass on."""
_STATE = re.compile(r"[\x20-\x7e]{1,512}")
_MOST_VENDORS = 32


class TraceContext(Struct, frozen=True, gc=False):
    """Where a request belongs in a trace.

    Attributes:
        traceparent: Version, id of the trace, id of the span above, flags; well-formed.
        tracestate: What tracing systems add, unread; empty for nothing.
    """

    traceparent: str
    tracestate: str = ""

    def properties(self) -> tuple[tuple[str, str], ...]:
        """Return the user properties of a message."""
        parent = (_TRACEPARENT, self.traceparent)
        return (parent, (_TRACESTATE, self.tracestate)) if self.tracestate else (parent,)


def read_trace(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """Return the context that two headers state; None where the first is malformed. A malformed second is left out."""
    found = _GRAMMAR.fullmatch(traceparent) if len(traceparent) <= _LONGEST else None
    if found is None or (found[1] == _FIRST_VERSION and found[2] is not None):
        return None
    tracestate = tracestate.replace("\t", " ")  # blank between entries, which no string of MQTT may hold
    is_sound = _STATE.fullmatch(tracestate) and tracestate.count(",") < _MOST_VENDORS
    return TraceContext(traceparent, tracestate if is_sound else "")


def trace_of(properties: Iterable[tuple[str, str]]) -> TraceContext | None:
    """Return the context of a message; two of one name are joined by a comma, so two `traceparent` are malformed."""
    parents: list[str] = []
    states: list[str] = []
    for name, value in properties:
        if name == _TRACEPARENT:
            parents.append(value)
        elif name == _TRACESTATE:
            states.append(value)
    return read_trace(",".join(parents), ",".join(states)) if parents else None
