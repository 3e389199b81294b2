"""What only a real nats-server can show: wills of processes that are gone, its own end and return, rules, strangers."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from mqinfer.broker import make_link
from mqinfer.broker.link import Message, ReasonCode
from mqinfer.broker.nats import jetstream
from mqinfer.broker.nats.link import NatsLink
from mqinfer.broker.packets import encode_head
from mqinfer.protocol.errors import BrokerUnreachable, NotAuthorized
from tests.broker.heard import PATIENCE, Heard, Inbox, Told
from tests.broker.nats.server import NatsServer

Unique = Callable[[str], str]
HOLDS_A_WILL = """
import signal, sys
from mqinfer.broker import Message, make_link
link = make_link(sys.argv[1], client_id="gone", will=Message(sys.argv[2], b"lost", retain=True))
link.open()
link.publish(Message(sys.argv[2], b"here", retain=True))
print("open", flush=True)
signal.pause()
"""
RULES = """
authorization { users: [
  { user: "car", password: "x", permissions: {
    publish: ["mqtt.may.>", "kept.may.>", "answers.>", "$JS.API.>"],
    subscribe: ["mqtt.may.>", "answers.>"] } }
] }
"""


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """A server that no test ends."""
    with NatsServer() as server:
        yield server


def acked(link: Any, message: Message) -> int:
    """Publish, and wait for the reason code."""
    codes = Heard[int]()
    link.publish(message, codes)
    return codes.wait_for(1)[0]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_will_of_a_process(server: NatsServer, unique: Unique, how: signal.Signals) -> None:
    """The will of a process that was killed or hangs comes, and is kept, although no socket needs to be closed."""
    topic, live, late = unique("will"), Inbox(), Inbox()
    with closing(make_link(server.url, client_id=unique("watcher"))) as link:
        link.open()
        link.subscribe(topic, live)
        command = [sys.executable, "-c", HOLDS_A_WILL, server.url, topic]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                assert process.stdout.readline() == "open\n"
                assert live.payloads(1) == [b"here"]
                process.send_signal(how)
                assert live.payloads(2) == [b"here", b"lost"]
            finally:
                process.kill()
        link.unsubscribe(topic)
        link.subscribe(topic, late)
        assert [(message.payload, message.retain) for message in late.wait_for(1)] == [(b"lost", True)]


def kept(link: Any, topic: str) -> list[bytes]:
    """What a new subscriber receives before anything else."""
    inbox = Inbox()
    link.subscribe(topic, inbox)
    acked(link, Message(topic, b"end"))
    items = inbox.wait_until(lambda items: any(item.payload == b"end" for item in items))
    link.unsubscribe(topic)
    return [bytes(item.payload) for item in items if item.retain]


def test_a_state_and_its_will(server: NatsServer, unique: Unique) -> None:
    """A state stays while its link is there or has closed; a will in its place goes when it is cleared."""
    topic, wills = unique("state"), Inbox()
    with closing(make_link(server.url, client_id=unique("watcher"))) as watcher:
        watcher.open()
        will = Message(topic, b"lost", retain=True)
        with closing(make_link(server.url, client_id=unique("one"), will=will)) as one:
            one.open()
            assert kept(watcher, topic) == []
            acked(one, Message(topic, b"one", retain=True))
            assert kept(watcher, topic) == [b"one"]
        assert kept(watcher, topic) == [b"one"]
        watcher.subscribe(topic, wills)
        command = [sys.executable, "-c", HOLDS_A_WILL, server.url, topic]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            wills.wait_until(lambda items: any(item.payload == b"here" for item in items))
            process.kill()
        wills.wait_until(lambda items: any(item.payload == b"lost" for item in items))
        watcher.unsubscribe(topic)
        assert kept(watcher, topic) == [b"lost"]
        acked(watcher, Message(topic, b"", retain=True))
        assert kept(watcher, topic) == []
        acked(watcher, Message(topic, b"two", retain=True))
        assert kept(watcher, topic) == [b"two"]


def test_a_will_that_came_due(server: NatsServer, unique: Unique, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that was held up for too long, and is taken for lost, connects anew, so that it states what it is."""
    monkeypatch.setattr(jetstream, "LOST_S", 1.0)
    monkeypatch.setattr(jetstream, "BEATS", 0.4)
    topic, told, wills = unique("will"), Told(), Inbox()
    with closing(make_link(server.url, client_id=unique("watcher"))) as watcher:
        watcher.open()
        watcher.subscribe(topic, wills)
        link = make_link(server.url, client_id=unique("slow"), will=Message(topic, b"lost"), on_connection=told)
        with closing(link):
            link.open()
            assert wills.payloads(1) == [b"lost"]
            told.wait_until(lambda items: items[:3] == [True, False, True])


def test_signs_of_life(server: NatsServer, unique: Unique, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that is there keeps its connection for many times as long as it may be silent."""
    nats = pytest.importorskip("nats")
    monkeypatch.setattr(jetstream, "LOST_S", 1.0)
    topic = unique("will")

    async def hear(count: int) -> None:
        client = await nats.connect(server.url)
        signs = await client.subscribe(f"mqtt.{topic}.*")
        for _ in range(count):
            assert ".alive~" in (await signs.next_msg(PATIENCE)).subject
        await client.close()

    will = Message(topic, b"lost")
    for _ in range(10):  # a machine that stands still for that long loses the link
        told = Told()
        with closing(make_link(server.url, client_id=unique("link"), will=will, on_connection=told)) as link:
            link.open()
            asyncio.run(hear(4 * jetstream.BEATS))
            if told.items == [True]:
                break
    else:
        pytest.fail(f"{told.items}")


def test_a_will_that_was_pushed_out(server: NatsServer, unique: Unique, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that others have filled forgets what was stored first; a will is put in place again."""
    nats = pytest.importorskip("nats")
    monkeypatch.setattr(jetstream, "RENEW_S", 0.5)
    topic = unique("will")

    async def push_out() -> None:
        client = await nats.connect(server.url)
        wills = await client.subscribe(f"mqtt.{topic}.*")
        await client.request("$JS.API.STREAM.PURGE.mqinfer", json.dumps({"filter": f"kept.{topic}.*"}).encode())
        while ".will~" not in (await wills.next_msg(PATIENCE)).subject:
            pass
        await client.close()

    with closing(make_link(server.url, client_id=unique("link"), will=Message(topic, b"lost"))) as link:
        link.open()
        asyncio.run(push_out())


def test_the_server_ends_and_returns(unique: Unique) -> None:
    """Subscriptions are there again on the new connection, and what is kept is as empty as a new server."""
    topic, told, inbox, late = unique("topic"), Told(), Inbox(), Inbox()
    with NatsServer() as server:
        link = make_link(server.url, client_id=unique("link"), on_connection=told, will=Message(topic, b"lost"))
        with closing(link):
            link.open()
            link.subscribe(topic, inbox)
            assert acked(link, Message(topic, b"1", retain=True)) == ReasonCode.SUCCESS
            assert inbox.payloads(1) == [b"1"]
            server.stop()
            told.wait_for_states(True, False)
            server.start()
            told.wait_for_states(True, False, True)
            link.subscribe(f"{topic}/late", late)
            assert acked(link, Message(f"{topic}/late", b"2")) == ReasonCode.SUCCESS
            assert late.payloads(1) == [b"2"]


def test_a_standby(unique: Unique) -> None:
    """The second address serves where the first one does not answer."""
    with NatsServer() as server:
        standby = server.url.removeprefix("nats://")
        with closing(make_link(f"nats://127.0.0.1:1,{standby}", client_id=unique("link"))) as link:
            link.open(PATIENCE)
            assert link.connected


def test_nobody_there(unique: Unique) -> None:
    """The address is in the error."""
    with pytest.raises(BrokerUnreachable, match=r"nats://127\.0\.0\.1:1\b"):
        make_link("nats://127.0.0.1:1", client_id=unique("link")).open(0.5)


def test_a_server_without_tls(unique: Unique) -> None:
    """Whoever answers in the place of a server with TLS, and offers none, gets no login and no message."""
    got: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as impostor:

        def answer() -> None:
            with impostor.accept()[0] as sock:
                sock.sendall(b'INFO {"server_id":"x","version":"2.14.0","max_payload":1048576,"headers":true}\r\n')
                got.append(sock.recv(65_536))

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"tls://car:x@127.0.0.1:{impostor.getsockname()[1]}"
        with pytest.raises(BrokerUnreachable, match="offers no TLS"):
            make_link(url, client_id=unique("link")).open(PATIENCE)
        thread.join()
    assert got == [b""]


def test_without_jetstream(unique: Unique) -> None:
    """A server that keeps nothing is refused, with what to do."""
    with NatsServer(jetstream=False) as server, pytest.raises(BrokerUnreachable, match="nats-server --jetstream"):
        make_link(server.url, client_id=unique("link")).open(PATIENCE)


def test_access_rules(unique: Unique) -> None:
    """What a login may not do is refused, each by its own way, and the connection stays."""
    with NatsServer(more=RULES) as server:
        host = server.url.removeprefix("nats://")
        for login in ("", "car:wrong@"):
            with pytest.raises(NotAuthorized):
                make_link(f"nats://{login}{host}", client_id=unique("link")).open(PATIENCE)
        told, inbox = Told(), Inbox()
        with closing(make_link(f"nats://car:x@{host}", client_id=unique("link"), on_connection=told)) as link:
            link.open()
            with pytest.raises(NotAuthorized, match="not/Mine"):
                link.subscribe("not/Mine", inbox)
            link.subscribe("may/+", inbox)
            assert acked(link, Message("not/Mine", b"")) == ReasonCode.NOT_AUTHORIZED
            assert acked(link, Message("not/Mine", b"", retain=True)) == ReasonCode.NOT_AUTHORIZED
            assert acked(link, Message("may/do", b"x")) == ReasonCode.SUCCESS
            assert (inbox.payloads(1), told.items) == ([b"x"], [True])


def test_messages_of_strangers(server: NatsServer, unique: Unique) -> None:
    """What is no PUBLISH packet, or states another topic than its subject, is dropped and counted; the link goes on."""
    nats = pytest.importorskip("nats")
    topic, inbox = unique("topic"), Inbox()
    good = Message(topic, b"good")

    async def publish() -> None:
        client = await nats.connect(server.url)
        forged = bytes(encode_head(Message("another", b"bad")).data) + b"bad"
        for payload in (b"", b"\x32", b"\x32\xff\xff\xff\xff\x7f", b"\x30\x05\0\x09abc", forged, b"\x36" + forged[1:]):
            await client.publish(f"mqtt.{topic}.live", payload, headers={"Nats-Sequence": "x"})
        await client.publish(f"mqtt.{topic}.live", bytes(encode_head(good).data) + b"good")
        await client.close()

    with closing(make_link(server.url, client_id=unique("link"))) as link:
        link.open()
        link.subscribe(topic, inbox)
        asyncio.run(publish())
        assert inbox.payloads(1) == [b"good"]
        assert isinstance(link, NatsLink)
        assert link.dropped == 6


@pytest.mark.parametrize("will", [None, Message("nobody", b"lost")])
def test_the_stream_is_removed(unique: Unique, will: Message | None) -> None:
    """A link finds out by what it gives to be kept, or by its sign of life, and makes the stream again."""
    nats = pytest.importorskip("nats")
    topic, told, inbox = unique("topic"), Told(), Inbox()

    async def remove(url: str) -> None:
        client = await nats.connect(url)
        await client.request("$JS.API.STREAM.DELETE.mqinfer", b"")
        await client.close()

    with NatsServer() as server:
        link = make_link(server.url, client_id=unique("link"), will=will, on_connection=told)
        with closing(link):
            link.open()
            asyncio.run(remove(server.url))
            if will is None:
                link.publish(Message(topic, b"lost", retain=True))
            told.wait_for_states(True, False, True)
            assert acked(link, Message(topic, b"kept", retain=True)) == ReasonCode.SUCCESS
            link.subscribe(topic, inbox)
            assert inbox.payloads(1) == [b"kept"]


def test_what_is_kept_expires(server: NatsServer, unique: Unique) -> None:
    """A retained message is gone with its expiry."""
    topic, gone = unique("topic"), Inbox()
    with closing(make_link(server.url, client_id=unique("link"))) as link:
        link.open()
        acked(link, Message(topic, b"x", retain=True, expiry_s=1))
        while True:  # a reader sees it until the server has removed it
            inbox = Inbox()
            link.subscribe(topic, inbox)
            acked(link, Message(topic, b"end", qos=1))
            inbox.wait_until(lambda items: any(item.payload == b"end" for item in items))
            link.unsubscribe(topic)
            if len(inbox.items) == 1:
                break
        assert gone.items == []
