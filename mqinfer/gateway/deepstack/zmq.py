"""Frigate's detector `zmq`: the pixels of a picture in, 20 objects out, by what ZeroMQ's REQ sockets send (ZMTP 3.0).

The few frames of it (https://rfc.zeromq.org/spec/23/) are read here, where all that arrives is bounded: libzmq bounds
single messages, and shares no port between processes.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import StreamReader, StreamWriter, Task
from collections import Counter
from math import prod
from typing import Any

import numpy as np
from msgspec import Struct

from mqinfer.gateway.access import Access, Right
from mqinfer.gateway.admission import take_room
from mqinfer.gateway.core import Core
from mqinfer.gateway.deepstack.calls import MOST, Detecting
from mqinfer.gateway.rest.request import read_json
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.logs import log_dropped
from mqinfer.protocol.errors import BadEnvelope, BadTensor, LimitExceeded, MqinferError
from mqinfer.protocol.types import Count

_log = logging.getLogger("mqinfer.gateway")

_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(52, b"\0")
_READY = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03REP"
_MECHANISM = slice(12, 32)
_MORE, _LONG = 1, 2
_MOST_FRAME = 1024
"""Bytes of the first two frames of a message, an empty one and the header; the third is the tensor."""
_MOST_TEXT = 200
"""Bytes of an error: Frigate takes 480 for objects, and logs an answer of any other size as one without objects."""
_LONGEST_S = 5.0
"""Longest time of a call: Frigate itself waits for 0.2 s unless told otherwise, and does not say when it goes."""
_HELD = b'{"model_available": true, "model_loaded": true}'
"""The answer to whether a model is there: workers may come later, and none takes a model from a message."""


class _Sent(Struct, frozen=True):
    shape: tuple[Count, ...] = ()
    dtype: str = ""
    model_request: bool = False


class ZmqServer:
    """Answers detectors, one call of each connection at a time, as REQ sockets have it."""

    def __init__(self, core: Core, access: Access, settings: GatewaySettings) -> None:
        self._detector, self._access, self._bounds = Detecting(core, settings.detection_model), access, settings.bounds
        self._arriving, self._failed = core.arriving, Counter[str]()
        self._has_call = dict[Task[None] | None, bool]()  # by the connection's task

    async def start(self, **where: Any) -> None:
        """Listen where `asyncio.start_server` is told to."""
        self._server = await asyncio.start_server(self._serve, **where)

    async def stop(self, patience: float) -> None:
        """Stop listening, and wait for the calls under way; those that take longer are cut off."""
        self._server.close()
        if busy := [task for task, has_call in self._has_call.items() if task and has_call]:
            await asyncio.wait(busy, timeout=patience)
        for task in filter(None, self._has_call):
            task.cancel()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        peer, task = ":".join(map(str, writer.get_extra_info("peername")[:2])), asyncio.current_task()
        self._has_call[task] = False
        try:
            if len(self._has_call) > self._bounds.max_connections:
                raise LimitExceeded("there are as many connections as may be")
            writer.write(_GREETING + _READY)
            async with asyncio.timeout(self._bounds.timeout):
                if (await reader.readexactly(len(_GREETING)))[_MECHANISM] != _GREETING[_MECHANISM]:
                    raise BadEnvelope("expected the greeting of ZMTP 3 with the mechanism NULL")
                command = await reader.readexactly(2)
                await reader.readexactly(command[1])  # READY: its kind of socket, and a name, change nothing
            while self._server.is_serving():
                flags = (await reader.readexactly(1))[0]
                self._has_call[task] = True
                await self._exchange(flags, reader, writer, peer)
                self._has_call[task] = False
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # it is gone, or as good as gone
        except MqinferError as error:
            self._count(error, peer)
        finally:
            del self._has_call[task]
            writer.close()

    async def _exchange(self, flags: int, reader: StreamReader, writer: StreamWriter, peer: str) -> None:
        """Answer the message that begins with these flags."""
        frames, taken = list[bytes](), 0
        try:
            async with asyncio.timeout(self._bounds.timeout):
                for most in (_MOST_FRAME, _MOST_FRAME, self._bounds.http_max_input_size):
                    size = int.from_bytes(await reader.readexactly(8 if flags & _LONG else 1))
                    if size > most:
                        raise LimitExceeded(f"a frame of {size} bytes; at most {most} are accepted here")
                    taken += take_room(self._arriving, peer, size)
                    frames.append(await reader.readexactly(size))
                    if not flags & _MORE:
                        break
                    flags = (await reader.readexactly(1))[0]
                else:
                    raise LimitExceeded("a message of more than 3 frames")
            content = await self._answer(*frames[1:], peer=peer)
            writer.write(bytes((_MORE, 0, _LONG)) + len(content).to_bytes(8) + content)
            await writer.drain()
        finally:
            self._arriving.give(peer, taken)

    async def _answer(self, header: bytes = b"", data: bytes = b"", *, peer: str) -> bytes:
        try:
            stated = read_json(header, _Sent)
            if stated.model_request:
                return _HELD
            return await self._objects(stated, data, self._access.admit(Right.INFERENCE, {}, peer))
        except MqinferError as error:
            self._count(error, peer)
            return str(error).encode("ascii", "replace")[:_MOST_TEXT]

    async def _objects(self, stated: _Sent, data: bytes, caller: str) -> bytes:
        """Return class, score, top, left, bottom and right of the best objects, sides as shares of the picture."""
        shape = stated.shape
        if stated.dtype != "uint8" or len(shape) != 4 or shape[::3] != (1, 3) or prod(shape) != len(data):
            raise BadTensor(
                f"{len(data)} bytes of {stated.dtype[:20]!r} in {[*shape[:5]]}: expected 'uint8' in [1, height, width, "
                "3], which Frigate's input_dtype int and input_tensor nhwc make"
            )
        picture = np.frombuffer(data, np.uint8).reshape(shape[1:])
        found = await self._detector.ask("", picture, caller, deadline_s=_LONGEST_S)
        rows = np.zeros((MOST, 6), "<f4")
        for row, each in zip(rows, found.detections, strict=False):
            sides = np.array(each.box) / (found.placement.frame * 2)
            row[:] = each.number or 0, each.score, *sides[[1, 0, 3, 2]]
        return rows.tobytes()

    def _count(self, error: MqinferError, peer: str) -> None:
        self._failed[error.code] += 1
        log_dropped(_log, f"a detector's call ({peer}): {error}", error.code, self._failed[error.code])
