"""A far worker as the clients of a site see it: by a connection of its own, so the site's broker has a will for it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec.structs import replace

from mqinfer.broker.bridge.carrier import MARK
from mqinfer.broker.link import ConnectionHandler, Link, Message, MessageHandler
from mqinfer.protocol.errors import LinkError, NotConnected
from mqinfer.protocol.states import WorkerState, WorkerStatus
from mqinfer.protocol.topics import Topics

_log = logging.getLogger("mqinfer.broker")
GONE_S = 60
"""How long a site's broker keeps `lost` for a worker that a bridge lost, not the worker's own broker."""

MakeLink = Callable[[Message | None, ConnectionHandler], Link]
"""Returns a link, which is not open, with a will."""


def state_message(topics: Topics, site: str, state: WorkerState, expiry_s: int | None = None) -> Message:
    """Return the message with a carried state."""
    return Message(
        topics.worker_state(state.worker),
        state.to_json(),
        retain=state.status is not WorkerStatus.CRASHED,
        expiry_s=expiry_s,
        user_properties=((MARK, site),),
    )


class CarriedWorker:
    """One start of a far worker: its state, its will and its lane at the site. Used by one thread, but for its link's.

    Args:
        topics: Of the site.
        site: Its name, and that of the group in which several bridges share the lane.
        state: Of the worker.
        make_link: To the site's broker.
    """

    def __init__(self, topics: Topics, site: str, state: WorkerState, make_link: MakeLink) -> None:
        self.state = state
        self._topics, self._site = topics, site
        lost = WorkerState(state.worker, WorkerStatus.LOST, state.incarnation)
        self._lost = state_message(topics, site, lost, GONE_S)
        self._link = make_link(self._lost, self._on_connection)

    def open(self, take: MessageHandler) -> None:
        """Connect, take what comes over the lane, and then state that the worker is there.

        Raises:
            LinkError: The site's broker does not answer, or refuses it.
        """
        self._link.open(5.0)
        try:
            self._link.subscribe(self._topics.lane.filter(worker=self.state.worker), take, share=self._site)
        except LinkError:
            self._link.close(0.0)
            raise
        self.publish(self.state)

    def publish(self, state: WorkerState) -> None:
        """Publish a newer state of the same start, now or with the next connection."""
        self.state = state
        try:
            self._link.publish(state_message(self._topics, self._site, state))
        except NotConnected:
            _log.debug("worker %s: its state waits for the connection", state.worker)

    def close(self, last: WorkerState | None = None, *, removed: bool = False) -> None:
        """Leave the lane after the last state, `lost` where the bridge lost the worker; or remove the state."""
        message = self._lost if last is None else state_message(self._topics, self._site, last)
        if removed:
            message = replace(message, payload=b"", expiry_s=None)
        try:
            self._link.publish(message)
        except NotConnected:
            _log.debug("worker %s: the site's broker publishes its will", self.state.worker)
        self._link.close(2.0)

    def _on_connection(self, connected: bool) -> None:  # noqa: FBT001 - the shape of a ConnectionHandler
        if connected:
            self.publish(self.state)
