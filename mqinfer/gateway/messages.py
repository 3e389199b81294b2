"""Messages of Protocol Buffers, as the files in `protos` declare them; `scripts/build-protos` makes what is read here.

Generated code of other packages (tritonclient, kserve) registers the same names in the default pool, and two versions
of it clash there; messages from a private pool run beside them in one process, with any protobuf from 5 on.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, MutableSequence
from functools import cache
from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError

from mqinfer.protocol.datatypes import Buffer
from mqinfer.protocol.errors import InvalidRequest


@cache
def message_class(name: str) -> Any:
    """Return the class of a message by its full name, such as `inference.ModelInferRequest`."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(name))


@cache
def _pool() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in _files().values():
        pool.Add(file)
    return pool


@cache
def _files() -> dict[str, Any]:
    made = resources.files("mqinfer.gateway").joinpath("protos/descriptors.pb").read_bytes()
    return {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(made).file}


def file_of(name: str) -> Any:
    """Return the FileDescriptorProto of a file in `protos`."""
    return _files()[name]


def from_record(name: str, content: Mapping[str, Any]) -> Any:
    """Return the message `inference.{name}` of a record of JSON; keys that it lacks are left out."""
    return json_format.ParseDict(content, message_class(f"inference.{name}")(), ignore_unknown_fields=True)


def to_record(message: Any) -> dict[str, Any]:
    """Return a message as a record of JSON like Triton's: all fields but messages that it lacks, numbers as numbers."""
    fields = [field for field in message.DESCRIPTOR.fields if not field.has_presence or message.HasField(field.name)]
    return {field.name: _plain(getattr(message, field.name), field) for field in fields}


def _plain(value: Any, field: Any) -> Any:
    if isinstance(value, MutableMapping):
        return {str(key): _plain(each, field.message_type.fields_by_name["value"]) for key, each in value.items()}
    if isinstance(value, MutableSequence):
        return [_plain(each, field) for each in value]
    if field.message_type:
        return to_record(value)
    return field.enum_type.values_by_number[value].name if field.enum_type else value


def parse(kind: Any, data: Buffer) -> Any:
    """Return a message of a class.

    Raises:
        InvalidRequest: The bytes are none.
    """
    try:
        return kind.FromString(data)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the request is not a {kind.DESCRIPTOR.name} of Protocol Buffers ({error})") from error
