"""The threads around a client's dispatcher: requests go out through a window, each comes back as exactly one outcome.

The caller's thread encodes and publishes; the link's thread takes replies, decodes them (on a small pool where a codec
has work to do) and hands over the results; one timer thread wakes for deadlines and retries. Each reports what happened
to the dispatcher, under one lock, and then carries out what follows. No lock is held while a link or a caller's code
runs.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from mqinfer.broker.link import ConnectionHandler, Link, Message, ReasonCode
from mqinfer.broker.process import Maker, end_thread_in_child
from mqinfer.client.dispatch.dispatcher import Dispatcher, NextStep
from mqinfer.client.dispatch.pending import PendingRequest, RequestPlace, Settle
from mqinfer.client.options import LONGEST_TIMEOUT_S, ClientOptions, check_timeout
from mqinfer.client.registry import Registry
from mqinfer.client.request import Messages
from mqinfer.client.result import Counters, Ignored, InferResult
from mqinfer.client.timer import Timer
from mqinfer.client.window import NEWER_FRAME
from mqinfer.codecs import decode_outputs
from mqinfer.protocol.checksum import verify
from mqinfer.protocol.envelope import decode_response
from mqinfer.protocol.errors import (
    Cancelled,
    Corrupted,
    Expired,
    LinkError,
    MessageTooLarge,
    MqinferError,
    NotAuthorized,
    NoWorker,
    Rejected,
    Superseded,
)
from mqinfer.protocol.states import PendingRequests, WorkerState
from mqinfer.protocol.topics import Topics, without_id
from mqinfer.protocol.types import InferRequest, InferResponse, Outcome
from mqinfer.telemetry.requests import RequestSpans

if TYPE_CHECKING:
    from mqinfer.telemetry.tracer import Tracer

log = logging.getLogger("mqinfer.client")
_ID_BYTES, _IDS = 16, 256
"""Random bytes of a request's id, and how many ids are drawn with one system call."""
T = TypeVar("T")


class Requester:
    """Owns requests until their outcome. Thread-safe.

    Attributes:
        name: The client's name in its topics.
        topics: Below the root of the site.
        options: How it sends.
        link: The connection to the broker.
        maker: The process that may use all this.
        registry: The workers, as far as their states have come; `LiveRegistry` adds the cards.
        on_control: Receives the replies of servers; None where this client asks them nothing.
        tracer: Makes spans of the requests; None for none.
        failure: Why nothing will be sent any more, before it was closed; None while all is well.
        withheld: Requests whose workers let them time out, and that are not sent again for now; any thread may copy it.
    """

    def __init__(
        self,
        make_link: Callable[[ConnectionHandler], Link],
        name: str,
        topics: Topics,
        options: ClientOptions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.topics, self.options = name, topics, options
        self.maker = Maker(f"the client {name!r}")
        self.registry = Registry(clock)
        self.on_control: Callable[[Message], None] | None = None
        self.tracer: Tracer | None = None
        self._clock = clock
        self._messages = Messages(name, topics, options.limits)
        self._control_results = without_id(topics.control_result.filter(client=name))
        self._largest = options.limits.packet_bytes  # of a message, as far as it is known
        self._ids: list[str] = []  # drawn and not used yet; a fork's copy is never used, since its `submit` raises
        self._dispatcher = Dispatcher(name, options)
        self.withheld: Mapping[str, PendingRequest] = self._dispatcher.table.withheld
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._callers = 0  # that wait for room
        self._malformed = Ignored("a reply")
        self._retained = Ignored("a retained reply")
        self._bad_states = Ignored("a worker's state")
        self._closed = False
        self.failure: LinkError | None = None
        self._watchers: list[Callable[[], None]] = []
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="mqinfer-client-decode")
        self._repeat_s = math.inf
        self._repeated: Callable[[], None] = lambda: None
        self._repeat_at = math.inf
        self._timer = Timer(self._lock, self._due, self._on_timer, clock, self._on_defect)
        self.link = make_link(self._on_connection)

    def open(self, timeout: float = 10.0) -> None:
        """Connect and subscribe to the replies.

        Raises:
            BrokerUnreachable: No broker answered in time.
            NotAuthorized: The broker refused the credentials or the subscription.
        """
        self.maker.check()
        self.link.open(timeout)
        self.link.subscribe(self.topics.result.filter(client=self.name), self._on_reply, retained=False)
        try:
            if self.options.lanes:
                self.link.subscribe(self.topics.worker_state.filter(), self._on_state)
        except NotAuthorized as error:
            log.info("%s; requests go over the models' channels, not to workers that this client chooses", error)
        self._repeat_at = self._clock() + self._repeat_s
        self._timer.start()

    def submit(
        self, request: InferRequest, timeout: float | None, settle: Settle, *, waits: bool = True, worker: str = ""
    ) -> str:
        """Accept a request; blocks only while `max_pending` requests are pending.

        Args:
            request: Without `id` and `response_topic`, which are set here.
            timeout: In seconds; the outcome comes no later. None for that of the options.
            settle: Receives the one outcome, on any thread; it must return at once.
            waits: Whether to wait for room; a thread that delivers outcomes must not.
            worker: Goes there first as long as it takes requests; empty for the one that should finish first.

        Returns:
            The request's id.

        Raises:
            BadTopic: The model's name or version breaks the naming rules.
            BadEnvelope: A name or parameter can't be sent, such as text that is not Unicode.
            LimitExceeded: The names and parameters are too long.
            MessageTooLarge: The message is above the broker's Maximum Packet Size.
            Cancelled: The client is closed.
            ConfigError: The timeout is not above 0, or a tensor's bytes are not contiguous.
            LinkError: There will be no connection any more, see `failure`.
            Expired: There was no room within the timeout.
            Rejected: There was no room, and this thread does not wait.
            RuntimeError: This process is a fork of the client's.
        """
        if self.maker.is_other:  # before the lock, which another thread may have held at the fork
            self.maker.check()
        if timeout is None:
            timeout = self.options.timeout
        elif not 0.0 < timeout <= LONGEST_TIMEOUT_S:  # written out: a call for each request would cost more
            check_timeout(timeout)
        submitted = now = self._clock()
        own = self._messages.own(request, self._draw_id(), timeout)
        entry = PendingRequest(own, settle, submitted, submitted + timeout, worker)
        if self.tracer is not None:
            entry.spans = RequestSpans(self.tracer, own, self.name, self.topics, submitted)
        self._messages.encode(entry)
        if entry.message.size > self._largest:
            raise MessageTooLarge(
                f"model {own.model_name!r}: a message of {entry.message.size} bytes, and the Maximum Packet Size is "
                f"{self._largest}; encode it smaller, or have the broker take larger packets"
            )
        with self._lock:
            if self._closed or self.failure or len(self._dispatcher.table.entries) >= self.options.max_pending:
                self._wait_for_room(timeout if waits else 0.0)
                now = self._clock()
            self._dispatcher.submit(entry)
            step = self._take(now)
        self._carry_out(step)
        return own.id

    def watch(self, callback: Callable[[], None]) -> None:
        """Call something after each connection, each loss of it and a failure, on the link's thread."""
        self._watchers.append(callback)

    def repeat(self, seconds: float, action: Callable[[], None]) -> None:
        """Call something at this interval from `open` to `close`, on the timer's thread; it must return at once."""
        self._repeat_s, self._repeated = seconds, action

    def cancel(self, request_id: str, why: Cancelled | Superseded | None = None) -> bool:
        """Cancel a request: it ends as `cancelled` or `superseded`, and a worker that has it skips it.

        Args:
            request_id: From `submit`.
            why: What the caller receives, and which of the two it is.

        Returns:
            False if it has its outcome already.
        """
        self.maker.check()
        reason = why or Cancelled("cancelled by the caller")
        with self._lock:
            entry = self._dispatcher.settle(request_id, reason.outcome, is_reply=False)
        if entry is None:
            return False
        self._fail(entry, reason)
        self._pump()
        if entry.attempts:
            with suppress(LinkError):  # without a connection no worker answers it either
                self.link.publish(self._messages.cancellation(entry.request, reason))
        return True

    def supersede(self, request_ids: Sequence[str]) -> bool:
        """Supersede the first of a stream's requests, oldest first, that no worker works on; False for none."""
        with self._lock:
            found = self._dispatcher.table.replaceable(request_ids, self._clock(), connected=self.link.connected)
        return found is not None and self.cancel(found, Superseded(NEWER_FRAME))

    @property
    def connected(self) -> bool:
        """Whether a request would be sent now."""
        return self.link.connected and self.failure is None

    def give_up(self, why: LinkError) -> None:
        """End all requests as `cancelled`, and accept no more: there will be no connection again."""
        self.maker.check()
        with self._lock:
            self.failure = why
        self._end_all(Cancelled(f"the connection has ended for good: {why}"))
        self._notify()

    def counters(self) -> Counters:
        """Return what became of all requests, at one instant."""
        self.maker.check()
        with self._lock:
            return self._dispatcher.counters(self._malformed.count, self._retained.count, self._bad_states.count)

    def pending(self) -> tuple[PendingRequests, ...]:
        """Return what has no outcome, by model."""
        with self._lock:
            return self._dispatcher.table.by_model(self._clock())

    def close(self, timeout: float = 5.0) -> None:
        """Cancel what is pending, then disconnect and join the threads."""
        self.maker.check()
        with self._lock:
            self._closed = True
            self._timer.stop()
        self._end_all(Cancelled("the client was closed before there was a reply"))
        self.link.close(timeout)
        self._timer.join()
        self._pool.shutdown()

    def _draw_id(self) -> str:
        """Return an id; others are kept, since a system call for each would let other threads take the interpreter."""
        try:
            return self._ids.pop()
        except IndexError:
            drawn = os.urandom(_ID_BYTES * _IDS).hex()
        first, *others = (drawn[at : at + 2 * _ID_BYTES] for at in range(0, len(drawn), 2 * _ID_BYTES))
        self._ids += others
        return first

    def _wait_for_room(self, timeout: float) -> None:
        self._callers += 1
        try:
            has_room = self._room.wait_for(lambda: self._dispatcher.room > 0 or self._closed or self.failure, timeout)
        finally:
            self._callers -= 1
        if self.failure:
            raise self.failure
        if self._closed:
            raise Cancelled("the client is closed; make a new one")
        if not has_room:
            limit = self.options.max_pending
            if not timeout:
                raise Rejected(f"{limit} requests are pending, and a callback can't wait until one of them ends")
            raise Expired(f"{limit} requests are pending, and none of them ended within {timeout:.3g} s")

    def _take(self, now: float) -> NextStep:
        """Ask the dispatcher what is next, set the timer, and wake callers that wait for room; the lock is held."""
        step = self._dispatcher.take(now, connected=self.link.connected)
        if self._dispatcher.wake_at < self._timer.sleeps_until:
            self._timer.look()
        if self._callers and self._dispatcher.room > 0:
            self._room.notify(self._dispatcher.room)
        return step

    def _carry_out(self, step: NextStep) -> None:
        """Publish and hand over until nothing is left to do."""
        while True:
            for entry, why in step.ended:
                self._fail(entry, self._explained(entry, why))
            if step.send is None or (self._publish(step.send) and not step.more):
                return
            with self._lock:
                step = self._take(self._clock())

    def _explained(self, entry: PendingRequest, why: MqinferError) -> MqinferError:
        """Name what there is, where nobody serves a request's model."""
        if not isinstance(why, NoWorker) or not self.options.lanes:  # else no worker's state is known
            return why
        request = entry.request
        return NoWorker(f"{why} ({self.registry.models.instead_of(request.model_name, request.model_version)})")

    def _report(self, event: Callable[[float], T]) -> T:
        """Report an event to the dispatcher, with the time, and carry out what follows."""
        with self._lock:
            now = self._clock()
            found = event(now)
            step = self._take(now)
        self._carry_out(step)
        return found

    def _pump(self) -> None:
        self._report(lambda _: None)

    def _due(self) -> float:
        return min(self._dispatcher.wake_at, self._repeat_at)

    def _on_timer(self) -> None:
        self._pump()
        if self._clock() >= self._repeat_at:
            self._repeat_at = self._clock() + self._repeat_s
            try:
                self._repeated()
            except Exception:  # a defect; requests keep their deadlines all the same
                log.exception("what is repeated every %g s failed", self._repeat_s)

    def _publish(self, entry: PendingRequest) -> bool:
        """Publish a request; return False, once the dispatcher knows, where that can't be done."""
        attempt = entry.attempts
        why: MqinferError
        try:
            message = self._messages.publication(entry)
            if attempt > 1:
                entry.trail.withdraw()
            entry.trail.withdraw = self.link.publish(message, partial(self._on_ack, entry.request.id, attempt))
            if entry.place is RequestPlace.ENDED:  # meanwhile, by another thread
                entry.trail.withdraw()
        except MqinferError as error:  # not connected, too large, a name outside the rules
            why = error
        except Exception as error:  # a defect; the request gets its outcome all the same
            log.exception("publishing request %s", entry.request.id)
            why = MqinferError(f"the request can't be sent: {error!r}")
        else:
            return True
        with self._lock:
            self._dispatcher.unsent(entry, attempt, why, self._clock())
        return False

    def _on_ack(self, request_id: str, attempt: int, code: int) -> None:
        entry = self._dispatcher.table.entries.get(request_id)  # not kept here: the broker may take long
        if entry is None:
            return
        if code == ReasonCode.SUCCESS:  # changes the entry alone, and states, which ask for it, come on this thread too
            self._dispatcher.acked(entry, attempt, code, 0.0)
        else:
            self._report(lambda now: self._dispatcher.acked(entry, attempt, code, now))

    def _on_connection(self, connected: bool) -> None:  # noqa: FBT001  the link's signature
        if self.link.failure:
            self.give_up(self.link.failure)
            return
        if connected:
            self._largest = self.link.max_packet_size or self.options.limits.packet_bytes
            self._report(lambda now: self._dispatcher.connection(True, now))
            self._notify()
            return
        self.registry.begin()
        if recalled := self._report(lambda now: self._dispatcher.connection(False, now)):
            log.debug("connection lost with %d requests in flight; they will be sent again", recalled)
        self._notify()

    def _notify(self) -> None:
        for watcher in self._watchers:
            try:
                watcher()
            except BaseException:
                log.exception("the caller's code raised on a change of the connection")

    def _on_state(self, message: Message) -> None:
        found = self._bad_states.read(WorkerState.read, self.topics, message)
        if found is None:
            return
        worker, state = found
        self.registry.put_worker(worker, state)
        self._report(lambda now: self._dispatcher.update(worker if state is None else state, now))

    def _on_reply(self, message: Message) -> None:
        if message.retain:
            self._retained.add(without_id(message.topic), "replies are never retained")
            return
        try:
            verify(message.payload, message.user_properties)
            response = decode_response(message.payload, self.options.limits)
        except MqinferError as error:
            if without_id(message.topic) == self._control_results:
                if self.on_control:  # else another connection of this name has asked
                    self.on_control(message)
                return
            self._malformed.add(without_id(message.topic), error)
            if isinstance(error, Corrupted):
                damaged = (message.correlation_data or b"").hex()
                self._report(lambda _: self._dispatcher.corrupted(damaged))
            return
        received = self._clock()
        for tensor in response.outputs:
            if tensor.encoding != "raw":  # a codec has work to do; the request stays in flight, which bounds the pool
                if self._report(lambda now: self._dispatcher.replied(response, now, message.topic)):
                    self._decode_elsewhere(response, received)
                return
        self._finish(response, received, message.topic)

    def _decode_elsewhere(self, response: InferResponse, received: float) -> None:
        try:
            self._pool.submit(self._finish_in_pool, response, received)
        except RuntimeError:  # the machine has no thread left; a second attempt on this one is late and counted
            self._finish(response, received)

    def _finish_in_pool(self, response: InferResponse, received: float) -> None:
        try:
            self._finish(response, received)
        finally:
            if self.maker.is_other:
                end_thread_in_child()

    def _finish(self, response: InferResponse, received: float, topic: str | None = None) -> None:
        """Decode a reply and hand over the result; one whose topic is given is reported to the dispatcher first."""
        try:
            outputs, problem = decode_outputs(response, self.options.limits)
        except Exception as error:  # a defect; the request gets its outcome all the same
            log.exception("decoding the reply to request %s", response.id)
            outputs, problem = {}, MqinferError(f"the reply can't be decoded: {error!r}")
        entry = None
        try:
            with self._lock:
                if topic is None or self._dispatcher.replied(response, received, topic):
                    entry = self._dispatcher.settle(response.id, Outcome.ERROR if problem else response.outcome)
                step = self._take(received)
        finally:  # whatever comes of the rest: what has left the table is handed over
            if entry:
                self._hand_over(entry, entry.answered(response, outputs, problem, received))
        self._carry_out(step)

    def _fail(self, entry: PendingRequest, why: MqinferError) -> None:
        """Hand over an outcome that is no reply; nobody waits for one any more."""
        entry.trail.withdraw()
        self._hand_over(entry, entry.failed(why))

    def _hand_over(self, entry: PendingRequest, result: InferResult) -> None:
        settled = 0.0 if entry.spans is None else self._clock()
        try:
            entry.settle(result)
        except BaseException:
            log.exception("the caller's code raised on the outcome of request %s", result.id)
        if entry.spans is not None:
            entry.spans.end(result.outcome, result.error, result.timings, result.worker, settled)
        if self.maker.is_other:  # it forked, and this is the child: the other requests are the parent's
            self.maker.check()

    def _end_all(self, why: MqinferError) -> None:
        with self._lock:
            ended = self._dispatcher.cancel_all(why)
            self._room.notify_all()
        for entry, reason in ended:
            self._fail(entry, reason)

    def _on_defect(self, error: BaseException) -> None:
        """Without its timer a client could keep no deadline: nothing is left pending, and nothing accepted any more."""
        if self.maker.is_other:
            end_thread_in_child()
        log.critical("a client's timer failed, and with it the client", exc_info=error)
        self.give_up(LinkError(f"the client's timer failed: {error!r}; make a new client"))
