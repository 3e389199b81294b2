"""What a login can do to others by NATS's own protocol, beside what its rules bind: it costs them nothing lasting."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto import Role
from mqinfer.broker.nats import session
from mqinfer.broker.nats.kept import KeptMessages
from mqinfer.broker.nats.link import NatsLink
from mqinfer.broker.nats.secured import secured
from mqinfer.broker.packets import encode_head
from tests.broker.attempts import ROOT as R
from tests.broker.heard import PATIENCE, Inbox, Told
from tests.broker.nats.test_nats_roles import Site, make_folder, publish, raw

STEM = R.replace("/", ".")
MINE = f"kept.{STEM}.clients.car-1.state"
ORDERS = f"mqtt.{STEM}.clients.car-1.control"
GOOD = Message(f"{R}/clients/car-1/control/good", b"good")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A vehicle, an operator and a worker."""
    folder = make_folder(tmp_path_factory.mktemp("site") / "broker")
    roles = {"car-1": Role.VEHICLE, "op": Role.OPERATOR, "w": Role.WORKER}
    logins = {name: folder.add(role, name) for name, role in roles.items()}
    with secured(folder, None) as servers:
        made = Site(folder, servers)
        made.logins = logins
        yield made


def packet(message: Message) -> bytes:
    """A message as its packet."""
    return bytes(encode_head(message).data) + bytes(message.payload)


@pytest.mark.parametrize("scope", ["all", "sub"])
def test_nobody_rolls_up_what_others_keep(site: Site, scope: str) -> None:
    """A header that would have the server forget all that it keeps is refused."""
    topic, inbox = f"{R}/workers/w.0/state", Inbox()
    with closing(NatsLink(site.address("w"), client_id="w~1")) as link:
        link.open(PATIENCE)
        publish(link, topic, b"kept", retain=True)

        async def work(client: Any, _: list[str]) -> None:
            data = packet(Message(f"{R}/clients/car-1/state", b"x", retain=True))
            answer = await client.request(f"{MINE}.retained", data, headers={"Nats-Rollup": scope})
            assert "rollup not permitted" in answer.data.decode()

        raw(site, "car-1", work=work)
        link.subscribe(topic, inbox)
        assert inbox.payloads(1) == [b"kept"]


@pytest.mark.parametrize(
    ("more", "is_refused"), [({"inactive_threshold": 10**18}, True), ({"durable_name": "stays"}, False)]
)
def test_no_consumer_stays(site: Site, more: dict[str, Any], is_refused: bool) -> None:  # noqa: FBT001 - a parameter
    """What a login has the server remember of it ends within seconds."""
    name = more.get("durable_name", "stays")
    config = {"name": name, "filter_subject": f"{MINE}.*", "ack_policy": "none", **more}

    async def work(client: Any, _: list[str]) -> None:
        asked = json.dumps({"stream_name": "mqinfer", "config": config}).encode()
        answer = json.loads((await client.request(f"$JS.API.CONSUMER.CREATE.mqinfer.{name}.{MINE}.*", asked)).data)
        assert ("error" in answer) == is_refused
        assert is_refused or 0 < answer["config"]["inactive_threshold"] <= 10**10

    raw(site, "car-1", work=work)


def test_what_is_kept_is_no_larger_than_a_card(site: Site) -> None:
    """The server refuses to keep more than any reader would take, so few messages can't push out all others."""

    async def work(client: Any, _: list[str]) -> None:
        answer = await client.request(f"{MINE}.retained", bytes(2 << 20), timeout=PATIENCE)
        assert "message size exceeds" in answer.data.decode()

    raw(site, "car-1", work=work)


HEADER = b"NATS/1.0\r\n%s\r\n\r\n"
BAD_LINES = {
    "a subject that is no text": (ORDERS.encode() + b".\xff\xfe.live", b""),
    "a vertical tab in a subject": (ORDERS.encode() + b".a\x0bb.live", b""),
    "a number behind a vertical tab": (ORDERS.encode() + b".a\x0b5.live", b""),
    "a no-break space in a subject": (ORDERS.encode() + b".a\x85b.live", b""),
    "a header without a colon": (ORDERS.encode() + b".a.live", HEADER % b"nothing"),
    "a header that is no text": (ORDERS.encode() + b".a.live", HEADER % b"a: \xff\xfe"),
    "a status that is none": (ORDERS.encode() + b".a.live", b"NATS/1.0 \xff\xfe\xff \xff\r\n\r\n"),
    "a header of nothing": (ORDERS.encode() + b".a.live", b"NATS/1.0\r\n"),
    "a number without end": (ORDERS.encode() + b".a.live", HEADER % (b"Nats-Sequence: " + b"9" * 5000)),
    "an answer that is no text": (ORDERS.encode() + b".a.live \xff\xfe", b""),
}


@pytest.mark.parametrize("what", BAD_LINES)
def test_a_line_that_nats_py_does_not_take(site: Site, what: str) -> None:
    """A message that can't be read is lost alone: the connections of those who receive it stay."""
    name, header = BAD_LINES[what]
    told, inbox = Told(), Inbox()
    with closing(NatsLink(site.address("op"), client_id="op~1", on_connection=told)) as link:
        link.open(PATIENCE)
        link.subscribe(f"{R}/clients/+/control/+", inbox)

        async def work(client: Any, _: list[str]) -> None:
            sizes = b"%d %d" % (len(header), len(header) + 3) if header else b"3"
            client._transport.write((b"HPUB " if header else b"PUB ") + name + b" " + sizes + b"\r\n")
            client._transport.write(header + b"bad\r\n")
            await client.publish(f"{ORDERS}.good.live", packet(GOOD))
            await client.flush()

        raw(site, "car-1", work=work)
        assert inbox.payloads(1) == [b"good"]
        assert told.items == [True]
        assert link.dropped == 1


def test_what_is_kept_and_can_not_be_read(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever subscribes gets all else that is kept, and waits for nothing."""
    told, inbox = Told(), Inbox()
    with closing(NatsLink(site.address("op"), client_id="op~2", on_connection=told)) as link:
        link.open(PATIENCE)

        async def work(client: Any, _: list[str]) -> None:
            good = packet(Message(f"{R}/clients/car-1/state", b"good", retain=True))
            await client.request(f"{MINE}.retained", good)
            for last, header in ((b".\xff", b""), (b".a\x0b5", b""), (b".z", b"NATS/1.0 \xff\xfe\xff \xff\r\n\r\n")):
                line = b"HPUB %s%s %d %d" % (MINE.encode(), last, len(header), len(header) + 3)
                client._transport.write((line if header else b"PUB %s%s 3" % (MINE.encode(), last)) + b"\r\n")
                client._transport.write(header + b"bad\r\n")
            await client.flush()
            await client.request(f"{MINE}.other", b"bad")

        raw(site, "car-1", work=work)
        link.subscribe(f"{R}/clients/+/state", inbox)
        assert b"good" in inbox.payloads(1)
        link.subscribe(f"{R}/workers/+/state", inbox)
        assert told.items == [True]
        assert "not all that is kept" not in caplog.text


@pytest.mark.parametrize("alone", [1, 16])
def test_wills_without_a_link(site: Site, monkeypatch: pytest.MonkeyPatch, alone: int) -> None:
    """Those that no sign of life follows come due, several at once, and each one once."""
    monkeypatch.setattr(session, "_MOST_ALONE", alone)
    inbox = Inbox()
    names = ("car-1", "car-1.front", "car-1.rear", "car-1.left", "car-1.right")
    with closing(NatsLink(site.address("op"), client_id="op~3")) as link:
        link.open(PATIENCE)
        link.subscribe(f"{R}/clients/+/state", inbox, retained=False)

        async def work(client: Any, _: list[str]) -> None:
            for name in names:
                will = packet(Message(f"{R}/clients/{name}/state", name.encode(), retain=True))
                await client.request(f"kept.{STEM}.clients.{name.replace('.', '%2E')}.state.will~x", will)

        raw(site, "car-1", work=work)
        assert sorted(inbox.payloads(5)) == sorted(name.encode() for name in names)
        publish(link, f"{R}/models/m/infer/op")
        assert len(inbox.items) == 5


def message_of(place: str, data: bytes, **headers: str) -> Any:
    """What a subscription hears."""
    return SimpleNamespace(subject=f"mqtt.{place}", data=data, headers=headers)


def held(place: str, data: bytes) -> Any:
    """What a subscription reads."""
    metadata = SimpleNamespace(sequence=SimpleNamespace(stream=1))
    return SimpleNamespace(subject=f"kept.{place}", data=data, headers=None, metadata=metadata)


def listening() -> tuple[KeptMessages, list[bytes], list[float]]:
    """What a subscription remembers, what it passes on, and the time."""
    came, now = list[bytes](), [0.0]
    kept = KeptMessages(lambda _, data, __: came.append(data), reads=True, clock=lambda: now[0])
    kept.read([], deliver=True)
    return kept, came, now


@pytest.mark.parametrize(
    ("places", "data", "expected"),
    [
        ("t.will~{}", b"x", 8),
        ("t{}.will~1", b"x", 65_536),
        ("t{}.will~1", bytes(65_536), 1024),
        ("t{}.will~1", bytes(70_000), 0),
    ],
)
def test_wills_without_end(places: str, data: bytes, expected: int) -> None:
    """Of wills on one topic the latest are remembered, and of all so many as take little memory."""
    kept, came, now = listening()
    for number in range(70_000 if len(data) == 1 else 1_100):
        kept.hear(message_of(places.format(number), data))
    now[0] += 1000
    kept.read_again(kept.silent(), [])
    assert len(came) == expected


def test_a_sign_of_life_that_is_none() -> None:
    """What a login has the server store in its place, as answers of JetStream, keeps nobody alive."""
    kept, came, now = listening()
    kept.hear(message_of("t.will~1", b"will"))
    now[0] = 5.0
    kept.hear(message_of("t.alive~1", b""))
    now[0] = 10.0
    kept.hear(message_of("t.alive~1", b"{}"))
    assert kept.silent() == []
    now[0] = 11.0
    assert kept.silent() == ["t"]
    kept.read_again(["t"], [held("t.will~1", b"will"), held("t.alive~1", b"{}")])
    assert (came, kept.silent()) == ([b"will"], [])


def test_a_sign_of_life_that_stays() -> None:
    """One that its login has made to last for ever keeps readers busy for a minute at most."""
    kept, came, now = listening()
    kept.hear(message_of("t.will~1", b"will"))
    kept.hear(message_of("t.alive~1", b"", **{"Nats-TTL": "never"}))
    for now[0] in range(6, 100):
        kept.read_again(kept.silent(), [held("t.alive~1", b"")])
        assert bool(came) == (now[0] >= 60)
    assert (came, kept.silent()) == ([b"will"], [])


def test_a_link_that_is_only_late() -> None:
    """While its sign of life is kept, or one comes meanwhile, its will waits; one that is taken back is forgotten."""
    kept, came, now = listening()
    kept.hear(message_of("t.will~1", b"will"))
    kept.hear(message_of("t.alive~1", b"", **{"Nats-TTL": "15s"}))
    now[0] = 15.0
    assert kept.silent() == ["t"]
    kept.read_again(["t"], [held("t.alive~1", b"")])
    assert kept.silent() == []
    now[0] = 16.0
    assert kept.silent() == ["t"]
    kept.read_again(["t"], [held("t.alive~1", b"")])
    now[0] = 17.0
    kept.hear(message_of("t.alive~1", b"", **{"Nats-TTL": "9" * 99}))
    kept.read_again(["t"], [])
    kept.hear(message_of("t.will~1", b""))
    now[0] = 1000.0
    assert (came, kept.silent()) == ([], [])
