"""What both HTTP fronts share: routes, admission, bounded bodies and decompression, and errors as JSON.

aiohttp hands bodies over as they came: its own decompression returns a truncated body without an error.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from io import BytesIO
from typing import Any, TypeVar
from urllib.parse import unquote
from weakref import WeakKeyDictionary

import numpy as np
import orjson
from aiohttp import ClientError, HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError

from mqinfer.gateway.access import Access, Right
from mqinfer.gateway.admission import take_room
from mqinfer.gateway.calls import LARGE, offload, outputs_size
from mqinfer.gateway.core import Core
from mqinfer.gateway.errors import MethodNotAllowed, Overloaded, status_of
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.decoding import MAX_NESTING, is_deep_json
from mqinfer.protocol.errors import BadEnvelope, Expired, LimitExceeded, ModelNotFound, MqinferError
from mqinfer.protocol.header import error_message
from mqinfer.protocol.types import Buffer
from mqinfer.web.connections import BoundedRunner

log = logging.getLogger("mqinfer.gateway")
_server_log = log.getChild("http")

_PART_BYTES, _PART_ITEMS, _NUMBER_BYTES = 256 << 10, 1024, 8
"""Bytes of content, about, and items of a list that are written as JSON in one piece, and the bytes of a number."""
_LARGE_BYTES = 1 << 20
"""JSON of larger outputs is written while it is sent, in pieces of about as much."""
_CONTAINERS = {str, list, dict, np.ndarray}
_WBITS = {"gzip": 31, "deflate": 15}
_ACCEPTED = ("identity", *_WBITS)
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class AdmittedCall:
    """A call that was admitted.

    Attributes:
        request: As aiohttp has it.
        caller: Name of the caller, by which callers take turns.
        parts: Groups of the route's pattern; empty where a group has none.
    """

    request: web.Request
    caller: str
    parts: tuple[str, ...]

    @property
    def trace(self) -> dict[str, Any]:
        """The W3C trace context and state, empty where there are none."""
        return {name: ",".join(self.request.headers.getall(name, ())) for name in ("traceparent", "tracestate")}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What a path does.

    Attributes:
        pattern: Of the whole path, still escaped.
        right: What callers need.
        methods: Handlers by HTTP method; they raise an `MqinferError` for whatever goes wrong.
        state_error: Makes the reply that states an error; None for `error_reply`.
    """

    pattern: re.Pattern[str]
    right: Right
    methods: Mapping[str, Callable[[AdmittedCall], Awaitable[web.Response]]]
    state_error: Callable[..., web.Response] | None = None


@dataclass(frozen=True, slots=True)
class LargeJson:
    """JSON of a large result, of which as much is written as its caller takes.

    Attributes:
        pieces: Its pieces, in order.
        size: Bytes of the result, which is held until the last one.
    """

    pieces: Iterator[bytes]
    size: int


class Bodies:
    """Reads bodies, and sends replies, within bounds."""

    def __init__(self, settings: GatewaySettings, core: Core) -> None:
        self._core, self._arriving, self._unsent = core, core.arriving, core.unsent
        self._limit = settings.bounds.http_max_input_size
        self._patience_s = settings.bounds.timeout
        self._held: WeakKeyDictionary[web.Response, int] = WeakKeyDictionary()  # sizes of what `LargeJson` is made of

    @asynccontextmanager
    async def read(self, call: AdmittedCall, most: int | None = None) -> AsyncIterator[Buffer]:
        """Yield a call's body, decompressed; its bytes count until the end of the context.

        Args:
            call: Whose body it is.
            most: Bytes of it, where these are fewer than `max_input_bytes`.

        Raises:
            LimitExceeded: It is larger than `max_input_bytes` or `most`, also where it only says so.
            Overloaded: The requests of all calls together are, or those of this caller.
            BadEnvelope: It is cut off, not compressed as stated, or compressed in an unknown way.
            Expired: It has not come within the time of a call that states none.
        """
        request = call.request
        coding = request.headers.get("Content-Encoding", "identity").strip().lower() or "identity"
        if coding not in _ACCEPTED:
            raise BadEnvelope(f"Unsupported compression type {coding[:40]!r}; send gzip, deflate or identity")
        limit = min(self._limit, most or self._limit)
        if (request.content_length or 0) > limit:
            raise _too_large(request.content_length or 0, limit)
        body = bytearray()
        taken = 0
        try:
            async for part in _parts(request, self._patience_s):
                taken += take_room(self._arriving, call.caller, len(part))
                body += part
                if len(body) > limit:
                    raise _too_large(len(body), limit)
            content: Buffer = body
            if coding != "identity":
                # Enlarged by up to the limit, also a small one: whether there is room shows when it has been.
                run = asyncio.get_running_loop().run_in_executor
                content = await run(self._core.decompressor, decompress, body, coding, limit)
                taken += take_room(self._arriving, call.caller, len(content))
            yield content
        finally:
            self._arriving.give(call.caller, taken)

    async def reply(
        self, request: web.Request, body: bytes | LargeJson, headers: Mapping[str, str] | None = None
    ) -> web.Response:
        """Return a reply, of JSON unless the headers state another type, in the coding that the caller prefers."""
        headers = {"Content-Type": "application/json", **(headers or {})}
        coding = accepted_coding(request.headers.get("Accept-Encoding", ""))
        if coding != "identity":
            headers["Content-Encoding"] = coding
        if isinstance(body, LargeJson):
            pieces = compress(body.pieces, coding)
            if request.version >= HttpVersion11:
                reply = web.Response(body=self._one_by_one(pieces, body.size), headers=headers)
                self._held[reply] = body.size
                return reply
            body = await offload(body.size, b"".join, pieces)
        elif coding != "identity":
            body = await offload(len(body), b"".join, compress([body], coding))
        headers["Content-Length"] = str(len(body))
        content = BytesIO(body) if len(body) > LARGE else body  # in pieces: else a transport copies all of it
        return web.Response(body=content, headers=headers)

    async def _one_by_one(self, pieces: Iterator[bytes], size: int) -> AsyncIterator[bytes]:
        while piece := await offload(size, next, pieces, b""):
            yield piece

    async def send(self, request: web.Request, caller: str, reply: web.Response) -> None:
        """Send a reply, within a time; the connection of a caller that doesn't take it is closed."""
        transport = request.transport
        if transport is None:
            return
        reply.headers["Server"] = "mqinfer"  # in place of Python's and aiohttp's versions
        transport.set_write_buffer_limits(0)  # sent is what the system has, not what waits here
        size = self._held.get(reply, reply.content_length or 0)
        with self._unsent.sending(caller, size, transport.abort), suppress(ConnectionError):
            await reply.prepare(request)
            try:
                await reply.write_eof()
            except MemoryError:  # in the midst of JSON
                self._unsent.given_up["memory"] += 1
                transport.abort()

    async def write(self, call: AdmittedCall, outputs: Mapping[str, Array], function: Callable[[], _R]) -> _R:
        """Return what a function makes of a result's outputs; large ones that wait for it count as replies do."""
        size, transport = outputs_size(outputs), call.request.transport
        if size <= LARGE or transport is None:
            return function()
        with self._unsent.sending(call.caller, size, transport.abort, timed=False):
            return await offload(size, function)


def _too_large(size: int, limit: int) -> LimitExceeded:
    return LimitExceeded(
        f"request JSON size of {size} bytes exceeds the maximum allowed input size of {limit} bytes, which"
        " holds for all of the body. Use --http-max-input-size to increase the limit."
    )


async def _parts(request: web.Request, patience_s: float) -> AsyncIterator[bytes]:
    deadline = asyncio.get_running_loop().time() + patience_s
    try:
        while not request.content.at_eof():
            async with asyncio.timeout_at(deadline):
                part = await request.content.readany()
            yield part
    except TimeoutError as error:
        raise Expired(f"the body has not come within {patience_s:g} s") from error
    except (ClientError, HttpProcessingError, web.RequestPayloadError, ConnectionError) as error:
        raise BadEnvelope(f"the body can't be read to its end: {error}") from error


def decompress(body: Buffer, coding: str, limit: int) -> bytes:
    """Return what a body was before its compression.

    Raises:
        BadEnvelope: It is cut off or damaged, or something follows.
        LimitExceeded: It has more than `limit` bytes.
    """
    stream = zlib.decompressobj(_WBITS[coding])
    try:
        found = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise BadEnvelope(f"the body is not {coding}: {error}") from error
    if len(found) > limit:
        raise LimitExceeded(
            f"body of more than {limit} bytes when decompressed. Use --http-max-input-size to increase the limit."
        )
    if not stream.eof:
        raise BadEnvelope(f"the body ends before its {coding} stream does")
    if stream.unused_data:
        raise BadEnvelope(f"bytes follow the {coding} stream of the body; send one stream")
    return found


def compress(pieces: Iterable[bytes], coding: str) -> Iterator[bytes]:
    """Yield the pieces of a body in a coding."""
    if coding == "identity":
        yield from pieces
        return
    stream = zlib.compressobj(zlib.Z_BEST_SPEED, wbits=_WBITS[coding])
    yield from filter(None, map(stream.compress, pieces))
    yield stream.flush()


def accepted_coding(header: str) -> str:
    """Return the content coding that an `Accept-Encoding` prefers; the first one of equal weight, as Triton does."""
    best, most = "identity", 0.0
    for entry in header.split(","):
        name, _, rest = entry.partition(";")
        weight = re.fullmatch(r"\s*q=([01](?:\.\d{0,3})?)\s*", rest) if rest else None
        q = float(weight[1]) if weight else float(not rest)
        if name.strip().lower() in _ACCEPTED and q > most:
            best, most = name.strip().lower(), q
    return best


def check_nesting(text: Buffer) -> None:
    """Check how deep JSON is nested, before any parser recurses into it.

    Raises:
        BadEnvelope: Deeper than 100, as in Triton.
    """
    if is_deep_json(text):
        raise BadEnvelope(f"JSON nesting depth exceeds maximum allowed limit ({MAX_NESTING})")


def dump_json(content: Any) -> bytes:
    """Return JSON of what arrays of numbers may be in; numbers that JSON lacks are null.

    Large content is written part by part: orjson ends the process where there is no memory for it to enlarge its buffer
    (segmentation fault in 3.11), and holds Python's lock all the while.

    Raises:
        MemoryError: There is no memory for it.
    """
    return b"".join(_parts_of(content))


def large_json(content: Any, outputs: Mapping[str, Array]) -> bytes | LargeJson:
    """Return JSON of a result's outputs; that of large ones is written while it is sent.

    Raises:
        MemoryError: There is no memory for it.
    """
    size = outputs_size(outputs)
    return LargeJson(_pieces(_parts_of(content)), size) if size > _LARGE_BYTES else dump_json(content)


def _pieces(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Yield parts together, where they are small."""
    held, size = list[bytes](), 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size > _LARGE_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def _parts_of(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict) and value:
        for place, (key, each) in enumerate(value.items()):
            yield (b"," if place else b"{") + orjson.dumps(key) + b":"
            yield from _parts_of(each)
        yield b"}"
    elif isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim):
        yield b"["
        yield from _items_of(value)
        yield b"]"
    elif isinstance(value, str) and len(value) > _PART_BYTES:
        yield json.dumps(value, ensure_ascii=False).encode()
    else:
        yield orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def _items_of(values: Any) -> Iterator[bytes]:
    """Yield a list or an array without its brackets."""
    step = _PART_ITEMS
    if isinstance(values, np.ndarray) or len(values) <= step:
        if _weight(values) <= _PART_BYTES:
            yield orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
            return
        if len(values) == 1:
            yield from _parts_of(values[0])
            return
        step = (len(values) + 1) // 2
    for start in range(0, len(values), step):
        if start:
            yield b","
        yield from _items_of(values[start : start + step])


def _weight(value: Any) -> int:
    """Return about how many bytes something takes."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        kinds = {*map(type, value)}
        if kinds == {str}:
            return sum(map(len, value))
        return sum(map(_weight, value)) if kinds & _CONTAINERS else len(value) * _NUMBER_BYTES
    return sum(map(_weight, value.values())) if isinstance(value, dict) else _NUMBER_BYTES


def json_reply(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a reply of JSON; numbers that JSON lacks are null."""
    return web.Response(body=orjson.dumps(content), status=status, headers=headers, content_type="application/json")


def error_reply(error: MqinferError, headers: Mapping[str, str] | None = None, **further: Any) -> web.Response:
    """Return the reply that states an error, with further fields."""
    status = status_of(error)
    headers = dict(headers or {})
    if status.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(status.retry_after_s)))
    if status.http == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return json_reply({**further, "error": error_message(str(error))}, status.http, headers)


def make_application(routes: Sequence[Endpoint], access: Access, bodies: Bodies) -> web.Application:
    """Return an application that finds routes by the first pattern that fits.

    Args:
        routes: In the order in which they are tried.
        access: Asked before each call.
        bodies: Sends the replies.
    """

    def find(path: str) -> tuple[Endpoint, tuple[str, ...]]:
        for route in routes:
            found = route.pattern.fullmatch(path)
            if found:
                return route, tuple(unquote(part or "", errors="replace") for part in found.groups())
        raise ModelNotFound("Not Found")

    @web.middleware
    async def guard(request: web.Request, handler: Any) -> web.StreamResponse:  # noqa: ARG001 - aiohttp's signature
        caller = ""
        state_error: Callable[..., web.Response] = error_reply
        try:
            route, parts = find(request.rel_url.raw_path)
            state_error = route.state_error or error_reply
            peer, certificate = peer_of(request)
            caller = access.admit(route.right, request.headers, peer, certificate=certificate)
            method = route.methods.get(request.method)
            if method is None:
                reply = state_error(MethodNotAllowed("Method Not Allowed"), {"Allow": ", ".join(route.methods)})
            else:
                reply = await method(AdmittedCall(request, caller, parts))
        except MqinferError as error:
            reply = state_error(error)
        except MemoryError:
            reply = state_error(Overloaded("the gateway has no memory for this call now; try again later"))
        except Exception as error:
            log.exception("a call of HTTP failed: %s %.200s", request.method, request.rel_url.raw_path)
            reply = state_error(MqinferError(f"the gateway failed: {type(error).__name__}; its log has the details"))
        await bodies.send(request, caller, reply)
        return reply

    app = web.Application(middlewares=[guard])
    app.router.add_route("*", "/{path:.*}", _nowhere, expect_handler=_proceed)
    return app


async def _nowhere(request: web.Request) -> web.Response:
    """Handle nothing: the middleware answers each call; the route is there for its `Expect`."""
    raise web.HTTPNotFound(text=request.path)


async def _proceed(request: web.Request) -> None:
    """Ask for the body where the caller waits for that; other expectations may be ignored."""
    if request.version >= HttpVersion11 and request.headers["Expect"].lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0


def make_runner(app: web.Application, settings: GatewaySettings) -> web.AppRunner:
    """Return what serves an application; a caller who disconnects cancels the handler of the call."""
    return BoundedRunner(
        app,
        "gateway",
        _server_log,
        settings.bounds.max_connections,
        handler_cancellation=True,
        shutdown_timeout=settings.bounds.drain + 2.0,  # for the errors of the calls that the end of the drain cancels
    )


def peer_of(request: web.Request) -> tuple[str, str]:
    """Return the address of a connection, and the common name of its client certificate."""
    transport = request.transport
    if transport is None:
        return "", ""
    address = transport.get_extra_info("peername")
    peer = ":".join(map(str, address[:2])) if isinstance(address, tuple) else str(address or "")
    certificate = transport.get_extra_info("peercert") or {}
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return peer, names[0] if names else ""
