"""Logins: the relay's own in a browser's CONNECT, what the wall lets through, and the key in front of the page."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.dashboard import sessions as sessions_module
from mqinfer.dashboard.connect_packet import with_login
from mqinfer.dashboard.relay import Refused
from mqinfer.dashboard.sessions import GRANTED, Attempts, Sessions
from mqinfer.dashboard.wall import WallGate
from mqinfer.protocol.errors import BadEnvelope
from mqinfer.web.keys import KeyFile
from tests.clock import Clock
from tests.dashboard.relaying import asynchronous, refusal, relayed
from tests.dashboard.served import closing, page_in, served, settings_of, tls_files, web_socket
from tests.patience import until

KEY, OTHER = "key-of-the-wall-0123456789", "key-of-a-caller-0123456789"
KEYS = f'[wall]\nkey = "{KEY}"\nrights = ["watch"]\n\n[caller]\nkey = "{OTHER}"\nrights = ["infer", "admin"]\n'


def text(value: bytes) -> bytes:
    """Return a field with its length before it."""
    return struct.pack("!H", len(value)) + value


def connect(
    flags: int = 0x02,
    properties: bytes = b"",
    payload: bytes = text(b"browser"),
    version: int = 5,
    keep_alive: int = 60,
    protocol: bytes = b"MQTT",
) -> bytes:
    """Return a CONNECT behind its fixed header."""
    head = text(protocol) + bytes((version, flags)) + struct.pack("!H", keep_alive)
    return head + (bytes((len(properties),)) + properties if version == 5 else b"") + payload


def packet(body: bytes, kind: int = 0x10) -> bytes:
    """Return a packet of less than 16 KiB."""
    size = len(body)
    return bytes((kind, size) if size < 128 else (kind, size & 0x7F | 0x80, size >> 7)) + body


PROPERTIES = b"\x21\x00\x14\x27\x00\x10\x00\x00\x17\x01\x26" + text(b"a") + text(b"b")


@pytest.mark.parametrize("given_login", [b"", text(b"me"), text(b"me") + text(b"secret")])
def test_the_login_takes_the_browsers_place(given_login: bytes) -> None:
    """Name, password and client id are the relay's; properties and keep alive stay the browser's."""
    flags = {0: 0x00, 4: 0x80, 12: 0xC0}[len(given_login)]
    body = connect(flags, PROPERTIES, text(b"browser") + given_login)
    expected = connect(0xC2, PROPERTIES, text(b"dashboard-1") + text(b"wall") + text("pässword".encode()))
    assert with_login(body, "dashboard-1", "wall", "pässword") == packet(expected)


def test_a_certificate_needs_no_login() -> None:
    """What the browser states is left out, and nothing takes its place."""
    body = connect(0xC2, b"", text(b"browser") + text(b"me") + text(b"secret"))
    assert with_login(body, "dashboard-1", None, None) == packet(connect(0x02, b"", text(b"dashboard-1")))


def test_version_3() -> None:
    """MQTT 3.1.1 has no properties; its session is a clean one."""
    body = connect(0x00, payload=text(b"browser"), version=4)
    expected = connect(0x82, payload=text(b"d") + text(b"wall"), version=4)
    assert with_login(body, "d", "wall", None) == packet(expected)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (connect(0x06, b"", text(b"b") + b"\x00" + text(b"topic") + text(b"gone")), "will"),
        (connect(0x02, b"\x11\x00\x00\x00\x01"), "outlives"),
        (connect(0x02, b"\x15" + text(b"SCRAM")), "property 0x15"),
        (connect(0x02, b"\x26" + text(b"a")), "malformed|property"),
        (connect(0x02, b"\x27\x00"), "goes on behind"),
        (connect(0x03), "reserved"),
        (connect(version=3), "another protocol"),
        (connect(version=6), "another protocol"),
        (connect(protocol=b"MQIsdp"), "another protocol"),
        (connect(payload=text(b"b") + b"more"), "goes on behind"),
        (connect(0xC2, payload=text(b"b") + text(b"u")), "malformed"),
        (connect()[:-1], "ends within"),
        (connect()[:9], "too early|malformed"),
        (connect()[:6], "malformed|another"),
        (b"", "another protocol"),
    ],
)
def test_connects_that_are_refused(body: bytes, message: str) -> None:
    """Wills, sessions that outlive the connection, other logins, and what is malformed."""
    with pytest.raises(BadEnvelope, match=message):
        with_login(body, "d", "wall", "secret")


@given(st.binary(max_size=200))
def test_any_bytes(body: bytes) -> None:
    """They are refused in one way, and never let anything else escape; so are they behind a good beginning."""
    for each in (body, connect()[:8] + body, connect()[:11] + body):
        try:
            made = with_login(each, "d", "wall", "secret")
        except BadEnvelope:
            continue
        assert made.endswith(text(b"d") + text(b"wall") + text(b"secret"))


SUBSCRIBE = packet(b"\x00\x01\x00" + text(b"mqinfer/v1/results/+/+/+") + b"\x00", 0x82)
PINGREQ, DISCONNECT = b"\xc0\x00", b"\xe0\x00"
PUBLISH = packet(text(b"topic") + b"\x00evil", 0x30)


@given(st.lists(st.integers(1, 30), max_size=60))
def test_it_does_not_matter_how_packets_are_cut(sizes: list[int]) -> None:
    """The CONNECT is held until it is whole, and all behind it passes unchanged."""
    sent = packet(connect(0x02, PROPERTIES)) + SUBSCRIBE + PINGREQ + packet(bytes(300), 0x82) + DISCONNECT
    gate, passed, at = WallGate("wall", "secret"), b"", 0
    for size in [*sizes, len(sent)]:
        passed += gate.feed(sent[at : at + size])
        at += size
    assert passed.startswith(b"\x10")
    assert text(b"wall") + text(b"secret") in passed
    assert passed.endswith(SUBSCRIBE + PINGREQ + packet(bytes(300), 0x82) + DISCONNECT)


@pytest.mark.parametrize(
    ("first", "then", "reason"),
    [
        (PUBLISH, b"", "no_connect"),
        (b"GET / HTTP/1.1\r\n", b"", "no_connect"),
        (packet(connect(0x06, b"", text(b"b") + b"\x00" + text(b"t") + text(b"x"))), b"", "bad_connect"),
        (packet(connect()) + PUBLISH, b"", "read_only"),
        (packet(connect()), PUBLISH, "read_only"),
        (packet(connect()) + PINGREQ + PUBLISH[:1], b"", "read_only"),
        (packet(connect()), packet(connect()), "read_only"),
        (packet(connect()), b"\xf0\x00", "read_only"),
        (packet(connect()), b"\x62\x02\x00\x01", "read_only"),
        (packet(connect()), b"\x82\xff\xff\xff\xff\x01", "bad_packet"),
        (packet(connect()), b"\x82\xff\xff\xff\x7f", "large_packet"),
        (b"\x10\xff\xff\xff\x7f", b"", "large_packet"),
        (b"\x10\xff\xff\xff\xff\xff", b"", "bad_packet"),
    ],
)
def test_what_the_wall_lets_nobody_send(first: bytes, then: bytes, reason: str) -> None:
    """Anything that publishes, a second login, and what is malformed or large."""
    gate = WallGate("wall", "secret")

    def send() -> None:
        for data in (first, then):
            gate.feed(data)

    with pytest.raises(Refused, match=reason):
        send()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A key file with one who may watch, and a caller of the gateway."""
    path = tmp_path / "keys.toml"
    path.write_text(KEYS)
    return path


def test_sessions(keys: Path) -> None:
    """A key with the right opens one, which ends with its time, or with its key."""
    clock = Clock()
    sessions = Sessions(KeyFile(keys, GRANTED, clock), 100.0, clock)
    assert [sessions.log_in(key) for key in ("", "wrong", OTHER, KEY[:-1])] == [None] * 4
    token = sessions.log_in(KEY)
    assert token is not None
    assert sessions.is_valid(token)
    assert not sessions.is_valid("")
    assert not sessions.is_valid(token[:-1])
    clock.now = 99.0
    assert sessions.is_valid(token)
    clock.now = 100.0
    assert not sessions.is_valid(token)
    again = sessions.log_in(KEY)
    assert again is not None
    assert again != token
    keys.write_text(KEYS.replace(KEY, "another-key-0123456789"))
    clock.now = 102.0
    assert not sessions.is_valid(again)
    assert sessions._sessions == {}


def test_sessions_are_bounded(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One too many ends the oldest."""
    monkeypatch.setattr(sessions_module, "_MOST_SESSIONS", 3)
    sessions = Sessions(KeyFile(keys, GRANTED), 100.0)
    tokens = [sessions.log_in(KEY) or "" for _ in range(5)]
    assert [sessions.is_valid(token) for token in tokens] == [False, False, True, True, True]


def test_no_key_ends_anothers_logins(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many the oldest goes of the key that has most: a guest with a thousand ends only its own."""
    guest = "key-of-the-guest-0123456789"
    keys.write_text(f'{KEYS}\n[guest]\nkey = "{guest}"\nrights = ["watch"]\n')
    monkeypatch.setattr(sessions_module, "_MOST_SESSIONS", 10)
    sessions = Sessions(KeyFile(keys, GRANTED), 100.0)
    walls = [sessions.log_in(KEY) or "" for _ in range(3)]
    guests = [sessions.log_in(guest) or "" for _ in range(30)]
    assert all(map(sessions.is_valid, walls))
    assert [sessions.is_valid(token) for token in guests] == [False] * 23 + [True] * 7


def test_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address has to wait after so many failures, and all that failed after more; old failures are forgotten."""
    monkeypatch.setattr(sessions_module, "_MOST_ADDRESSES", 2)
    clock = Clock()
    attempts = Attempts(2, 5, 60.0, clock)
    attempts.failed("a")
    assert attempts.wait_s("a") == 0.0
    clock.now = 10.0
    attempts.failed("a")
    assert (attempts.wait_s("a"), attempts.wait_s("b")) == (50.0, 0.0)
    for _ in range(3):
        attempts.failed("b")
    assert attempts.wait_s("b") == 60.0
    clock.now = 60.0
    assert attempts.wait_s("a") == 0.0
    for address in "cdef":
        attempts.failed(address)
    assert len(attempts._failures) == 2


def test_strangers_lock_nobody_out() -> None:
    """After wrong keys from a hundred addresses those that failed wait, and whoever has not failed may log in."""
    attempts = Attempts(clock=Clock())
    for number in range(100):
        assert attempts.wait_s(f"10.0.0.{number}") == 0.0
        attempts.failed(f"10.0.0.{number}")
    assert attempts.wait_s("192.168.1.1") == 0.0
    assert attempts.wait_s("10.0.0.7") == 60.0


def test_addresses_of_one_network_are_one() -> None:
    """Whoever has an address of IPv6 has 2**64 of them."""
    attempts = Attempts(clock=Clock())
    for number in range(5):
        attempts.failed(f"2001:db8:0:7::{number:x}")
    assert attempts.wait_s("2001:db8:0:7:ffff::1") == 60.0
    assert attempts.wait_s("2001:db8:0:8::1") == 0.0
    for _ in range(5):
        attempts.failed("::ffff:10.0.0.1")
    assert attempts.wait_s("10.0.0.1") == 60.0
    assert attempts.wait_s("::ffff:10.0.0.2") == 0.0


def log_in(session: aiohttp.ClientSession, url: str, key: str = KEY, **how: Any) -> Any:
    """Send the form with a key, as the page itself does."""
    return session.post(f"{url}/login", data={"key": key}, headers={"Origin": url}, allow_redirects=False, **how)


@asynchronous
async def test_the_page_asks_for_a_key(keys: Path, tmp_path: Path) -> None:
    """Without one there is the form alone; with one there is the page; the cookie is out of the reach of scripts."""
    with served(settings_of(keys=keys), page_in(tmp_path / "page")) as dashboard:
        url = dashboard.url
        jar = aiohttp.CookieJar(unsafe=True)  # keeps cookies of addresses too
        async with aiohttp.ClientSession(cookie_jar=jar) as session:
            async with session.get(f"{url}/", allow_redirects=False) as reply:
                assert (reply.status, reply.headers["Location"]) == (303, "./login")
            for path in ("/config.json", "/index-1a2b.js", "/assets/index-1a2b.js", "/nothing"):
                async with session.get(f"{url}{path}") as reply:
                    assert reply.status == 401
            for path in ("/login", "/login.css", "/icon.svg", "/healthz"):
                async with session.get(f"{url}{path}") as reply:
                    assert reply.status == 200
                    assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
            async with session.post(f"{url}/login", data={"key": KEY}) as reply:
                assert reply.status == 403  # no origin
            async with log_in(session, url, OTHER) as reply:
                assert (reply.status, "unknown here" in await reply.text()) == (403, True)
            async with log_in(session, url) as reply:
                assert (reply.status, reply.headers["Location"]) == (303, "./")
                cookie = reply.headers["Set-Cookie"]
                assert "HttpOnly" in cookie
                assert "SameSite=Strict" in cookie
                assert "Secure" not in cookie
            for path in ("/", "/config.json", "/assets/index-1a2b.js"):
                async with session.get(f"{url}{path}") as reply:
                    assert reply.status == 200


@asynchronous
async def test_the_cookie_stays_encrypted(keys: Path, tmp_path: Path) -> None:
    """Over TLS it is bound to the host and never sent without encryption."""
    files, trust = tls_files(tmp_path)
    with served(settings_of(keys=keys, tls=files)) as dashboard:
        url = dashboard.url.replace("127.0.0.1", "localhost")
        async with aiohttp.ClientSession() as session, log_in(session, url, ssl=trust) as reply:
            cookie = reply.headers["Set-Cookie"]
            assert cookie.startswith("__Host-mqinfer=")
            assert "Secure" in cookie
            assert "Path=/" in cookie


@pytest.mark.parametrize(
    "body", [b"", b"key", b"key=%ff%fe", b"\xff" * 100, b"&" * 4000, b"key=" + b"a" * 3000, b"a" * 10_000]
)
@asynchronous
async def test_garbage_in_the_form(keys: Path, body: bytes) -> None:
    """It is a wrong key, or too large; nothing fails."""
    with served(settings_of(keys=keys)) as dashboard:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{dashboard.url}/login", data=body, headers={"Origin": dashboard.url}) as reply,
        ):
            assert reply.status in {400, 403, 413}


@asynchronous
async def test_a_form_that_is_broken_off(keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever leaves within it fills no log with tracebacks."""
    with served(settings_of(keys=keys)) as dashboard:
        host, port = dashboard.url.removeprefix("http://").split(":")
        caplog.clear()
        _, writer = await asyncio.open_connection(host, int(port))
        head = (
            f"POST /login HTTP/1.1\r\nHost: {host}:{port}\r\nOrigin: {dashboard.url}\r\nContent-Length: 9\r\n\r\nkey="
        )
        writer.write(head.encode())
        await writer.drain()
        async with aiohttp.ClientSession() as session, session.get(f"{dashboard.url}/healthz"):
            writer.transport.abort()  # its form is being waited for by now
        await until(lambda: caplog.records != [])
    assert caplog.records[0].levelname == "WARNING"
    assert "broken_off: 1" in caplog.text


@asynchronous
async def test_guessing_is_slow(keys: Path) -> None:
    """After five wrong keys of an address even the right one has to wait."""
    with served(settings_of(keys=keys)) as dashboard:
        async with aiohttp.ClientSession() as session:
            statuses = []
            for key in [*["wrong"] * 6, KEY]:
                async with log_in(session, dashboard.url, key) as reply:
                    statuses.append(reply.status)
            assert statuses == [403] * 5 + [429] * 2
            assert 1 <= int(reply.headers["Retry-After"]) <= 60


@asynchronous
async def test_the_relay_asks_for_the_key_too(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No WebSocket without the cookie; when the key is removed, the connection ends."""
    monkeypatch.setattr("mqinfer.dashboard.relay._LOOK_S", 0.1)
    async with relayed(login="wall:secret@", keys=keys) as (broker, dashboard):
        assert await refusal(dashboard.url) == 401
        async with aiohttp.ClientSession() as session, log_in(session, dashboard.url) as reply:
            cookie = reply.headers["Set-Cookie"].partition(";")[0]
        async with web_socket(dashboard.url, headers={"Cookie": cookie}) as socket:
            await socket.send_bytes(packet(connect()) + SUBSCRIBE)
            await asyncio.to_thread(keys.write_text, "")
            assert await closing(socket) == aiohttp.WSCloseCode.POLICY_VIOLATION
        await broker.ended.wait()
        assert text(b"wall") + text(b"secret") in broker.received
        assert broker.received.endswith(SUBSCRIBE)


@asynchronous
async def test_the_wall_ends_who_publishes() -> None:
    """The broker never sees the packet."""
    async with relayed(login="wall:secret@") as (broker, dashboard):
        async with web_socket(dashboard.url) as socket:
            await socket.send_bytes(packet(connect()))
            await socket.send_bytes(SUBSCRIBE)
            await socket.send_bytes(PINGREQ + PUBLISH)
            assert await closing(socket) == aiohttp.WSCloseCode.POLICY_VIOLATION
        await broker.ended.wait()
    assert b"evil" not in broker.received
