"""Every sentence of `mqinfer.broker.link`, over every link."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
from msgspec.structs import fields, replace

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import ConnectionHandler, Link, Message, ReasonCode
from mqinfer.broker.memory import MemoryBroker, MemoryLink
from mqinfer.broker.mosquitto.configuration import render
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.nats.jetstream import HEADERS
from mqinfer.broker.nats.link import NatsLink
from mqinfer.broker.packets import encode_head
from mqinfer.broker.paho.link import PahoLink
from mqinfer.protocol.errors import BadTopic, ConfigError, MessageTooLarge, NotConnected
from mqinfer.protocol.types import Buffer
from tests.broker.heard import PATIENCE, Heard, Inbox
from tests.broker.nats.server import NatsServer
from tests.ports import free_port

MAX_PACKET = 300_000
TOPIC = "contract/topic"

Unique = Callable[[str], str]


class Links:
    """Makes links to one broker, and closes them all."""

    def __init__(self, make: Callable[..., Link], lose: Callable[[Link], None], unique: Unique) -> None:
        self._make = make
        self._unique = unique
        self._made: list[Link] = []
        self.lose = lose
        self.largest = MAX_PACKET
        self.takes_turns = True

    def need(self, size: int) -> None:
        """Skip a test whose messages are too large for the kind of link."""
        if size > self.largest:
            pytest.skip(f"Mosquitto 2.0 sends 40 kB/s over websockets, and this message has {size} bytes")

    def make(self, *, will: Message | None = None, on_connection: ConnectionHandler | None = None) -> Link:
        """A link that is not open yet."""
        link = self._make(client_id=self._unique("client"), will=will, on_connection=on_connection)
        self._made.append(link)
        return link

    def open(self, *, will: Message | None = None, on_connection: ConnectionHandler | None = None) -> Link:
        """A link that is open."""
        link = self.make(will=will, on_connection=on_connection)
        link.open(PATIENCE)
        return link

    def close(self) -> None:
        """Close what was made."""
        for link in self._made:
            link.close()


@pytest.fixture(scope="module")
def small_urls() -> Iterator[dict[str, str]]:
    """URLs of a Mosquitto whose Maximum Packet Size is small enough to be tried out, by kind of link."""
    websockets = free_port()

    def configuration(port: int) -> str:
        text = render(port, websockets_port=websockets)
        return text.replace("max_packet_size 67108864", f"max_packet_size {MAX_PACKET}")

    with MosquittoServer(configuration=configuration) as server:
        yield {"tcp": server.url, "websockets": f"ws://127.0.0.1:{websockets}"}


@pytest.fixture
def host() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop on a thread of its own, which serves links in place of theirs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="mqinfer-test-host")
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


KINDS = ("tcp", "websockets", "tcp, hosted", "websockets, hosted")


@pytest.fixture(scope="module")
def nats_url() -> Iterator[str]:
    """URL of a nats-server whose `max_payload` is small enough to be tried out."""
    with NatsServer(MAX_PACKET + HEADERS) as server:
        yield server.url


@pytest.fixture(params=["memory", "nats", *(pytest.param(kind, marks=pytest.mark.broker) for kind in KINDS)])
def links(request: pytest.FixtureRequest, unique: Unique) -> Iterator[Links]:
    """Makes links of each kind."""
    if request.param == "memory":
        links = Links(partial(MemoryLink, MemoryBroker(max_packet_size=MAX_PACKET)), drop, unique)
    elif request.param == "nats":
        address = BrokerAddress.parse(request.getfixturevalue("nats_url"))
        links = Links(partial(NatsLink, address), cut, unique)
        links.takes_turns = False  # the server draws a member for each message
    else:
        transport, _, hosted = request.param.partition(", ")
        url = request.getfixturevalue("small_urls")[transport]
        host = request.getfixturevalue("host") if hosted else None
        links = Links(partial(PahoLink, BrokerAddress.parse(url), host=host), cut, unique)
        links.largest = 20_000 if transport == "websockets" else MAX_PACKET
    yield links
    links.close()


def drop(link: Link) -> None:
    """Lose a link within the process."""
    assert isinstance(link, MemoryLink)
    link.drop()


def cut(link: Link) -> None:
    """End a link's connection without a DISCONNECT, as a cut cable would."""
    assert isinstance(link, PahoLink | NatsLink)
    link.cut()


def is_connected(link: Link) -> bool:
    """What the link says; mypy takes an attribute for constant between two looks."""
    return link.connected


def publish_and_wait(link: Link, message: Message) -> int:
    """Publish, and wait for the PUBACK's reason code."""
    acks = Heard[int]()
    link.publish(message, acks)
    return acks.wait_for(1)[0]


def test_all_properties_arrive(links: Links, unique: Unique) -> None:
    """Topic, payload, QoS and every property arrive as they were published."""
    inbox, topic = Inbox(), unique(TOPIC)
    links.open().subscribe(topic, inbox)
    sent = Message(
        topic,
        b"payload",
        content_type="application/vnd.mqinfer.v1",
        response_topic="answers/here",
        correlation_data=bytes(range(16)),
        expiry_s=60,
        user_properties=(("traceparent", "00-ab"), ("twice", "1"), ("twice", "2")),
    )
    links.open().publish(sent)
    (got,) = inbox.wait_for(1)
    for field in fields(Message):
        assert getattr(got, field.name) == getattr(sent, field.name), field.name


def test_a_message_without_properties(links: Links, unique: Unique) -> None:
    """What was not said is None, and an empty payload is a payload."""
    inbox, topic = Inbox(), unique(TOPIC)
    link = links.open()
    link.subscribe(topic, inbox)
    link.publish(Message(topic, b"", qos=0))
    (got,) = inbox.wait_for(1)
    assert (bytes(got.payload), got.qos, got.content_type, got.expiry_s, got.user_properties) == (
        b"",
        0,
        None,
        None,
        (),
    )


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_384, 65_535, 200_000])
@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_payloads_of_all_kinds(links: Links, unique: Unique, size: int, make: Callable[[bytes], bytes]) -> None:
    """Bytes, bytearrays and views arrive alike, whatever their size."""
    links.need(size)
    inbox, topic = Inbox(), unique(TOPIC)
    link = links.open()
    link.subscribe(topic, inbox)
    payload = bytes(range(256)) * (size // 256 + 1)
    link.publish(Message(topic, make(payload[:size])))
    assert inbox.payloads(1) == [payload[:size]]


@pytest.mark.parametrize("large", [1, 20_000, 90_000])
def test_a_tail_arrives_behind_its_payload(links: Links, unique: Unique, large: int) -> None:
    """The pieces of a tail, empty and large ones too, arrive as one payload; what is published next comes whole."""
    links.need(large)
    inbox, topic = Inbox(), unique(TOPIC)
    link = links.open()
    link.subscribe(topic, inbox)
    pieces: tuple[Buffer, ...] = (b"", b"a" * large, memoryview(b"b" * large), bytearray(b"cc"), b"d" * large, b"")
    link.publish(Message(topic, b"head", tail=pieces))
    link.publish(Message(topic, b"", tail=(b"tail",)))
    assert inbox.payloads(2) == [b"".join((b"head", *pieces)), b"tail"]
    assert [message.tail for message in inbox.items] == [(), ()]


def test_wildcards(links: Links, unique: Unique) -> None:
    """`+` takes one level, `#` the rest, and each message goes to the handler of its filter."""
    root = unique("root")
    plus, rest = Inbox(), Inbox()
    link = links.open()
    link.subscribe(f"{root}/results/+/me/+", plus)
    link.subscribe(f"{root}/workers/#", rest)
    link.publish(Message(f"{root}/results/model/me/1", b"1"))
    link.publish(Message(f"{root}/results/model/you/2", b"2"))
    link.publish(Message(f"{root}/workers/w/state", b"3"))
    link.publish(Message(f"{root}/results/model/me/4", b"4"))
    assert plus.payloads(2) == [b"1", b"4"]
    assert rest.payloads(1) == [b"3"]


def test_order_is_kept(links: Links, unique: Unique) -> None:
    """One publisher's messages arrive in the order in which it published them."""
    inbox, topic = Inbox(), unique(TOPIC)
    links.open().subscribe(topic, inbox)
    sender = links.open()
    for number in range(500):
        sender.publish(Message(topic, b"%d" % number))
    assert inbox.payloads(500) == [b"%d" % number for number in range(500)]


def test_order_is_kept_with_what_is_retained(links: Links, unique: Unique) -> None:
    """What is retained and what is not arrive in the order in which one link published them."""
    inbox, root = Inbox(), unique("root")
    links.open().subscribe(f"{root}/#", inbox)
    sender = links.open()
    for number in range(100):
        sender.publish(Message(f"{root}/state", b"%d" % (2 * number), retain=True))
        sender.publish(Message(f"{root}/request", b"%d" % (2 * number + 1)))
    assert inbox.payloads(200) == [b"%d" % number for number in range(200)]


def test_retained(links: Links, unique: Unique) -> None:
    """A retained message waits for later subscribers and says that it is old; an empty one clears it."""
    topic = unique(TOPIC)
    sender = links.open()
    live, late, later = Inbox(), Inbox(), Inbox()
    links.open().subscribe(topic, live)
    publish_and_wait(sender, Message(topic, b"state", retain=True))
    links.open().subscribe(topic, late)
    assert [(bytes(m.payload), m.retain) for m in live.wait_for(1)] == [(b"state", False)]
    assert [(bytes(m.payload), m.retain) for m in late.wait_for(1)] == [(b"state", True)]
    publish_and_wait(sender, Message(topic, b"", retain=True))
    link = links.open()
    link.subscribe(topic, later)
    publish_and_wait(link, Message(topic, b"now"))
    assert later.payloads(1) == [b"now"]


@pytest.mark.parametrize("share", [None, "group"])
def test_retained_unwanted(links: Links, unique: Unique, share: str | None) -> None:
    """A subscription without `retained` gets only what is published from then on."""
    topic = unique(TOPIC)
    link, inbox = links.open(), Inbox()
    publish_and_wait(link, Message(topic, b"old", retain=True))
    link.subscribe(topic, inbox, share=share, retained=False)
    publish_and_wait(link, Message(topic, b"new"))
    assert [(bytes(m.payload), m.retain) for m in inbox.wait_for(1)] == [(b"new", False)]
    publish_and_wait(link, Message(topic, b"", retain=True))


def test_the_will_on_loss(links: Links, unique: Unique) -> None:
    """The broker publishes the will when a link is lost."""
    inbox, topic = Inbox(), unique(TOPIC)
    links.open().subscribe(topic, inbox)
    lost = links.open(will=Message(topic, b"lost", retain=True, user_properties=(("boot", "7"),)))
    links.lose(lost)
    (got,) = inbox.wait_for(1)
    assert (bytes(got.payload), got.user_properties) == (b"lost", (("boot", "7"),))


def test_no_will_on_close(links: Links, unique: Unique, caplog: pytest.LogCaptureFixture) -> None:
    """A link that was closed leaves without its will, and without a warning."""
    inbox, topic = Inbox(), unique(TOPIC)
    watcher = links.open()
    watcher.subscribe(topic, inbox)
    links.open(will=Message(topic, b"lost")).close()
    publish_and_wait(watcher, Message(topic, b"after"))
    assert inbox.payloads(1) == [b"after"]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_share_group_competes(links: Links, unique: Unique) -> None:
    """Each message goes to exactly one member of a group, and every member gets some."""
    root, inboxes = unique("root"), [Inbox(), Inbox()]
    for inbox in inboxes:
        links.open().subscribe(f"{root}/+", inbox, share="workers")
    sender = links.open()
    acks = Heard[int]()
    for number in range(40):
        sender.publish(Message(f"{root}/t", b"%d" % number), acks)
    acks.wait_for(40)
    got = [payload for inbox in inboxes for payload in inbox.payloads(1)]
    while len(got) < 40:
        got = [payload for inbox in inboxes for payload in inbox.payloads(1)]
    assert sorted(got, key=int) == [b"%d" % number for number in range(40)]
    if links.takes_turns:
        assert [len(inbox.items) for inbox in inboxes] == [20, 20]


def test_a_group_and_a_watcher(links: Links, unique: Unique) -> None:
    """A plain subscriber gets a copy beside the group's member."""
    topic, member, watcher = unique(TOPIC), Inbox(), Inbox()
    links.open().subscribe(topic, member, share="g")
    links.open().subscribe(topic, watcher)
    links.open().publish(Message(topic, b"x"))
    assert member.payloads(1) == watcher.payloads(1) == [b"x"]


def test_the_ack_tells_whether_anybody_listens(links: Links, unique: Unique) -> None:
    """PUBACK says "no matching subscribers" without one, and success with one."""
    topic, link = unique(TOPIC), links.open()
    assert publish_and_wait(link, Message(topic, b"x")) == ReasonCode.NO_MATCHING_SUBSCRIBERS
    link.subscribe(topic, Inbox())
    assert publish_and_wait(link, Message(topic, b"x")) == ReasonCode.SUCCESS
    link.unsubscribe(topic)
    assert publish_and_wait(link, Message(topic, b"x")) == ReasonCode.NO_MATCHING_SUBSCRIBERS


def test_each_ack_tells_whether_anybody_listens(links: Links, unique: Unique) -> None:
    """Of many messages, some to nobody, each is acknowledged by its own reason."""
    topic, link = unique(TOPIC), links.open()
    links.open().subscribe(f"{topic}/1", Inbox())
    acks = Heard[tuple[int, int]]()
    for number in range(200):
        link.publish(Message(f"{topic}/{number % 3}", b"x"), lambda code, which=number % 3: acks((which, code)))  # type: ignore[misc]
        acks.wait_for(number)  # all but this one: it leaves while the answer to the one before is handled
    expected = {0: ReasonCode.NO_MATCHING_SUBSCRIBERS, 1: ReasonCode.SUCCESS, 2: ReasonCode.NO_MATCHING_SUBSCRIBERS}
    assert set(acks.wait_for(200)) == set(expected.items())


def test_an_ack_that_comes_alone(links: Links, unique: Unique) -> None:
    """A lone PUBACK is told of although nothing comes behind it, time and again."""
    topic, inbox = unique(TOPIC), Inbox()
    links.open().subscribe(topic, inbox)
    link = links.open()
    assert [publish_and_wait(link, Message(topic, b"x")) for _ in range(3)] == [ReasonCode.SUCCESS] * 3
    assert inbox.payloads(3) == [b"x"] * 3


def test_qos_0_has_no_ack(links: Links, unique: Unique) -> None:
    """The handler of a PUBACK is not called for QoS 0."""
    acks, link = Heard[int](), links.open()
    link.publish(Message(unique(TOPIC), b"x", qos=0), acks)
    publish_and_wait(link, Message(unique(TOPIC), b"x"))
    assert acks.items == []


def test_acks_and_messages_come_on_the_links_thread(links: Links, unique: Unique) -> None:
    """Handlers and acks run on one thread of the link's own, named as mqinfer's."""
    names: list[str] = []
    done = threading.Semaphore(0)

    def note(_: object) -> None:
        names.append(threading.current_thread().name)
        done.release()

    topic, link = unique(TOPIC), links.open()
    link.subscribe(topic, note)
    link.publish(Message(topic, b"x"), note)
    for _ in range(2):
        assert done.acquire(timeout=PATIENCE)
    assert len(set(names)) == 1
    assert names[0].startswith("mqinfer-")


def test_a_handler_may_publish_and_subscribe(links: Links, unique: Unique) -> None:
    """A handler answers on another topic, and subscribes, without waiting for itself."""
    ask, answer, inbox = unique(TOPIC), unique(TOPIC), Inbox()
    worker, asker = links.open(), links.open()

    def reply(message: Message) -> None:
        worker.subscribe(unique("more"), inbox)
        worker.publish(Message(str(message.response_topic), message.payload))

    worker.subscribe(ask, reply)
    asker.subscribe(answer, inbox)
    asker.publish(Message(ask, b"x", response_topic=answer))
    assert inbox.payloads(1) == [b"x"]


def test_a_handler_that_raises_costs_one_message(
    links: Links, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """The fault is logged with its topic, and the next message is handled."""
    inbox, topic, link = Inbox(), unique(TOPIC), links.open()

    def handle(message: Message) -> None:
        if message.payload == b"bad":
            raise ValueError("this message is bad")
        inbox(message)

    link.subscribe(topic, handle)
    link.publish(Message(topic, b"bad"))
    link.publish(Message(topic, b"good"))
    assert inbox.payloads(1) == [b"good"]
    assert any(topic in record.getMessage() and record.exc_info for record in caplog.records)
    assert link.connected


def test_an_ack_handler_that_raises(links: Links, unique: Unique, caplog: pytest.LogCaptureFixture) -> None:
    """A fault in the handler of a PUBACK is logged; the link goes on."""

    def fail(_: int) -> None:
        raise ValueError("no")

    link = links.open()
    link.publish(Message(unique(TOPIC), b"x"), fail)
    publish_and_wait(link, Message(unique(TOPIC), b"x"))
    assert any(record.exc_info for record in caplog.records)


def test_not_connected(links: Links, unique: Unique) -> None:
    """Before it is opened, and after it is closed, a link is not connected and refuses to publish."""
    link = links.make()
    with pytest.raises(NotConnected):
        link.publish(Message(unique(TOPIC), b"x"))
    link.open(PATIENCE)
    assert is_connected(link)
    link.close()
    assert not is_connected(link)
    with pytest.raises(NotConnected):
        link.publish(Message(unique(TOPIC), b"x"))
    link.close()


def test_a_closed_link_opens_again(links: Links, unique: Unique) -> None:
    """Opening again brings the subscriptions back."""
    inbox, topic, link = Inbox(), unique(TOPIC), links.make()
    link.subscribe(topic, inbox)
    for number in (1, 2):
        link.open(PATIENCE)
        publish_and_wait(link, Message(topic, b"%d" % number))
        assert inbox.payloads(number)[-1] == b"%d" % number
        link.close()


def test_subscribing_before_opening(links: Links, unique: Unique) -> None:
    """`on_connection(True)` comes once, after the subscriptions stand, and `open` returns after it."""
    inbox, topic, told = Inbox(), unique(TOPIC), []
    codes = Heard[int]()

    def on_connection(connected: bool) -> None:  # noqa: FBT001 - the shape of a ConnectionHandler
        told.append(connected)
        link.publish(Message(topic, b"x"), codes)

    link = links.make(on_connection=on_connection)
    link.subscribe(topic, inbox)
    link.open(PATIENCE)
    assert told == [True]
    assert codes.wait_for(1) == [ReasonCode.SUCCESS]


@pytest.mark.parametrize("qos", [0, 1])
def test_the_maximum_packet_size(links: Links, unique: Unique, qos: int) -> None:
    """A packet of exactly the broker's maximum goes through; one byte more is refused, with both numbers."""
    links.need(MAX_PACKET)
    inbox, topic, link = Inbox(), unique(TOPIC), links.open()
    assert link.max_packet_size == MAX_PACKET
    link.subscribe(topic, inbox)

    def message(size: int) -> Message:
        return Message(topic, bytes(size), qos=qos, content_type="a/b", user_properties=(("k", "v"),))

    probe = message(MAX_PACKET // 2)
    room = MAX_PACKET - (encode_head(probe).size - len(probe.payload))
    with pytest.raises(MessageTooLarge, match=rf"{MAX_PACKET + 1}.*{MAX_PACKET}"):
        link.publish(message(room + 1))
    link.publish(message(room))
    link.publish(replace(message(room - 40_000), tail=(bytes(40_000),)))
    assert [len(payload) for payload in inbox.payloads(2)] == [room, room]
    with pytest.raises(MessageTooLarge, match=rf"{MAX_PACKET + 1}.*{MAX_PACKET}"):
        link.publish(replace(message(room - 40_000), tail=(bytes(40_001),)))
    assert link.connected


def test_what_may_not_be_published(links: Links) -> None:
    """QoS 2, wildcards in a topic and an empty topic are refused with the reason."""
    link = links.open()
    with pytest.raises(ConfigError, match="QoS 2"):
        link.publish(Message("a", b"", qos=2))
    for topic in ("", "a/+", "a/#", "a\0"):
        with pytest.raises(BadTopic):
            link.publish(Message(topic, b""))
    with pytest.raises(BadTopic):
        links.make(will=Message("will/+", b""))
    for topic_filter in ("", "a#", "a/#/b", "a+/b"):
        with pytest.raises(BadTopic):
            link.subscribe(topic_filter, Inbox())
    with pytest.raises(BadTopic):
        link.subscribe("a", Inbox(), share="b/c")


@pytest.mark.parametrize("text", ["\ud800", "a\0", "a\n", "\x7f", "\uffff", "\ufdd1", "x" * 65_536])
def test_what_can_not_be_encoded(links: Links, unique: Unique, text: str) -> None:
    """It is an error for whoever publishes or subscribes, and the connection stays."""
    told: list[bool] = []
    link, inbox, topic = links.open(on_connection=told.append), Inbox(), unique(TOPIC)
    link.subscribe(topic, inbox)
    for message in (
        Message(topic, b"", user_properties=((text, ""),)),
        Message(topic, b"", user_properties=(("name", text),)),
        Message(topic, b"", content_type=text),
    ):
        with pytest.raises(ConfigError, match="property"):
            link.publish(message)
    with pytest.raises((ConfigError, BadTopic)):
        link.publish(Message(topic, b"", response_topic=text))
    uses: list[Callable[[], object]] = [
        lambda: link.publish(Message(f"{topic}/{text}", b"")),
        lambda: link.subscribe(f"{topic}/{text}", inbox),
        lambda: link.subscribe(topic, inbox, share=text),
        lambda: link.subscribe("y" * 65_000, inbox, share="x" * 600),
        lambda: link.unsubscribe(f"{topic}/{text}"),
        lambda: link.unsubscribe(""),
    ]
    for use in uses:
        with pytest.raises(BadTopic):
            use()
    link.publish(Message(topic, b"alive", response_topic="a/b", content_type="\u00a0"))
    assert inbox.payloads(1) == [b"alive"]
    assert told == [True]


@pytest.mark.parametrize("payload", ["text", 7, None, [b"x"], (b"x" * 20_000, "y" * 20_000)])
def test_a_payload_that_is_none(links: Links, unique: Unique, payload: Any) -> None:
    """What is no bytes is an error for the publisher, also while another message is in front; nothing of it is sent."""
    link, inbox, topic = links.open(), Inbox(), unique(TOPIC)
    link.subscribe(topic, inbox)
    for _ in range(20):
        link.publish(Message(topic, b"before"))
        with pytest.raises(ConfigError, match="payload"):
            link.publish(Message(topic, b"", tail=payload) if isinstance(payload, tuple) else Message(topic, payload))
    link.publish(Message(topic, np.arange(3, dtype=np.uint32).data))  # 12 bytes, not 3
    assert inbox.payloads(21)[20] == np.arange(3, dtype=np.uint32).tobytes()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_in_a_forked_child(links: Links, unique: Unique) -> None:
    """Each use raises at once and names both processes; the parent's connection goes on, and keeps its will."""
    told: list[bool] = []
    topic, inbox, wills = unique(TOPIC), Inbox(), Inbox()
    links.open().subscribe(f"{topic}/will", wills)
    link = links.open(will=Message(f"{topic}/will", b"lost"), on_connection=told.append)
    unopened = links.make()
    link.subscribe(topic, inbox)
    uses: dict[str, Callable[[], object]] = {
        "publish": lambda: link.publish(Message(topic, b"child", qos=0)),
        "subscribe": lambda: link.subscribe(f"{topic}/2", inbox),
        "unsubscribe": lambda: link.unsubscribe(topic),
        "close": link.close,
        "open": link.open,
        "open another": unopened.open,
        "close another": unopened.close,
        "lose": lambda: links.lose(link),
    }
    reader, writer = os.pipe()
    gc.collect()  # what other tests have left is not the child's to finalise: it has none of their threads
    child = os.fork()
    if not child:
        faulthandler.register(signal.SIGALRM, chain=True)
        signal.alarm(int(PATIENCE))
        with suppress(BaseException):
            for name, use in uses.items():
                try:
                    use()
                    what = "was done"
                except Exception as error:  # noqa: BLE001 - it is reported to the parent
                    what = f"{type(error).__name__}: {error}"
                os.write(writer, f"{name} {is_connected(link)} {what}\n".encode())
            del link
            gc.collect()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as report:
        lines = report.read().splitlines()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(lines) == len(uses)
    for line in lines:
        assert " False RuntimeError: the link " in line
        assert f"was made in process {os.getpid()} and can't be used in process {child}" in line
    for number in range(20):
        link.publish(Message(topic, b"%d" % number))
    assert inbox.payloads(20) == [b"%d" % number for number in range(20)]
    assert (told, wills.items) == ([True], [])


def test_unsubscribe(links: Links, unique: Unique) -> None:
    """After it has returned nothing comes any more; other subscriptions stay."""
    gone, stays, root, link = Inbox(), Inbox(), unique("root"), links.open()
    link.subscribe(f"{root}/gone", gone)
    link.subscribe(f"{root}/stays", stays)
    link.unsubscribe(f"{root}/gone")
    link.publish(Message(f"{root}/gone", b"x"))
    link.publish(Message(f"{root}/stays", b"x"))
    stays.wait_for(1)
    assert gone.items == []
    link.unsubscribe(f"{root}/never-subscribed")


def test_leaving_a_group(links: Links, unique: Unique) -> None:
    """A member that unsubscribes no longer gets its turn."""
    topic, stays, leaves = unique(TOPIC), Inbox(), Inbox()
    sender, member = links.open(), links.open()
    links.open().subscribe(topic, stays, share="g")
    member.subscribe(topic, leaves, share="g")
    member.unsubscribe(topic, share="g")
    for _ in range(4):
        sender.publish(Message(topic, b"x"))
    assert len(stays.wait_for(4)) == 4
    assert leaves.items == []


def test_close_waits_for_acks(links: Links, unique: Unique) -> None:
    """All that was published is acknowledged when `close` returns."""
    inbox, topic, acks = Inbox(), unique(TOPIC), Heard[int]()
    links.open().subscribe(topic, inbox)
    sender = links.open()
    for _ in range(300):
        sender.publish(Message(topic, bytes(2_000)), acks)
    sender.close(PATIENCE)
    assert acks.items == [ReasonCode.SUCCESS] * 300
    assert len(inbox.wait_for(300)) == 300


def test_a_handler_may_not_close(links: Links, unique: Unique) -> None:
    """A link that its own handler closes would wait for itself: it is refused."""
    errors: list[Exception] = []
    done, topic, link = threading.Event(), unique(TOPIC), links.open()

    def handle(_: Message) -> None:
        try:
            link.close()
        except ConfigError as error:
            errors.append(error)
        done.set()

    link.subscribe(topic, handle)
    link.publish(Message(topic, b"x"))
    assert done.wait(PATIENCE)
    assert len(errors) == 1


def test_many_threads_publish(links: Links, unique: Unique) -> None:
    """Messages of many threads all arrive once, each thread's in order, each with its ack."""
    inbox, topic, acks = Inbox(), unique(TOPIC), Heard[int]()
    links.open().subscribe(topic, inbox)
    sender = links.open()

    def publish(thread: int) -> None:
        for number in range(50):
            sender.publish(Message(topic, b"%d %d" % (thread, number)), acks)

    threads = [threading.Thread(target=publish, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = [tuple(map(int, payload.split())) for payload in inbox.payloads(400)]
    assert acks.wait_for(400) == [ReasonCode.SUCCESS] * 400
    for each in range(8):
        assert [number for thread, number in got if thread == each] == list(range(50))
