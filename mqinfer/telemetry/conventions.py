"""What spans share: names of OpenTelemetry's conventions for messaging, and that they cost no request its outcome."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from enum import StrEnum
from itertools import count
from typing import ParamSpec

from mqinfer.logs import log_dropped
from mqinfer.protocol.types import ErrorInfo, Outcome

log = logging.getLogger("mqinfer.telemetry")
P = ParamSpec("P")
_failures = count(1)

Attributes = Mapping[str, str | int]


class SpanRole(StrEnum):
    """What a span stands for, by the names of OpenTelemetry's `SpanKind`."""

    INTERNAL = "INTERNAL"
    SERVER = "SERVER"
    CLIENT = "CLIENT"
    PRODUCER = "PRODUCER"
    CONSUMER = "CONSUMER"


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
        "messaging.system": "mqtt",
        "network.protocol.name": "mqtt",
        "network.protocol.version": "5",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
        "messaging.destination.template": template,
        "messaging.message.conversation_id": request_id,
    }


def end_attributes(outcome: Outcome, error: ErrorInfo | None) -> Attributes:
    """Return the attributes of a request's end: its outcome and, unless that is `ok`, the code of its error."""
    return {"mqinfer.outcome": str(outcome), **({} if error is None else {"error.type": error.code})}


def harmless(method: Callable[P, None]) -> Callable[P, None]:
    """Return a method that logs its failures and raises nothing: it runs on threads that deliver replies."""

    @functools.wraps(method)
    def run(*args: P.args, **named: P.kwargs) -> None:
        try:
            method(*args, **named)
        except Exception as error:  # noqa: BLE001 - a defect, or no memory: the request is served all the same
            log_dropped(log, f"the spans of a request: {error!r}", "spans_failed", next(_failures))

    return run
