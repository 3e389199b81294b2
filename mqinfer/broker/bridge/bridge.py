"""The bridge: what is carried which way, and which far workers a site's clients reach."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from functools import partial
from typing import Self

from msgspec.structs import replace

from mqinfer.broker.bridge.carried_worker import CarriedWorker, MakeLink, state_message
from mqinfer.broker.bridge.carrier import Carrier, error_reply, is_marked, refusal
from mqinfer.broker.link import Link, Message
from mqinfer.protocol.errors import LinkError, MessageTooLarge, MqinferError
from mqinfer.protocol.states import AT_WORK, WorkerState, WorkerStatus, read_any_state, read_worker_state
from mqinfer.protocol.topics import CONTROL, EVERY_SERVER, Topics

_log = logging.getLogger("mqinfer.broker")
_MOST_WORKERS = 256
"""Far workers that one bridge carries: each takes a connection and a thread."""
_MOST_KEPT = 10_000
"""Cards and states of one direction that a bridge renews."""
KEPT_S = 60
"""Expiry of a card or state on the other side, where it is gone that long after its last bridge."""
_RENEW_S = 20.0
_RETRY_S = 1.0
_PASSING = frozenset({"claiming", "crashed"})
"""States that nobody keeps."""


class Bridge:
    """Carries messages between the near broker, of the clients, and the far one, of the workers; a context manager.

    Several bridges of a site share the work. Attributes:
        ended: Set when a link has given up for good, with `failure`.

    Args:
        near: Makes a link to the site's broker.
        far: Makes a link to the workers' broker.
        site: Unique among the sites of the far broker; the bridges of a site have the same.
        topics: The topics, on both sides.
        group: Of the workers at the near broker, with which the bridges share the models' channels.
    """

    def __init__(self, near: MakeLink, far: MakeLink, site: str, topics: Topics, group: str = "workers") -> None:
        self.ended = threading.Event()
        self._topics, self._site, self._group, self._make_near = topics, site, group, near
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._truth: dict[str, WorkerState | None] = {}
        self._dirty: set[str] = set()
        self._carried: dict[str, CarriedWorker] = {}
        self._taken: set[str] = set()
        self._kept: tuple[dict[str, Message], dict[str, Message]] = ({}, {})  # to the near side, to the far side
        self._renew_at = 0.0
        self._near = near(None, self._on_near)
        self._far = far(None, self._on_far)
        self.to_near, self.to_far = Carrier(site, self._near), Carrier(site, self._far)
        self._thread = threading.Thread(target=self._run, name="mqinfer-bridge", daemon=True)

    @property
    def failure(self) -> LinkError | None:
        """Why it can't go on, or None."""
        return self._near.failure or self._far.failure

    def counters(self) -> Counter[str]:
        """Count messages by direction and what became of them."""
        both = (("to_near", self.to_near), ("to_far", self.to_far))
        return Counter({f"{way}_{what}": n for way, each in both for what, n in list(each.counters.items())})

    def __enter__(self) -> Self:
        """Connect both sides, and begin to carry; LinkError where one is not there or refuses it."""
        try:
            for link in (self._near, self._far):
                link.open()
            self._subscribe()
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
        for worker in self._carried.values():
            worker.close()
        self._near.close()
        self._far.close()

    def _subscribe(self) -> None:
        topics, near, far = self._topics, self._near, self._far
        plain = partial(self.to_far.carry, failed=None)
        for each in (topics.cancel, topics.previews, topics.edge_reply):
            near.subscribe(each.filter(), plain, share=self._site)
        near.subscribe(topics.control.filter(server=EVERY_SERVER), self._order, share=self._site)
        near.subscribe(topics.client_state.filter(), partial(self._keep, self.to_far))
        near.subscribe(topics.worker_state.filter(), self._on_near_worker)
        far.subscribe(topics.result.filter(), self._reply, share=self._site)
        far.subscribe(f"{topics.root}/{CONTROL}/+/+/cascade", self.to_near.carry, share=self._site)
        for kept in (topics.card, topics.control_state):
            far.subscribe(kept.filter(), partial(self._keep, self.to_near))
        far.subscribe(topics.worker_state.filter(), self._on_worker)

    # Handlers of messages, on the links' threads

    def _request(self, message: Message) -> None:
        self.to_far.carry(message, self._refuse)

    def _refuse(self, message: Message, error: MqinferError) -> None:
        reply = refusal(self._topics, message, error)
        if reply is not None:
            self.to_near.carry(reply)

    def _order(self, message: Message) -> None:
        if not is_marked(message):
            self.to_far.carry(message)

    def _reply(self, message: Message) -> None:
        self.to_near.carry(message, self._shorten)

    def _shorten(self, message: Message, error: MqinferError) -> None:
        """Tell a client that its reply is too large for the site's broker."""
        if isinstance(error, MessageTooLarge):
            model = message.topic[len(self._topics.root) + 1 :].split("/")[1]
            self.to_near.carry(error_reply(message.topic, model, message, error))

    def _keep(self, carrier: Carrier, message: Message) -> None:
        """Carry a card or a state, and renew it from now on; an empty one removes it."""
        if is_marked(message):
            return
        kept = self._kept[carrier is self.to_far]
        try:
            passes = message.topic.endswith("/state") and (
                len(message.payload) and read_any_state(message.payload).status in _PASSING
            )
        except MqinferError as error:
            carrier.counters[f"dropped_{error.code}"] += 1
            return
        if passes:
            carrier.carry(replace(message, retain=False))
            return
        with self._lock:
            if not len(message.payload):
                kept.pop(message.topic, None)
            elif len(kept) < _MOST_KEPT or message.topic in kept:
                message = kept[message.topic] = replace(message, retain=True, expiry_s=KEPT_S)
            else:
                carrier.counters["dropped_limit_exceeded"] += 1
                return
        carrier.carry(replace(message, retain=True))
        self._wake.set()

    def _on_worker(self, message: Message) -> None:
        """Learn what the far broker knows of a worker; the bridge's own thread brings it to the site."""
        try:
            name, state = read_worker_state(self._topics, message.topic, message.payload)
        except MqinferError as error:
            self.to_near.counters[f"dropped_{error.code}"] += 1
            return
        if is_marked(message):
            return
        if state is not None and state.status is WorkerStatus.CRASHED:
            self.to_near.carry(message)
            return
        with self._lock:
            if name not in self._truth and len(self._truth) >= _MOST_WORKERS:
                self.to_near.counters["dropped_workers"] += 1
                return
            known = self._truth.get(name)
            if state and known and state.incarnation < known.incarnation:
                return  # the late will of an earlier start
            self._truth[name] = state
            self._dirty.add(name)
        self._wake.set()

    def _on_near_worker(self, message: Message) -> None:
        """State again that a worker is there where another bridge that carried it was lost, or left."""
        if not is_marked(message) or not len(message.payload):
            return
        try:
            name, state = read_worker_state(self._topics, message.topic, message.payload)
        except MqinferError:
            return
        with self._lock:
            truth = self._truth.get(name)
            if state and truth and state.status is WorkerStatus.LOST and truth.status in AT_WORK:
                self._dirty.add(name)
        self._wake.set()

    def _on_near(self, connected: bool) -> None:  # noqa: FBT001 - the shape of a ConnectionHandler
        self._on_connection(self._near, connected, carrier=0)

    def _on_far(self, connected: bool) -> None:  # noqa: FBT001 - likewise
        if not connected:
            with self._lock:
                self._truth.clear()  # what is kept comes again with the connection
                self._dirty.update(self._carried)
        self._on_connection(self._far, connected, carrier=1)

    def _on_connection(self, link: Link, connected: bool, carrier: int) -> None:  # noqa: FBT001 - likewise
        if not connected:
            (self.to_near, self.to_far)[carrier].reset()
            with self._lock:
                self._kept[1 - carrier].clear()
            if link.failure is not None:
                self.ended.set()
        self._renew_at = 0.0
        self._wake.set()

    # The bridge's own thread, which may wait for brokers

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(_RETRY_S if self._dirty else _RENEW_S)
            self._wake.clear()
            try:
                self._settle()
            except LinkError as error:
                _log.warning("bridge of %s: %s; it tries again", self._site, error)

    def _settle(self) -> None:
        with self._lock:
            dirty = {name: self._truth.get(name) for name in self._dirty}
            known = set(self._truth)
        for name, state in dirty.items():
            with self._lock:
                self._dirty.discard(name)
            try:
                self._bring(name, state, is_known=name in known)
            except LinkError:
                with self._lock:
                    self._dirty.add(name)
                raise
        self._take_requests()
        if time.monotonic() >= self._renew_at:
            self._renew_at = time.monotonic() + _RENEW_S
            for carrier, kept in zip((self.to_near, self.to_far), self._kept, strict=True):
                with self._lock:
                    messages = list(kept.values())
                for message in messages:
                    carrier.carry(message)

    def _bring(self, name: str, state: WorkerState | None, *, is_known: bool) -> None:
        """Have the site's clients see a worker as the far broker does; one that it does not know any more is lost."""
        carried = self._carried.get(name)
        is_there = state is not None and state.status in AT_WORK
        if carried and (not is_there or (state and state.incarnation != carried.state.incarnation)):
            del self._carried[name]
            carried.close(None if is_there else state, removed=is_known and state is None)
            carried = None
        if state is None or not is_there:
            if state is not None:
                self._near.publish(state_message(self._topics, self._site, state))
            return
        if carried:
            carried.publish(state)
            return
        new = CarriedWorker(self._topics, self._site, state, self._make_near)
        new.open(self._request)
        self._carried[name] = new

    def _take_requests(self) -> None:
        """Subscribe to the channels of the models that far workers serve, and to the orders for far servers."""
        topics, wanted = self._topics, set[str]()
        for each in self._carried.values():
            if each.state.status is WorkerStatus.READY:
                for model in each.state.models:
                    wanted |= {topics.channel.filter(model=model.name), topics.version_channel.filter(model=model.name)}
        with self._lock:
            servers = [topic.split("/")[-2] for topic in self._kept[0] if topic.endswith("/state")]
        orders = {topics.control.filter(server=each) for each in servers}
        for new in sorted((wanted | orders) - self._taken):
            handler, share = (self._order, self._site) if new in orders else (self._request, self._group)
            self._near.subscribe(new, handler, share=share)
            self._taken.add(new)
        for old in sorted(self._taken - wanted - orders):
            is_order = old.startswith(f"{topics.root}/{CONTROL}/")
            self._near.unsubscribe(old, share=self._site if is_order else self._group)
            self._taken.discard(old)
