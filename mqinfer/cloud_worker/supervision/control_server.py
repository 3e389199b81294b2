"""The server on the broker: publishes its state, receives control requests and replies to each.

The link's thread only queues the requests. One thread executes them and reads the repository. No thread waits for a
model to load: the reply is published when the load has finished.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Full, Queue
from typing import Any, TypeVar

from msgspec.structs import replace

from mqinfer.broker.link import Message, ignore_ack
from mqinfer.broker.presence import Presence
from mqinfer.client.registry import Registry
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.serving.worker import LinkMaker
from mqinfer.cloud_worker.supervision.management import Management
from mqinfer.cloud_worker.supervision.planning import is_process_of
from mqinfer.cloud_worker.supervision.supervisor import Event
from mqinfer.logs import log_call, log_dropped
from mqinfer.protocol.card import read_card
from mqinfer.protocol.control import BEHALF, CHANGES, Call, Operation, read_body, read_path
from mqinfer.protocol.decoding import MAX_STATE_BYTES
from mqinfer.protocol.errors import BadTopic, LinkError, MqinferError, NotConnected, Rejected
from mqinfer.protocol.states import (
    ClientState,
    ProcessStatus,
    ServerState,
    WorkerState,
    WorkerStatus,
)
from mqinfer.protocol.topics import EVERY_SERVER, Topics, answer_topic, check_name
from mqinfer.protocol.types import Buffer

T = TypeVar("T")
log = logging.getLogger("mqinfer.cloud_worker")
_ORDERS = frozenset(operation.rpartition("/")[2] for operation in CHANGES)
_DETAILS = ("versions", "labels", "traffic", "shadow", "workers", "error")
"""Parts of the reply to an order that its line in the log has."""
LOOK_S = 1.0
"""Seconds between two looks at what waits, and at how a canary does."""
_MAX_QUEUED = 256
"""Control requests in the queue; further ones are refused with `rejected`."""
_MAX_KEPT = 256
"""Replies to calls that change something, which are kept for clients that did not receive them; about 5 kB each."""
_JSON = "application/json"
_ADVICE = (
    "give each server a name of its own with --name (with access rules: mqinfer broker add DIR worker NAME), "
    "or end the other one with --take-over"
)
_STOP_S = 5.0
"""How long `stop` waits for the request that is being executed: a repository on a dead file system never ends one."""


def crash_message(topics: Topics, event: Event) -> Message | None:
    """Return the state that reports a crash of a worker process to clients, or None for any other event.

    It is not retained: by the time that another client comes the process may have been started again.
    """
    if not event.crashed:
        return None
    state = WorkerState(event.worker, WorkerStatus.CRASHED, event.crashed, running=event.running)
    return Message(topics.worker_state(event.worker), state.to_json())


@dataclass(slots=True)
class _Chore:
    """What the control thread does every so many seconds, and when it is due."""

    seconds: float
    job: Callable[[], None]
    due: float = 0.0


class ControlServer:
    """One server's side of `{root}/control/...`.

    Attributes:
        dropped: Messages that it ignored, by reason.
        known: The states of the site's workers; those of its clients and the cards where it follows these.
    """

    def __init__(
        self,
        options: WorkerOptions,
        make_link: LinkMaker,
        management: Management,
        *,
        follows_clients: bool = False,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the server; `start` connects it.

        Args:
            options: The server's name, unique on the broker, and its topics.
            make_link: Opens a link to the broker.
            management: Executes the requests.
            follows_clients: Whether to learn what waits at clients: `known` has their states and the cards, too.
            on_failure: Called on the link's thread when `failure` is set.

        Raises:
            BadTopic: The name breaks the naming rules, or is the reserved `all`.
        """
        self._name = name = check_name("server", options.name)
        if name == EVERY_SERVER:
            raise BadTopic(f"server name {name!r} is reserved for requests to every server; choose another")
        self._topics = options.topics
        self._management = management
        self._follows_clients = follows_clients
        self._chores: list[_Chore] = []
        self._on_failure = on_failure
        self._presence = Presence(name, self._topics.control_state(name), self._encode_state)
        self.known = Registry(time.monotonic)
        self._lost: set[str] = set()  # processes of this server of which the broker keeps the state `lost`
        self._kept: dict[tuple[str, bytes], Message | None] = {}  # by client and request; None while it is executed
        self._keeping = threading.Lock()
        self.dropped: Counter[str] = Counter()
        self._inbox: Queue[Message | None] = Queue(_MAX_QUEUED)
        self._thread = threading.Thread(target=self._run, name=f"mqinfer-control-{name}", daemon=True)
        self._link = make_link(self._presence.client_id, self._presence.will, self._on_connection)
        self._presence.attach(self._link, lambda _: on_failure())

    @property
    def failure(self) -> LinkError | None:
        """Why no client can reach it: its name is taken, or its connection has failed for good; None otherwise."""
        return self._presence.failure or self._link.failure

    @property
    def connected(self) -> bool:
        """Whether it is connected to the broker."""
        return self._link.connected

    def poll(self, seconds: float, models: Sequence[str] = ()) -> None:
        """Scan the repository for changes of some models, or of all, at an interval; as `repeat` otherwise."""
        self.repeat(seconds, lambda: self._scan(models))

    def repeat(self, seconds: float, job: Callable[[], None]) -> None:
        """Do something on the control thread at an interval, the first time when it starts; before `start`."""
        self._chores.append(_Chore(seconds, job))

    def start(self, timeout: float = 10.0, *, take_over: bool = False) -> None:
        """Connect, publish `ready` and accept requests.

        Args:
            timeout: For the connection, in seconds.
            take_over: Whether another server of the same name must give it up.

        Raises:
            BrokerUnreachable: The broker does not respond.
            NameTaken: Another server has the name.
            NotAuthorized: The broker refused the credentials or a subscription.
            NotConnected: The connection was lost before it was known who has the name.
        """
        try:
            self._link.open(timeout)
            self._presence.claim(_ADVICE, take_over=take_over)
            self._link.unsubscribe(self._topics.control_state(self._name))  # the filter for requests covers it
            self._link.subscribe(self._topics.worker_state.filter(), self._on_worker)
            if self._follows_clients:
                self._link.subscribe(self._topics.card.filter(), self._on_card)
                self._link.subscribe(self._topics.client_state.filter(), self._on_client)
            for name in (self._name, EVERY_SERVER):
                self._link.subscribe(self._topics.control.filter(server=name), self._receive, retained=False)
        except BaseException:
            self._link.close()
            raise
        self._presence.publish(ProcessStatus.READY)
        self._thread.start()

    def stop(self) -> None:
        """Reply to the queued requests, publish `stopped`, remove the state and disconnect."""
        with suppress(Full):
            self._inbox.put(None, timeout=_STOP_S)
            self._thread.join(_STOP_S)
        self._presence.end()
        self._link.close()

    def report(self, event: Event) -> None:
        """Publish the crash of a worker process; remove the state of one that is gone and could not do so itself.

        Thread-safe.
        """
        if message := crash_message(self._topics, event):
            self._publish(message)
        if event.worker in self._lost:
            self._clear(event.worker)

    def _on_connection(self, connected: bool) -> None:  # noqa: FBT001  the link's signature
        if connected:
            self._presence.publish()  # behind all subscriptions, so that it comes back behind what the broker keeps
            return
        self.known.begin()
        if self._link.failure:
            self._on_failure()

    def _encode_state(self, status: str, incarnation: int) -> bytes:
        return ServerState(self._name, ProcessStatus(status), incarnation, self._presence.take_over).to_json()

    def _publish(self, message: Message) -> None:
        try:
            self._link.publish(message, ignore_ack)
        except NotConnected:
            log.debug("not connected; nothing is published on %s", message.topic)
        except LinkError as error:
            log.warning("%s", error)

    def _on_worker(self, message: Message) -> None:
        """Record what workers serve: the card of a model that another server serves is not removed."""
        if found := self._read(WorkerState.read, message):
            self.known.put_worker(*found)
            if self._is_mine(found[0]):
                self._update_lost(*found)

    def _on_card(self, message: Message) -> None:
        if found := self._read(read_card, message):
            self.known.put_card(*found)

    def _on_client(self, message: Message) -> None:
        if message.correlation_data is None and (found := self._read(ClientState.read, message)):  # else a marker
            self.known.put_client(*found)

    def _read(self, read: Callable[[Topics, str, Buffer], T], message: Message) -> T | None:
        try:
            return read(self._topics, message.topic, message.payload)
        except MqinferError as error:
            self._drop("state", message, str(error))
            return None

    def _update_lost(self, worker: str, state: WorkerState | None) -> None:
        """Record that a process of this server was lost; remove the state if there is no such process any more."""
        if state is None or state.status is not WorkerStatus.LOST:
            self._lost.discard(worker)
            return
        self._lost.add(worker)
        self._clear(worker)

    def _clear(self, worker: str) -> None:
        """Remove the state of a process that was lost, unless it is to start again or another has its name."""
        if not self._management.has_process(worker):
            self._publish(Message(self._topics.worker_state(worker), b"", retain=True))

    def _is_mine(self, worker: str) -> bool:
        return is_process_of(self._name, worker)

    def _receive(self, message: Message) -> None:
        if message.topic == self._topics.control_state(self._name):
            self._presence.receive(message)  # the same filter matches it
            if not message.retain:
                self.known.finish()
            return
        if message.retain:  # else it would be executed again with each connection
            self._drop("retained", message, "a control request must not be retained")
            return
        if len(message.payload) > MAX_STATE_BYTES:  # `read_body` refuses what is cut: whole ones would fill the memory
            message = replace(message, payload=bytes(message.payload[: MAX_STATE_BYTES + 1]))
        try:
            self._inbox.put_nowait(message)
        except Full:
            self._fail(message, Rejected(f"server {self._name} has {_MAX_QUEUED} requests queued; retry later"))

    def _drop(self, reason: str, message: Message, why: str) -> None:
        self.dropped[reason] += 1
        log_dropped(log, f"a message on {message.topic}: {why}", f"dropped_{reason}", self.dropped[reason])

    # The methods below run on the control thread; those that reply, on the supervisor's thread too.

    def _run(self) -> None:
        while True:
            for chore in self._chores:
                if chore.due <= time.monotonic():
                    self._guarded(chore.job)
                    chore.due = time.monotonic() + chore.seconds
            due = min((chore.due for chore in self._chores), default=None)
            try:
                message = self._inbox.get(timeout=None if due is None else max(0.0, due - time.monotonic()))
            except Empty:
                continue
            if message is None:
                return
            self._guarded(lambda request=message: self._handle(request))  # type: ignore[misc]  # bound now

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception:  # a defect; the next request still gets its reply
            log.exception("server %s failed to handle a request; it continues with the next", self._name)

    def _scan(self, models: Sequence[str]) -> None:
        try:
            changed = self._management.poll(models)
        except MqinferError as error:
            log.warning("%s", error)
            return
        for model, done in changed.items():
            done.add_done_callback(lambda future, name=model: self._on_changed(name, future))  # type: ignore[misc]

    def _on_changed(self, model: str, done: Future[Any]) -> None:
        """Log the error of a change; remove the retained card of a model that no server serves any more."""
        if error := done.exception():
            log.warning("model %s: %s", model, error)
        elif not self._management.serves(model) and not self._is_served_elsewhere(model):
            self._publish(Message(self._topics.card(model), b"", retain=True))

    def _is_served_elsewhere(self, model: str) -> bool:
        return any(model in state.serves for name, state in self.known.workers.items() if not self._is_mine(name))

    def _handle(self, message: Message) -> None:
        try:
            call = read_path(self._topics.control.parse(message.topic)["path"])
            if call.operation is Operation.REPLY:
                self._repeat(message)
                return
            if call.operation in CHANGES:
                self._keep(message, None)
            reply = self._management.execute(call, read_body(message.payload))
        except MqinferError as error:
            self._fail(message, error)
            return
        except Exception as error:
            self._fail(message, MqinferError(f"the server failed; see its log: {error!r}"))
            raise
        reply.add_done_callback(lambda done: self._finish(message, call, done))

    def _request(self, message: Message) -> tuple[str, bytes]:
        return self._topics.control.parse(message.topic)["client"], message.correlation_data or b""

    def _keep(self, message: Message, reply: Message | None) -> None:
        """Keep the reply to a call, or that it is executed; the oldest are forgotten first."""
        with self._keeping:
            key = self._request(message)
            if key[1] and (reply is None or key in self._kept):
                self._kept.pop(key, None)
                self._kept[key] = reply
            while len(self._kept) > _MAX_KEPT:
                del self._kept[next(iter(self._kept))]

    def _repeat(self, message: Message) -> None:
        """Publish a reply again that its client did not receive; while the call is executed, it is still to come.

        Raises:
            MqinferError: No reply can be published: the call can't be one of mqinfer's clients.
        """
        client, request = key = self._request(message)
        with self._keeping:
            is_known, kept = key in self._kept, self._kept.get(key)
        if kept is not None:
            self._publish(kept)
        elif not is_known:
            why = Rejected(f"server {self._name} has not received the call, or no longer knows it; call again")
            self._fail(replace(message, response_topic=self._topics.control_result(client, request.hex())), why)

    def _finish(self, message: Message, call: Call, done: Future[Any]) -> None:
        if call.operation is Operation.UNLOAD:
            self._on_changed(call.model, done)
        error = done.exception()
        if error is None:
            self._reply(message, done.result())
        else:
            self._fail(message, error if isinstance(error, MqinferError) else MqinferError(repr(error)))

    def _fail(self, message: Message, error: MqinferError) -> None:
        self._reply(message, {"error": str(error)[:4000], "code": error.code})

    def _reply(self, message: Message, reply: Any) -> None:
        """Publish a reply below the sender's own results, or nothing; add the server's name to each object."""
        self._audit(message, reply)
        try:
            topic = self._reply_topic(message)
        except MqinferError as error:
            self._drop("no_reply_topic", message, str(error))
            return
        entries = reply if isinstance(reply, list) else [reply]
        marked: Any = [{**entry, "server": self._name} for entry in entries]
        payload = json.dumps(marked if isinstance(reply, list) else marked[0], separators=(",", ":")).encode()
        made = Message(
            topic,
            payload,
            content_type=_JSON,
            correlation_data=message.correlation_data,
            user_properties=(("server", self._name),),
        )
        self._keep(message, made)
        self._publish(made)

    def _audit(self, message: Message, reply: Any) -> None:
        """Log who asked for what, and what came of it."""
        asked = self._topics.control.parse(message.topic)
        caller, path = asked["client"], asked["path"]
        is_order = path.rpartition("/")[2] in _ORDERS
        changes = {name: reply[name] for name in _DETAILS if name in reply} if is_order else None
        behalf = dict(message.user_properties).get(BEHALF, "")
        log_call(caller, path, reply, changes=changes, proven=self._management.has_login, behalf=behalf)

    def _reply_topic(self, message: Message) -> str:
        client = self._topics.control.parse(message.topic)["client"]
        stated = message.response_topic or read_body(message.payload).response_topic
        return answer_topic(self._topics.control_result, stated, client)
