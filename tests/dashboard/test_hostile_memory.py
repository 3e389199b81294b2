"""Memory as a promise: a dashboard of bounded memory and 60 descriptors, under whatever browsers and the fleet send."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from mqinfer.broker.mosquitto.server import MosquittoServer
from tests.confined import MIB, Confined, attack, confine
from tests.dashboard.fake_broker import CONNACK, CONNECT
from tests.dashboard.hostile import ATTACKS
from tests.dashboard.programs import Programs
from tests.dashboard.publishing import Publisher
from tests.dashboard.relaying import asynchronous
from tests.dashboard.test_login import KEY, KEYS
from tests.dashboard.test_relay_bounds import HANDSHAKE
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600), pytest.mark.full]

SUBSCRIBE = b"\x82\x07\x00\x01\x00\x00\x01#\x00"
"""Of everything, with QoS 0."""


def masked(opcode: int, data: bytes) -> bytes:
    """Return a frame of a WebSocket as a browser sends it, masked with zeros."""
    size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xff" + len(data).to_bytes(8, "big")
    return bytes([opcode]) + size + bytes(4) + data


def http(path: str, port: int, body: bytes, size: int | None = None) -> bytes:
    """Return a request of HTTP that states this size of its body."""
    lines = (f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Origin: http://127.0.0.1:{port}")
    return "\r\n".join((*lines, f"Content-Length: {size or len(body)}", "", "")).encode() + body


def attacks(port: int, cookie: str) -> Iterator[tuple[str, bytes, int, bool]]:
    """Yield kind by kind its name, the octets of a connection, how many there are, and whether each reads."""
    shake = HANDSHAKE.format(port).replace("\nOrigin", f"\nCookie: {cookie}\nOrigin").replace("\n", "\r\n").encode()
    frame, rest = b"\x82\xff" + (1 << 62).to_bytes(8, "big") + bytes(4), bytes(60 * MIB)
    yield "frames larger than may be", shake + frame + rest, 20, False
    yield "parts of one message", shake + masked(0x02, bytes(65536)) + masked(0x00, bytes(65536)) * 900, 20, False
    yield "packets larger than may be", shake + masked(0x82, b"\x30\xff\xff\xff\x7f" + bytes(1 << 19)) * 100, 20, False
    connect = masked(0x82, CONNECT) + masked(0x82, b"\x30\xff\xff\xff\x7f")
    yield "a packet that goes on", shake + connect + masked(0x82, bytes(1 << 19)) * 100, 20, False
    yield "pings", shake + masked(0x89, bytes(125)) * 200_000, 20, False
    yield "watching without reading", shake + masked(0x82, CONNECT) + masked(0x82, SUBSCRIBE), 20, False
    yield "logins", http("/login", port, b"key=wrong&" * 400), 40, True
    yield "large logins", http("/login", port, bytes(60 * MIB)), 20, True
    yield "unfinished logins", http("/login", port, b"key=", 4000), 30, False
    yield "headers", b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (4 * MIB), 20, True
    get = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nCookie: {cookie}\r\n\r\n".encode()
    yield "pages that nobody reads", get * 20_000, 20, False
    yield "connections", b"", 2 * 60, False


@asynchronous
async def test_it_does_not_end_others_are_served_and_memory_returns(tmp_path: Path) -> None:
    """Within 2 GiB and 60 descriptors, kind after kind, while a browser watches; then 256 MiB are left at most."""
    (tmp_path / "keys.toml").write_text(KEYS)
    (tmp_path / "keys.toml").chmod(0o600)
    with MosquittoServer() as broker, Programs(tmp_path, broker.url) as programs:
        url, dashboard = programs.dashboard("--keys", tmp_path / "keys.toml")
        port = int(url.rpartition(":")[2].strip("/"))
        confine(dashboard.process.pid)
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(headers={"Origin": url.rstrip("/")}, cookie_jar=jar) as session:
            async with session.post(f"{url}login", data={"key": KEY}) as reply:
                assert reply.ok
            cookie = "; ".join(f"{each.key}={each.value}" for each in jar)
            assert cookie
            async with session.ws_connect(f"{url}mqtt", protocols=("mqtt",)) as watching:
                await watching.send_bytes(CONNECT)
                assert (await watching.receive_bytes())[:1] == CONNACK[:1]

                async def ask() -> None:
                    async with asyncio.timeout(2 * PATIENCE_S):
                        await watching.send_bytes(b"\xc0\x00")  # PINGREQ
                        assert await watching.receive_bytes() == b"\xd0\x00"
                        async with session.get(f"{url}config.json") as reply:
                            assert reply.ok

                await ask()
                processes = Confined(dashboard.process.pid)
                for kind, octets, times, reads in attacks(port, cookie):
                    strangers = [asyncio.create_task(attack(port, octets, reads=reads)) for _ in range(times)]
                    if kind == "watching without reading":
                        with Publisher(broker.url) as publisher:
                            for publish in ATTACKS.values():
                                await asyncio.to_thread(publish, publisher)
                                await ask()
                            publisher.flush()
                    for _ in range(3):
                        await ask()
                    if reads:
                        await asyncio.wait(strangers)
                    for each in strangers:
                        each.cancel()
                    await asyncio.gather(*strangers, return_exceptions=True)
                    await ask()
                    processes.check(kind)
                await asyncio.to_thread(processes.wait_for_memory)
                processes.check("all of them")
