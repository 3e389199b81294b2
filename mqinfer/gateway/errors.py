"""What callers of the gateway receive for an error: one table of gRPC and HTTP status codes.

The codes are those that Triton and TensorFlow Serving use for the same events.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from mqinfer.protocol.errors import (
    BadImage,
    Cancelled,
    Expired,
    InvalidRequest,
    LinkError,
    MessageTooLarge,
    ModelNotFound,
    MqinferError,
    NotAuthorized,
    Rejected,
    Superseded,
    Unanswered,
)


class Overloaded(Rejected):
    """The gateway has as many calls as it accepts.

    Attributes:
        retry_after_s: When there will be room, in seconds.
    """

    code: ClassVar[str] = "overloaded"
    retry_after_s: float = 1.0


class TimeoutExpired(Expired):
    """The time of the request's `timeout` parameter is over."""

    code: ClassVar[str] = "timeout_expired"


class Unavailable(Unanswered):
    """Something is there but not ready, such as a model version."""

    code: ClassVar[str] = "unavailable"


class Unsupported(InvalidRequest):
    """The gateway does not offer this."""

    code: ClassVar[str] = "unsupported"


class FailedPrecondition(InvalidRequest):
    """The model is there, and has not what the request needs, such as a signature."""

    code: ClassVar[str] = "failed_precondition"


class MethodNotAllowed(InvalidRequest):
    """The path exists, and has no such method of HTTP."""

    code: ClassVar[str] = "method_not_allowed"


class NotActivated(InvalidRequest):
    """The path needs something that the operator has not chosen."""

    code: ClassVar[str] = "not_activated"


class Unauthenticated(InvalidRequest):
    """The caller has no credentials, or wrong ones."""

    code: ClassVar[str] = "unauthenticated"


@dataclass(frozen=True, slots=True)
class Status:
    """An error as the transports state it.

    Attributes:
        grpc: Name of the status code of gRPC (https://grpc.github.io/grpc/core/md_doc_statuscodes.html).
        http: Status of HTTP.
        retry_after_s: When to try again, in seconds; None to say nothing about it.
    """

    grpc: str
    http: int
    retry_after_s: float | None = None


_OF_CLASS: tuple[tuple[type[MqinferError], Status], ...] = (  # the first that fits holds
    (Overloaded, Status("RESOURCE_EXHAUSTED", 429)),
    (Rejected, Status("UNAVAILABLE", 503, 1.0)),
    (TimeoutExpired, Status("UNAVAILABLE", 503)),
    (Expired, Status("DEADLINE_EXCEEDED", 504)),
    (Cancelled, Status("CANCELLED", 499)),
    (Superseded, Status("CANCELLED", 499)),
    (Unanswered, Status("UNAVAILABLE", 503)),
    (Unsupported, Status("UNIMPLEMENTED", 501)),
    (FailedPrecondition, Status("FAILED_PRECONDITION", 400)),
    (NotActivated, Status("FAILED_PRECONDITION", 403)),
    (MethodNotAllowed, Status("UNIMPLEMENTED", 405)),
    (Unauthenticated, Status("UNAUTHENTICATED", 401)),
    (InvalidRequest, Status("INVALID_ARGUMENT", 400)),
    (BadImage, Status("INVALID_ARGUMENT", 400)),
    (ModelNotFound, Status("NOT_FOUND", 404)),
    (MessageTooLarge, Status("INVALID_ARGUMENT", 400)),
    (NotAuthorized, Status("PERMISSION_DENIED", 403)),
    (LinkError, Status("UNAVAILABLE", 503)),
)
_INTERNAL = Status("INTERNAL", 500)


def status_of(error: BaseException) -> Status:
    """Return what a caller receives for an error; anything unforeseen is the gateway's own fault."""
    found = next((status for kind, status in _OF_CLASS if isinstance(error, kind)), _INTERNAL)
    return replace(found, retry_after_s=error.retry_after_s) if isinstance(error, Overloaded) else found
