"""Far workers as the clients of a site see them: by a connection for each, so that the site's broker has its will."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from mqinfer.broker.bridge.carrier import MARK
from mqinfer.broker.bridge.lost_models import LostModels
from mqinfer.broker.link import ConnectionHandler, Link, Message, MessageHandler
from mqinfer.protocol.decoding import MAX_STATE_BYTES
from mqinfer.protocol.errors import LimitExceeded, LinkError, NotConnected
from mqinfer.protocol.states import AT_WORK, WorkerState, WorkerStatus
from mqinfer.protocol.topics import Topics, check_name

_log = logging.getLogger("mqinfer.broker")
KEPT_S = 60
"""How long a broker keeps what a bridge has brought and does not renew: a card, a state of who is not at work."""
_MOST_WORKERS = 256
"""Far workers that one bridge carries: each takes a connection and a thread."""

MakeLink = Callable[[Message | None, ConnectionHandler], Link]
"""Returns a link, which is not open, with a will."""


class FarWorkers:
    """Has the site's broker know the far workers as the far broker does. Any thread may call `learn` and `check`.

    Args:
        topics: Of both sides.
        site: Name of the site, and of the group in which several bridges share a lane.
        make_link: To the site's broker.
        take: Called with the requests that come over the lanes.
        is_free: Whether no worker of the site has a name.
    """

    def __init__(
        self, topics: Topics, site: str, make_link: MakeLink, take: MessageHandler, is_free: Callable[[str], bool]
    ) -> None:
        self.carried: dict[str, _CarriedWorker] = {}
        self._topics, self._site, self._make_link, self._take, self._is_free = topics, site, make_link, take, is_free
        self._lock = threading.Lock()
        self._lost = LostModels(time.monotonic)
        self._known: dict[str, WorkerState] = {}
        self._changed: set[str] = set()

    def learn(self, name: str, state: WorkerState | None) -> None:
        """Take up what the far broker knows of a worker.

        Raises:
            BadTopic: It serves a model of a name that no topic can have.
            LimitExceeded: There are 256 others, or it is too large with all its fields, as the site gets it.
        """
        for model in state.models if state else ():
            check_name("model", model.name)
        if state and len(state.to_json()) > MAX_STATE_BYTES:
            raise LimitExceeded(f"worker {name}: its state has more than {MAX_STATE_BYTES} bytes with all its fields")
        with self._lock:
            known = self._known.pop(name, None)
            if len(self._known) >= _MOST_WORKERS:
                raise LimitExceeded(f"worker {name}: a bridge carries {_MOST_WORKERS} workers at most")
            if state:
                self._known[name] = self._later(known, state) if known else state
            self._changed.add(name)

    def _later(self, known: WorkerState, state: WorkerState) -> WorkerState:
        """Return which state of a worker counts: of another start a `ready` alone, whichever way clocks were set."""
        if state.status is not WorkerStatus.READY and state.incarnation != known.incarnation:
            return known  # it is the late will of an earlier start
        if state.status is WorkerStatus.LOST:
            self._lost.add(_ready_models(known))
        return state

    def check(self, name: str) -> None:
        """Have a far worker at work stated again: a worker of the site, or another bridge, has stated its name."""
        with self._lock:
            if name in self._known and self._known[name].status in AT_WORK:  # `lost` would be answered without end
                self._changed.add(name)

    def lose(self) -> None:
        """Forget what the far broker knows: the connection to it is lost, and the next one brings it again."""
        with self._lock:
            for state in self._known.values():
                self._lost.add(_ready_models(state))
            self._changed.update(self._known)
            self._known.clear()

    def settle(self, near: Link) -> LinkError | None:
        """Bring the site up to date; return why one is not there: the broker does not answer, or has no more room."""
        failed: LinkError | None = None
        with self._lock:
            changed = list(self._changed)
        for name in changed:
            with self._lock:
                self._changed.discard(name)
                state = self._known.get(name)
            try:
                self._bring(near, name, state)
            except LinkError as error:  # that others are lost has to be said all the same
                failed = error
                with self._lock:
                    self._changed.add(name)
        return failed

    def models(self) -> set[str]:
        """Return the names of the models that ready ones serve, or served until they were lost a short while ago."""
        served = {model for each in self.carried.values() for model in _ready_models(each.state)}
        with self._lock:
            return served | self._lost.names()

    @property
    def changes_at(self) -> float:
        """When `models` returns less, unless something happens before; infinite for never."""
        with self._lock:
            return self._lost.ends_at

    def close(self) -> None:
        """Take them from the site, or leave them to another bridge."""
        for worker in self.carried.values():
            worker.close(says_lost=True)

    def _bring(self, near: Link, name: str, state: WorkerState | None) -> None:
        is_free, carried = self._is_free(name), self.carried.get(name)
        there = state if state and state.status in AT_WORK and is_free else None
        if carried and (there is None or there.incarnation != carried.state.incarnation):
            self.carried.pop(name).close(says_lost=is_free)
        if there:
            self._carry(name, there)
        elif state and is_free:
            near.publish(_message(self._topics, self._site, state))

    def _carry(self, name: str, state: WorkerState) -> None:
        carried = self.carried.get(name)
        if carried:
            carried.follow(state)
            return
        carried = _CarriedWorker(self._topics, self._site, state, self._make_link)
        carried.open(self._topics.lane.filter(worker=name), self._take)
        self.carried[name] = carried


class _CarriedWorker:
    """One start of a far worker: its state, its will and its lane at the site."""

    def __init__(self, topics: Topics, site: str, state: WorkerState, make_link: MakeLink) -> None:
        self.state = state
        self._topics, self._site, self._takes = topics, site, False
        lost = WorkerState(state.worker, WorkerStatus.LOST, state.incarnation)
        self._lost = _message(topics, site, lost)
        self._link = make_link(self._lost, self._on_connection)

    def open(self, lane: str, take: MessageHandler) -> None:
        """Connect, take what comes over the lane, and then state that the worker is there.

        Raises:
            LinkError: The site's broker does not answer, or refuses it.
        """
        self._link.open(5.0)
        try:
            self._link.subscribe(lane, take, share=self._site)
        except LinkError:
            self._link.close(0.0)
            raise
        self._takes = True
        self.follow(self.state)

    def follow(self, state: WorkerState) -> None:
        """Publish a newer state of the same start, now or with the next connection."""
        self.state = state
        self._publish(_message(self._topics, self._site, state))

    def close(self, *, says_lost: bool) -> None:
        """Leave the lane, after `lost` unless its name is another's."""
        if says_lost:
            self._publish(self._lost)
        self._link.close(2.0)

    def _publish(self, message: Message) -> None:
        try:
            self._link.publish(message)
        except NotConnected:  # the broker has published the will
            _log.debug("worker %s: its state waits for the connection", self.state.worker)

    def _on_connection(self, connected: bool) -> None:  # noqa: FBT001 - the shape of a ConnectionHandler
        if connected and self._takes:
            self.follow(self.state)


def _ready_models(state: WorkerState) -> set[str]:
    return {model.name for model in state.models} if state.status is WorkerStatus.READY else set()


def _message(topics: Topics, site: str, state: WorkerState) -> Message:
    """Return the message with a carried state; that of a worker which is not at work expires."""
    return Message(
        topics.worker_state(state.worker),
        state.to_json(),
        retain=True,
        expiry_s=None if state.status in AT_WORK else KEPT_S,
        user_properties=((MARK, site),),
    )
