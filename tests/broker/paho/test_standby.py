"""A broker with a standby: whose turn it is, and links that go there and come back, between two real Mosquittos."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto.configuration import render
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.paho.connecting import ConnectionClosed, Identity
from mqinfer.broker.paho.link import PahoLink
from mqinfer.broker.paho.standby import Turns, answers
from mqinfer.protocol.errors import BrokerUnreachable, LinkError, NotAuthorized
from tests.broker.heard import Inbox, Told
from tests.patience import wait_until

Unique = Callable[[str], str]
Closing = Callable[[PahoLink], PahoLink]


@pytest.fixture
def brokers() -> Iterator[tuple[MosquittoServer, MosquittoServer]]:
    """Two Mosquittos that a test may end and start."""
    with MosquittoServer() as first, MosquittoServer() as standby:
        yield first, standby


def both(*servers: MosquittoServer) -> BrokerAddress:
    """The address of a broker and its standbys."""
    return BrokerAddress.parse("mqtt://" + ",".join(f"127.0.0.1:{server.port}" for server in servers))


def test_turns() -> None:
    """Each address has its turn, the first one after the last, and the first one after a connection."""
    turns = Turns(Identity(BrokerAddress.parse("mqtt://a,b,c"), "id"))
    places = []
    for number in range(5):
        places.append((turns.current.address.host, len(turns.earlier), turns.left))
        turns.failed(BrokerUnreachable(str(number)))
    assert places == [("a", 0, 3), ("b", 1, 2), ("c", 2, 1), ("a", 0, 3), ("b", 1, 2)]
    turns.restart()
    assert turns.current.address == BrokerAddress("a")


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ((NotAuthorized, NotAuthorized), NotAuthorized),
        ((BrokerUnreachable, NotAuthorized), BrokerUnreachable),
        ((ConnectionClosed, NotAuthorized), ConnectionClosed),
    ],
)
def test_the_error_of_a_round(errors: tuple[type[LinkError], ...], kind: type[LinkError]) -> None:
    """It names what each address answered, and is final only where each of them is."""
    turns = Turns(Identity(BrokerAddress.parse("mqtt://a,b"), "id"))
    for place, error in enumerate(errors):
        whole = turns.failed(error(f"why {place}"))
    assert type(whole) is kind
    assert str(whole) == "why 0; why 1"


@pytest.mark.broker
def test_there_and_back(
    brokers: tuple[MosquittoServer, MosquittoServer], unique: Unique, closing: Closing, caplog: pytest.LogCaptureFixture
) -> None:
    """A link goes to the standby with its subscriptions, and returns; at the standby its will is published."""
    first, standby = brokers
    topic, told, got, wills = unique("t"), Told(), Inbox(), Inbox()
    link = closing(
        PahoLink(both(first, standby), client_id=unique("c"), will=Message(f"{topic}/w", b"x"), on_connection=told)
    )
    link.open()
    link.subscribe(topic, got)
    first.kill()
    told.wait_for_states(True, False, True)
    link.publish(Message(topic, b"there"))
    assert got.payloads(1) == [b"there"]
    beside = closing(PahoLink(both(standby), client_id=unique("c")))
    beside.open()
    beside.subscribe(f"{topic}/w", wills)
    first.start()
    told.wait_for_states(True, False, True, False, True)
    assert wills.payloads(1) == [b"x"]
    standby.kill()  # the link does not need it any more
    link.publish(Message(topic, b"back"))
    assert got.payloads(2) == [b"there", b"back"]
    assert f"connected to the standby {standby.url}; going back when {first.url} answers" in caplog.text
    link.close()
    assert not [each.name for each in threading.enumerate() if each.name.startswith("mqinfer-look")]


@pytest.mark.broker
def test_opening(brokers: tuple[MosquittoServer, MosquittoServer], unique: Unique, closing: Closing) -> None:
    """A first connection is to whoever answers in time; where nobody does, the error names all of them."""
    first, standby = brokers
    first.kill()
    link = closing(PahoLink(both(first, standby), client_id=unique("c")))
    link.open()
    assert link.connected
    link.close()
    standby.kill()
    with pytest.raises(BrokerUnreachable, match=rf"{first.url} .*; .*{standby.url} "):
        link.open()
    with socket.create_server(("127.0.0.1", first.port)):  # answers nothing, as a broker that has stopped
        standby.start()
        link.open(timeout=20.0)  # half of it for the first
        assert link.connected
        assert not answers(Identity(both(first), "c"))
        link.close()


def refusing() -> MosquittoServer:
    """A Mosquitto that lets nobody in."""
    return MosquittoServer(
        configuration=lambda port: render(port).replace("allow_anonymous true", "allow_anonymous false")
    )


@pytest.mark.broker
def test_refused_logins(server: MosquittoServer, unique: Unique, closing: Closing) -> None:
    """A login that the first broker refuses ends a link, also from a standby; one that a standby refuses does not."""
    with refusing() as other:
        wait_until(lambda: answers(Identity(both(other), "c")))  # a refusal is an answer, where it comes in time
        with pytest.raises(NotAuthorized, match=other.url):
            closing(PahoLink(both(other, server), client_id=unique("c"))).open()
        told = Told()
        link = closing(PahoLink(both(server, other), client_id=unique("c"), on_connection=told))
        link.open()
        server.kill()
        told.wait_for_states(True, False)
        server.start()
        told.wait_for_states(True, False, True)
        assert link.failure is None
        other.kill()
        told = Told()
        link = closing(PahoLink(both(other, server), client_id=unique("c"), on_connection=told))
        link.open()
        other.start()
        told.wait_until(lambda _: link.failure is not None)
        assert isinstance(link.failure, NotAuthorized)
