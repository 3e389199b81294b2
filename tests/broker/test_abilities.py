"""`mqinfer broker check`: what a broker must do, on Mosquitto, and behind a proxy that lies about one thing."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any
from urllib.parse import quote

import pytest
from typer.testing import CliRunner

from mqinfer.broker.abilities import Abilities, Ability
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.connect import make_link
from mqinfer.broker.link import Message
from mqinfer.broker.packets import encode_variable_integer
from mqinfer.cli.app import app
from mqinfer.cli.exit_codes import ExitCode
from mqinfer.protocol.states import ClientState, ProcessStatus
from mqinfer.protocol.topics import Topics
from tests.broker.heard import Inbox

pytestmark = pytest.mark.broker
Unique = Callable[[str], str]
Lie = Callable[[int, bytes], "tuple[int, bytes] | None"]
CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK, DISCONNECT = 1, 2, 3, 4, 8, 9, 14


def packets(sock: socket.socket) -> Iterator[tuple[int, bytes]]:
    """Cut a connection's packets: first byte, and body."""
    with sock.makefile("rb") as stream:
        while head := stream.read(1):
            size = shift = 0
            while True:
                byte = stream.read(1)[0]
                size |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            yield head[0], stream.read(size)


def pump(source: socket.socket, target: socket.socket, lie: Lie) -> None:
    """Pass packets on, as the lie has them."""
    with suppress(OSError, IndexError):
        for packet in packets(source):
            changed = lie(*packet)
            if changed:
                target.sendall(bytes([changed[0]]) + bytes(encode_variable_integer(len(changed[1]))) + changed[1])
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextmanager
def lying(port: int, up: Lie, down: Lie) -> Iterator[str]:
    """Put a proxy before a broker; yields its URL."""
    threads: list[threading.Thread] = []
    sockets: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = server.accept()
                    broker = socket.create_connection(("127.0.0.1", port))
                    sockets.extend((client, broker))
                    for ends in ((client, broker, up), (broker, client, down)):
                        threads.append(threading.Thread(target=pump, args=ends, daemon=True))
                        threads[-1].start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield f"mqtt://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for thread in threads:
                thread.join()
            for each in sockets:
                each.close()


def honest(head: int, body: bytes) -> tuple[int, bytes]:
    """Change nothing."""
    return head, body


def without(is_lost: Callable[[int, bytes], bool]) -> Lie:
    """Lose some of the messages."""
    return lambda head, body: None if head >> 4 == PUBLISH and is_lost(head, body) else (head, body)


def success(head: int, body: bytes) -> tuple[int, bytes]:
    """Say of each message that it was received."""
    return (head, body[:2]) if head >> 4 == PUBACK else (head, body)


def everlasting(head: int, body: bytes) -> tuple[int, bytes]:
    """Keep for long what should be kept for a second."""
    return head, body.replace(b"\x02" + struct.pack("!I", 1), b"\x02" + struct.pack("!I", 1000))


def old(head: int, body: bytes) -> tuple[int, bytes]:
    """Ask for a version of MQTT that no broker knows, in place of 5: it is refused, and 3.1.1 is not."""
    return head, body.replace(b"\0\4MQTT\5", b"\0\4MQTT\6", 1) if head >> 4 == CONNECT else body


def with_properties(body: bytes, at: int, change: Callable[[bytes], bytes]) -> bytes:
    """Change the properties that stand in a body, as a length below 128 and so many bytes."""
    end = at + 1 + body[at]
    properties = change(body[at + 1 : end])
    return body[:at] + bytes([len(properties)]) + properties + body[end:]


def small(head: int, body: bytes) -> tuple[int, bytes]:
    """Take packets of 500,000 bytes at most, as CONNACK says."""
    if head >> 4 != CONNACK or len(body) < 3:
        return head, body
    stated = b"\x27" + struct.pack("!I", 500_000)
    return head, with_properties(body, 2, lambda found: re.sub(rb"\x27.{4}", b"", found, flags=re.DOTALL) + stated)


def bare(pattern: bytes) -> Lie:
    """Pass messages on without a property."""

    def change(head: int, body: bytes) -> tuple[int, bytes]:
        if head >> 4 != PUBLISH or pattern not in body:
            return head, body
        at = 2 + int.from_bytes(body[:2]) + (2 if head & 6 else 0)
        return head, with_properties(body, at, lambda found: found.replace(pattern, b""))

    return change


def unshared(head: int, body: bytes) -> tuple[int, bytes]:
    """Give each member of a group all of its messages."""
    at = 3 + body[2] if head >> 4 == SUBSCRIBE else 0
    topic_filter = body[at + 2 : at + 2 + int.from_bytes(body[at : at + 2])]
    if not at or not topic_filter.startswith(b"$share/"):
        return head, body
    plain = topic_filter.split(b"/", 2)[2]
    return head, body[:at] + struct.pack("!H", len(plain)) + plain + body[at + 2 + len(topic_filter) :]


def refused() -> tuple[Lie, Lie]:
    """Refuse groups: 0x9E, Shared Subscriptions not supported."""
    identifiers = set[bytes]()

    def up(head: int, body: bytes) -> tuple[int, bytes]:
        if head >> 4 == SUBSCRIBE and b"$share/" in body:
            identifiers.add(body[:2])
        return head, body

    def down(head: int, body: bytes) -> tuple[int, bytes]:
        return head, body[:-1] + b"\x9e" if head >> 4 == SUBACK and body[:2] in identifiers else body

    return up, down


def remembering(head: int, body: bytes) -> tuple[int, bytes]:
    """Clear nothing: an empty message is not to be retained."""
    if head >> 4 != PUBLISH:
        return head, body
    at = 2 + int.from_bytes(body[:2]) + (2 if head & 6 else 0)
    return head & ~(len(body) == at + 1 + body[at]), body


def unparting(head: int, body: bytes) -> tuple[int, bytes] | None:
    """Take a DISCONNECT for the loss of the connection."""
    return None if head >> 4 == DISCONNECT else (head, body)


def swapped(head: int, body: bytes) -> tuple[int, bytes]:
    """Exchange two messages."""
    fifth, sixth = b"\0o5", b"\0o6"
    other = {fifth: sixth, sixth: fifth}.get(body[-3:]) if head >> 4 == PUBLISH else None
    return head, body[:-3] + other if other else body


def passing(head: int, body: bytes) -> tuple[int, bytes]:
    """Publish each will, and retain none."""
    return head, body[:7] + bytes([body[7] & ~0x20]) + body[8:] if head >> 4 == CONNECT else body


def stalling() -> Lie:
    """Deliver nothing any more once a large message is due."""
    stalled = threading.Event()

    def lose(_: int, body: bytes) -> bool:
        if len(body) > 1 << 19:
            stalled.set()
        return stalled.is_set()

    return without(lose)


LIES: dict[str, tuple[Lie, Lie]] = {
    "large packets": (honest, without(lambda _, body: len(body) > 1 << 19)),
    "no matching subscribers (0x10)": (honest, success),
    "retained, by wildcard": (honest, without(lambda head, body: bool(head & 1) and body.endswith(b"kept"))),
    "message expiry": (everlasting, honest),
    "shared group": (honest, without(lambda _, body: body.endswith((b"\x007", b"\x0011")))),
    "order": (honest, swapped),
    "will": (honest, without(lambda _, body: body.endswith(b"will"))),
    "retained will": (passing, honest),
}


WORDS: list[tuple[str, str, tuple[Lie, Lie]]] = [
    ("round trip", "user_properties did not arrive", (honest, bare(b"\x26\0\1a\0\1b"))),
    ("round trip", "content_type did not arrive", (honest, bare(b"\x03\0\1c"))),
    ("round trip", "correlation_data did not arrive", (honest, bare(b"\x09\0\2id"))),
    ("round trip", "response_topic did not arrive", (honest, bare(b"\x08\0\1r"))),
    ("large packets", "500000", (honest, small)),
    ("large packets", "did not say that it drops", LIES["large packets"]),
    ("large packets", "too slow: 0 of 8", (honest, stalling())),
    ("retained, by wildcard", "did not clear", (remembering, honest)),
    ("will", "has disconnected", (unparting, honest)),
    ("shared group", "16 and 16 of 16", (unshared, honest)),
    ("shared group", "hared", refused()),
]


def faults(url: str | BrokerAddress, name: str) -> list[Ability]:
    """Return what does not hold."""
    address = BrokerAddress.parse(url) if isinstance(url, str) else url
    return [each for each in Abilities(address, Topics(), name).run() if not each.holds]


def test_mosquitto(broker_url: str, unique: Unique) -> None:
    """It does all of it."""
    assert faults(broker_url, unique("c")) == []


def test_each_ability_has_its_lie(broker_url: str, unique: Unique) -> None:
    """Nothing is tried of which no test shows that it can fail."""
    tried = {each.what for each in Abilities(BrokerAddress.parse(broker_url), Topics(), unique("c")).run()}
    assert tried == {"MQTT 5", *LIES, *(what for what, *_ in WORDS)}


def test_mosquitto_over_websockets(secured: Any) -> None:
    """A slow connection (Mosquitto 2.0 sends 40 kB/s to a browser) is called slow, and nothing else is wrong."""
    password = quote(secured.logins["pass-car"].password, safe="")
    url = f"wss://pass-car:{password}@127.0.0.1:{secured.websockets_port}"
    found = faults(BrokerAddress.parse(url, ca_file=secured.logins["pass-car"].ca_file), "pass-car")
    assert [(each.what, each.words.partition(":")[0]) for each in found] in ([], [("large packets", "too slow")])


def test_mosquitto_with_rules(secured: Any) -> None:
    """A vehicle's login finds the same, over TLS."""
    assert faults(secured.address("pass-car"), "pass-car") == []  # other tests leave states of other names


@pytest.mark.parametrize("what", LIES)
def test_a_broker_that_lies(broker_url: str, unique: Unique, what: str) -> None:
    """Each lie is named, and nothing else."""
    with lying(int(broker_url.rpartition(":")[2]), *LIES[what]) as url:
        assert [each.what for each in faults(url, unique("c"))] == [what]


@pytest.mark.parametrize(("what", "words", "lie"), WORDS, ids=[f"{what}: {words}" for what, words, _ in WORDS])
def test_what_is_said_of_a_lie(broker_url: str, unique: Unique, what: str, words: str, lie: tuple[Lie, Lie]) -> None:
    """The property that is lost, the size that is stated, and the group that is none, are said; nothing else is."""
    with lying(int(broker_url.rpartition(":")[2]), *lie) as url:
        (found,) = faults(url, unique("c"))
    assert found.what == what
    assert words in found.words


def test_a_broker_of_an_older_version(broker_url: str, unique: Unique) -> None:
    """Without MQTT 5 all that needs its fields is lacking, and what 3.1.1 has is not."""
    with lying(int(broker_url.rpartition(":")[2]), old, honest) as url:
        found = {each.what: each for each in faults(url, unique("c"))}
    assert set(found) == {"MQTT 5", "round trip", "no matching subscribers (0x10)", "message expiry"}
    assert found["MQTT 5"].words == "not spoken, only 3.1.1"
    assert "user_properties" in found["round trip"].words


@pytest.mark.parametrize("status", [*ProcessStatus, None])
def test_a_state_that_is_there(
    broker_url: str, unique: Unique, monkeypatch: pytest.MonkeyPatch, status: ProcessStatus | None
) -> None:
    """That of a process which has the name is not touched, and nothing is tried; one that a process left is kept."""
    monkeypatch.setattr("mqinfer.broker.abilities._PATIENCE_S", 20.0)
    name, topics, found = unique("c"), Topics(), Inbox()
    state = ClientState(name, status, 1).to_json() if status else b"{}"
    holds = set() if status in {ProcessStatus.STOPPED, ProcessStatus.LOST} else {None}
    with closing(make_link(broker_url, client_id=name)) as link:
        link.open()
        link.publish(Message(topics.client_state(name), state, retain=True))
        assert {each.holds for each in faults(broker_url, name)} == holds
        link.subscribe(topics.client_state(name), found)
        assert found.payloads(1) == [state]


def test_a_ctrl_c_puts_a_state_back(broker_url: str, unique: Unique, monkeypatch: pytest.MonkeyPatch) -> None:
    """A will that was set aside is there again also where the attempts end early."""

    def interrupt(*_: object) -> Ability:
        raise KeyboardInterrupt

    monkeypatch.setattr(Abilities, "_attempt", interrupt)
    name, found = unique("c"), Inbox()
    topic, state = Topics().client_state(name), ClientState(name, ProcessStatus.LOST, 1).to_json()
    with closing(make_link(broker_url, client_id=name)) as link:
        link.open()
        link.publish(Message(topic, state, retain=True))
        with pytest.raises(KeyboardInterrupt):
            faults(broker_url, name)
        link.subscribe(topic, found)
        assert found.payloads(1) == [state]


def test_the_command_as_json(broker_url: str, unique: Unique) -> None:
    """A line a thing that was tried, with what is lost where it does not hold, and an exit code."""
    with lying(int(broker_url.rpartition(":")[2]), *LIES["will"]) as url:
        ran = CliRunner().invoke(app, ["broker", "check", "--broker", url, "--name", unique("c"), "--json"])
    found = json.loads(ran.stdout)
    assert ran.exit_code == ExitCode.FAILED
    assert [each["what"] for each in found["abilities"] if not each["holds"]] == ["will"]
    assert found["findings"][0]["attempt"] == "connect without a login"
