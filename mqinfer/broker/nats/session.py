"""One connection to a NATS server, from dialling to its end. All of it runs on the link's loop.

Whether anybody listens is known as with a PUBACK: a publication names a subject for answers, where the server says at
once that there are no responders; a mark that the link publishes there itself comes back behind that.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msgspec.structs import replace

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Ack, Message, ReasonCode
from mqinfer.broker.nats.jetstream import (
    ANSWER_S,
    BEAT,
    BEATS,
    HEADERS,
    LOOK_S,
    LOST_IN_CLUSTER_S,
    STREAM,
    Refusal,
    Will,
    ask,
    find_stream,
    read_answer,
    time_to_live,
)
from mqinfer.broker.nats.kept import KeptMessages
from mqinfer.broker.nats.subjects import ANSWERS, HEARD, KEPT, RETAINED, pattern, subject, token, topic
from mqinfer.broker.packets import Head, decode_publish, decode_variable_integer
from mqinfer.broker.process import Maker, end_thread_in_child
from mqinfer.broker.routes import Route, Routes
from mqinfer.broker.threaded.link import Outbox
from mqinfer.broker.tls import tls_error
from mqinfer.logs import log_dropped
from mqinfer.protocol.errors import BadEnvelope, BrokerUnreachable, LinkError, NotAuthorized, NotConnected

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

T = TypeVar("T")

_log = logging.getLogger("mqinfer.broker")

_CONNECT_S = 5
_PING_S = 3
"""Interval of pings; a connection without two answers is lost, in the time in which Mosquitto finds that."""
_MOST_PENDING = 2 << 20
"""Bytes that may wait for the socket before the next message is passed on."""
_MOST_ALONE = 16
"""Topics of silent links that are read one by one; of more, all that is kept for the subscription is."""
_MARK = "mark"
_ELECTION_S, _PATIENCE_S, _AGAIN_S = 30.0, 3.0, 0.5
"""How long an election in a cluster may take, each try to reach the leader, and when to try again."""
_NO_RESPONDERS = "503"
_DENIED = re.compile(r'permissions violation for (?:publish|subscription) to "([^"]*)"')


class NatsSession:
    """One connection.

    Args:
        client_id: Of the link.
        routes: Its subscriptions.
        outbox: Its outbox, which counts what is dropped.
        on_room: Called when more may be sent.
        tls: Of the connection, if any.

    Attributes:
        accepted: Whether it can be asked for something.
        is_cluster: Whether the server belongs to a cluster.
        lost: The reason why the connection has ended, once it has.
    """

    def __init__(
        self,
        client_id: str,
        routes: Routes,
        outbox: Outbox,
        on_room: Callable[[], None],
        tls: ssl.SSLContext | None,
    ) -> None:
        from mqinfer.broker.nats.client import SafeClient

        self.lost: asyncio.Future[LinkError] = asyncio.get_running_loop().create_future()
        self.accepted = self.is_cluster = False
        self._client_id, self._routes, self._outbox, self._on_room = client_id, routes, outbox, on_room
        self._tls = tls
        self._maker = Maker(f"the connection of {client_id!r}")
        self._client = SafeClient()
        self._inbox = ""
        self._number = 0
        self._unacked: dict[int, tuple[str, Ack]] = {}
        self._unstored: dict[int, _Stored] = {}
        self._denied: set[str] = set()
        self._subscriptions: dict[str, Subscription] = {}
        self._kept: dict[str, tuple[str, KeptMessages]] = {}  # by subscription, each with its subjects
        self._will: Will | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_settled = asyncio.Event()
        self._again: dict[str, _Stored] = {}  # by subject what found nobody to keep it
        self._marked = False

    @property
    def max_payload(self) -> int:
        """The largest message that the server accepts, less the room for headers, which it counts too."""
        return self._client.max_payload - HEADERS

    @property
    def alive(self) -> bool:
        """Whether the connection has not ended."""
        return not self.lost.done()

    @property
    def has_room(self) -> bool:
        """Whether one more message may be sent now; none overtakes what is to be kept, which takes another way."""
        return self._client.pending_data_size < _MOST_PENDING and not self._unstored

    @property
    def settled(self) -> bool:
        """Whether everything that was published is acknowledged."""
        return not self._unacked and not self._unstored and not self._again

    async def open(self, address: BrokerAddress, will: Message | None, *, is_return: bool) -> None:
        """Connect, put the will in place, and make all subscriptions.

        Args:
            address: The server.
            will: Of the link.
            is_return: Whether the link has lost a connection: its will is published first then.

        Raises:
            LinkError: The server can't be reached or refuses, or lacks JetStream.
        """
        await self._connect(address)
        self.is_cluster = bool(self._server("cluster"))
        self._inbox = f"{self._client.new_inbox()}."  # nobody else can guess it, and have the server answer there
        await self._client.subscribe(f"{self._inbox}*", cb=self._receive_ack)
        if will is not None:
            self._will = Will(self._client, self._client_id, will, self._inbox)
            if is_return:
                await self._will.publish()
        if self.is_cluster and is_return:  # the others may be electing a leader: what is not kept passes meanwhile
            self._spawn(self._in_time(self._settle, _ELECTION_S))
        else:
            await self._settle()
        while missing := [route for route in self._routes if route.subscription not in self._subscriptions]:
            with suppress(NotAuthorized):  # it is in the log; what else there is goes on
                kept = await self._listen(missing[0])
                if self.is_cluster and is_return:
                    self._spawn(self._catch_up(missing[0], kept))
                else:
                    await self._catch_up(missing[0], kept)
        self._spawn(self._look_for_silent())
        self.accepted = True

    async def _settle(self) -> None:
        """Find what is kept, and put the will in place.

        Raises:
            LinkError: The server refuses, or lacks JetStream, or has no leader.
        """
        lost_s = await find_stream(self._client, is_cluster=self.is_cluster)
        if self._will is not None:
            await self._will.put(lost_s)
            self._spawn(self._beat(self._will))
        elif self.is_cluster:
            self._spawn(self._look())
        self._is_settled.set()

    async def _look(self) -> None:
        """Look for the leader of a cluster, as signs of life do: a server that is cut off from the others has none."""
        while True:
            await asyncio.sleep(LOST_IN_CLUSTER_S / BEATS)
            await self._in_time(partial(find_stream, self._client, is_cluster=True), LOST_IN_CLUSTER_S)

    async def _in_time(self, work: Callable[[], Awaitable[T]], seconds: float) -> T:
        """Do what needs the leader of a cluster, as soon as there is one.

        Raises:
            BrokerUnreachable: There was none for too long; the next server may have one.
        """
        end = time.monotonic() + seconds
        while True:
            try:
                return await asyncio.wait_for(work(), _PATIENCE_S)
            except (BrokerUnreachable, Refusal, TimeoutError) as error:
                if time.monotonic() > end:
                    raise BrokerUnreachable(f"no leader of the cluster for {seconds:g} s: {error}") from error
                await asyncio.sleep(_AGAIN_S)

    async def _connect(self, address: BrokerAddress) -> None:
        from nats.errors import AuthorizationError, Error

        host = f"[{address.host}]" if ":" in address.host else address.host
        try:
            await self._client.connect(
                f"nats://{host}:{address.port}",
                name=self._client_id,
                inbox_prefix=f"{ANSWERS}.{token(address.login_name or self._client_id)}",
                user=address.username,
                password=address.password,
                tls=self._tls,
                tls_hostname=address.host if self._tls else None,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=_CONNECT_S,
                pending_size=sys.maxsize,  # `has_room` bounds it, so that nothing waits while it is published
                ping_interval=_PING_S,
                error_cb=self._note_error,
                closed_cb=self._note_end,
            )
        except AuthorizationError as error:
            raise NotAuthorized(f"{address} refuses the login") from error
        except (Error, OSError, TimeoutError) as error:
            raise self._refusal(address, self._client.last_error or error) from error

    def _refusal(self, address: BrokerAddress, reason: Exception) -> LinkError:
        """Return why a connection was not made; the server's word may be lost when it closes."""
        if "authorization" in str(reason).lower():
            return NotAuthorized(f"{address} refuses the login")
        if address.tls and not address.tls.cert_file and self._server("tls_verify"):
            return NotAuthorized(f"{address} requires a client certificate; set --cert-file and --key-file")
        if isinstance(reason, ssl.SSLError):
            return tls_error(address, reason)
        return BrokerUnreachable(f"{address}: {str(reason) or 'no NATS server answers'}")

    def _server(self, what: str) -> object:
        """Return what the server has stated of itself, which nats-py shows nowhere else."""
        return self._client._server_info.get(what)  # noqa: SLF001

    def send(self, message: Message, head: Head, on_ack: Ack) -> None:
        """Publish a message; its reason code comes later."""
        packet = b"".join((head.data, message.payload, *message.tail))
        if message.retain:
            headers = time_to_live(message) | (self._will.headers(message) if self._will else {})
            self._store(
                _Stored(subject(message.topic, KEPT, RETAINED), packet, headers, on_ack, is_awaited=message.qos > 0)
            )
            return
        self._number += 1
        name, reply = subject(message.topic), ""
        if message.qos:
            self._unacked[self._number], reply = (name, on_ack), f"{self._inbox}{self._number}"
        _run_at_once(self._client.publish(name, packet, reply=reply))
        if not self._marked:
            self._mark()

    def _store(self, stored: _Stored) -> None:
        """Publish what is to be kept; it replaces what is still to be published again."""
        if earlier := self._again.pop(stored.name, None):
            self._call(earlier.on_ack, ReasonCode.SUCCESS)
        self._number += 1
        reply = ""
        if stored.is_awaited:
            self._unstored[self._number], reply = stored, f"{self._inbox}{self._number}"
            asyncio.get_running_loop().call_later(ANSWER_S, self._expect_stored, self._number)
        _run_at_once(self._client.publish(stored.name, stored.packet, reply=reply, headers=stored.headers or None))
        if not self._marked:
            self._mark()

    def _store_again(self, stored: _Stored) -> None:
        if self.alive and self._again.get(stored.name) is stored:
            del self._again[stored.name]
            self._store(stored)

    def subscribe(self, route: Route, answer: Future[None]) -> None:
        """Make a subscription, and have what is kept delivered; the answer says whether the server refused it."""
        self._spawn(self._reply(self._subscribe(route), answer))

    def unsubscribe(self, name: str, answer: Future[None]) -> None:
        """Remove a subscription; the answer says that nothing more can come."""
        self._spawn(self._reply(self._unsubscribe(name), answer))

    def cut(self, answer: Future[None]) -> None:
        """Break the connection."""
        self.give_up(NotConnected("the connection was cut"))
        answer.set_result(None)

    async def _subscribe(self, route: Route) -> None:
        await self._catch_up(route, await self._listen(route))

    async def _listen(self, route: Route) -> KeptMessages:
        name, reads = pattern(route.topic_filter), route.share is None
        await self._unsubscribe(route.subscription)
        kept = KeptMessages(self._deliver, reads=reads)

        async def receive(msg: Msg) -> None:
            try:
                kept.hear(msg)
            except Exception as error:  # noqa: BLE001 - whatever a stranger has sent
                self._drop(msg.subject, error)

        queue = "" if route.share is None else token(route.share)
        self._subscriptions[route.subscription] = await self._client.subscribe(name, queue=queue, cb=receive)
        self._denied.clear()
        await self._flush()
        if name.lower() in self._denied:
            raise NotAuthorized(f"the server refuses the subscription to {route.topic_filter!r}")
        return kept

    async def _catch_up(self, route: Route, kept: KeptMessages) -> None:
        """Read what is kept, once that is possible."""
        if route.share is None:
            await self._is_settled.wait()
            messages: list[Msg] = []
            name = pattern(route.topic_filter, KEPT)
            try:
                await self._read_kept(name, messages)
            except TimeoutError:
                _log.warning("%s: not all that is kept came within %g s", name, ANSWER_S)
            kept.read(messages, deliver=route.retained and route in self._routes)
            self._kept[route.subscription] = name, kept

    async def _look_for_silent(self) -> None:
        """Look whether links have given no sign of life for too long, and whether they are gone then."""
        while True:
            await asyncio.sleep(LOOK_S)
            if any(kept.silent() for _, kept in self._kept.values()):
                await self._flush()  # what this link has been too slow to read comes first
            for name, kept in list(self._kept.values()):
                if silent := kept.silent():
                    messages: list[Msg] = []
                    alone = [f"{KEPT}.{stem}.*" for stem in silent]
                    with suppress(TimeoutError):  # they stay silent, and are looked at again
                        for each in alone if len(alone) <= _MOST_ALONE else [name]:
                            await self._read_kept(each, messages)
                        kept.read_again(silent, messages)

    async def _unsubscribe(self, name: str) -> None:
        self._kept.pop(name, None)
        found = self._subscriptions.pop(name, None)
        if found:
            await found.unsubscribe()
            await self._flush()

    async def end(self) -> None:
        """Disconnect, and take the will back unless the connection is lost. Its tasks are the loop's to end."""
        if self._will is not None and not self.lost.done():
            try:
                await self._will.take_back()
            except LinkError as error:
                _log.warning("link %s: its will stays: %s", self._client_id, error)
        await self._client.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Have something done that ends with the session; where it fails the connection is given up."""
        task = asyncio.ensure_future(self._guard(work))
        self._tasks.add(task)  # a loop keeps none alive
        task.add_done_callback(self._tasks.discard)

    async def until_lost(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for something to be done.

        Raises:
            LinkError: The connection is lost before.
        """
        task = asyncio.ensure_future(work)
        await asyncio.wait((task, self.lost), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise self.lost.result()
        task.result()

    def give_up(self, reason: LinkError) -> None:
        """End the session for a reason, unless there is one already."""
        if not self.lost.done():
            self.lost.set_result(reason)

    async def _reply(self, work: Coroutine[Any, Any, None], answer: Future[None]) -> None:
        try:
            await work
        except NotAuthorized as error:
            answer.set_exception(error)
        finally:
            if not answer.done():  # where it failed the next connection goes by the table of routes
                answer.set_result(None)

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except LinkError as error:
            self.give_up(error)
        except Exception as error:  # noqa: BLE001 - also a defect may not leave a link that only seems connected
            _log.debug("link %s: its connection failed", self._client_id, exc_info=True)
            self.give_up(NotConnected(f"the connection failed: {error!r}"))

    async def _beat(self, will: Will) -> None:
        while True:
            await asyncio.sleep(will.look_s)
            if will.is_due:
                await will.beat()

    async def _flush(self) -> None:
        """Wait until the server has handled all that was sent; nats-py's PING overtakes what waits for the socket."""
        passed = asyncio.get_running_loop().create_future()
        self._number += 1
        self._unacked[self._number] = ("", passed.set_result)
        if not self._marked:
            self._mark()
        await passed

    def _mark(self) -> None:
        """Publish a mark that comes back behind the answers to everything that is sent by now."""
        self._marked = True
        _run_at_once(self._client.publish(self._inbox + _MARK, b"%d" % self._number))

    def _come_to_mark(self, last: int) -> None:
        """Acknowledge what was sent before a mark and is not answered: somebody listens."""
        self._marked = False
        for number in [number for number in self._unacked if number <= last]:
            self._call(self._unacked.pop(number)[1], ReasonCode.SUCCESS)
        self._on_room()
        if self._number > last and not self._marked:
            self._mark()

    async def _receive_ack(self, msg: Msg) -> None:
        name = msg.subject.rpartition(".")[2]
        if name == _MARK:
            self._come_to_mark(int(msg.data))
        elif name.startswith(BEAT):
            self._receive_beat(msg)
        else:
            self._receive_code(int(name), msg)

    def _receive_beat(self, msg: Msg) -> None:
        try:
            if self._will:
                self._will.receive(msg.subject, msg.data)
        except LinkError as error:
            self.give_up(error)

    def _receive_code(self, number: int, msg: Msg) -> None:
        is_unheard = msg.headers is not None and msg.headers.get("Status") == _NO_RESPONDERS
        if number in self._unstored:
            stored = self._unstored.pop(number)
            if is_unheard and not self.is_cluster:
                self.give_up(BrokerUnreachable("the server's stream is gone; the next connection makes it again"))
            elif is_unheard:  # a cluster elects a leader
                self._again[stored.name] = stored
                asyncio.get_running_loop().call_later(_AGAIN_S, self._store_again, stored)
            else:
                self._call(stored.on_ack, _code_of(stored.name, msg.data))
            self._on_room()
        elif number in self._unacked and is_unheard:
            self._call(self._unacked.pop(number)[1], ReasonCode.NO_MATCHING_SUBSCRIBERS)

    def _expect_stored(self, number: int) -> None:
        if number in self._unstored:
            self.give_up(BrokerUnreachable(f"the server's JetStream has not answered within {ANSWER_S:g} s"))

    def _call(self, on_ack: Ack, code: int) -> None:
        try:
            on_ack(code)
        except Exception:  # noqa: BLE001 - foreign code on the link's thread
            _log.exception("link %s: the handler of an acknowledgement failed", self._client_id)

    def _deliver(self, name: str, data: bytes, retain: bool) -> None:  # noqa: FBT001 - as `KeptMessages` calls it
        """Hand a message to its handler; its subject, which access rules bind, decides where it came from."""
        try:
            message = _read(name, data)
        except (BadEnvelope, IndexError, ValueError) as error:
            self._drop(name, error)
            return
        is_kept = message.retain and len(message.payload)  # else it clears its topic, or is a will that passes
        if is_kept or not retain:
            self._routes.deliver(message if message.retain == retain else replace(message, retain=retain))
        if self._maker.is_other:  # a handler forked, and this is the child
            end_thread_in_child()

    def _drop(self, name: str, error: Exception) -> None:
        """Count a message that can't be read."""
        self._outbox.dropped += 1
        log_dropped(_log, f"a message on {name[:200]}: {error}", "nats", self._outbox.dropped)

    async def _read_kept(self, name: str, messages: list[Msg]) -> None:
        """Read what is kept under the subjects of a pattern into a list.

        Raises:
            TimeoutError: Not all of it came in time.
        """
        inbox, done = self._client.new_inbox(), asyncio.Event()

        async def receive(msg: Msg) -> None:
            messages.append(msg)
            if msg.metadata.num_pending == 0:
                done.set()

        subscription = await self._client.subscribe(inbox, cb=receive)
        try:
            # The server compares both names with those that the subject has, to which access rules apply.
            consumer = inbox.rpartition(".")[2]
            what = {
                "name": consumer,
                "filter_subject": name,
                "deliver_policy": "last_per_subject",
                "ack_policy": "none",
                "deliver_subject": inbox,
                "mem_storage": True,
                "num_replicas": 1,
                "inactive_threshold": int(ANSWER_S * 1e9),
            }
            asked = {"stream_name": STREAM, "config": what}
            create = partial(ask, self._client, f"CONSUMER.CREATE.{STREAM}.{consumer}.{name}", asked)
            answer = await (self._in_time(create, _ELECTION_S) if self.is_cluster else create())
            if answer["num_pending"]:
                await asyncio.wait_for(done.wait(), ANSWER_S)
        finally:
            await subscription.unsubscribe()

    async def _note_error(self, error: Exception) -> None:
        from nats.errors import SlowConsumerError

        denied = _DENIED.search(str(error))
        if denied:
            _log.debug("the server refuses %s", denied[1])
            self._deny(denied[1])
        elif isinstance(error, SlowConsumerError):
            self._drop(error.subject, error)
        elif self._client.is_reading:
            _log.debug("nats-py reads the message without its headers: %s", error)
        elif self.accepted:  # nats-py does not report the end of each connection that it closes
            self.give_up(NotConnected(f"the connection failed: {error}"))

    def _deny(self, name: str) -> None:
        """Acknowledge what was published under a name that the server refuses; it states the name in lower case."""
        if name == f"{self._inbox}{_MARK}".lower():
            self.give_up(NotAuthorized(f"the server's rules forbid to publish to {self._inbox}{_MARK}"))
        self._denied.add(name)  # of a subscription, else without effect
        for number in [number for number, (sent, _) in self._unacked.items() if sent.lower() == name]:
            self._call(self._unacked.pop(number)[1], ReasonCode.NOT_AUTHORIZED)
        for number in [number for number, stored in self._unstored.items() if stored.name.lower() == name]:
            self._call(self._unstored.pop(number).on_ack, ReasonCode.NOT_AUTHORIZED)
        self._on_room()

    async def _note_end(self) -> None:
        self.give_up(NotConnected(f"the connection ended: {self._client.last_error or 'the server closed it'}"))


class _Stored(NamedTuple):
    """What is to be kept: its subject, packet, headers, and whom to tell, if anybody waits for the answer."""

    name: str
    packet: bytes
    headers: dict[str, str]
    on_ack: Ack
    is_awaited: bool


def _code_of(name: str, data: bytes) -> ReasonCode:
    """Return the reason code of what the stream has answered."""
    try:
        read_answer(data)
    except Refusal as refusal:
        _log.warning("%s was not kept: %s", name, refusal)
        return ReasonCode.UNSPECIFIED
    return ReasonCode.SUCCESS


def _run_at_once(work: Coroutine[Any, Any, None]) -> None:
    """Run what waits for nothing.

    Raises:
        RuntimeError: It does.
    """
    try:
        work.send(None)
    except StopIteration:
        return
    work.close()
    raise RuntimeError("nats-py waits while it publishes")


def _read(name: str, data: bytes) -> Message:
    """Return the message in a PUBLISH packet.

    Raises:
        BadEnvelope: It is malformed, or of another topic than its subject states.
        IndexError: It ends too early.
    """
    body = memoryview(data)
    length, at = decode_variable_integer(body, 1)
    message = decode_publish(body[0], body[at:], version5=True).message
    if not name.startswith(f"{HEARD}.") or message.topic != topic(name) or length != len(body) - at:
        raise BadEnvelope(f"a PUBLISH packet for {message.topic[:200]!r} of {length} bytes")
    return message
