"""The services by reflection: clients such as grpcurl ask a server what it offers, and what its messages look like.

https://github.com/grpc/grpc/blob/master/doc/server-reflection.md
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import grpc

from mqinfer.gateway.access import Access, Right
from mqinfer.gateway.core import Core
from mqinfer.gateway.grpc_calls import abort, admit, known, receive
from mqinfer.gateway.messages import file_of, message_class, parse
from mqinfer.protocol.errors import Cancelled, LimitExceeded

_REQUEST, _RESPONSE = (message_class(f"grpc.reflection.v1.ServerReflection{each}") for each in ("Request", "Response"))
_VERSIONS = ("v1", "v1alpha")
_NOT_FOUND = 5
_MOST_BYTES = 4096
"""Bytes of a request, which is a name: its answer repeats it."""


def make_reflection(core: Core, access: Access, files: Sequence[str]) -> list[Any]:
    """Return the handlers of both versions of the protocol.

    Args:
        core: Counts its requests and replies.
        access: Asked at the beginning of each stream.
        files: Those in `protos` whose services the port has.
    """
    served = {file.name: file for name in (*files, "reflection.proto") for file in _with_imports(name)}

    async def handle(_: Any, context: Any) -> None:
        try:
            caller = admit(access, Right.METADATA, context)
            while (data := await receive(core, context, caller, is_only=False)) is not grpc.aio.EOF:
                reply = _answer(data, served)
                give_up = partial(core.unsent.close_connection, caller.connection)
                with core.unsent.sending(caller.name, len(reply), give_up):
                    await _write(context, reply)
        except Exception as error:  # noqa: BLE001 - the call's root; `known` logs what nobody has foreseen
            await abort(context, known(error))

    methods = {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(handle)}
    names = [f"grpc.reflection.{version}.ServerReflection" for version in _VERSIONS]
    return [grpc.method_handlers_generic_handler(name, methods) for name in names]


def _with_imports(name: str) -> Iterator[Any]:
    file = file_of(name)
    yield file
    for imported in file.dependency:
        yield from _with_imports(imported)


async def _write(context: Any, reply: bytes) -> None:
    try:
        await context.write(reply)
    except Exception as error:
        raise Cancelled("the client has ended the stream") from error


def _answer(data: bytes, served: dict[str, Any]) -> bytes:
    if len(data) > _MOST_BYTES:
        raise LimitExceeded(f"a request of {len(data)} bytes; at most {_MOST_BYTES} are accepted")
    asked = parse(_REQUEST, data)
    reply, kind = _RESPONSE(valid_host=asked.host, original_request=asked), asked.WhichOneof("message_request")
    if kind == "list_services":
        for file in served.values():
            for service in file.service:
                reply.list_services_response.service.add(name=f"{file.package}.{service.name}")
    else:
        files = [name for name, file in served.items() if asked.file_by_filename == name or _declares(file, asked)]
        found = [_public(each).SerializeToString() for name in files for each in _with_imports(name)]
        reply.file_descriptor_response.file_descriptor_proto.extend(found)
        if not found:
            reply.error_response.error_code = _NOT_FOUND
            reply.error_response.error_message = "not found; `list` names the services"
    answer: bytes = reply.SerializeToString()
    return answer


def _declares(file: Any, asked: Any) -> bool:
    """Return whether a file declares the symbol that a request asks for, by the first part behind the package."""
    package, _, name = asked.file_containing_symbol.partition(f"{file.package}.")
    declared = {each.name for each in (*file.service, *file.message_type, *file.enum_type)}
    return not package and name.partition(".")[0] in declared


def _public(file: Any) -> Any:
    """Return a file as its protocol has it: here some fields are the bytes that they are on the wire."""
    public = type(file).FromString(file.SerializeToString())
    messages = {each.name: each for each in public.message_type}
    if "TypedTensorProto" in messages:
        del messages["TensorProto"].field[:]
        messages["TensorProto"].field.extend(messages["TypedTensorProto"].field)
    for request in public.message_type:
        for tensor in request.nested_type:
            for field in tensor.field:
                if field.name == "contents":
                    field.label, field.type = field.LABEL_OPTIONAL, field.TYPE_MESSAGE
                    field.type_name = ".inference.InferTensorContents"
    return public
