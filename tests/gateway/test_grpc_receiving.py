"""What a caller of gRPC makes the gateway hold before anybody has decided about its call, and while it arrives."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from mqinfer.gateway.access import GRANTED, Access
from mqinfer.web.arriving import Arriving
from mqinfer.web.keys import KeyFile
from tests.gateway.grpc_front import SERVICE, serving
from tests.gateway.listening import core_that_counts, failure
from tests.patience import until

KEYS = '[ann]\nkey = "8f1c0a5be2d94b7f9a36"\nrights = ["infer", "metadata"]\n'
LOG = logging.getLogger("mqinfer.test")


@pytest.fixture
def access(tmp_path: Path) -> Access:
    """Return who may call: those with a key."""
    path = tmp_path / "keys.toml"
    path.write_text(KEYS)
    path.chmod(0o600)
    return Access(KeyFile(path, GRANTED))


@pytest.mark.parametrize("method", ["ModelInfer", "ServerMetadata", "RepositoryModelLoad"])
async def test_decided_before_the_message_is_there(access: Access, method: str) -> None:
    """A caller without a key is refused before it has sent a byte of its request."""
    async with serving(core_that_counts(), access) as front:
        call = front.channel.stream_unary(f"/{SERVICE}/{method}")(timeout=60)
        assert (await failure(call))[0] is grpc.StatusCode.UNAUTHENTICATED


async def test_a_call_without_a_message() -> None:
    """A call that ends without a request is told so."""
    async with serving(core_that_counts()) as front:
        call = front.channel.stream_unary(f"/{SERVICE}/ServerReady")(timeout=60)
        await call.done_writing()
        status, text = await failure(call)
        assert status is grpc.StatusCode.INVALID_ARGUMENT
        assert "send one message" in text


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def opening(method: str, stream: int = 1, further: Mapping[str, str] | None = None) -> bytes:
    """Return the octets that begin a call, and its connection where it is the first."""
    headers = {":method": "POST", ":scheme": "http", ":path": f"/{SERVICE}/{method}", ":authority": "x"}
    headers |= {"te": "trailers", "content-type": "application/grpc", **(further or {})}
    block = b"".join(
        b"\0%c%b%c%b" % (len(name), name.encode(), len(value), value.encode()) for name, value in headers.items()
    )
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) if stream == 1 else b""
    return preface + frame(1, 4, stream, block)


def unfinished(method: str, sent: int) -> bytes:
    """Return the octets of a connection with one call, whose message has 60 MiB and goes no further than this."""
    data = b"\0" + (60 << 20).to_bytes(4, "big") + bytes(sent)
    frames = [frame(0, 0, 1, data[at : at + 16384]) for at in range(0, len(data), 16384)]
    return opening(method) + b"".join(frames)


@pytest.mark.parametrize(
    ("method", "sent", "reason"),
    [("ModelInfer", 60_000, "bytes"), ("ModelStreamInfer", 60_000, "bytes"), ("ServerReady", 1000, "slow")],
)
async def test_unfinished_messages_are_bounded(method: str, sent: int, reason: str) -> None:
    """A message of which too much is there, or too little after its time, ends its call; gRPC keeps nothing of it."""
    arriving = Arriving(LOG, 50_000, 60.0 if reason == "bytes" else 0.001)
    async with asyncio.timeout(60), serving(core_that_counts(arriving=arriving)) as front:
        reader, writer = await asyncio.open_connection(*front.address.split(":"))
        writer.write(unfinished(method, sent))
        await reader.readuntil(b"grpc-status\x018")  # RESOURCE_EXHAUSTED
        assert arriving.given_up == {reason: 1}
        await until(lambda: not arriving.bytes)
        writer.close()


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_what_inflates_is_bounded(compression: grpc.Compression) -> None:
    """A message that is larger once it is decompressed than a request may be ends its call; one that fits is read."""
    with ThreadPoolExecutor(1) as decompressor:
        core = core_that_counts(decompressor=decompressor, max_input_bytes=50_000)
        async with asyncio.timeout(60), serving(core) as front:
            for method in ("ModelInfer", "ModelStreamInfer"):
                call = front.channel.stream_stream(f"/{SERVICE}/{method}")(compression=compression)
                await call.write(bytes(50_001))
                assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert "more than 50000 bytes when decompressed" in await call.details()
            call = front.channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(compression=compression)
            await call.write(b"\xff" * 50_000)
            assert b"50000" not in await call.read()  # it is no request either
            call.cancel()
        assert core.arriving.bytes == 0


async def test_idle_streams_are_not_bounded_in_time() -> None:
    """A stream may be silent for as long as it likes, and what it has sent before does not count."""
    arriving = Arriving(LOG, 50_000, 0.001)
    async with asyncio.timeout(60), serving(core_that_counts(arriving=arriving)) as front:
        stream = front.stream()
        for _ in range(4):
            await stream.write(b"\xff" * 30_000)
            await stream.read()
        assert (await failure(front.channel.stream_unary(f"/{SERVICE}/ServerReady")()))[
            0
        ] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert arriving.given_up == {"slow": 1}
        await stream.write(b"\xff")
        assert await stream.read()


def test_a_caller_has_its_share() -> None:
    """One caller holds three quarters at most, or one request; what is given back is there for others."""
    arriving = Arriving(LOG, 1 << 30, 60.0)
    assert arriving.take("a", 768 << 20)
    assert not arriving.take("a", 1)
    assert arriving.take("b", 256 << 20)
    assert not arriving.take("c", 1)
    arriving.give("a", 768 << 20)
    assert arriving.take("c", 1)
    assert arriving.bytes == (256 << 20) + 1
    assert Arriving(LOG, 64 << 20, 60.0).take("a", 64 << 20)


SERVER = """
import asyncio
from types import SimpleNamespace
from mqinfer.logs import LogSettings, set_up
set_up(LogSettings())
from mqinfer.gateway.grpc_calls import make_server
from mqinfer.gateway.settings import GatewaySettings

async def main():
    server = make_server([], GatewaySettings())
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await asyncio.to_thread(input)
    await server.stop(None)

asyncio.run(main())
"""


async def test_what_a_peer_says_is_no_line_of_the_log() -> None:
    """The text of a GOAWAY, line feeds included, does not reach standard error, where gRPC itself would write it."""
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER, stdin=pipe, stdout=pipe, stderr=pipe)
    assert server.stdout is not None
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(await server.stdout.readline()))
        farewell = frame(7, 0, 0, bytes([0, 0, 0, 1, 0, 0, 0, 2]) + b"bye\nforged")
        ping = frame(6, 0, 0, b"12345678")
        writer.write(unfinished("ServerReady", 0) + farewell + ping)
        await reader.readuntil(b"12345678")  # it has seen what was before
        writer.close()
        _, errors = await server.communicate(b"\n")
    assert not errors, errors.decode()
