"""`ModelInfer`, and `ModelStreamInfer`: many requests and their replies over one stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import grpc
import numpy as np

from mqinfer.client.result import InferResult
from mqinfer.gateway.access import Access, Right
from mqinfer.gateway.calls import offload
from mqinfer.gateway.core import Core
from mqinfer.gateway.grpc.requests import GrpcRequest, read_call, read_request
from mqinfer.gateway.grpc_calls import GrpcCaller, HeldRequest, Work, abort, admit, known, receive, text_of
from mqinfer.gateway.messages import message_class
from mqinfer.protobuf_wire import delimited
from mqinfer.protocol.datatypes import Buffer, datatype_of, raw_bytes
from mqinfer.protocol.errors import Cancelled, Expired, MqinferError

_Infer = Callable[[], Awaitable[InferResult]]
_MOST_STRINGS = 4096
"""Strings of a result that are joined on the loop."""
_RESPONSE = message_class("inference.ModelInferResponse")
_STREAM_RESPONSE = message_class("inference.ModelStreamInferResponse")
_ID, _RAWS = 3, 6  # fields of the response
_INFER_RESPONSE = 2  # field of the stream's response
_CACHED = 1024
_ENDING_S = 0.1
"""What is left of a stream's time where its requests end by it: they end some ms before."""
_FINAL = {"triton_final_response": message_class("inference.InferParameter")(bool_param=True)}
"""The protocol asks for it in the last reply to each request of a stream; here each has one."""
_FINAL_BYTES = _RESPONSE(parameters=_FINAL).SerializeToString()


def make_infer(core: Core) -> Work:
    """Return what `ModelInfer` does."""

    async def infer(data: bytes, caller: GrpcCaller) -> bytes:
        request = read_request(data)
        result = await core.infer(await offload(request.size, read_call, request, caller))
        if _is_slow(result):
            return await asyncio.to_thread(response, result, request.message.id)
        return response(result, request.message.id)

    return infer


def make_stream(core: Core, access: Access, window: int = 64) -> Any:
    """Return the handler of `ModelStreamInfer`.

    Args:
        core: Answers the requests.
        access: Asked at the beginning of each stream.
        window: Requests of one stream without a reply at a time; further ones are not read until there is room, so that
            the flow control of HTTP/2 holds back the client.
    """

    async def handle(_: Any, context: Any) -> None:
        try:
            caller = admit(access, Right.INFERENCE, context)
            await _Stream(core, context, caller, window).run()
        except Exception as error:  # noqa: BLE001 - the call's root; `known` logs what nobody has foreseen
            await abort(context, known(error))

    return grpc.stream_stream_rpc_method_handler(handle)


class _Stream:
    """One stream; its requests run at the same time, each in a task of its own.

    Replies come as soon as they are there. Only those to requests with the same id, or with none, keep the order of the
    requests, because a client can't tell them apart otherwise.
    """

    def __init__(self, core: Core, context: Any, caller: GrpcCaller, window: int) -> None:
        self._core, self._context, self._caller = core, context, caller
        self._room = asyncio.Semaphore(window)
        self._writing = asyncio.Lock()  # gRPC has one write at a time
        self._ends_with_status = caller.headers.get("triton_grpc_error") == "true"
        self._latest: dict[str, asyncio.Task[None]] = {}  # by id

    async def run(self) -> None:
        """Answer all requests; returns when the client has closed its side and has all replies.

        Raises:
            MqinferError: The first error, where the client asked for it to be the stream's status.
        """
        async with asyncio.TaskGroup() as group:
            while True:
                await self._room.acquire()
                data = await receive(self._core, self._context, self._caller, is_only=False)
                if data is grpc.aio.EOF:
                    return
                self._start(group, data)
                del data  # the next one may be long in coming

    def _start(self, group: asyncio.TaskGroup, data: bytes) -> None:
        request, request_id, model = _read(data)
        infer = partial(self._infer, request, len(data))
        task = group.create_task(self._answer(infer, request_id, model, self._latest.get(request_id)))
        self._latest[request_id] = task
        task.add_done_callback(lambda done: self._forget(request_id, done))

    def _forget(self, request_id: str, task: asyncio.Task[None]) -> None:
        self._room.release()
        if self._latest.get(request_id) is task:
            del self._latest[request_id]

    async def _answer(self, infer: _Infer, request_id: str, model: str, before: asyncio.Task[None] | None) -> None:
        reply = await self._reply(infer, request_id, model)
        del infer  # the request would stay until the client takes the reply
        with self._core.unsent.sending(self._caller.name, len(reply), self._give_up, timed=False):
            if before is not None:
                await asyncio.wait((before,))
            async with self._writing:
                await self._write(reply)

    async def _write(self, reply: bytes) -> None:
        with self._core.unsent.sending(self._caller.name, 0, self._give_up):  # its time runs from here
            try:
                await self._context.write(reply)
            except Exception as error:
                raise Cancelled("the client has ended the stream") from error

    def _give_up(self) -> None:
        """End the stream with its connection: its client does not read, and gRPC frees a reply in no other way."""
        self._core.unsent.close_connection(self._caller.connection)

    async def _reply(self, infer: _Infer, request_id: str, model: str) -> bytes:
        try:
            result = await infer()
            if _is_slow(result):
                return await asyncio.to_thread(stream_response, result, request_id)
            return stream_response(result, request_id)
        except Exception as error:
            if self._ends_with_status or self._is_late(error):
                raise
            return error_message(known(error), request_id, model)

    def _is_late(self, failure: Exception) -> bool:
        """Return whether a request failed since the time of the whole stream is over, which is the stream's status."""
        left = self._context.time_remaining()
        return left is not None and left < _ENDING_S and type(failure) is Expired

    async def _infer(self, request: GrpcRequest | MqinferError, size: int) -> InferResult:
        if isinstance(request, MqinferError):
            raise request
        caller = replace(self._caller, deadline_s=self._context.time_remaining())
        with HeldRequest(self._core.arriving, caller.name, size):
            return await self._core.infer(await offload(request.size, read_call, request, caller))


def _read(data: bytes) -> tuple[GrpcRequest | MqinferError, str, str]:
    """Return a request of a stream, or why it is none, with its id and model as far as they are known."""
    try:
        request = read_request(data)
    except MqinferError as error:
        return error, "", ""
    return request, request.message.id, request.message.model_name


def _is_slow(result: InferResult) -> bool:
    return any(array.dtype.kind == "O" and array.size > _MOST_STRINGS for array in result.outputs.values())


def response(result: InferResult, request_id: str) -> bytes:
    """Return a reply, with all tensors as `raw_output_contents`: they are copied once, into the reply."""
    return b"".join(_pieces(result, request_id))


def stream_response(result: InferResult, request_id: str) -> bytes:
    """Return a reply of a stream."""
    pieces = [*_pieces(result, request_id), _FINAL_BYTES]
    return b"".join((delimited(_INFER_RESPONSE, sum(map(len, pieces))), *pieces))


def error_message(error: MqinferError, request_id: str, model: str) -> bytes:
    """Return the reply of a stream to a request that failed.

    Args:
        error: Why.
        request_id: As the caller stated it; may be empty.
        model: Likewise.
    """
    failed = _RESPONSE(id=request_id, model_name=model, parameters=_FINAL)
    message: bytes = _STREAM_RESPONSE(error_message=text_of(error), infer_response=failed).SerializeToString()
    return message


def _pieces(result: InferResult, request_id: str) -> list[Buffer]:
    """Return a reply in pieces; those of tensors are views where the arrays are contiguous."""
    outputs = result.outputs
    described = tuple([(name, array.dtype, array.shape) for name, array in outputs.items()])
    pieces: list[Buffer] = [_head(result.model_name, result.model_version, described)]
    if request_id:
        octets = request_id.encode()
        pieces += (delimited(_ID, len(octets)), octets)
    for name, array in outputs.items():
        raw = raw_bytes(name, array)
        pieces += (delimited(_RAWS, len(raw)), raw)
    return pieces


@lru_cache(_CACHED)
def _head(model: str, version: str, outputs: tuple[tuple[str, np.dtype[np.generic], tuple[int, ...]], ...]) -> bytes:
    """Return what the replies of a model have in common, as long as the shapes are the same."""
    message = _RESPONSE(model_name=model, model_version=version)
    for name, dtype, shape in outputs:
        message.outputs.add(name=name, datatype=str(datatype_of(dtype)), shape=shape)
    head: bytes = message.SerializeToString()
    return head
