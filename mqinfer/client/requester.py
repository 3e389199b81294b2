"""What every client stands on: requests go out through a window, and each comes back as exactly one outcome.

The caller's thread encodes and publishes; the link's thread takes replies, decodes them (on a small pool where a codec
has work to do) and settles; one timer thread sees to deadlines and retries. No lock is held while a link or a caller's
code runs.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from mqinfer.broker.link import ConnectionHandler, Link, Message, ReasonCode
from mqinfer.broker.packets import payload_size
from mqinfer.client.counters import Counters
from mqinfer.client.dispatcher import Dispatcher
from mqinfer.client.lane import doubled
from mqinfer.client.options import NAME_HINT, RequesterConfig
from mqinfer.client.outcome import answered, decode_outputs, expiry, failed, poison
from mqinfer.client.outgoing import cancellation, sending, stamped
from mqinfer.client.pending import Entry, Settle
from mqinfer.client.result import InferResult
from mqinfer.client.timer import Timer
from mqinfer.protocol.checksum import verify
from mqinfer.protocol.envelope import decode_response
from mqinfer.protocol.errors import (
    Cancelled,
    ConfigError,
    Corrupted,
    Expired,
    LinkError,
    MqinferError,
    NotAuthorized,
    NotConnected,
    NoWorker,
    Rejected,
    Superseded,
)
from mqinfer.protocol.header import RETRY_AFTER
from mqinfer.protocol.states import WorkerState
from mqinfer.protocol.types import ErrorInfo, InferRequest, InferResponse, Outcome

__all__ = ["Requester"]

log = logging.getLogger("mqinfer.client")
_LONGEST_S = 1e6
_LONGEST_PAUSE_S = 1.0
"""A request that was turned away is sent again after this at the latest."""


class Requester:
    """Owns requests until their outcome. Thread-safe."""

    def __init__(
        self,
        make_link: Callable[[ConnectionHandler], Link],
        config: RequesterConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self._clock = clock
        self._dispatcher = Dispatcher(config.window)
        self._table = self._dispatcher.table
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._outcomes: Counter[Outcome] = Counter()
        self._submitted = 0
        self._malformed = 0
        self._closed = False
        self._failure: LinkError | None = None
        self._was_lost = False
        self._settled_by = 0.0
        self._watchers: list[Callable[[], None]] = []
        # Boot nonce and counter: an id is never used twice, not even by a restarted twin of the same name.
        self._nonce = os.urandom(8).hex()
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="mqinfer-client-decode")
        self._timer = Timer(self._lock, self._dispatcher.next_wake, self._see_to_what_is_due, clock)
        self.link = make_link(self._on_connection)

    def open(self, timeout: float = 10.0) -> None:
        """Connect and subscribe to the replies.

        Raises:
            BrokerUnreachable: Nobody answered in time.
            NotAuthorized: The broker refused the credentials or the subscription.
        """
        self.link.open(timeout)
        self.link.subscribe(self.config.topics.results_of_client(self.config.name), self._on_reply)
        try:
            if self.config.lanes:
                self.link.subscribe(self.config.topics.worker_states(), self._on_state)
        except NotAuthorized as error:
            log.info("%s; requests go over the models' channels, not to workers that this client chooses", error)
        self._timer.start()

    def submit(self, request: InferRequest, timeout: float, settle: Settle) -> str:
        """Take in a request; waits only where `max_pending` requests are unanswered.

        Args:
            request: Without `id` and `response_topic`, which are given here.
            timeout: In seconds; the outcome comes no later.
            settle: Gets the one outcome; called on another thread, it only hands over.

        Returns:
            The request's id.

        Raises:
            BadTopic: The model's name breaks the naming rules.
            Cancelled: The client is closed.
            ConfigError: The timeout is no number of seconds.
            LinkError: There will be no connection any more, see `failure`.
            Expired: There was no room within the timeout.
        """
        if not timeout <= _LONGEST_S:  # also catches NaN
            raise ConfigError(f"a timeout of {timeout} s is not possible; at most {_LONGEST_S:.0f} s are")
        now = self._clock()
        with self._lock:
            self._wait_for_room(timeout)
            entry = self._make_entry(request, now, timeout, settle)
            self._submitted += 1
            self._table.add(entry)
            self._timer.look()
        self._pump()
        return entry.request.id

    def watch(self, callback: Callable[[], None]) -> None:
        """Have something called after each connection, each loss of it and a failure, on the link's thread."""
        self._watchers.append(callback)

    def cancel(self, request_id: str, why: Cancelled | Superseded | None = None) -> bool:
        """Take a request back: it ends as `cancelled` or `superseded`, and a worker that has it skips it.

        Args:
            request_id: From `submit`.
            why: What the caller is told, and which of the two it is.

        Returns:
            False if it has its outcome already.
        """
        with self._lock:
            entry = self._table.settle(request_id)
            self._table.late -= entry is None
        if entry is None:
            return False
        reason = why or Cancelled("cancelled by the caller")
        self._fail(entry, reason)
        if entry.attempts:
            with suppress(LinkError):  # without a connection no worker answers it either
                self.link.publish(cancellation(entry.request, reason, self.config))
        self._pump()
        return True

    @property
    def failure(self) -> LinkError | None:
        """Why nothing will be sent any more, before it was closed; None while all is well."""
        return self._failure

    @property
    def connected(self) -> bool:
        """Whether a request would be sent now."""
        return self.link.connected and self._failure is None

    def give_up(self, why: LinkError) -> None:
        """End all requests as `cancelled`, and take no more: there will be no connection again."""
        with self._lock:
            self._failure = why
            left = self._table.drain()
            self._room.notify_all()
        for entry in left:
            self._fail(entry, Cancelled(f"the connection has ended for good: {why}"))
        self._tell_watchers()

    def counters(self) -> Counters:
        """Say what became of everything, at one instant."""
        with self._lock:
            outcomes = {outcome: self._outcomes[outcome] for outcome in Outcome}
            pending = self._submitted - sum(outcomes.values())
            return Counters(self._submitted, pending, outcomes, self._table.retries, self._table.late, self._malformed)

    def close(self, timeout: float = 5.0) -> None:
        """Cancel what is unanswered, then disconnect and join the threads."""
        with self._lock:
            self._closed = True
            left = self._table.drain()
            self._timer.stop()
            self._room.notify_all()
        for entry in left:
            self._fail(entry, Cancelled("the client was closed before there was a reply"))
        self.link.close(timeout)
        self._timer.join()
        self._pool.shutdown()

    def _wait_for_room(self, timeout: float) -> None:
        limit = self.config.max_pending
        if not self._room.wait_for(
            lambda: len(self._table) < limit or self._closed or self._failure, max(0.0, timeout)
        ):
            raise Expired(f"{limit} requests are unanswered, and none of them ended within {timeout:.3g} s")
        if self._failure:
            raise self._failure
        if self._closed:
            raise Cancelled("the client is closed; make a new one")

    def _make_entry(self, request: InferRequest, now: float, timeout: float, settle: Settle) -> Entry:
        own = stamped(request, f"{self._nonce}{self._submitted + 1:016x}", timeout, self.config)
        return Entry(own, settle, submitted=now, deadline=now + timeout, sent=now)

    def _pump(self) -> None:
        """Send what waits, as far as the window goes."""
        while self.link.connected:
            with self._lock:
                now = self._clock()
                entry = self._dispatcher.next(now)
                self._timer.look()
            if entry is None:
                return
            self._send(entry)

    def _send(self, entry: Entry) -> None:
        request_id = entry.request.id
        try:
            message = sending(entry, self.config)
            entry.bytes_sent += payload_size(message)
            self.link.publish(message, partial(self._on_ack, request_id, entry.attempts))
        except NotConnected:
            self._rest(request_id, self._clock() + self.config.backoff)
        except MqinferError as error:  # too large, a name outside the rules: it will not get better
            self._give_up(request_id, error)

    def _on_ack(self, request_id: str, attempt: int, code: int) -> None:
        if code == ReasonCode.SUCCESS:  # no promise of anything: only a reply is one
            return
        with self._lock:
            entry = self._table.in_flight_entry(request_id)
            if entry is None or entry.attempts != attempt:
                return  # it was sent again since
            over_lane = entry.lane is not None
            if over_lane and code == ReasonCode.NO_MATCHING_SUBSCRIBERS:
                self._dispatcher.unheard(request_id)
        if over_lane and code == ReasonCode.NO_MATCHING_SUBSCRIBERS:
            self._pump()
        elif code == ReasonCode.NOT_AUTHORIZED:
            why = f"the broker does not let client {self.config.name!r} ask for this model; {NAME_HINT}"
            self._give_up(request_id, NotAuthorized(why))
        elif code == ReasonCode.NO_MATCHING_SUBSCRIBERS:
            self._unserved(request_id)
        else:
            self._refused(request_id, Rejected(f"the broker turned it away with reason code 0x{code:02x}"))

    def _unserved(self, request_id: str) -> None:
        """Let all who ask for the model wait while there is patience, else settle with `NoWorker`."""
        now = self._clock()
        with self._lock:
            entry = self._table.in_flight_entry(request_id)
            if entry is None:
                return
            since = self._dispatcher.fleet.unserved(entry.channel, now, self.config.backoff)
            patient_until = max(max(since, entry.submitted) + self.config.patience, self._settled_by)
            patient = now < patient_until
            self._dispatcher.fleet.reopen(entry.channel, patient_until)
            if patient:
                entry.refused_since = since
                self._table.requeue(request_id)
                self._timer.look()
        if patient:
            self._pump()
        else:
            why = "no worker serves it; start one, or check the model's name and version"
            self._give_up(request_id, NoWorker(why))

    def _refused(self, request_id: str, why: MqinferError, pause: float = 0.0) -> None:
        """Try again later while there is patience, else settle with the reason."""
        now = self._clock()
        with self._lock:
            entry = self._table.in_flight_entry(request_id)
            if entry is None:
                return
            if entry.refused_since is None:
                entry.refused_since = now
            patient_until = max(entry.refused_since + self.config.patience, self._settled_by)
            patient = now < patient_until
            elsewhere = patient and self._dispatcher.busy(request_id, now, pause)
        if elsewhere:
            self._pump()
        elif patient:
            pause = doubled(self.config.backoff, entry.attempts - 1, _LONGEST_PAUSE_S)
            self._rest(request_id, min(now + pause, patient_until))
        else:
            self._give_up(request_id, why)

    def _rest(self, request_id: str, until: float) -> None:
        with self._lock:
            if self._table.rest(request_id, until):
                self._timer.look()

    def _give_up(self, request_id: str, why: MqinferError) -> None:
        with self._lock:
            entry = self._table.settle(request_id)
            self._table.late -= entry is None
        if entry:
            self._fail(entry, why)
            self._pump()

    def _on_connection(self, connected: bool) -> None:  # noqa: FBT001  the link's signature
        if self.link.failure:
            self.give_up(self.link.failure)
            return
        if not connected:
            with self._lock:
                recalled = self._dispatcher.disconnected()
                self._was_lost = True
            if recalled:
                log.warning("connection lost with %d requests in flight; they will be sent again", recalled)
        else:
            if self._was_lost:
                self._settled_by = self._clock() + self.config.settling
            self._pump()
        self._tell_watchers()

    def _tell_watchers(self) -> None:
        for watcher in self._watchers:
            watcher()

    def _on_state(self, message: Message) -> None:
        if not message.payload:
            return
        try:
            self.config.topics.parse_worker_state(message.topic)
            state = WorkerState.from_json(message.payload)
        except MqinferError as error:
            log.warning("ignored the unreadable state on %s: %s", message.topic, error)
            return
        with self._lock:
            self._dispatcher.state(state, self._clock())
        self._pump()

    def _on_reply(self, message: Message) -> None:
        try:
            verify(message.payload, message.user_properties)
            response = decode_response(message.payload, self.config.limits)
        except MqinferError as error:
            self._malformed += 1  # only the link's thread counts here
            log.warning("dropped an unreadable reply on %s: %s", message.topic, error)
            if isinstance(error, Corrupted):
                self._damaged((message.correlation_data or b"").hex())
            return
        received = self._clock()
        if response.outcome is Outcome.REJECTED and self._retry_busy(response):
            return
        with self._lock:
            self._dispatcher.heard(response, received)
        if all(tensor.encoding == "raw" for tensor in response.outputs):
            self._finish(response, received)
        else:
            self._decode_elsewhere(response, received)

    def _decode_elsewhere(self, response: InferResponse, received: float) -> None:
        """Leave a reply that a codec has work with to the pool; it stays in flight, so the window bounds the pool."""
        with self._lock:
            known = response.id in self._table
            self._table.late += not known
        if known:
            self._pool.submit(self._finish, response, received)

    def _retry_busy(self, response: InferResponse) -> bool:
        error = response.error or ErrorInfo(Rejected.code, "busy")
        with self._lock:
            known = response.id in self._table
        if known and error.code == Corrupted.code:
            self._damaged(response.id)
        elif known:  # where it is not in flight but resting or waiting, it will be sent again in any case
            self._refused(response.id, Rejected(error.message), _pause(response))
        return known

    def _damaged(self, request_id: str) -> None:
        with self._lock:
            self._dispatcher.damaged(request_id)
        self._pump()

    def _finish(self, response: InferResponse, received: float) -> None:
        try:
            outputs, problem = decode_outputs(response, self.config.limits)
        except Exception as error:  # a defect; the request gets its outcome all the same
            log.exception("decoding the reply to request %s", response.id)
            outputs, problem = {}, MqinferError(f"the reply can't be decoded: {error!r}")
        with self._lock:
            entry = self._table.settle(response.id)
        if entry:
            self._conclude(entry, answered(entry, response, outputs, problem, received))
            self._pump()

    def _fail(self, entry: Entry, why: MqinferError) -> None:
        self._conclude(entry, failed(entry, why))

    def _conclude(self, entry: Entry, result: InferResult) -> None:
        with self._lock:
            self._outcomes[result.outcome] += 1
            self._room.notify()
        try:
            entry.settle(result)
        except Exception:  # a caller's fault must not stop the link's thread
            log.exception("the caller's code raised on the outcome of request %s", result.id)

    def _see_to_what_is_due(self) -> None:
        with self._lock:
            ended = self._dispatcher.wake(self._clock())
        for entry in ended:
            self._fail(entry, poison(entry) if entry.is_deadly else expiry(entry))
        self._pump()


def _pause(response: InferResponse) -> float:
    """Read when a busy worker expects to have room, in seconds from now; 0 where it doesn't say."""
    stated = response.parameters.get(RETRY_AFTER, 0)
    return stated / 1e6 if isinstance(stated, int | float) else 0.0
