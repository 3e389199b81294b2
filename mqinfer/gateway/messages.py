"""Messages of Protocol Buffers, as the files in `protos` declare them; `scripts/build-protos` makes what is read here.

Generated code of other packages (tritonclient, kserve) registers the same names in the default pool, and two versions
of it clash there; messages from a private pool run beside them in one process, with any protobuf from 5 on.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
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
    made = resources.files("mqinfer.gateway").joinpath("protos/descriptors.pb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(made).file:
        pool.Add(file)
    return pool


def parse(kind: Any, data: Buffer) -> Any:
    """Return a message of a class.

    Raises:
        InvalidRequest: The bytes are none.
    """
    try:
        return kind.FromString(data)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the request is not a {kind.DESCRIPTOR.name} of Protocol Buffers ({error})") from error
