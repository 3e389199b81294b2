"""What each role can still do to others, on a real secured broker: that table in docs/reference/security.md.

The access rules alone are tried cell by cell in `test_access`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto import Role
from mqinfer.broker.paho.link import PahoLink
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.codecs import encode_tensor
from mqinfer.protocol.envelope import CONTENT_TYPE, encode_request
from mqinfer.protocol.errors import LinkError
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import InferRequest
from tests.broker.attempts import (
    NO_WORKERS,
    NOT_AUTHORIZED,
    PATIENCE,
    listening,
    opened,
    packet,
    publish,
    raw,
    text,
    until,
)
from tests.broker.attempts import ROOT as R
from tests.patience import wait_until

pytestmark = pytest.mark.broker

X = np.ones((1, 4), np.float32)
Links = Mapping[str, PahoLink]
Unique = Callable[[str], str]


@pytest.mark.parametrize(
    "topic",
    [
        f"{R}/models/+/infer/car-1".encode(),
        f"{R}/models/m/infer/+".encode(),
        f"{R}/models/#".encode(),
        f"{R}/models/m\0/infer/car-1".encode(),
        f"{R}/models/m\1/infer/car-1".encode(),
        f"{R}/models/m\xff/infer/car-1".encode("latin-1"),
        b"",
        b"/".join([R.encode(), *[b"m"] * 300]),
    ],
)
def test_topics_that_are_none(secured: Any, links: Links, unique: Unique, topic: bytes) -> None:
    """A vehicle that publishes to a wildcard, a control character or bytes that are no text is disconnected."""
    witness, last = links["witness"], f"{R}/last"
    with listening(witness, f"{R}/#") as inbox:
        with raw(secured, secured.logins["car-1"], unique("raw")) as connection:
            connection.sendall(packet(0x32, text(topic) + b"\x00\x01\x00evil"))
            received = b""
            with contextlib.suppress(ConnectionError):
                while more := connection.recv(4096):
                    received += more
            assert received[:1] in {b"", b"\xe0"}  # nothing, or DISCONNECT; no PUBACK
        publish(witness, last)
        assert all(message.payload != b"evil" for message in until(inbox, last))


@pytest.mark.parametrize("model", ["", "..", "é\u202e", "control", "x" * 60_000])
def test_names_that_no_model_has(
    secured: Any, links: Links, serve: Callable[..., Worker], write_echo: Callable[..., Path], model: str
) -> None:
    """A vehicle may put anything where a model's name belongs, in its own name: no worker reads it, nothing breaks."""
    serve(secured.address("w"), write_echo("echo"), name="w.0")
    last = f"{R}/results/echo/car-1/last"
    with listening(links["witness"], f"{R}/results/#") as inbox:
        for topic in (f"{R}/models/{model}/infer/car-1", f"{R}/workers/w.0/infer/{model}/car-1"):
            assert publish(links["car-1"], topic) != NOT_AUTHORIZED
        body = json.dumps(
            {"id": "last", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0] * 4}]}
        )
        links["car-1"].publish(
            Message(f"{R}/models/echo/infer/car-1", body.encode(), content_type="application/json", response_topic=last)
        )
        (reply,) = until(inbox, last)
    assert b'"outcome":"ok"' in bytes(reply.payload)


@pytest.mark.parametrize("who", NO_WORKERS)
def test_nobody_removes_what_others_retain(links: Links, who: str) -> None:
    """An empty payload removes what is retained, so it needs the same right as any other: states and cards stay."""
    kept = [f"{R}/workers/v.0/state", f"{R}/clients/car-2/state", f"{R}/control/v/state", f"{R}/models/m/card"]
    witness = links["witness"]
    for topic in kept:
        publish(witness, topic, b"kept", retain=True)
    assert [publish(links[who], topic, b"", retain=True) for topic in kept] == [NOT_AUTHORIZED] * 4
    with listening(witness, *kept) as inbox:
        assert {inbox.get(timeout=PATIENCE).topic for _ in kept} == set(kept)
    for topic in kept:
        publish(witness, topic, b"", retain=True)


@pytest.mark.parametrize("who", [*NO_WORKERS, "w"])
def test_what_the_broker_reports_of_itself(links: Links, who: str) -> None:
    """`$SYS` holds counts of messages and clients, retained: no role reads it, and nobody writes there."""
    witness, marker = links["witness"], Topics().card("marker")
    with listening(links[who], "$SYS/#", marker) as inbox, listening(witness, "$SYS/#") as all_of_it:
        assert all_of_it.get(timeout=PATIENCE).topic.startswith("$SYS/broker/")
        publish(witness, marker)
        assert len(until(inbox, marker)) == 1
    assert publish(links[who], "$SYS/broker/clients/total") == NOT_AUTHORIZED


@pytest.mark.parametrize("who", NO_WORKERS)
@pytest.mark.parametrize(("group", "reached"), [("workers", 10), ("secret", 20)])
def test_taking_the_turns_of_workers(links: Links, who: str, group: str, reached: int) -> None:
    """Who can name the workers' group gets every second request of 20, to be lost; who can't gets none of them."""
    requests, last = f"{R}/models/m/infer/+", Topics().card("marker")
    with (
        listening(links["w"], requests, share=group) as worker,
        listening(links["w"], last) as marker,
        listening(links[who], requests, share="workers") as thief,
    ):
        for _ in range(20):
            publish(links["witness"], f"{R}/models/m/infer/car-2")
        publish(links["witness"], last)
        until(marker, last)
        assert (worker.qsize(), thief.qsize()) == (reached, 0)


def test_the_groups_name_is_a_secret(secured: Any) -> None:
    """Each folder has its own, readable by its owner alone; no message and no other file of it repeats the name."""
    folder = secured.folder
    assert len(folder.group()) == 32
    others = [path for path in folder.path.rglob("*") if path.is_file() and path.name != "group"]
    assert not [path for path in others if folder.group().encode() in path.read_bytes()]


def test_cancelling_requests_of_another(
    secured: Any, links: Links, serve: Callable[..., Worker], write_echo: Callable[..., Path]
) -> None:
    """A cancellation counts for its sender's requests alone: car-2's request runs that car-1 wants to end."""
    serve(secured.address("w"), write_echo("echo"), name="w.0")
    own, theirs, last = ("01" * 16, "02" * 16, "03" * 16)
    with listening(links["car-2"], f"{R}/results/echo/car-2/+") as inbox:
        for who, number in (("car-1", theirs), ("car-2", own)):
            content = json.dumps({"ids": [number], "outcome": "cancelled"}).encode()
            publish(links[who], f"{R}/models/echo/cancel/{who}", content)
        for number in (own, theirs, last):
            topic = f"{R}/results/echo/car-2/{number}"
            request = InferRequest(
                number, "echo", (encode_tensor("x", np.ones((1, 4), np.float32)),), response_topic=topic
            )
            links["car-2"].publish(
                Message(
                    f"{R}/models/echo/infer/car-2",
                    encode_request(request),
                    content_type=CONTENT_TYPE,
                    response_topic=topic,
                    correlation_data=bytes.fromhex(number),
                )
            )
        answered = [inbox.get(timeout=60).topic.rpartition("/")[2] for _ in range(2)]
    assert sorted(answered) == [theirs, last]


def test_taking_a_client_id(secured: Any, unique: Unique) -> None:
    """Who knows another's client id ends its connection, gains none of its rights, and the other one comes back."""
    client_id = unique("car-2")
    states: SimpleQueue[bool] = SimpleQueue()
    victim = PahoLink(secured.address("car-2"), client_id=client_id, on_connection=states.put)
    victim.open(PATIENCE)
    assert states.get(timeout=PATIENCE)
    thief = PahoLink(secured.address("car-1"), client_id=client_id)
    thief.open(PATIENCE)
    assert not states.get(timeout=PATIENCE)
    assert publish(thief, f"{R}/models/m/infer/car-2") == NOT_AUTHORIZED
    thief.close()
    victim.close()


@pytest.mark.full
@pytest.mark.parametrize("who", NO_WORKERS)
def test_a_flood_of_subscriptions(small: Any, unique: Unique, who: str) -> None:
    """Mosquitto counts no subscriptions: they fill its memory, it disconnects who wants more, and others go on."""
    victim = opened(small, "car-2", unique("victim"))
    assert 100 < flood(small, who, unique("flood")) < 1000  # 32 MiB of topics
    assert publish(victim, f"{R}/models/m/infer/car-2", b"x" * 100_000) != NOT_AUTHORIZED
    victim.close()


def flood(small: Any, who: str, client_id: str) -> int:
    """Subscribe to ever new topics of 60 kB until it is disconnected; return how many were granted."""
    made = 0
    with raw(small, small.logins[who], client_id) as connection, contextlib.suppress(OSError):
        while made < 2000:
            topics = b"".join(text(b"%d/" % (made + one) + b"y" * 60_000) + b"\x00" for one in range(10))
            connection.sendall(packet(0x82, b"\x00\x01\x00" + topics))
            if connection.recv(4096)[:1] != b"\x90":  # SUBACK
                break
            made += 10
    return made


@pytest.mark.full
def test_many_groups(secured: Any, links: Links, unique: Unique) -> None:
    """Mosquitto grants ever more share groups, and looks at each for each request: it gets slower, but loses none.

    Each role gets its thousand, all of them at the same time.
    """
    requests = text(f"{R}/models/+/infer/+".encode())[2:]
    last = f"{R}/models/m/infer/car-2"
    with contextlib.ExitStack() as stack:
        for who in NO_WORKERS:
            connection = stack.enter_context(raw(secured, secured.logins[who], unique("groups")))
            groups = b"".join(text(b"$share/%b%d/" % (who.encode(), one) + requests) + b"\x00" for one in range(1000))
            connection.sendall(packet(0x82, b"\x00\x01\x00" + groups))
            granted = b""
            while len(granted) < 1006:  # SUBACK: 3 bytes before the length's end, 3 more, and a code a group
                more = connection.recv(4096)
                assert more, who
                granted += more
            assert set(granted[6:]) == {0}, who
        with listening(links["w"], last) as worker:
            for number in range(20):
                publish(links["car-2"], last, b"%d" % number)
            assert [bytes(worker.get(timeout=PATIENCE).payload) for _ in range(20)] == [
                b"%d" % each for each in range(20)
            ]


def test_a_dashboard_that_does_not_read(small: Any, unique: Unique) -> None:
    """For it the broker queues so many bytes and drops the rest; others get all, and the worker is not held up."""
    worker, reader = opened(small, "w", unique("w")), opened(small, "car-2", unique("reader"))
    topics = [f"{R}/results/m/car-2/{number}" for number in range(300)]
    with raw(small, small.logins["dash"], unique("stalled")) as stalled:
        stalled.sendall(packet(0x82, b"\x00\x01\x00" + text(f"{R}/results/+/+/+".encode()) + b"\x01"))
        assert stalled.recv(4096)[:1] == b"\x90"
        with listening(reader, f"{R}/results/+/car-2/+") as inbox:
            for topic in topics:
                assert publish(worker, topic, b"x" * 100_000) == 0
            assert {inbox.get(timeout=PATIENCE).topic for _ in topics} == set(topics)
        publish(worker, topics[0])
    wait_until(lambda: "Outgoing messages are being dropped for client" in small.server.log())
    worker.close()
    reader.close()


def test_a_client_that_was_removed(secured: Any, links: Links, unique: Unique) -> None:
    """A connection that is open keeps no right: once the rules are read it neither sends nor receives."""
    name = unique("car")
    login = secured.folder.add(Role.VEHICLE, name)
    secured.server.reload()
    link = PahoLink(secured.address(login), client_id=name)
    link.open(PATIENCE)
    request, result = f"{R}/models/m/infer/{name}", f"{R}/results/m/{name}/1"
    with contextlib.suppress(LinkError), listening(link, result) as inbox:
        wait_until(lambda: publish(link, request) != NOT_AUTHORIZED)
        publish(links["witness"], result)
        assert inbox.get(timeout=PATIENCE).topic == result
        secured.folder.remove(name)
        secured.server.reload()
        wait_until(lambda: publish(link, request) == NOT_AUTHORIZED)
        publish(links["witness"], result)
        assert publish(link, request) == NOT_AUTHORIZED  # one round trip later
        assert inbox.empty()
    link.close()
