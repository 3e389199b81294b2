"""Names of OpenTelemetry's conventions for messaging, as far as spans use them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from mqinfer.protocol.types import ErrorInfo, Outcome

__all__ = ["Attributes", "SpanRole", "end_attributes", "messaging"]

Attributes = Mapping[str, str | int]


class SpanRole(StrEnum):
    """What a span stands for, by the names of OpenTelemetry's `SpanKind`."""

    INTERNAL = "INTERNAL"
    SERVER = "SERVER"
    CLIENT = "CLIENT"
    PRODUCER = "PRODUCER"
    CONSUMER = "CONSUMER"


_MQTT: Attributes = {
    "messaging.system": "mqtt",
    "network.protocol.name": "mqtt",
    "network.protocol.version": "5",
}


def messaging(operation: str, kind: str, topic: str, template: str, request_id: str) -> Attributes:
    """Return the attributes of a span that sends, processes or settles a message.

    Args:
        operation: What is done, such as `transmit`.
        kind: The same in the convention's words: `send`, `process` or `settle`.
        topic: Of the message.
        template: The topic's levels, with names in braces.
        request_id: The request's.
    """
    return {
        **_MQTT,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
        "messaging.destination.template": template,
        "messaging.message.conversation_id": request_id,
    }


def end_attributes(outcome: Outcome, error: ErrorInfo | None) -> Attributes:
    """Return the attributes of a request's end: its outcome and, unless that is `ok`, the code of its error."""
    return {"mqinfer.outcome": str(outcome), **({} if error is None else {"error.type": error.code})}
