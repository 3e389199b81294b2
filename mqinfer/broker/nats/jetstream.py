"""What JetStream keeps for links: retained messages, wills, and the signs of life of the links that have one.

All lie in one stream that holds the last message of each subject; what is stored under `kept.` is heard under `mqtt.`
at the same moment. A sign of life expires unless its link renews it. Who listens hears no more of them then, looks, and
takes the will, which it has from before, for published (`mqinfer.broker.nats.kept`). So a login needs no right but to
publish on subjects of its own, where schedules of the server would publish for it on any. The server could announce
what has expired, but it lets every login clear such a stream by a header (`Nats-Rollup`).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from mqinfer.broker.link import Message
from mqinfer.broker.nats.subjects import ALIVE, HEARD, KEPT, WILL, owned, subject
from mqinfer.broker.packets import encode_head
from mqinfer.protocol.card import MAX_CARD_BYTES
from mqinfer.protocol.errors import BrokerUnreachable, LinkError
from mqinfer.protocol.limits import PACKET_HEAD_BYTES

if TYPE_CHECKING:
    from nats.aio.client import Client

STREAM = "mqinfer"
ANSWER_S = 10.0
"""How long the server may take for an answer."""
LOST_S, LOST_IN_CLUSTER_S = 6.0, 15.0
"""A link is lost that has given no sign of life for so long; longer where the answers of the server took long, since
large messages are in front of them on a thin link. A cluster needs up to 6 s to elect a leader."""
BEATS = 3
"""Signs of life in that time: whoever knows the link's state hears each, so they are as few as will do."""
LOOK_S = 1.0
"""Interval in which a link looks whether its next one is due, or others' are; one that was not stored is repeated."""
BEAT = "beat~"
"""Beginning of the name of an answer to a sign of life."""
HEADERS = 512
"""Room for the headers of what is kept."""
OWNER = "Mqinfer-Link"
"""Header of what is retained on the topic of its link's will: whose it is, for it ends with it."""
WILL_S = 86_400
"""How long the will of a link that is gone is kept, and that a topic was cleared."""
RENEW_S = 60.0
"""Interval in which a will is put in place again: what others have stored may have taken its room."""
_SLOW, MOST_LOST_S = 3.0, 60.0
_MOST_BYTES = 256 << 20
_LARGEST = MAX_CARD_BYTES + PACKET_HEAD_BYTES + HEADERS
_NODES = 3
_OTHERWISE_MADE, _NO_STREAM = 10058, 10059
_DECODER = msgspec.json.Decoder(dict[str, Any])
_CONFIGURATION = {
    "name": STREAM,
    "subjects": [f"{KEPT}.>"],
    "storage": "memory",  # as a Mosquitto without persistence: what ended with the server is published anew
    "max_msgs_per_subject": 1,
    "max_bytes": _MOST_BYTES,
    "max_msg_size": _LARGEST,
    "discard": "old",
    "duplicate_window": 1_000_000_000,  # ids of messages count for as little as that: the last of a topic counts
    "allow_msg_ttl": True,
    "consumer_limits": {"inactive_threshold": int(ANSWER_S * 1e9)},  # else a login's consumers would stay for ever
    "republish": {"src": f"{KEPT}.>", "dest": f"{HEARD}.>"},
}


class Refusal(LinkError):
    """JetStream refuses something.

    Attributes:
        number: Its number for the reason.
    """

    def __init__(self, words: str, number: int = 0) -> None:
        super().__init__(words)
        self.number = number


def read_answer(data: bytes) -> dict[str, Any]:
    """Return an answer of JetStream.

    Raises:
        Refusal: It refused, or the answer is none.
    """
    try:
        answer: dict[str, Any] = _DECODER.decode(data)
    except msgspec.MsgspecError as error:
        raise Refusal(f"an answer that is none: {error}") from error
    if fault := answer.get("error"):
        raise Refusal(fault["description"], fault["err_code"])
    return answer


async def ask(client: Client, what: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Ask JetStream for something of the stream, or of its consumers; errors as of `_request`."""
    return await _request(client, f"$JS.API.{what}", json.dumps(arguments or {}).encode())


async def _request(client: Client, name: str, data: bytes, patience_s: float = ANSWER_S, **more: Any) -> dict[str, Any]:
    """Send JetStream something, and wait for its answer.

    Raises:
        BrokerUnreachable: The server has no JetStream, or does not answer.
        Refusal: It refused.
    """
    from nats.errors import Error, NoRespondersError

    try:
        return read_answer((await client.request(name, data, timeout=patience_s, **more)).data)
    except NoRespondersError as error:
        raise BrokerUnreachable("the server's JetStream is off; switch it on with: nats-server --jetstream") from error
    except Error as error:
        raise BrokerUnreachable(f"the server's JetStream does not answer: {error}") from error


async def find_stream(client: Client, *, is_cluster: bool) -> float:
    """Find the stream, or make it; return how long a link may be silent, in seconds.

    Raises:
        BrokerUnreachable: It can't be made, or has no leader.
    """
    try:
        answer = await _find_stream(client, _NODES if is_cluster else 1)
    except Refusal as refusal:
        raise BrokerUnreachable(f"the server's JetStream can't make {STREAM!r} (2.14 can): {refusal}") from None
    if set(answer["config"]["subjects"]) != {f"{KEPT}.>"} or answer["config"]["allow_rollup_hdrs"]:
        raise BrokerUnreachable(f"the server's stream {STREAM!r} is of another version; remove it: nats stream rm")
    if is_cluster and not answer["cluster"].get("leader"):  # a server that is cut off knows of the stream all the same
        raise BrokerUnreachable("the servers of the cluster have no leader")
    return LOST_IN_CLUSTER_S if answer["config"]["num_replicas"] > 1 else LOST_S


async def _find_stream(client: Client, replicas: int) -> dict[str, Any]:
    """Return the stream; a login may lack the right to make it, so that is tried only where there is none."""
    try:
        return await ask(client, f"STREAM.INFO.{STREAM}")
    except Refusal as refusal:
        if refusal.number != _NO_STREAM:
            raise
    try:
        return await ask(client, f"STREAM.CREATE.{STREAM}", {**_CONFIGURATION, "num_replicas": replicas})
    except Refusal as refusal:
        if refusal.number != _OTHERWISE_MADE:
            raise
    return await ask(client, f"STREAM.INFO.{STREAM}")


def time_to_live(message: Message) -> dict[str, str]:
    """Return the headers of a message that is to be kept: until when, or that it clears its topic."""
    if not len(message.payload) and not message.tail:
        return {"Nats-TTL": f"{WILL_S}s"}
    return {} if message.expiry_s is None else {"Nats-TTL": f"{max(message.expiry_s, 1)}s"}


class Will:
    """The will of a link, which has to give signs of life.

    Args:
        client: The connection.
        client_id: Of the link.
        message: What is to be published when they end.
        inbox: Beginning of the subjects on which the server answers.
    """

    def __init__(self, client: Client, client_id: str, message: Message, inbox: str) -> None:
        message = message.joined()
        self._client, self._inbox, self._lost_s = client, inbox, LOST_S
        self._message = message
        self._packet = bytes(encode_head(message).data) + bytes(message.payload)
        self._will = subject(message.topic, KEPT, owned(WILL, client_id))
        self._alive = subject(message.topic, KEPT, owned(ALIVE, client_id))
        self._owner = client_id
        self._patience_s = self._since = self._renewed = 0.0
        self._sent: dict[str, float] = {}
        self._number = 0

    @property
    def look_s(self) -> float:
        """The time between two looks at `is_due` in seconds."""
        return min(LOOK_S, self._lost_s / BEATS)

    @property
    def is_due(self) -> bool:
        """Whether a sign of life is to be given now."""
        return bool(self._sent) or time.monotonic() - self._since >= self._lost_s / BEATS

    def headers(self, message: Message) -> dict[str, str]:
        """Return the headers of another message of the link that is to be kept."""
        is_replaced = self._message.retain and message.topic == self._message.topic
        return {OWNER: self._owner} if is_replaced else {}

    async def publish(self) -> None:
        """Have it heard now, as after the loss of a connection; what is kept meanwhile is what its link says next."""
        await self._client.publish(subject(self._message.topic), self._packet)

    async def put(self, lost_s: float) -> None:
        """Put it in place: life first, since a will without it has come due.

        Args:
            lost_s: How long the link may be silent, in seconds.

        Raises:
            LinkError: The server refuses, or does not answer.
        """
        self._lost_s = lost_s
        self._since, self._patience_s = time.monotonic(), self._lost_s
        ttl = {"Nats-TTL": _seconds(self._patience_s)}
        await _request(self._client, self._alive, b"", self._patience_s, headers=ttl)
        await _request(self._client, self._will, self._packet, headers={"Nats-TTL": f"{2 * WILL_S}s"})
        self._adapt(time.monotonic())
        self._renewed = self._since

    def beat(self) -> Coroutine[Any, Any, None]:
        """Return what gives a sign of life, whose answer comes to the inbox.

        Raises:
            LinkError: None was answered for too long: the will may have come due.
        """
        now = time.monotonic()
        self._check(now)
        self._number += 1
        name = f"{self._inbox}{BEAT}{self._number}"
        self._sent[name] = now
        if now - self._renewed > RENEW_S:
            self._renewed = now
            return self._client.publish(self._will, self._packet, headers={"Nats-TTL": f"{2 * WILL_S}s"})
        headers = {"Nats-TTL": _seconds(self._patience_s)}
        return self._client.publish(self._alive, b"", reply=name, headers=headers)

    def receive(self, name: str, data: bytes) -> None:
        """Take up an answer to a sign of life; one that was not stored is only late, as while a leader is elected.

        Raises:
            LinkError: It came so late that the will may have come due before.
        """
        sent, now = self._sent.pop(name, None), time.monotonic()
        if sent is None or not _is_stored(data):
            return
        self._check(now)
        self._since = sent
        self._sent = {each: then for each, then in self._sent.items() if then > sent}
        self._adapt(now)

    def _check(self, now: float) -> None:
        if now - self._since > self._patience_s:
            raise LinkError(f"its will may have come due: no sign of life was stored for {now - self._since:.1f} s")

    def _adapt(self, now: float) -> None:
        self._patience_s = min(max(self._lost_s, _SLOW * (now - self._since)), MOST_LOST_S)

    async def take_back(self) -> None:
        """Take it back: the link closes.

        Raises:
            LinkError: The server does not answer.
        """
        self._renewed = math.inf  # a sign of life that is due meanwhile does not put it in place again
        await _request(self._client, self._will, b"", headers={"Nats-TTL": f"{WILL_S}s"})


def _is_stored(data: bytes) -> bool:
    try:
        read_answer(data)
    except Refusal:
        return False
    return True


def _seconds(duration: float) -> str:
    return f"{math.ceil(duration)}s"
