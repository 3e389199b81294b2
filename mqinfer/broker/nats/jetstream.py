"""What JetStream keeps for links: retained messages, and wills that the server itself publishes when they come due.

Both lie in one stream that holds the last message of each subject. What is stored under `retained.` is passed on under
`mqtt.` at the same moment, so subscribers that listen receive it as any other message. A will is a scheduled message:
its link puts it off again and again, and where the link is gone the server publishes it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from mqinfer.broker.link import Message
from mqinfer.broker.nats.subjects import LIVE, RETAINED, WILLS, subject, token
from mqinfer.broker.packets import encode_head
from mqinfer.protocol.errors import BrokerUnreachable, LinkError

if TYPE_CHECKING:
    from nats.aio.client import Client

STREAM = "mqinfer"
ANSWER_S = 10.0
"""How long the server may take for an answer."""
BEAT_S = 1.0
"""Interval in which a link puts its will off."""
LOST_S = 5.0
"""A link is lost that has not put its will off for so long; longer where the answers of the server took long, since
large messages are in front of them on a thin link."""
HEADERS = 512
"""Room for the headers of what is kept."""
_SLOW, _MOST_LOST_S = 3.0, 60.0
_MOST_BYTES = 256 << 20
_OTHERWISE_MADE, _WRONG_SEQUENCE = 10058, 10071
_DECODER = msgspec.json.Decoder(dict[str, Any])
_CONFIGURATION = {
    "name": STREAM,
    "subjects": [f"{RETAINED}.>", f"{WILLS}.>"],
    "storage": "memory",  # as a Mosquitto without persistence: what ended with the server is published anew
    "max_msgs_per_subject": 1,
    "max_bytes": _MOST_BYTES,
    "discard": "old",
    "allow_msg_ttl": True,
    "allow_msg_schedules": True,
    "republish": {"src": f"{RETAINED}.>", "dest": f"{LIVE}.>"},
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


async def find_stream(client: Client) -> Callable[[], datetime]:
    """Find the stream, or make it; return the server's clock, for that of this machine may be wrong.

    Raises:
        BrokerUnreachable: It can't be made.
    """
    try:
        answer = await ask(client, f"STREAM.CREATE.{STREAM}", _CONFIGURATION)
    except Refusal as refusal:
        if refusal.number != _OTHERWISE_MADE:
            raise BrokerUnreachable(f"the server's JetStream can't make {STREAM!r} (2.14 can): {refusal}") from None
        answer = await ask(client, f"STREAM.INFO.{STREAM}")
    then, since = datetime.fromisoformat(answer["ts"]), time.monotonic()
    return lambda: then + timedelta(seconds=time.monotonic() - since)


def time_to_live(message: Message) -> dict[str, str]:
    """Return the headers of a message that is to be kept: until when, or that it clears its topic."""
    if not len(message.payload) and not message.tail:
        return {"Nats-TTL": "1s"}
    return {} if message.expiry_s is None else {"Nats-TTL": f"{max(message.expiry_s, 1)}s"}


class Will:
    """The will of a link, which has to be put off in time.

    Args:
        client: The connection.
        client_id: Of the link.
        message: What is to be published.
        clock: The server's.
    """

    def __init__(self, client: Client, client_id: str, message: Message, clock: Callable[[], datetime]) -> None:
        message = message.joined()
        self._client, self._clock = client, clock
        self._subject = f"{WILLS}.{token(client_id)}"
        self._target = subject(message.topic, RETAINED)
        self._packet = bytes(encode_head(message).data) + bytes(message.payload)
        self._kept = time_to_live(message) if message.retain else {"Nats-TTL": "1s"}  # the shortest that there is
        self._sequence = ""
        self._patience_s = LOST_S

    async def publish(self) -> None:
        """Publish it now, as a broker does when it has lost a connection."""
        await self._client.publish(self._target, self._packet, headers=self._kept or None)

    async def put_off(self) -> None:
        """Put it off once more, or for the first time.

        Raises:
            LinkError: It was published already, or the server does not answer.
        """
        start = time.monotonic()
        due = self._clock() + timedelta(seconds=self._patience_s)
        headers = {"Nats-Schedule": f"@at {due:%Y-%m-%dT%H:%M:%S.%fZ}", "Nats-Schedule-Target": self._target}
        if self._kept:
            headers["Nats-Schedule-TTL"] = self._kept["Nats-TTL"]
        if self._sequence:
            headers["Nats-Expected-Last-Subject-Sequence"] = self._sequence
        try:
            answer = await _request(self._client, self._subject, self._packet, self._patience_s, headers=headers)
        except Refusal as refusal:
            raise LinkError("its will came due" if refusal.number == _WRONG_SEQUENCE else str(refusal)) from None
        self._sequence = str(answer["seq"])
        self._patience_s = min(max(LOST_S, _SLOW * (time.monotonic() - start)), _MOST_LOST_S)

    async def take_back(self) -> None:
        """Take it back: the link closes.

        Raises:
            LinkError: The server does not answer.
        """
        await _request(self._client, self._subject, b"", headers={"Nats-TTL": "1s"})
