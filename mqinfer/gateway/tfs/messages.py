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

_MOST_VALUES, _WEIGHT = DEFAULT_LIMITS.payload_bytes // ITEM_BYTES[Datatype.BYTES], 16
"""Strings and numbers of a message and those in it; a message, a name, or what nobody knows counts as so many."""
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
        LimitExceeded: It has too many values, or messages in it.
    """
    message_type = tfs_class(kind)
    if len(data) > _SMALL:
        _check_fields(memoryview(data), message_type.DESCRIPTOR, _MOST_VALUES)
    message = parse_message(message_type, data)
    if kind == "PredictRequest" and any(map(_has_unpacked, message.inputs.values())):
        message = message_type.FromString(parse_message(tfs_class("TypedPredictRequest"), data).SerializeToString())
    return message


def _check_fields(view: memoryview, descriptor: Any, room: int) -> int:
    """Return how many more values there may be after those of a message and of the messages in it."""
    inner, values = _fields_of(descriptor)
    for number, kind, _, start, end in fields(view):
        room -= 1 if number in values else _WEIGHT
        if room < 0:
            raise LimitExceeded(
                f"the request has more than {_MOST_VALUES} strings and numbers one by one, or "
                f"{_MOST_VALUES // _WEIGHT} names and messages in it; send less at once"
            )
        if kind == DELIMITED and start < end and number in inner:
            room = _check_fields(view[start:end], inner[number], room)
    return room


@cache
def _fields_of(descriptor: Any) -> tuple[dict[int, Any], set[int]]:
    """Return the fields of a message that are messages, and those that are the values of tensors."""
    inner = {number: field.message_type for number, field in descriptor.fields_by_number.items() if field.message_type}
    names = {number for number, field in descriptor.fields_by_number.items() if field.type == field.TYPE_STRING}
    return inner, descriptor.fields_by_number.keys() - inner.keys() - names


def _has_unpacked(tensor: Any) -> bool:
    """Return whether values of a tensor came one by one, which are unknown to the packed form."""
    known = tensor.DESCRIPTOR.fields_by_number
    return any(field.field_number in known for field in UnknownFieldSet(tensor))
