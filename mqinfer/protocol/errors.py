"""Every error that mqinfer raises or sends, in one tree.

::

    MqinferError                   internal            a defect of mqinfer or of the machine
    ├── InvalidRequest             invalid_request     at fault itself: sending it again does not help
    │   ├── BadEnvelope            bad_envelope        magic, header length, MessagePack or JSON
    │   ├── BadTensor              bad_tensor          name, datatype, shape or size
    │   ├── BadEncoding            bad_encoding        a codec can't make the declared array
    │   ├── BadTopic               bad_topic           a name or topic outside the rules
    │   └── LimitExceeded          limit_exceeded      larger than a stated limit
    ├── ModelNotFound              model_not_found
    ├── ModelFailed                model_failed        the model raised while it ran
    │   └── Poison                 poison              two workers crashed on the request
    ├── ModelNotLoadable           model_not_loadable  missing, truncated, or of an unknown format
    ├── Unanswered                 unanswered          no result, and the request is not to blame
    │   ├── Expired                expired             the deadline passed
    │   ├── Rejected               rejected            a worker was busy or draining
    │   ├── Corrupted              corrupted           bits flipped on the way
    │   ├── Cancelled              cancelled
    │   ├── Superseded             superseded          a newer frame took its place
    │   ├── NoWorker               no_worker           nobody serves the model
    │   └── ReferenceLost          reference_lost      the worker lacks the frame that this one is encoded against
    ├── LinkError                  link_error
    │   ├── BrokerUnreachable      broker_unreachable
    │   ├── NotConnected           not_connected
    │   ├── NotAuthorized          not_authorized
    │   ├── NameTaken              name_taken          another process has the name
    │   └── MessageTooLarge        message_too_large   above the broker's Maximum Packet Size
    ├── SourceError                source_error        a bag, video, folder or camera
    │   └── BadImage               bad_image           one frame can't be decoded
    ├── ConfigError                config_error        an option, a model.toml, an URL
    └── MissingExtra               missing_extra       an optional dependency is not installed

The second column is the class's stable wire code (`error.code` in a reply). Each class also names the outcome of a
request that fails with it. A message states what was wrong, where, and what to do.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from mqinfer.logs import printable

__all__ = [
    "BadEncoding",
    "BadEnvelope",
    "BadImage",
    "BadTensor",
    "BadTopic",
    "BrokerUnreachable",
    "Cancelled",
    "ConfigError",
    "Corrupted",
    "Expired",
    "InvalidRequest",
    "LimitExceeded",
    "LinkError",
    "MessageTooLarge",
    "MissingExtra",
    "ModelFailed",
    "ModelNotFound",
    "ModelNotLoadable",
    "MqinferError",
    "NameTaken",
    "NoWorker",
    "NotAuthorized",
    "NotConnected",
    "Poison",
    "ReferenceLost",
    "Rejected",
    "SourceError",
    "Superseded",
    "Unanswered",
    "error_from_code",
]


class Outcome(StrEnum):
    """How a request ended. Every request ends in exactly one of these.

    Import it from `mqinfer.protocol.types`; it is defined here because each class of error names its own.
    """

    OK = "ok"
    ERROR = "error"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    REJECTED = "rejected"
    CANCELLED = "cancelled"

    __hash__ = str.__hash__  # in C: Enum's own is written in Python, and each look into a table would call it


class MqinferError(Exception):
    """Root of the tree. On its own it means a defect of mqinfer or of the machine.

    Attributes:
        code: The class's wire code.
        outcome: The outcome of a request that fails with it.
    """

    code: ClassVar[str] = "internal"
    outcome: ClassVar[Outcome] = Outcome.ERROR


class InvalidRequest(MqinferError):
    """The request can't be served as it is. Correct it as the message says; sending it again does not help."""

    code = "invalid_request"


class BadEnvelope(InvalidRequest):
    """The payload is not a message of this protocol: magic, header length, MessagePack or JSON.

    A client of mqinfer's raises it where a name or parameter can't be packed, such as text that is not Unicode.
    """

    code = "bad_envelope"


class BadTensor(InvalidRequest):
    """A tensor's name, datatype, shape or size is wrong. `Client.card` returns what the model takes."""

    code = "bad_tensor"


class BadEncoding(InvalidRequest):
    """A codec is unknown, can't carry the array, or its bytes don't make the array that was declared.

    Choose another `encoding` or `output_encoding`; `raw` carries every array.
    """

    code = "bad_encoding"


class BadTopic(InvalidRequest):
    """A name or a topic that breaks the naming rules; the message states them. Rename the model or the client."""

    code = "bad_topic"


class LimitExceeded(InvalidRequest):
    """Something is larger than a stated limit; checked before memory is taken for it. Send less in one request."""

    code = "limit_exceeded"


class ModelNotFound(MqinferError):
    """No such model or version here. Check the name, or start a worker that has it; the message lists the models."""

    code = "model_not_found"


class ModelFailed(MqinferError):
    """The model raised while it ran. Look at the message and the worker's log; the next request may succeed."""

    code = "model_failed"


class Poison(ModelFailed):
    """Two workers crashed while they had the request; it is not sent to another.

    Don't send it again: it would end more workers. Their logs, or the memory of their machines, show why.
    """

    code = "poison"


class ModelNotLoadable(MqinferError):
    """A model file is missing, truncated, of an unknown format, or needs a package that is not installed.

    Mend the model's folder as the message says, and load it again.
    """

    code = "model_not_loadable"


class Unanswered(MqinferError):
    """There is no result, and the request itself is not to blame: another one may succeed."""

    code = "unanswered"


class Expired(Unanswered):
    """The request's deadline passed before there was a result.

    Allow a longer `timeout`, start more workers, or send fewer requests at a time.
    """

    code = "expired"
    outcome = Outcome.EXPIRED


class Rejected(Unanswered):
    """A worker had no room for the request for as long as the client is patient, or the client itself had none.

    Send less at a time, start more workers, or raise `ClientOptions.patience`.

    Attributes:
        queue_full: Whether it is by the bound that the model's own configuration sets (`max_queue_size`).
    """

    queue_full: bool = False
    code = "rejected"
    outcome = Outcome.REJECTED


class Corrupted(Unanswered):
    """A payload differs from its checksum: bits flipped on the way. Sending it again may succeed."""

    code = "corrupted"
    outcome = Outcome.REJECTED


class Cancelled(Unanswered):
    """The caller cancelled the request, or closed the client or the stream. A closed client is not opened again."""

    code = "cancelled"
    outcome = Outcome.CANCELLED


class Superseded(Unanswered):
    """A newer frame of the same stream took this one's place. That is no fault; `policy="all"` sends every frame."""

    code = "superseded"
    outcome = Outcome.SUPERSEDED


class NoWorker(Unanswered):
    """Nobody subscribes to the model's topic. Start a worker, or check the model's name and version and the root."""

    code = "no_worker"


class ReferenceLost(Unanswered):
    """The worker does not have the frames that a picture is encoded against. Send it again, encoded on its own."""

    code = "reference_lost"


class LinkError(MqinferError):
    """A failure of the link to the broker."""

    code = "link_error"


class BrokerUnreachable(LinkError):
    """No broker answers at the address. Check host and port, and `mqtt://` against `mqtts://`; else try again later."""

    code = "broker_unreachable"


class NotConnected(LinkError):
    """The link is down at the moment; nothing was sent. It heals by itself: try again later."""

    code = "not_connected"


class NotAuthorized(LinkError):
    """The broker refused the name, password, certificate or topic. Trying again does not help.

    Correct the login, or ask the broker's operator; under access rules a client's name is that of its login.
    """

    code = "not_authorized"


class NameTaken(LinkError):
    """Another process has the name; this one does not start, or stops."""

    code = "name_taken"


class MessageTooLarge(LinkError):
    """The message is above the broker's Maximum Packet Size; nothing was sent.

    Encode it smaller (`encoding="lz4"`, `"jpeg:90"`), or have the broker take larger packets.
    """

    code = "message_too_large"


class SourceError(MqinferError):
    """A bag, video, folder or camera can't be read. `mqinfer bag info` shows what is in a bag."""

    code = "source_error"


class BadImage(SourceError):
    """One frame can't be decoded; the next one may be fine."""

    code = "bad_image"


class ConfigError(MqinferError):
    """An option, a `model.toml` or a URL is wrong; the message says which one and what is expected."""

    code = "config_error"


class MissingExtra(MqinferError):
    """An optional dependency is not installed; the message names the command that installs it."""

    code = "missing_extra"


def _tree(root: type[MqinferError]) -> dict[str, type[MqinferError]]:
    codes = {root.code: root} if "code" in vars(root) else {}  # a class without a code of its own never travels
    for child in root.__subclasses__():
        codes |= _tree(child)
    return codes


def error_from_code(code: str, message: str) -> MqinferError:
    """Return the exception for the `error` of a reply.

    Args:
        code: Wire code; an unknown one (of a newer peer) makes the root class.
        message: The message of the peer; its line feeds and other control characters become escape sequences.
    """
    return _tree(MqinferError).get(code, MqinferError)(printable(message))
