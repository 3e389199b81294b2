"""Frigate's detector `zmq`: pixels go to a real worker, and a real ZeroMQ client gets the objects."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mqinfer.gateway.access import GRANTED, Access
from mqinfer.gateway.core import Core
from mqinfer.gateway.deepstack.zmq import ZmqServer
from mqinfer.web.keys import KeyFile
from tests.gateway.conftest import Fleet, OpenCore, call_peer, gateway_settings, serve_repository
from tests.gateway.test_pictures import write_finder
from tests.patience import until
from tests.ports import free_port

SIZES, OBJECTS = (4, 320, 320), 480
WANTED = ((3, 0.9, 0.25, 0.125, 0.75, 0.625), (2, 0.5, 0.25, 0.0, 0.5, 1.0))
"""What the model finds in every picture of 8 x 8, as shares of it: it is stretched to that size."""
GREETING = b"\xff\0\0\0\0\0\0\0\1\x7f\3\1NULL" + bytes(48)
READY = b"\4\x19\5READY\x0bSocket-Type\0\0\0\3REQ"


@pytest.fixture(scope="module")
def fleet(broker_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Serve a model that finds boxes by two processes."""
    repository = tmp_path_factory.mktemp("zmq")
    write_finder(repository / "finder")
    with serve_repository(repository, broker_url, "zmq", instances=2) as served:
        yield served


@asynccontextmanager
async def detecting(core: Core, access: Access | None = None, **options: Any) -> AsyncIterator[int]:
    """Serve detectors; yield the port."""
    server, port = ZmqServer(core, access or Access(), gateway_settings(**options)), free_port()
    await server.start(host="127.0.0.1", port=port)
    try:
        yield port
    finally:
        await server.stop(60.0)
        assert core.arriving.bytes == 0


class Req:
    """What a REQ socket sends, by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def __call__(self, *frames: bytes) -> bytes:
        """Send a message, and return the answer."""
        for left, frame in zip(range(len(frames), -1, -1), (b"", *frames), strict=True):
            self.writer.write(bytes((2 | (left > 0),)) + len(frame).to_bytes(8) + frame)
        head = await self.reader.readexactly(11)
        assert head[:3] == b"\1\0\2"
        return await self.reader.readexactly(int.from_bytes(head[3:]))


@asynccontextmanager
async def connected(port: int, greeting: bytes = GREETING + READY) -> AsyncIterator[Req]:
    """Connect and greet."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(greeting)
    try:
        begin = await reader.readexactly(64)
        assert (begin[0], begin[9:11], begin[12:]) == (0xFF, b"\x7f\3", GREETING[12:])
        assert (await reader.readexactly(27))[2:8] == b"\5READY"
        yield Req(reader, writer)
    finally:
        writer.close()


def header(shape: object = (1, 8, 8, 3), dtype: str = "uint8") -> bytes:
    """Return the header of a picture."""
    return json.dumps({"shape": shape, "dtype": dtype, "model_type": "ssd"}).encode()


CLIENT = """
    import json, struct, sys
    import zmq

    wanted = json.loads(sys.argv[2])
    socket = zmq.Context().socket(zmq.REQ)
    socket.setsockopt(zmq.RCVTIMEO, 60_000)
    socket.connect(sys.argv[1])
    socket.send_multipart([b'{"model_request": true, "model_name": "any.onnx"}'])
    assert json.loads(socket.recv()) == {"model_available": True, "model_loaded": True}
    for number in range(600):
        side = (4, 8, 320)[number % 3]
        picture = json.dumps({"shape": [1, side, side, 3], "dtype": "uint8", "model_type": "ssd"}).encode()
        socket.send_multipart([picture, bytes(side * side * 3)])
        frames = socket.recv_multipart()
        assert len(frames) == 1 and len(frames[0]) == 480, frames
        found = struct.unpack("<120f", frames[0])
        assert all(abs(one - other) < 1e-6 for one, other in zip(found, wanted)), (number, found)
        assert not any(found[12:]), found
    print("PASS")
"""


async def test_a_published_client(open_core: OpenCore, fleet: Fleet, peer_python: Callable[[str], Path]) -> None:
    """Each picture has its objects, of any size and while the worker that answers is killed."""
    async with open_core() as core, detecting(core) as port:
        outcomes = core.inference.outcomes
        wanted = json.dumps([number for row in WANTED for number in row])
        calls = asyncio.create_task(call_peer(peer_python("deepstack"), CLIENT, f"tcp://127.0.0.1:{port}", wanted))
        await until(lambda: outcomes["finder", "ok"] > 50 or calls.done())
        os.kill(next(iter(fleet.supervisor.pids.values())), signal.SIGKILL)
        await calls
        assert outcomes == {("finder", "ok"): 600}


WRONG = {
    "nothing": (),
    "no picture": (header(),),
    "not JSON": (b"{", bytes(192)),
    "deep JSON": (b"[" * 1000, bytes(192)),
    "floats": (header(dtype="float32"), bytes(768)),
    "colours first": (header((1, 3, 8, 8)), bytes(192)),
    "two pictures": (header((2, 8, 8, 3)), bytes(384)),
    "no axes": (header(()), b""),
    "no pixels": (header((1, 0, 0, 3)), b""),
    "too few pixels": (header(), bytes(191)),
    "too many": (header((1, 1 << 40, 1 << 40, 3)), bytes(192)),
    "a negative size": (header((1, -8, -8, 3)), bytes(192)),
}


async def test_what_is_wrong_is_stated(open_core: OpenCore) -> None:
    """It is answered by words, which Frigate logs as no objects; the same connection is served."""
    async with open_core() as core, detecting(core) as port, connected(port) as req:
        for name, frames in WRONG.items():
            said = await req(*frames)
            assert len(said) != OBJECTS, name
            assert len(await req(header(), bytes(192))) == OBJECTS, name


BROKEN = {
    "no ZMTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".ljust(64),
    "another mechanism": GREETING.replace(b"NULL", b"PLAIN")[:64] + READY,
    "a long header": GREETING + READY + b"\1\0" + b"\3" + (1 << 20).to_bytes(8),
    "a huge picture": GREETING + READY + b"\1\0\1\x02{}\2" + (1 << 62).to_bytes(8),
    "four frames": GREETING + READY + b"\1\0\1\2{}\1\0\0\0",
    "two messages": GREETING[:40],
}


async def test_what_is_no_message_ends_its_connection(open_core: OpenCore) -> None:
    """Each is closed, one that goes in the midst of a message is forgotten, and others are served."""
    async with open_core() as core, detecting(core, max_connections=2, timeout=10.0) as port, connected(port) as req:
        for name, sent in BROKEN.items():
            async with connected(port, sent) as other:
                assert await other.reader.read() == b"", name
            assert len(await req(header(), bytes(192))) == OBJECTS, name
        async with connected(port, GREETING + READY + b"\1\0\1\2{}\2" + (1 << 20).to_bytes(8) + b"x"):
            await until(lambda: core.arriving.bytes > 0)
            third, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await third.read() == b"", "more connections than may be"
            writer.close()
        await until(lambda: core.arriving.bytes == 0)
        assert struct.unpack("<6f", (await req(header(), bytes(192)))[:24]) == pytest.approx(WANTED[0])


async def test_a_gateway_with_keys(open_core: OpenCore, tmp_path: Path) -> None:
    """Its detectors can show none, and are refused by words."""
    keys = tmp_path / "keys.toml"
    keys.write_text('[ann]\nkey = "key-of-ann-0123456789"\nrights = ["infer"]\n')
    access = Access(KeyFile(keys, GRANTED))
    async with open_core() as core, detecting(core, access) as port, connected(port) as req:
        assert b"wants a key" in await req(header(), bytes(192))
