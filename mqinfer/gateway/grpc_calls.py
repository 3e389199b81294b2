"""What both gRPC fronts share: calls of the core as handlers of grpc.aio, with bytes in and bytes out.

The handler of a call runs in a task of its own. A caller that cancels, goes away, or whose deadline passes cancels that
task, and thereby the request at the worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any

import grpc

from mqinfer.gateway.access import Access, Right
from mqinfer.gateway.admission import take_room
from mqinfer.gateway.core import Core
from mqinfer.gateway.errors import Overloaded, status_of
from mqinfer.gateway.http import decompress
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.protocol.errors import InvalidRequest, MqinferError
from mqinfer.value_object import value_object
from mqinfer.web.arriving import Arriving
from mqinfer.web.peers import name_connection
from mqinfer.web.unsent import Unsent

log = logging.getLogger("mqinfer.gateway")

_MOST_TEXT = 2000
"""Characters of an error's text: it travels as a header, and clients accept 8 KiB of those by default."""
_PINGS = (  # a client that is gone without a word ends its calls within 80 s; clients may ping every 10 s themselves
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)
_WINDOW_BYTES = 1 << 18
_WINDOW = (  # what a call may send before its message is read: it grows with the bandwidth otherwise, to many MiB
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
    ("grpc.http2.max_frame_size", _WINDOW_BYTES),  # of 16 KiB each, frames take a twentieth more of the processor
    ("grpc.per_message_decompression", 0),  # gRPC's own has no bound on what comes out, nor on how many at a time
)
_CODINGS = {b"\x1f\x8b": "gzip", **dict.fromkeys((b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda"), "deflate")}
"""How compressed messages begin, and no other one does: gRPC does not say which are."""
_port: ContextVar[int] = ContextVar("port")
"""Where the server listens that a task belongs to: gRPC does not say to which port a call came."""


@value_object()
class GrpcCaller:
    """Who calls.

    Attributes:
        name: By which callers take turns.
        connection: Name of the connection, as of `name_connection`.
        headers: Metadata of the call, with lower-case names.
        deadline_s: Seconds that are left until the call's deadline, or None where it has none.
    """

    name: str
    connection: str
    headers: Mapping[str, str]
    deadline_s: float | None


Work = Callable[[bytes, GrpcCaller], Awaitable[bytes]]
"""What a method does: from the bytes of a request to those of the reply."""


def unary(access: Access, right: Right, work: Work, core: Core) -> Any:
    """Return the handler of a method with one request and one reply.

    Args:
        access: Asked before each call.
        right: What callers need for it.
        work: Raises an `MqinferError` for whatever goes wrong.
        core: Counts its requests while they are here, and its replies until they are taken.
    """

    async def answer(context: Any) -> bytes:
        caller = admit(access, right, context)
        request = await receive(core, context, caller, is_only=True)
        with HeldRequest(core.arriving, caller.name, len(request)):
            reply = await work(request, caller)
        _count_until_done(core.unsent, caller, len(reply))
        return reply

    async def handle(_: Any, context: Any) -> bytes:
        try:
            return await answer(context)
        except Exception as error:
            await abort(context, known(error))
            raise  # not reached: `abort` raises

    return grpc.stream_unary_rpc_method_handler(handle)  # one of unary_unary gets the message read before it is asked


def _count_until_done(unsent: Unsent, caller: GrpcCaller, size: int) -> None:
    """Count a reply until gRPC has sent it, which it does in the task that runs the handler."""
    task = asyncio.current_task()
    if task is not None:
        # gRPC frees a reply in no other way than with its connection.
        reply = unsent.begin(caller.name, size, partial(unsent.close_connection, caller.connection))
        task.add_done_callback(lambda _: unsent.end(reply))


async def receive(core: Core, context: Any, caller: GrpcCaller, *, is_only: bool) -> Any:
    """Return the next message of a call, or EOF.

    Args:
        core: Counts it while it arrives.
        context: Of the call.
        caller: Who calls.
        is_only: Whether the call must have one, and no other; it has to be there in its time.

    Raises:
        InvalidRequest: There is none.
        BadEnvelope: It can't be decompressed.
        LimitExceeded: It is too large then.
        Overloaded: There is no room for it, or it is late.
    """
    arriving = core.arriving
    size, call = 0, arriving.wait(caller.connection, timed=is_only)
    try:
        message = await context.read()
        if message is not grpc.aio.EOF:
            size = len(message)
    except asyncio.CancelledError:
        if arriving.is_waiting(call):
            raise
        call.uncancel()
        raise Overloaded("the message has not arrived in time, or others take the room; send it again later") from None
    finally:
        arriving.received(call, size)
    if is_only and message is grpc.aio.EOF:
        raise InvalidRequest("the call ends without a request; send one message")
    coding = size and _CODINGS.get(message[:2])
    if not coding:
        return message
    with HeldRequest(arriving, caller.name, size):
        run = asyncio.get_running_loop().run_in_executor
        return await run(core.decompressor, decompress, message, coding, core.max_input_bytes)


class HeldRequest:
    """Counts a request within the context; entering raises `Overloaded` where there is no room for it.

    A class, since a generator takes 1.6 times as long, for every request.
    """

    __slots__ = ("_arriving", "_caller", "_size")

    def __init__(self, arriving: Arriving, caller: str, size: int) -> None:
        self._arriving, self._caller, self._size = arriving, caller, size

    def __enter__(self) -> None:
        take_room(self._arriving, self._caller, self._size)

    def __exit__(self, *_: object) -> None:
        self._arriving.give(self._caller, self._size)


def admit(access: Access, right: Right, context: Any) -> GrpcCaller:
    """Return who calls, if the call is allowed.

    Raises:
        Unauthenticated: It has no credentials, or wrong ones.
        NotAuthorized: It may not call this.
    """
    headers = dict(context.invocation_metadata())
    certificate = _certificate(context) if access.asks_certificates else ""  # gRPC takes 10 us to look
    peer = context.peer()
    name = access.admit(right, headers, peer, certificate=certificate, is_grpc=True)
    return GrpcCaller(name, name_connection(peer, _port.get()), headers, context.time_remaining())


def _certificate(context: Any) -> str:
    """Return the common name of the client's certificate, or nothing where it showed none."""
    names = context.auth_context().get("x509_common_name")
    return names[0].decode(errors="replace") if names else ""


async def abort(context: Any, error: BaseException) -> None:
    """End a call with the status of an error; does not return."""
    status = status_of(error)
    hints: tuple[tuple[str, str], ...] = ()
    if status.retry_after_s is not None:  # the retries of gRPC's own clients wait as long
        hints = (("grpc-retry-pushback-ms", str(int(status.retry_after_s * 1000))),)
    await context.abort(grpc.StatusCode[status.grpc], text_of(error), hints)


def text_of(error: BaseException) -> str:
    """Return an error's text as gRPC can carry it; past a deadline it begins as gRPC's own."""
    is_late = status_of(error).grpc == grpc.StatusCode.DEADLINE_EXCEEDED.name
    text = f"Deadline Exceeded: {error}" if is_late else str(error)
    return text[:_MOST_TEXT].encode(errors="replace").decode()


def known(error: Exception) -> MqinferError:
    """Return the error that a caller receives; one that nobody has foreseen is logged, and its text is not sent.

    Tracebacks are dropped: gRPC keeps the error that ends a call in a cycle, and with it the frames of what went wrong
    before, which have the request and the reply.
    """
    errors = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
    first = errors[0]
    if not isinstance(first, MqinferError):
        log.error("a call of gRPC failed", exc_info=first)
        first = MqinferError(f"the gateway failed ({type(first).__name__}); its log has the details")
    for each in (error, *errors):
        each.__traceback__ = None
    return first


def make_server(handlers: Iterable[Any], settings: GatewaySettings, *, shared: bool = False) -> Any:
    """Make a server of grpc.aio, within the loop that it will run in; its ports are still to be added.

    Args:
        handlers: Generic handlers, as the fronts make them.
        settings: Of the gateway.
        shared: Whether other processes may listen on the same port.
    """
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_own_fault)
    options = (
        ("grpc.max_receive_message_length", settings.bounds.http_max_input_size),
        ("grpc.max_send_message_length", -1),  # workers' replies are bounded where they are received
        ("grpc.max_concurrent_streams", settings.bounds.max_pending),
        ("grpc.max_allowed_incoming_connections", settings.bounds.max_connections),
        ("grpc.so_reuseport", int(shared)),
        *_PINGS,
        *_WINDOW,
    )
    return grpc.aio.server(handlers=tuple(handlers), options=options)


async def start_server(server: Any, port: int) -> None:
    """Start a server that listens on a port; the tasks that run its handlers know it."""
    _port.set(port)
    await server.start()


def _is_own_fault(record: logging.LogRecord) -> bool:
    """Return False for what gRPC logs when a reply can't be sent: its caller has gone."""
    return record.exc_info is None or type(record.exc_info[1]).__name__ != "ExecuteBatchError"
