"""A call to servers and the replies to it. Pure: no thread, no link; the owner knows which servers there are."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from msgspec import Struct

from mqinfer.broker.link import Message, ReasonCode
from mqinfer.client.options import NAME_HINT
from mqinfer.protocol.control import BEHALF, CHANGES, OF_EDGES, Call, Operation
from mqinfer.protocol.decoding import check, parse_json, write_json
from mqinfer.protocol.errors import (
    BadEnvelope,
    Expired,
    ModelNotFound,
    MqinferError,
    NotAuthorized,
    NoWorker,
    error_from_code,
)
from mqinfer.protocol.header import error_message
from mqinfer.protocol.states import ProcessStatus, ServerState
from mqinfer.protocol.topics import EVERY_SERVER, Topics, check_name, check_same, instead_of

_Shape = TypeVar("_Shape", bound=Struct)


@dataclass(frozen=True, slots=True)
class ControlReply:
    """What one server answered.

    Attributes:
        server: Its name.
        content: The reply's JSON; None where there is an error.
        error: Why it failed, or None.
    """

    server: str
    content: Any = None
    error: MqinferError | None = None

    def read(self, shape: type[_Shape]) -> _Shape:
        """Return the content as this struct; raise BadEnvelope where it is none."""
        return check(self.content, shape, f"reply of server {self.server}")


class Question:
    """One call, to one server or to all, and what has come of it. Not thread-safe.

    It belongs to the servers that were ready when the broker took it: one that starts later has not received it, and
    one that is started anew has lost it.

    Attributes:
        request: Identifies it, on the wire too.
        again_s: After so many seconds without a reply a server is asked for it again.
    """

    again_s: ClassVar[float] = 5.0

    def __init__(self, server: str | None, timeout: float) -> None:
        """Start without a reply; `timeout` is in seconds, and `server` None for all."""
        self.request = os.urandom(16)
        self._server = server
        self._timeout = timeout
        self._replies: dict[str, ControlReply] = {}
        self._refusal: int | None = None
        self._call = Call(Operation.SERVER)
        self._asked: dict[str, int] | None = None  # incarnations by server; None until the broker has taken it

    def message(
        self, topics: Topics, client: str, call: Call, body: Mapping[str, Any] | None, behalf: str = ""
    ) -> Message:
        """Return the message that asks it.

        Args:
            topics: Below the root of the site.
            client: Name of the client that asks.
            call: What the servers do.
            body: The call's JSON.
            behalf: Whom the client calls for, for the log of the server; empty for itself.

        Raises:
            BadTopic: A name breaks the naming rules.
            BadEnvelope: The body can't be written as JSON.
        """
        self._call = call
        return Message(
            topic=topics.control(self._server or EVERY_SERVER, client, call.path),
            payload=write_json(dict(body or {}), "control request"),
            content_type="application/json",
            response_topic=self.reply_topic(topics, client, call),
            correlation_data=self.request,
            expiry_s=max(1, math.ceil(self._timeout)),  # a call that nobody waits for any more is not carried out
            user_properties=((BEHALF, behalf),) if behalf else (),
        )

    def reply_topic(self, topics: Topics, client: str, call: Call) -> str:
        """Return where the reply goes: to the client that asks, or below the name of the edge that answers."""
        if call.operation in OF_EDGES and self._server is not None:
            return topics.edge_reply(self._server, self.request.hex())
        return topics.control_result(client, self.request.hex())

    def again(self, topics: Topics, client: str, servers: Mapping[str, ServerState]) -> list[Message]:
        """Return what asks the servers that are silent for their replies, which may be lost; no call is repeated."""
        if self._call.operation not in CHANGES:
            return []
        silent = self._silent(servers) & servers.keys()
        path, expiry_s = Call(Operation.REPLY).path, math.ceil(self.again_s)
        # Without a Response Topic: a server that does not know this call drops it.
        return [
            Message(topics.control(each, client, path), b"", correlation_data=self.request, expiry_s=expiry_s)
            for each in sorted(silent)
        ]

    def acked(self, code: int, servers: Mapping[str, ServerState]) -> None:
        """Handle the reason code of its PUBACK, and the servers that are known by then."""
        if code != ReasonCode.SUCCESS:
            self._refusal = code
        self._asked = {name: state.incarnation for name, state in _ready(servers).items()}

    def was_ready(self, state: ServerState) -> None:
        """Handle a state that the broker had kept and that has come behind the PUBACK: of many it holds some back."""
        if self._asked is not None and state.status is ProcessStatus.READY:
            self._asked.setdefault(state.server, state.incarnation)

    def replied(self, message: Message) -> bool:
        """Handle a reply; return False where it is not one to this question.

        Raises:
            MqinferError: It can't be read, or is another server's.
        """
        if message.topic.rpartition("/")[2] != self.request.hex():
            return False
        if message.correlation_data not in {None, self.request}:
            return False
        reply = read_reply(message)
        if self._server:
            check_same("server", self._server, reply.server)
        self._replies[reply.server] = reply
        return True

    def is_complete(self, servers: Mapping[str, ServerState]) -> bool:
        """Return whether no further reply is to be expected from these servers."""
        if self._refusal is not None:
            return True
        # The states are retained: they came before the first reply could.
        return bool(self._server or self._replies or self._asked) and not self._silent(servers)

    def _silent(self, servers: Mapping[str, ServerState]) -> set[str]:
        """Return the servers whose reply may still come."""
        return {name for name in self._missing(servers) if self._end_of(name, servers) is None}

    def _missing(self, servers: Mapping[str, ServerState]) -> set[str]:
        asked = {self._server} if self._server else set(_ready(servers) if self._asked is None else self._asked)
        return asked - self._replies.keys()

    def outcome(self, servers: Mapping[str, ServerState], client: str) -> list[ControlReply]:
        """Return the replies, sorted by server; those that have not come are errors. At least one.

        Args:
            servers: Those that are known.
            client: Name of the client that asks, for messages.

        Raises:
            NoWorker: There is no such server, or none at all.
            NotAuthorized: The broker does not allow this client to control servers.
        """
        if self._refusal == ReasonCode.NOT_AUTHORIZED:
            raise NotAuthorized(
                f"the broker does not allow client {client!r} to ask or control servers; a dashboard's login only "
                f"reads (mqinfer status), an operator's does both; {NAME_HINT}"
            )
        missing = self._missing(servers)
        if not self._replies and (not missing or self._is_nobody(servers)):
            whom = f"no server {self._server!r}" if self._server else "no server"
            known = instead_of(self._server or "", _ready(servers))
            raise NoWorker(f"{whom} is ready on this broker (ready: {known}); start: mqinfer worker")
        late = [ControlReply(name, error=self._silence(name, servers)) for name in self._named(missing, servers)]
        return sorted([*self._replies.values(), *late], key=lambda reply: reply.server)

    def _named(self, missing: set[str], servers: Mapping[str, ServerState]) -> set[str]:
        """Return which servers without a reply are errors: of all that were asked, not those that are gone."""
        if self._server or not (self._replies or self._silent(servers)):
            return missing
        return self._silent(servers)

    def _is_nobody(self, servers: Mapping[str, ServerState]) -> bool:
        """Return whether the broker knows of no receiver, or nothing is known of the one that is named."""
        return self._refusal is not None or self._server not in {None, *servers, *(self._asked or ())}

    def _silence(self, server: str, servers: Mapping[str, ServerState]) -> MqinferError:
        return self._end_of(server, servers) or Expired(f"server {server} has not replied within {self._timeout:g} s")

    def _end_of(self, server: str, servers: Mapping[str, ServerState]) -> NoWorker | None:
        """Return why no reply can come from a server any more; None while one may."""
        state, asked = servers.get(server), (self._asked or {}).get(server)
        if state is None:  # an edge publishes none
            return None if asked is None else NoWorker(f"server {server} has stopped")
        if state.status is not ProcessStatus.READY:
            return NoWorker(f"server {server} is {state.status}")
        if asked not in {None, state.incarnation}:
            return NoWorker(f"server {server} was started anew before it replied; see: mqinfer status")
        return None


def _ready(servers: Mapping[str, ServerState]) -> dict[str, ServerState]:
    return {name: state for name, state in servers.items() if state.status is ProcessStatus.READY}


def read_reply(message: Message) -> ControlReply:
    """Decode a server's reply to a call.

    Raises:
        BadEnvelope: It is not JSON, was kept by the broker, or names no server or several ones.
        BadTopic: The server's name breaks the naming rules.
        LimitExceeded: It is longer than 8 MiB.
    """
    if message.retain:
        raise BadEnvelope("the broker had kept it; replies are never retained")
    content = parse_json(message.payload, "control reply")
    fields = content if isinstance(content, dict) else {}
    objects = content if isinstance(content, list) else [content]
    named = {value for key, value in message.user_properties if key == "server"}
    named |= {str(each["server"]) for each in objects if isinstance(each, dict) and "server" in each}
    if len(named) != 1:
        raise BadEnvelope(f"control reply: {len(named)} servers are named; it must name the one that sent it")
    server = check_name("server", named.pop())
    if "error" not in fields:
        return ControlReply(server, content)
    why = error_from_code(str(fields.get("code", "")), error_message(f"server {server}: {fields['error']}"))
    return ControlReply(server, error=why)


def check_replies(replies: list[ControlReply]) -> list[ControlReply]:
    """Return the replies of the servers that succeeded.

    A server that does not have the model is left out, as long as another one has it.

    Raises:
        MqinferError: Of the first server that failed; the message names each reason once, with the servers that stated
            it. Of those that do not have the model it names the first one's.
    """
    done = [reply for reply in replies if reply.error is None]
    failed = {reply.server: reply.error for reply in replies if reply.error is not None}
    lacking = [server for server, error in failed.items() if isinstance(error, ModelNotFound)]
    serious = {server: error for server, error in failed.items() if server not in lacking}
    if not serious and (done or not failed):
        return done
    if not serious:
        first = lacking.pop(0)
        serious = {first: failed[first]}
    words = _reasons(serious)
    if lacking:
        words.append(f"without the model: {instead_of('', lacking)}")
    raise type(next(iter(serious.values())))("; ".join(words))


def _reasons(errors: Mapping[str, MqinferError]) -> list[str]:
    """Return each reason once, with the servers that stated it."""
    reasons: dict[str, list[str]] = {}
    for server, error in errors.items():
        reasons.setdefault(str(error).removeprefix(f"server {server}: "), []).append(server)
    return [
        str(errors[servers[0]]) if len(servers) == 1 else f"servers {instead_of('', servers)}: {reason}"
        for reason, servers in reasons.items()
    ]
