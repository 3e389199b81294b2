"""The bridge: what is carried which way, and which far workers a site's clients reach."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Self

from msgspec.structs import replace

from mqinfer.broker.bridge.carrier import Carrier, Failed, error_reply, is_marked, refusal
from mqinfer.broker.bridge.far_workers import KEPT_S, FarWorkers, MakeLink
from mqinfer.broker.bridge.own_states import OwnStates
from mqinfer.broker.link import Link, Message, MessageHandler, ReasonCode
from mqinfer.protocol.card import read_card
from mqinfer.protocol.control import OF_EDGES
from mqinfer.protocol.errors import (
    BrokerUnreachable,
    LinkError,
    MessageTooLarge,
    MqinferError,
    NotAuthorized,
    NotConnected,
    Rejected,
)
from mqinfer.protocol.states import (
    AT_WORK,
    ClientState,
    ServerState,
    WorkerState,
    WorkerStatus,
)
from mqinfer.protocol.topics import CONTROL, EVERY_SERVER, Topics

_log = logging.getLogger("mqinfer.broker")
_MOST_CLIENTS = 1000
"""Clients of the site whose replies a bridge receives; of more, those that asked last."""
_MOST_UNANSWERED = 1000
"""Requests over the models' channels without a reply through this bridge; above it, all are forgotten."""
_RENEW_S, _RETRY_S, _ANSWER_S = 20.0, 1.0, 5.0
_NEAR, _FAR = 0, 1
_PASSING = "claiming"
"""A state that nobody keeps."""
_ENDED = frozenset({"lost", "stopped"})

_Read = Callable[[Topics, str, Any], tuple[str, Any]]


class Bridge:
    """Carries messages between the near broker, of the clients, and the far one, of the workers; a context manager.

    Several bridges of a site share the work.

    Args:
        near: Makes a link to the site's broker.
        far: Makes a link to the workers' broker.
        site: Unique among the sites of the far broker; the bridges of a site have the same.
        topics: The topics, on both sides.
        group: Of the workers at the near broker, with which the bridges share the models' channels.
        on_end: Called when a link has given up for good, on its thread; `failure` is set.
    """

    def __init__(  # noqa: PLR0913 - two sides, and what they agree on
        self,
        near: MakeLink,
        far: MakeLink,
        site: str,
        topics: Topics,
        *,
        group: str = "workers",
        on_end: Callable[[], object] = lambda: None,
    ) -> None:
        self._topics, self._site, self._group, self._on_end = topics, site, group, on_end
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._own = OwnStates(), OwnStates()
        self._unmet = set[int]()
        self._answers = SimpleQueue[int](), SimpleQueue[int]()
        self._asking = threading.Lock()
        self._awaited: dict[tuple[str, str], str] = {}
        self._taken: dict[str, str] = {}
        self._unanswered: dict[str, Message] = {}
        self._near = near(None, partial(self._on_connection, _NEAR))
        self._far = far(None, partial(self._on_connection, _FAR))
        self.to_near, self.to_far = Carrier(site, self._near), Carrier(site, self._far)
        self._request = partial(self._ask, lambda topic: topics.parse_infer(topic).client, self._refuse)
        self._order = partial(self._ask, lambda topic: topics.control.parse(topic)["client"], None)
        self._workers = FarWorkers(topics, site, near, self._request, self._is_free)
        self._thread = threading.Thread(target=self._run, name="mqinfer-bridge", daemon=True)

    @property
    def failure(self) -> LinkError | None:
        """Why it can't go on, or None."""
        return self._near.failure or self._far.failure

    @property
    def workers(self) -> int:
        """How many far workers the site's clients reach."""
        return len(self._workers.carried)

    def counters(self) -> dict[str, Counter[str]]:
        """Count messages by direction and what became of them."""
        return {"to_near": self.to_near.counters.copy(), "to_far": self.to_far.counters.copy()}

    def __enter__(self) -> Self:
        """Connect both sides, and begin to carry; LinkError where one is not there or refuses it."""
        try:
            self._near.open()
            self._far.open()
            self._subscribe()
            self._meet()
        except LinkError:
            self._near.close(0.0)
            self._far.close(0.0)
            raise
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the far workers from the site, or leave them to another bridge; then disconnect."""
        self._stopping.set()
        self._wake.set()
        self._thread.join()
        self._workers.close()
        self._near.close()
        self._far.close()

    def _subscribe(self) -> None:
        topics, near, far = self._topics, self._near, self._far
        reads: tuple[tuple[Any, _Read, int], ...] = (
            (topics.card, read_card, _FAR),
            (topics.control_state, ServerState.read, _FAR),
            (topics.client_state, ClientState.read, _NEAR),
        )
        hear = partial(self._hear, self.to_far), partial(self._hear, self.to_near)
        for kind, read, travels in reads:
            for side, link in enumerate((near, far)):
                link.subscribe(kind.filter(), partial(hear[side], partial(self._note, side, read, travels == side)))
        near.subscribe(topics.worker_state.filter(), partial(hear[_NEAR], self._on_near_worker))
        far.subscribe(topics.worker_state.filter(), partial(hear[_FAR], self._on_far_worker))
        for each in (topics.cancel, topics.previews, topics.edge_reply):
            near.subscribe(each.filter(), self.to_far.carry, share=self._site)
        for operation in OF_EDGES:
            far.subscribe(topics.control.filter(path=operation), self.to_near.carry, share=self._site)

    # Handlers of messages, on the links' threads

    def _ask(self, client_of: Callable[[str], str], failed: Failed | None, message: Message) -> None:
        """Carry a request or an order, once its client's replies would come."""
        try:
            self._await_replies(client_of(message.topic), message.response_topic or "")
        except MqinferError as error:
            self.to_far.drop(message, error, failed)
        else:
            self.to_far.carry(message, failed)

    def _ask_any(self, message: Message) -> None:
        """Carry a request over a model's channel; of one over a lane its client learns by the worker's will."""
        if len(self._unanswered) >= _MOST_UNANSWERED:
            self._unanswered.clear()
        head = replace(message, payload=bytes(message.payload[:16]), user_properties=())
        self._unanswered[message.response_topic or ""] = head
        self._request(message)

    def _await_replies(self, client: str, where: str) -> None:
        """Subscribe to the replies to a client of the site, which may be many among those of other sites."""
        for kind in (self._topics.result, self._topics.answers):
            if where and not where.startswith(f"{kind.root}/{kind.levels[0]}/"):
                continue
            with self._asking:
                replies = self._awaited.pop((client, kind.what), "")
                if not replies:
                    if len(self._awaited) >= _MOST_CLIENTS:
                        oldest = self._awaited.pop(next(iter(self._awaited)))
                        self._far.unsubscribe(oldest, share=self._site)
                    replies = kind.filter(client=client)
                    self._far.subscribe(replies, self._reply, share=self._site)
                self._awaited[client, kind.what] = replies

    def _refuse(self, message: Message, error: MqinferError) -> None:
        self._unanswered.pop(message.response_topic or "", None)
        if isinstance(error, NotConnected | BrokerUnreachable):
            error = Rejected(str(error))
        reply = refusal(self._topics, message, error)
        if reply is not None:
            self.to_near.send(reply)  # without the mark: the client may be behind another bridge

    def _reply(self, message: Message) -> None:
        self._unanswered.pop(message.topic, None)
        self.to_near.carry(message, self._shorten)

    def _shorten(self, message: Message, error: MqinferError) -> None:
        """Send a client the reason in place of a reply that is too large for the site's broker."""
        results, model, *_ = message.topic[len(self._topics.root) + 1 :].split("/")
        if isinstance(error, MessageTooLarge) and results == self._topics.result.levels[0]:
            self.to_near.send(error_reply(message.topic, model, message, error))

    def _hear(self, carrier: Carrier, learn: MessageHandler, message: Message) -> None:
        """Learn something of a side; the bridge's own thread then acts on it."""
        try:
            learn(message)
        except MqinferError as error:
            carrier.drop(message, error)
        self._wake.set()

    def _note(self, side: int, read: _Read, travels: bool, message: Message) -> None:  # noqa: FBT001 - bound in `_subscribe`
        """Learn of a card or a state of a side, which the other may lack."""
        if not is_marked(message):
            found = read(self._topics, message.topic, message.payload)[1]
            status = getattr(found, "status", None)
            if status != _PASSING:
                self._own[side].note(message, is_there=found is not None and status not in _ENDED, travels=travels)

    def _on_far_worker(self, message: Message) -> None:
        """Learn what the far broker knows of a worker."""
        if is_marked(message):
            return
        name, state = WorkerState.read(self._topics, message.topic, message.payload)
        if state is None or state.status is not WorkerStatus.CRASHED:
            self._workers.learn(name, state)
        elif self._is_free(name):
            self.to_near.carry(replace(message, retain=False))

    def _on_near_worker(self, message: Message) -> None:
        """Learn of a worker of the site, whose name no far one gets, or that another bridge has lost a far one."""
        name, state = WorkerState.read(self._topics, message.topic, message.payload)
        if not is_marked(message):
            is_there = state is not None and state.status in AT_WORK
            self._own[_NEAR].note(message, is_there=is_there, travels=False)
        elif state is None or state.status is not WorkerStatus.LOST:
            return
        self._workers.check(name)

    def _is_free(self, worker: str) -> bool:
        return self._topics.worker_state(worker) not in self._own[_NEAR]

    def _on_connection(self, side: int, connected: bool) -> None:  # noqa: FBT001 - the shape of a ConnectionHandler
        if connected:
            self._unmet.add(side)
            self._own[1 - side].renew()
        else:
            self._answers[side].put(ReasonCode.UNSPECIFIED)  # no other comes
            (self.to_near, self.to_far)[side].reset()
            self._own[side].clear()
            if side == _FAR:
                self._workers.lose()
                for each in list(self._unanswered.values()):
                    self._refuse(each, Rejected("the bridge has lost the broker behind it; try again"))
            if self.failure is not None:
                self._on_end()
        self._wake.set()

    # The bridge's own thread, which may wait for brokers

    def _run(self) -> None:
        renew_at = time.monotonic() + _RENEW_S
        while not self._stopping.is_set():
            if time.monotonic() >= renew_at:
                renew_at += _RENEW_S
                for own in self._own:
                    own.renew()
            try:
                self._settle()
                until = min(renew_at, self._workers.changes_at)
            except MqinferError as error:
                _log.warning("bridge of %s: %s; it tries again", self._site, error)
                until = time.monotonic() + _RETRY_S
            self._wake.wait(max(0.0, until - time.monotonic()))
            self._wake.clear()

    def _settle(self) -> None:
        """Bring both sides up to date, as far as they are connected."""
        self._meet()
        failed = None
        if self._near.connected:
            failed = self._workers.settle(self._near)
            self._take_requests()
        sides = ((self._own[_NEAR], self._own[_FAR], self.to_far), (self._own[_FAR], self._own[_NEAR], self.to_near))
        for own, others, carrier in sides:
            for message in own.take() if carrier.connected else ():
                if message.topic not in others:
                    carrier.carry(replace(message, retain=True, expiry_s=KEPT_S if message.payload else None))
        if failed:
            raise failed

    def _meet(self) -> None:
        """Wait until what a newly connected side keeps has come; LinkError where the login has not the role for it."""
        topics, site = self._topics, self._site
        for side in list(self._unmet):
            link, topic, role = (
                (self._near, topics.worker_state(site), "bridge"),
                (self._far, topics.client_state(site), "site"),
            )[side]
            if link.connected:
                self._unmet.discard(side)
                try:
                    _check_role(link, topic, role, self._answers[side])
                except LinkError:
                    self._unmet.add(side)
                    raise

    def _take_requests(self) -> None:
        """Subscribe to the channels of the models that far workers serve, and to the orders for far servers."""
        wanted = self._wanted()
        for new in wanted.keys() - self._taken.keys():
            handler, share = wanted[new]
            self._near.subscribe(new, handler, share=share)
            self._taken[new] = share
        for old in self._taken.keys() - wanted.keys():
            self._near.unsubscribe(old, share=self._taken.pop(old))

    def _wanted(self) -> dict[str, tuple[MessageHandler, str]]:
        topics, wanted = self._topics, dict[str, tuple[MessageHandler, str]]()
        for model in self._workers.models() if self._far.connected else ():
            for kind in (topics.channel, topics.version_channel):
                wanted[kind.filter(model=model)] = self._ask_any, self._group
        servers = {EVERY_SERVER}
        for topic in self._own[_FAR].topics():
            if topic.startswith(f"{topics.root}/{CONTROL}/") and topic not in self._own[_NEAR]:
                servers.add(topics.control_state.parse(topic)["server"])
        for server in servers:
            wanted[topics.control.filter(server=server, path="+/#")] = self._order, self._site
        return wanted


def _check_role(link: Link, topic: str, role: str, answers: SimpleQueue[int]) -> None:
    """Publish what only one role may, and wait for the broker, which sends first what it keeps.

    A broker that grants every subscription and delivers nothing would lose the requests of a group.

    Raises:
        LinkError: The broker refused it, has not answered within five seconds, or the connection is lost.
    """
    while not answers.empty():  # of earlier connections
        answers.get()
    link.publish(Message(topic, b""), answers.put)
    try:
        code = answers.get(timeout=_ANSWER_S)
    except Empty as error:
        raise NotConnected(f"the broker has not acknowledged a message on {topic!r} within {_ANSWER_S:g} s") from error
    if code == ReasonCode.UNSPECIFIED:
        raise NotConnected(f"the connection was lost before the broker had acknowledged a message on {topic!r}")
    if code > ReasonCode.UNSPECIFIED:
        raise NotAuthorized(
            f"the broker refused {topic!r} with 0x{code:02x}; a bridge's login there needs the role `{role}`"
        )
