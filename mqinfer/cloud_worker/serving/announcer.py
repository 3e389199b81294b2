"""What a worker publishes about itself: its state and its model's card, both retained; and whether it may serve."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from mqinfer.broker.link import Ack, Link, Message
from mqinfer.broker.presence import Presence, reads_back
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.protocol.card import ModelCard, card_to_json
from mqinfer.protocol.errors import NotAuthorized, NotConnected
from mqinfer.protocol.states import ServedModel, WorkerState, WorkerStatus
from mqinfer.protocol.types import WorkerLoad

log = logging.getLogger("mqinfer.cloud_worker")
_REFRESH_S = 2.0
"""Least time between two states that differ in their figures alone: every client receives each of them."""


class WorkerAnnouncer:
    """State and card of one worker.

    Attributes:
        presence: The worker's name on the broker.

    Args:
        card: Of the model that it serves.
        options: Its name and topics.
        load: Returns how busy it is.
        counters: Returns what it has counted.
        on_ack: Called with the reason code of each state that was published.
        accepted: Returns how many requests it has accepted of late, by client.
        is_default: Whether requests without a version are for it.
        share: As a canary: per cent of the requests without a version that are for it.
        incarnation: The number of its process's start; None for a new one.
        clock: In seconds.
    """

    def __init__(  # noqa: PLR0913 - what a state is made of
        self,
        card: ModelCard,
        options: WorkerOptions,
        load: Callable[[], WorkerLoad],
        counters: Callable[[], dict[str, int]],
        on_ack: Ack,
        *,
        accepted: Callable[[], dict[str, int]],
        is_default: bool,
        share: int = 0,
        incarnation: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._card, self._share = card, share
        self._options = options
        self._load = load
        self._counters, self._accepted = counters, accepted
        self._is_default = is_default
        self._link: Link | None = None
        self._publishes_card = False
        self._clock = clock
        self._refresh_at = 0.0
        self._published: tuple[WorkerLoad, dict[str, int]] | None = None
        self.presence = Presence(
            options.name,
            options.topics.worker_state(options.name),
            self._encode,
            incarnation=incarnation,
            on_ack=on_ack,
        )

    def attach(self, link: Link) -> None:
        """Publish over this link, and watch for another process of the same name.

        Raises:
            NotAuthorized: The worker may join the workers' group and may not read requests.
        """
        self._link = link
        self.presence.attach(link)
        self.presence.watch()
        self._check_access(link)

    def publish(self, status: WorkerStatus) -> None:
        """Publish the state, and the card with it where the worker is ready; again with each connection."""
        self._publishes_card = self._is_default and status is WorkerStatus.READY
        self._publish_card()
        self.presence.publish(status)

    def assign(self, card: ModelCard, share: int) -> None:
        """Publish a card with other labels and a state with another share; return when the broker passes them on."""
        self._card, self._share = card, share
        self._publish_card()
        self.presence.publish_and_wait()

    def repeat(self) -> None:
        """Publish card and state again."""
        self._publish_card()
        self.presence.publish()

    def refresh(self) -> None:
        """Publish the state again where its figures have changed, at most once every `_REFRESH_S`."""
        now = self._clock()
        if now >= self._refresh_at and self._figures() != self._published:
            self._refresh_at = now + _REFRESH_S
            self.presence.publish(qos=0)

    def withdraw(self) -> None:
        """Publish nothing more."""
        self._publishes_card = False
        self.presence.withdraw()

    def check_taken(self) -> None:
        """Wait for the broker to accept the worker's state: clients send nothing to a worker without one.

        Raises:
            NotAuthorized: The broker refuses it.
        """
        if self.presence.is_refused():
            raise NotAuthorized(
                f"the broker's access rules don't let worker {self._options.name} publish its state; is its name that "
                "of its certificate or login (--name), and how many processes do the rules allow for "
                "(docs/reference/security.md)?"
            )

    def _check_access(self, link: Link) -> None:
        """Check that the broker delivers requests, before the worker takes its turn in the group."""
        name, card = self._options.name, self._card
        try:
            for version in (None, card.version) if self._is_default else (card.version,):
                topic = self._options.topics.infer(card.name, name, version)
                if not reads_back(link, topic):
                    raise NotAuthorized(
                        f"the broker's access rules don't let worker {name} read requests: nothing came from {topic}; "
                        "give its user the rules of a worker (mqinfer broker add, docs/reference/security.md)"
                    )
        except NotConnected:
            log.info("the connection was lost before worker %s knew whether it may read requests", name)

    def _publish_card(self) -> None:
        if not self._publishes_card or self._link is None or self.presence.failure:
            return
        try:
            self._link.publish(
                Message(self._options.topics.card(self._card.name), card_to_json(self._card), retain=True)
            )
        except NotConnected:
            log.debug("not connected; the card is published with the next connection")

    def _encode(self, status: str, incarnation: int) -> bytes:
        load, counters = self._published = self._figures()
        card, known = self._card, self._card.parameters
        served = ServedModel(
            card.name, card.version, self._is_default, self._share, known.precision, known.backend, known.device
        )
        return WorkerState(
            worker=self._options.name,
            status=WorkerStatus(status),
            incarnation=incarnation,
            models=(served,),
            capacity=self._options.capacity,
            depth=load.depth,
            service_time_us=load.service_time_us,
            counters=counters,
            clients=self._accepted(),
        ).to_json()

    def _figures(self) -> tuple[WorkerLoad, dict[str, int]]:
        return self._load(), self._counters()
