"""Calls for inference: checked, admitted in turns, sent, and counted by what came of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from mqinfer.broker.packets import buffer_size
from mqinfer.client.aio import AsyncClient
from mqinfer.client.result import InferResult
from mqinfer.gateway.admission import CallAdmission, Ticket
from mqinfer.gateway.calls import InferCall, outputs_size
from mqinfer.gateway.checks import CardChecks, in_words
from mqinfer.gateway.errors import Overloaded, TimeoutExpired
from mqinfer.gateway.pictures import ANSWERS, joined_answers, split_pictures
from mqinfer.metrics.inference import Times
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import Datatype, nbytes
from mqinfer.protocol.errors import BadTensor, Cancelled, Expired, MqinferError, NoWorker, Rejected
from mqinfer.protocol.header import POSITION, SIGNATURE
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.protocol.trace import TraceContext, read_trace
from mqinfer.protocol.types import NO_CAPTURE, Capture, ErrorInfo, InferRequest, Outcome
from mqinfer.telemetry.around import Around
from mqinfer.telemetry.conventions import SpanRole

T = TypeVar("T")
_Find = Callable[[str, str | None], Awaitable[str | None]]
Send = Callable[[InferCall], Awaitable[InferResult]]
"""Sends one request."""
_MOST_NAME = 64
"""Characters of a model's name that a span repeats: nobody has checked it."""
_OK = str(Outcome.OK)
_BYTES = Datatype.BYTES
_RESTART_S = 30.0
"""A worker that is to be started again is back within this time."""
_LEAST_ROOM = 16
"""Calls of a model that are sent at a time where its workers state no capacity."""
_MOST_REPLIES = 128 << 20
"""Bytes of a model's replies that may be on their way: above that, a broker drops what it queues for one client."""
_UNKNOWN = DEFAULT_LIMITS.payload_bytes
"""The size of a model's replies until there was one, where its card leaves it open."""
_REMEMBERED_S = 60.0
"""The largest reply of a model counts for this time: what it answers may depend on what is asked."""
_LOOK_S = 0.5
"""Interval at which calls that wait get the places of those whose replies were lost."""
_MOST_MODELS = 1024
"""Models whose checks and room are kept ready."""
_MOST_STREAMS = 1024
"""Streams whose workers are kept; a picture of another one goes to any worker, which may ask for a key frame."""
_LEAST_S = 1e-6
"""Time left of a call whose turn came at its deadline: it expires as others do."""
_UNCONNECTED = "the gateway is not connected to the broker, or does not know yet what is served"
_LONGEST_PAUSE_S = 60.0
"""A caller is told to come back after this at the latest."""


class Inference:
    """Sends calls through one client, from its loop.

    Args:
        client: Open.
        find: Returns the version as servers name it, of the model and version that a call states.
        default_timeout_s: Of a call that states none.
        max_pending: Calls accepted at a time.
        max_bytes: Bytes of their inputs.

    Attributes:
        admission: What is pending, and what was refused by which bound.
        outcomes: Calls by model and `ok` or the code of the error; the model is empty where it is not known here.
        times: How long the successful ones took, and where the time of their requests went, by model.
    """

    def __init__(
        self, client: AsyncClient, find: _Find, default_timeout_s: float, max_pending: int, max_bytes: int
    ) -> None:
        self._connection, self._find = client.connection, find
        self._registry = self._connection.registry
        self._known = self._connection.registry.known
        self._default_timeout_s = default_timeout_s
        self.admission = CallAdmission(max_pending, max_bytes, self._room, self._retry_after)
        self._checks: dict[str, CardChecks] = {}
        self._rooms: dict[str, int] = {}
        self._replies: dict[str, tuple[int, float]] = {}  # by model, the bytes of a large one, and until when it counts
        self._streams: dict[tuple[str, str], str] = {}  # the worker that has the pictures of a model's stream
        self._joining = asyncio.Lock()
        self._looking = False
        self._revision = -1
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.times: dict[str, Times] = {}

    def count(self, model: str, error: BaseException | None) -> None:
        """Count the outcome of a call."""
        if error is None:
            code = _OK
        elif isinstance(error, MqinferError):
            code = error.code
        else:
            code = Cancelled.code if isinstance(error, asyncio.CancelledError) else MqinferError.code
        self.outcomes[model if self._known.models.knows(model) else "", code] += 1

    async def infer(self, call: InferCall, run: Callable[[Send], Awaitable[T]]) -> T:
        """Return what comes of a call; cancelling the task cancels it, also at the worker.

        It is counted once, and has one span, however many requests are sent for it.

        Args:
            call: As the caller made it, unchecked.
            run: Sends its requests, each as a call of its own.

        Raises:
            MqinferError: Whatever came of it.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        trace, span = read_trace(call.traceparent, call.tracestate) if call.traceparent else None, None
        tracer = self._connection.requester.tracer
        if tracer is not None:
            about = {"mqinfer.model": call.model[:_MOST_NAME]}
            span = Around(tracer, "call", began, about, trace, SpanRole.SERVER)
            trace = span.context
        try:
            result = await run(lambda part: self._limited(part, trace, span))
        except BaseException as error:
            self.count(call.model, error)
            if span is not None:
                why = error if isinstance(error, MqinferError) else Cancelled("the caller is gone")
                span.end(why.outcome, ErrorInfo(why.code, str(why)))
            raise
        self.count(call.model, None)
        self._times_of(call.model).add_call(clock() - began)
        if span is not None:
            span.end(Outcome.OK, None)
        return result

    async def _limited(self, call: InferCall, trace: TraceContext | None, span: Around | None) -> InferResult:
        limit_s, is_parameter = self._limit(call)
        try:
            return await self._infer(call, limit_s, trace, span)
        except Expired as error:
            if is_parameter:
                raise TimeoutExpired(f"Request timeout expired: {error}") from error
            raise
        except BadTensor as error:
            raise in_words(error, call.inputs, call.model) from error
        except Rejected as error:
            if isinstance(error, Overloaded):
                raise
            raise Rejected(f"Exceeds maximum queue size: {error}") from error

    async def _infer(
        self, call: InferCall, limit_s: float, trace: TraceContext | None, span: Around | None
    ) -> InferResult:
        if self._registry.is_complete:
            version = await self._find(call.model, call.version)  # at once
        else:
            version, limit_s = await self._within(self._find(call.model, call.version), limit_s, _UNCONNECTED)
        is_plain = not call.parameters and not any(each.parameters or each.datatype is _BYTES for each in call.inputs)
        if is_plain or (card := self._known.card(call.model)) is None:
            return await self._send(call, version, limit_s, trace, span)
        parts = split_pictures(call, card)
        if len(parts) == 1 and ANSWERS not in call.parameters:
            return await self._send(parts[0], version, limit_s, trace, span)
        results = await self._all([self._send(part, version, limit_s, trace, span) for part in parts])
        return await asyncio.shield(asyncio.ensure_future(self._joined(parts, results, card)))

    async def _joined(self, parts: Sequence[InferCall], results: Sequence[InferResult], card: ModelCard) -> InferResult:
        """Return results of one picture each as one; a mask in the pixels of a large picture takes much memory."""
        async with self._joining:
            return await asyncio.to_thread(joined_answers, parts, results, card)

    async def _all(self, sent: Sequence[Coroutine[Any, Any, InferResult]]) -> list[InferResult]:
        """Wait for several requests, and return their results; the first that fails ends the others."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(each) for each in sent]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _send(
        self, call: InferCall, version: str | None, limit_s: float, trace: TraceContext | None, span: Around | None
    ) -> InferResult:
        self._check(call, version)
        ticket = self.admission.enter(call.model, call.caller, sum([buffer_size(each.data) for each in call.inputs]))
        try:
            if not ticket.is_running:
                limit_s = await self._wait_for_turn(ticket, limit_s)
                if span is not None:
                    span.stage("admission", ticket.since)
            request = InferRequest(
                id="",
                model_name=call.model,
                inputs=call.inputs,
                model_version=version,
                outputs=call.outputs,
                priority=self.admission.priority(call.caller, call.priority),
                parameters={SIGNATURE: call.signature} if call.signature else {},
                trace=trace,
                capture=Capture(call.source) if call.source else NO_CAPTURE,
            )
            if call.source:
                result = await self._send_along(request, limit_s)
            else:
                result = await self._connection.send(request, limit_s)
        finally:
            self.admission.leave(ticket)
        size, now = outputs_size(result.outputs), asyncio.get_running_loop().time()
        largest, until = self._replies.get(call.model, (0, 0.0))
        if size >= largest or now >= until:
            self._replies[call.model] = size, now + _REMEMBERED_S
        self._times_of(call.model).add(result.timings)
        return result

    def _times_of(self, model: str) -> Times:
        """Return the times of a model that has answered: it is no name that callers made up."""
        times = self.times.get(model)
        if times is None:
            times = self.times[model] = Times()
        return times

    async def _send_along(self, request: InferRequest, limit_s: float) -> InferResult:
        """Send a request; a picture that is encoded against others goes to the worker that has answered their first."""
        position = next((each.parameters[POSITION] for each in request.inputs if POSITION in each.parameters), None)
        if position is None:
            return await self._connection.send(request, limit_s)
        stream = (request.model_name, request.capture.source)
        worker = self._streams.get(stream, "") if position else ""
        result = await self._connection.send(request, limit_s, worker)
        if not position:
            self._streams.pop(stream, None)
            self._streams[stream] = result.worker  # the latest one
            if len(self._streams) > _MOST_STREAMS:
                del self._streams[next(iter(self._streams))]
        return result

    async def _wait_for_turn(self, ticket: Ticket, limit_s: float) -> float:
        """Wait until a call may be sent; return the time left."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()

        def settle(error: Overloaded | None) -> None:
            if turn.done():
                return
            if error is None:
                turn.set_result(None)
            else:
                turn.set_exception(error)

        ticket.settle, ticket.since = settle, loop.time()
        if not self._looking:
            self._looking = True
            loop.call_later(_LOOK_S, self._look)
        _, left_s = await self._within(turn, limit_s, "it was not its turn: the callers of this gateway ask for more")
        return left_s

    def _look(self) -> None:
        """Start calls that there is room for by now, and look again while any wait."""
        self.admission.start()
        self._looking = self.admission.queued > 0
        if self._looking:
            asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    async def _within(self, waited: Awaitable[T], limit_s: float, why: str) -> tuple[T, float]:
        """Wait for something in a call's time; return it with the time left.

        Raises:
            Expired: The time is over, which `why` explains.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        try:
            async with asyncio.timeout_at(deadline):
                found = await waited
        except TimeoutError:
            raise Expired(f"expired after {limit_s:.3g} s: {why}") from None
        return found, max(_LEAST_S, deadline - loop.time())

    def _limit(self, call: InferCall) -> tuple[float, bool]:
        """Return how long a call may take, in seconds, and whether its `timeout` parameter decides that.

        Raises:
            Expired: Its time is over.
        """
        limit_s, is_parameter = self._default_timeout_s, False
        if call.deadline_s is not None and call.deadline_s < limit_s:
            limit_s = call.deadline_s
        if call.timeout_s is not None and call.timeout_s < limit_s:
            limit_s, is_parameter = call.timeout_s, True
        if limit_s <= 0:
            raise TimeoutExpired("Request timeout expired") if is_parameter else Expired("the deadline has passed")
        return limit_s, is_parameter

    def _check(self, call: InferCall, version: str | None) -> None:
        """Raise where no worker could serve a call; the rest is decided by the worker.

        A model without a worker is refused once a restart of one would be over. Until then the client is patient:
        while processes are replaced or start again, a worker may be ready any moment.

        Raises:
            NoWorker: There has been no worker for a while.
            BadTensor, LimitExceeded: As for `CardChecks.check`.
        """
        known = self._known
        if not known.models.is_ready(call.model, version) and self._is_unserved(call.model, version):
            which = "" if version is None else f" version {version}"
            raise NoWorker(
                f"Request for unknown model: '{call.model}'{which} is not at ready state: no worker has served it for "
                f"{_RESTART_S:g} s; `mqinfer status` shows why"
            )
        card = known.card(call.model)
        if card is None or version not in {None, card.version} or call.signature:  # another one's inputs
            return
        checks = self._checks.get(call.model)
        if checks is None or checks.card is not card:
            if len(self._checks) >= _MOST_MODELS:
                self._checks.clear()
            checks = self._checks[call.model] = CardChecks(card)
        checks.check(call)

    def _is_unserved(self, model: str, version: str | None) -> bool:
        return self._known.models.unserved_for(model, version) > _RESTART_S and self._registry.is_complete

    def _room(self, model: str) -> int:
        """Return how many calls of a model the workers and the way back take; others wait where callers take turns.

        Those whose replies did not come in time, for the broker has dropped them, leave their places to others.
        """
        if self._revision != self._known.revision or len(self._rooms) > _MOST_MODELS:
            self._revision = self._known.revision
            self._rooms.clear()
        room = self._rooms.get(model)
        if room is None:
            held = sum(state.capacity for state in self._known.models.ready_workers(model))
            room = self._rooms[model] = max(_LEAST_ROOM, held)
        size, _ = self._replies.get(model) or (_largest_reply(self._known.card(model)), 0.0)
        room = min(room, max(1, _MOST_REPLIES // size)) if size else room
        withheld = self._connection.requester.withheld
        return room + sum(each.request.model_name == model for each in list(withheld.values())) if withheld else room

    def _retry_after(self, model: str, calls: int) -> float:
        """Return when a model's workers may have finished so many calls, in seconds."""
        times = [state.service_time_us for state in self._known.models.ready_workers(model)]
        rate = sum(1e6 / time for time in times if time)
        return min(max(1.0, calls / rate), _LONGEST_PAUSE_S) if rate else 1.0


def _largest_reply(card: ModelCard | None) -> int:
    """Return the bytes of a model's largest reply as far as its card tells, else what a reply of any model may have."""
    if card is None:
        return _UNKNOWN
    total = 0
    for spec in card.outputs:
        shape = (card.max_batch_size, *spec.shape[1:]) if card.max_batch_size else spec.shape
        if spec.datatype is Datatype.BYTES or -1 in shape:
            return _UNKNOWN
        total += nbytes(spec.datatype, shape)
    return min(total, _UNKNOWN)
