"""What a worker says of itself: its retained state and card, and whether the broker lets it say that and be heard."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from mqinfer.broker.link import Ack, Link, Message, ReasonCode, ignore_ack
from mqinfer.broker.may_read import unreadable
from mqinfer.broker.presence import NameGuard, boot_number, connection_id
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.protocol.card import ModelCard, card_to_json
from mqinfer.protocol.errors import NameTaken, NotAuthorized, NotConnected
from mqinfer.protocol.states import ServedModel, WorkerState, WorkerStatus
from mqinfer.protocol.types import WorkerLoad

__all__ = ["Announcer"]

log = logging.getLogger("mqinfer.cloud_worker")
_PATIENCE_S = 2.0
"""How long the broker may take to say that it has the first state; without its word all goes on."""


class Announcer:
    """The voice of one worker.

    Args:
        card: Of the model that it serves.
        options: Its name and topics.
        load: Says how busy it is.
        counters: Says what it has counted.
        on_ack: Gets the reason code of each state that was published.
        is_default: Whether requests without a version are for it.
    """

    def __init__(  # noqa: PLR0913 - what a state is made of
        self,
        card: ModelCard,
        options: WorkerOptions,
        load: Callable[[], WorkerLoad],
        counters: Callable[[], dict[str, int]],
        on_ack: Ack,
        *,
        is_default: bool,
    ) -> None:
        self._card = card
        self._options = options
        self._load = load
        self._counters = counters
        self._on_ack = on_ack
        self._is_default = is_default
        self._boot = boot_number()
        self._guard = NameGuard(options.name, self._boot, self.repeat)
        self._status: WorkerStatus | None = None  # nothing is said before requests can come in
        self._heard = threading.Event()
        self._is_refused = False
        self._link: Link | None = None

    @property
    def client_id(self) -> str:
        """MQTT client id of the worker's connection."""
        return connection_id(self._options.name, self._boot)

    @property
    def will(self) -> Message:
        """What the broker is to say when the worker is lost."""
        return self._state(WorkerStatus.LOST)

    @property
    def failure(self) -> NameTaken | None:
        """Set when another process has the worker's name: then nothing more is said."""
        return self._guard.failure

    def watch(self, link: Link) -> None:
        """Speak over this link, and listen for others of the same name."""
        self._link = link
        self._guard.watch(link, self._options.topics.worker_state(self._options.name))

    def say(self, status: WorkerStatus) -> None:
        """Publish the state, and again with each connection."""
        self._status = status
        self.repeat()

    def be_silent(self) -> None:
        """Say nothing more."""
        self._status = None

    def repeat(self) -> None:
        """Publish card and state, retained, so that whoever comes later knows."""
        link, card, status = self._link, self._card, self._status
        if link is None or status is None or self.failure:
            return
        try:
            if self._is_default and status is WorkerStatus.READY:
                link.publish(Message(self._options.topics.card(card.name), card_to_json(card), retain=True), ignore_ack)
            link.publish(self._state(status), self._on_heard)
        except NotConnected:
            log.info("not connected; the state is published with the next connection")

    def await_word(self) -> None:
        """Make sure that the broker takes the worker's state: nobody sends to a worker that says nothing of itself.

        Raises:
            NotAuthorized: It does not.
        """
        name = self._options.name
        if self._heard.wait(_PATIENCE_S) and self._is_refused:
            raise NotAuthorized(
                f"the broker's access rules don't let worker {name} publish its state; is its name that of its "
                "certificate or login (--name), and how many processes do the rules allow for (docs/security.md)?"
            )

    def check_access(self) -> None:
        """Make sure that requests will come, before any is meant for this worker.

        Raises:
            NotAuthorized: They would not.
        """
        topics, name, model, version = self._options.topics, self._options.name, self._card.name, self._card.version
        asked = [topics.infer(model, name, version), topics.lane(name, model, name)]
        if self._is_default:
            asked.append(topics.infer(model, name))
        try:
            closed = unreadable(self._link, asked) if self._link else []
        except NotConnected:
            log.info("the connection was lost before worker %s knew whether it may read requests", name)
            return
        if closed:
            raise NotAuthorized(
                f"the broker's access rules don't let worker {name} read requests: nothing came from "
                f"{', '.join(closed)}; give its user the rules of a worker (mqinfer broker add, docs/security.md)"
            )

    def _on_heard(self, code: int) -> None:
        self._is_refused = code == ReasonCode.NOT_AUTHORIZED
        self._heard.set()
        self._on_ack(code)

    def _state(self, status: WorkerStatus) -> Message:
        load, name = self._load(), self._options.name
        state = WorkerState(
            worker=name,
            status=status,
            incarnation=self._boot,
            models=(ServedModel(self._card.name, self._card.version, self._is_default),),
            capacity=self._options.capacity,
            depth=load.depth,
            service_time_us=load.service_time_us,
            counters=self._counters(),
        )
        return Message(self._options.topics.worker_state(name), state.to_json(), retain=True)
