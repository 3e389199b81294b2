"""TensorFlow Serving's messages, bounded: protobuf makes objects of what takes two bytes."""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet

from mqinfer.gateway.messages import message_class
from mqinfer.gateway.messages import parse as parse_message
from mqinfer.protobuf_wire import DELIMITED, fields
from mqinfer.protocol.datatypes import ITEM_BYTES, Datatype
from mqinfer.protocol.errors import LimitExceeded
from mqinfer.protocol.limits import DEFAULT_LIMITS

SIGNATURE_DEF_URL = "type.googleapis.com/tensorflow.serving.SignatureDefMap"

_MOST_FIELDS = DEFAULT_LIMITS.payload_bytes // ITEM_BYTES[Datatype.BYTES]
"""Fields of a message and those in it: as many as a request may hold strings."""
_SMALL = 64 << 10
"""Bytes of messages whose fields need not be counted."""


def tfs_class(name: str) -> Any:
    """Return the class of a message by its name, such as `PredictRequest`."""
    return message_class(f"tensorflow.serving.{name}")


def parse(kind: str, data: bytes) -> Any:
    """Return a message of bytes.

    Args:
        kind: Its name, such as `PredictRequest`.
        data: As received.

    Raises:
        InvalidRequest: They are not such a message.
        LimitExceeded: It has too many fields.
    """
    message_type = tfs_class(kind)
    if len(data) > _SMALL:
        _check_fields(memoryview(data), message_type.DESCRIPTOR, _MOST_FIELDS)
    message = parse_message(message_type, data)
    if kind == "PredictRequest" and any(map(_has_unpacked, message.inputs.values())):
        message = message_type.FromString(parse_message(tfs_class("TypedPredictRequest"), data).SerializeToString())
    return message


def _check_fields(view: memoryview, descriptor: Any, room: int) -> int:
    """Return how many more fields there may be after those of a message and of the messages in it."""
    inner = _inner(descriptor)
    for number, kind, _, start, end in fields(view):
        room -= 1
        if room < 0:
            raise LimitExceeded(f"the request has more than {_MOST_FIELDS} strings and other fields; send less at once")
        if kind == DELIMITED and start < end and number in inner:
            room = _check_fields(view[start:end], inner[number], room)
    return room


@cache
def _inner(descriptor: Any) -> dict[int, Any]:
    """Return the fields of a message that are messages."""
    return {number: field.message_type for number, field in descriptor.fields_by_number.items() if field.message_type}


def _has_unpacked(tensor: Any) -> bool:
    """Return whether values of a tensor came one by one, which are unknown to the packed form."""
    known = tensor.DESCRIPTOR.fields_by_number
    return any(field.field_number in known for field in UnknownFieldSet(tensor))
