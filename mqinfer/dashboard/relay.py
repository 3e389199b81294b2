"""The way of MQTT's packets between a browser's WebSocket and the broker's TCP port.

Bytes pass as they are: one connection to the broker for each browser, so the broker's logins and access rules hold.
Each way waits until what it has read was taken at the other end, so that a browser that does not read fills no memory
here: the broker's own bounds hold for what waits there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from aiohttp import WebSocketError, WSCloseCode, WSMsgType, web

from mqinfer.dashboard.brokers import Brokers
from mqinfer.dashboard.places import Full, Places
from mqinfer.dashboard.settings import DashboardSettings
from mqinfer.logs import log_dropped
from mqinfer.protocol.errors import MqinferError

_log = logging.getLogger("mqinfer.dashboard")

_PROTOCOL = "mqtt"
_MOST_FRAME = 1 << 20
"""Bytes of a browser's WebSocket message; a packet may take several."""
_TURN = 1 << 14
"""Bytes of it that a browser has looked at in a turn: they may be thousands of packets."""
_READ, _BUFFER = 1 << 16, 1 << 15
"""Bytes that are sent to the browser as one message, and half of those that are read ahead from the broker."""
_CLOSING_S = 2.0
"""Time for what was sent to arrive and for the other end to close, before the connection is cut."""
_MOST_CLOSING_S = 3 * _CLOSING_S
_LOOK_S = 5.0
"""Interval at which a browser's login by key is looked at again."""


class Refused(Exception):
    """A browser sent what it may not; the text is the reason."""


Gate = Callable[[bytes], bytes]
"""Takes what a browser sends, and returns what of it goes to the broker now; raises `Refused` for what may not."""


class Relay:
    """Connects browsers with the broker; used by the loop's thread alone.

    Attributes:
        places: Who is connected.
        refused: Browsers that were refused or cut off, by reason.

    Args:
        settings: Of the dashboard.
        make_gate: Called for each browser; by default everything passes, and the broker decides.

    Raises:
        ConfigError: A certificate can't be read.
    """

    def __init__(self, settings: DashboardSettings, make_gate: Callable[[], Gate] = lambda: lambda data: data) -> None:
        self.places = Places(settings.max_connections, settings.max_connections_per_address)
        self.refused: Counter[str] = Counter()
        self._settings, self._make_gate = settings, make_gate
        self._brokers = Brokers(settings, _BUFFER)
        self._closing = asyncio.Event()
        self._serving: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """End all connections, and wait until they have."""
        self._closing.set()
        if self._serving:
            await asyncio.wait(self._serving, timeout=_MOST_CLOSING_S)
        await self._brokers.close()

    async def serve(self, request: web.Request, is_valid: Callable[[], bool]) -> web.StreamResponse:
        """Serve the browser of a handshake until either end closes, or its login is not valid any more."""
        peer = request.remote or ""
        if _PROTOCOL not in [each.strip() for each in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]:
            return self._refuse(peer, "no_subprotocol", 400, "expected a WebSocket with the subprotocol mqtt")
        try:
            with self.places.take(peer):
                browser = web.WebSocketResponse(
                    protocols=(_PROTOCOL,),
                    compress=False,
                    autoclose=False,  # its answer to a close would be followed by what still comes from the broker
                    max_msg_size=_MOST_FRAME,
                    heartbeat=self._settings.heartbeat,
                    timeout=_CLOSING_S,
                    writer_limit=0,  # each message waits until there is room
                )
                if not browser.can_prepare(request):
                    return self._refuse(peer, "no_websocket", 400, "expected a WebSocket with the subprotocol mqtt")
                await browser.prepare(request)
                with self._registered():
                    await self._serve(browser, request, is_valid)
                return browser
        except Full as full:
            reply = self._refuse(peer, str(full), 503, "the dashboard has as many connections as it may")
            reply.headers["Retry-After"] = "1"
            return reply

    async def _serve(self, browser: web.WebSocketResponse, request: web.Request, is_valid: Callable[[], bool]) -> None:
        transport = request.transport
        code, reason = WSCloseCode.OK, ""
        try:
            try:
                await self._relay(browser, is_valid)
            except Refused as error:
                code, reason = WSCloseCode.POLICY_VIOLATION, str(error)
            except MqinferError as error:
                code, reason = WSCloseCode.TRY_AGAIN_LATER, "broker_away"
                _log.debug("%s", error)
            if reason:
                self._count(request.remote or "", reason)
            if self._closing.is_set():
                code = WSCloseCode.GOING_AWAY
            with suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(_CLOSING_S):
                    await browser.close(code=code, message=reason.encode())
        finally:
            if transport is not None:
                transport.abort()  # what a browser that does not read left unsent would stay for ever

    @contextmanager
    def _registered(self) -> Iterator[None]:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a browser is served outside of a task")
        self._serving.add(task)
        try:
            yield
        finally:
            self._serving.discard(task)

    async def _relay(self, browser: web.WebSocketResponse, is_valid: Callable[[], bool]) -> None:
        gate = self._make_gate()
        received = _received(browser)
        first = await _first_packet(received, gate, self._settings.first_packet)
        if not first:
            return
        broker = await self._brokers.connect()
        try:
            broker.writer.write(first)
            await _until_first(
                _upward(received, gate, broker.writer),
                _downward(broker.reader, browser),
                self._until_invalid(is_valid),
                self._brokers.until_earlier(broker.place),
            )
        finally:
            await _close(broker.writer)

    async def _until_invalid(self, is_valid: Callable[[], bool]) -> None:
        """Wait for the end of the dashboard, or of the browser's login."""
        while is_valid():
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._closing.wait()
                    return
        raise Refused("session_ended")

    def _refuse(self, peer: str, reason: str, status: int, text: str) -> web.Response:
        self._count(peer, reason)
        return web.Response(status=status, text=f"{text}\n")

    def _count(self, peer: str, reason: str) -> None:
        self.refused[reason] += 1
        log_dropped(_log, f"connection of {peer}", reason, self.refused[reason])


async def _first_packet(received: AsyncIterator[bytes], gate: Gate, patience: float) -> bytes:
    """Return what goes to the broker first; empty where the browser has left instead."""
    try:
        async with asyncio.timeout(patience):
            async for data in received:
                if first := gate(data):
                    return first
    except TimeoutError:
        raise Refused("silent") from None
    return b""


async def _received(browser: web.WebSocketResponse) -> AsyncIterator[bytes]:
    """Yield what a browser sends, with a turn of all others between any two pieces.

    Raises:
        Refused: As `_receive`.
    """
    while (data := await _receive(browser)) is not None:
        for at in range(0, len(data), _TURN):
            yield data[at : at + _TURN]
            await asyncio.sleep(0)


async def _receive(browser: web.WebSocketResponse) -> bytes | None:
    """Return what a browser sends next; None once it has closed.

    Raises:
        Refused: It is no binary message, or too large a one.
    """
    message = await browser.receive()
    if message.type is WSMsgType.BINARY:
        return bytes(message.data)
    if message.type is WSMsgType.TEXT:
        raise Refused("text_frame")
    if message.type is WSMsgType.ERROR and isinstance(message.data, WebSocketError):
        raise Refused("bad_frame")  # aiohttp has closed with the code that fits
    return None


async def _upward(received: AsyncIterator[bytes], gate: Gate, writer: asyncio.StreamWriter) -> None:
    async for data in received:
        writer.write(gate(data))
        await writer.drain()


async def _downward(reader: asyncio.StreamReader, browser: web.WebSocketResponse) -> None:
    while data := await reader.read(_READ):
        # A cancelled send would cancel what all later ones wait for, the close among them.
        await asyncio.shield(browser.send_bytes(data))


async def _until_first(*ways: Coroutine[Any, Any, Any]) -> None:
    """Run until one of them ends, and end the others; a connection that breaks is an end as any other."""
    tasks = [asyncio.create_task(each) for each in ways]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            with suppress(OSError, asyncio.CancelledError):
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _close(writer: asyncio.StreamWriter) -> None:
    """Send what is left to the broker, and close; a broker that does not take it is cut off, also at a cancellation."""
    writer.close()
    try:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSING_S):
                await writer.wait_closed()
    finally:
        writer.transport.abort()
