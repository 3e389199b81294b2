"""The load of a worker: how busy it is, where its time goes, and so which requests it accepts.

It accepts within a bound of bytes, an equal share of its capacity for each client, and no request that was cancelled.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable

from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.logs import log_dropped
from mqinfer.protocol.control import BatchStatistics, Duration, ModelStatistics, StageTimes
from mqinfer.protocol.types import Outcome, Timings, WorkerLoad
from mqinfer.smoothing import WEIGHT

log = logging.getLogger("mqinfer.cloud_worker")
_OUTLIER = 3.0
"""A reading of the service time counts as `min(reading, _OUTLIER * smoothed)`: a process that was halted for a moment
would otherwise look slow to every client until it had served again, and so would get nothing to serve."""
_RECENT = 256
"""Requests of which the median time is made."""

STAGES = ("success", "queue", "compute_input", "compute_infer", "compute_output")
"""Times of a request of which histograms are kept, by their names in the statistics."""
_BITS = 65
"""Lengths of a time in bits, from 0: a histogram by powers of two costs one addition a time (0.05 microseconds)."""

_WORK_S = 0.25
"""Seconds of work that all clients together may send ahead, so that the worker does not run dry while replies and
requests travel: their windows add up to `_WORK_S / service_s` requests, within the bounds of `Admission.window`."""
_BATCHES = 2
"""Full batches that they may send ahead at least: one that runs and one that gathers."""
_FORGET_S = 2.0
"""A client without a request for so many seconds has no share of the capacity."""
_FLOOD, _FLOOD_S = 100, 1.0
"""A client that was refused so often within so many seconds sends without a window: while the worker is full, what else
it sends in this time is dropped without a reply, for a thirtieth of the time that a reply takes."""
_MOST = 4096
"""Clients remembered at most."""
_STATED, _HALF_LIFE_S = 16, 60.0
"""Clients whose requests a worker's state counts, and seconds after which what was counted counts half."""
_CANCELLED_EACH, _CANCELLING = 256, 64
"""Cancelled requests remembered of each client at most, and clients that have any: the newest of both."""


class LoadMeter:
    """Smoothed service time, counters by outcome and reason, and where the time went. Thread-safe.

    Attributes:
        service_s: Smoothed time of one request, in seconds; 0 while unknown.
        busy_s: Smoothed time for which one request keeps a thread busy, in seconds; one slow request raises it at once;
            0 while unknown.
    """

    def __init__(self, clock: Callable[[], float] = time.time, service_s: float = 0.0) -> None:
        """Begin at zero.

        Args:
            clock: Seconds since the epoch, for `last_inference` alone.
            service_s: Time of one request, in seconds, as far as it is known before the first; 0 while unknown.
        """
        self._lock = threading.Lock()
        self._clock = clock
        self._counters: Counter[str] = Counter()
        self.service_s = self.busy_s = service_s
        self._lengths = [[0] * _BITS for _ in STAGES]
        self._stages = [0, 0, 0, 0]  # nanoseconds of queue, input, engine and output, of requests that got a result
        self._recent: deque[int] = deque(maxlen=_RECENT)  # nanoseconds, of the newest requests that got a result
        self._fail_ns = 0
        self._failed = 0
        self._last = 0.0
        self._batches: dict[int, tuple[int, int, int, int]] = {}  # rows: runs, then ns of input, engine, output

    def count(self, what: str, by: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._counters[what] += by

    def drop(self, reason: str, what: str) -> None:
        """Count a message that is dropped, and log some of them.

        Args:
            reason: Behind `dropped_` in the counter's name.
            what: Was dropped, and why: for the log.
        """
        self.count(name := f"dropped_{reason}")
        log_dropped(log, what, name, self._counters[name])

    def served(self, seconds: float, requests: int) -> None:
        """Smooth the service time by a batch.

        Args:
            seconds: How long it took.
            requests: How many there were in it.
        """
        reading = seconds / requests
        with self._lock:
            if not self.service_s:
                self.service_s = reading
            else:
                self.service_s += (min(reading, _OUTLIER * self.service_s) - self.service_s) * WEIGHT

    def ran(self, rows: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """Count a run of the model and where its time went.

        Args:
            rows: Entries on the batch axis.
            input_ns: Decoding and pre-processing of its requests, in nanoseconds.
            infer_ns: In the engine, in nanoseconds.
            output_ns: Splitting the outputs, in nanoseconds.
        """
        with self._lock:
            runs, inputs, infers, outputs = self._batches.get(rows, (0, 0, 0, 0))
            self._batches[rows] = (runs + 1, inputs + input_ns, infers + infer_ns, outputs + output_ns)

    def answered(self, outcome: Outcome, timings: Timings) -> None:
        """Count a reply and where its time went."""
        with self._lock:
            self._counters[outcome] += 1
            if outcome is not Outcome.OK:
                self._failed += 1
                self._fail_ns += timings.server
                return
            self._last = self._clock()
            inputs, inference = timings.decode + timings.preprocess, timings.inference
            outputs = timings.postprocess + timings.encode
            stages = self._stages
            stages[0] += timings.server_queue
            stages[1] += inputs
            stages[2] += inference
            stages[3] += outputs
            total = timings.server_queue + inputs + inference + outputs
            self._recent.append(total)
            lengths = self._lengths
            lengths[0][total.bit_length()] += 1
            lengths[1][timings.server_queue.bit_length()] += 1
            lengths[2][inputs.bit_length()] += 1
            lengths[3][inference.bit_length()] += 1
            lengths[4][outputs.bit_length()] += 1
            busy, smoothed = (inputs + inference + outputs) / 1e9, self.busy_s
            self.busy_s = busy if busy > smoothed else smoothed + (busy - smoothed) * WEIGHT

    def load(self, depth: int, window: int = 0) -> WorkerLoad:
        """Return the load that a reply states."""
        return WorkerLoad(depth, round(self.service_s * 1e6), window)

    def counters(self) -> dict[str, int]:
        """Copy the counters."""
        with self._lock:
            return dict(self._counters)

    def statistics(self) -> ModelStatistics:
        """Return what was done so far, in the Open Inference Protocol's words."""
        with self._lock:
            answered = self._counters[Outcome.OK]
            stages = StageTimes(
                Duration(answered, sum(self._stages)),
                Duration(self._failed, self._fail_ns),
                *(Duration(answered, ns) for ns in self._stages),
            )
            return ModelStatistics(
                last_inference=round(self._last * 1e3),
                inference_count=sum(rows * figures[0] for rows, figures in self._batches.items()),
                execution_count=sum(figures[0] for figures in self._batches.values()),
                stages=stages,
                batches={
                    rows: BatchStatistics(*(Duration(runs, ns) for ns in times))
                    for rows, (runs, *times) in sorted(self._batches.items())
                },
                recent_ns=tuple(self._recent),
                counters=dict(self._counters),
                histograms={stage: tuple(counts) for stage, counts in zip(STAGES, self._lengths, strict=True)},
            )


class Admission:
    """Accepts requests within the bounds of the worker's options. Thread-safe."""

    def __init__(self, options: WorkerOptions, rows: int) -> None:
        """Begin with nobody.

        Args:
            options: The bounds.
            rows: Rows that the model runs at a time: those of a full batch, times the batches that run together.
        """
        self._options = options
        self._rows = rows
        self._lock = threading.Lock()
        self._active: OrderedDict[str, float] = OrderedDict()  # time of each client's last request, the oldest first
        self._bytes = 0
        self._accepted = Counter[str]()  # requests of late by client
        self._halve_at = 0.0
        self._refused: dict[str, int] = {}  # refusals of each client in the second that began at
        self._second = 0.0

    def is_flood(self, client: str, now: float) -> bool:
        """Return whether a client was refused so often within a second that it heeds no refusal."""
        return self._refused.get(client, 0) >= _FLOOD and now - self._second < _FLOOD_S

    def refuse(self, client: str, now: float) -> None:
        """Count a refusal; only the link's thread does."""
        if now - self._second >= _FLOOD_S or len(self._refused) >= _MOST:
            self._refused.clear()
            self._second = now
        self._refused[client] = self._refused.get(client, 0) + 1

    def enter(self, client: str, size: int, now: float) -> bool:
        """Accept a request of so many bytes; False where that is too many, and nothing is accepted then."""
        with self._lock:
            self._active[client] = now
            if len(self._active) > 1:
                self._active.move_to_end(client)
                while len(self._active) > _MOST or next(iter(self._active.values())) < now - _FORGET_S:
                    self._active.popitem(last=False)
            if self._bytes and self._bytes + size > self._options.capacity_bytes:
                return False
            self._bytes += size
            self._accepted[client] += 1
            if now >= self._halve_at or len(self._accepted) > _MOST:
                self._halve_at = now + _HALF_LIFE_S
                self._accepted = Counter({name: count // 2 for name, count in self._accepted.items() if count > 1})
            return True

    def accepted(self) -> dict[str, int]:
        """Return how many requests were accepted of late, of the clients that sent most."""
        with self._lock:
            return dict(self._accepted.most_common(_STATED))

    def leave(self, size: int) -> None:
        """Free the bytes of a request that is finished."""
        with self._lock:
            self._bytes -= size

    def window(self, service_s: float) -> int:
        """Return how many requests each client may have in flight to this worker.

        Args:
            service_s: How long one request takes, in seconds; 0 while unknown.
        """
        wanted = max(_BATCHES * self._rows, math.ceil(_WORK_S / service_s) if service_s else 0)
        return max(1, min(self._options.capacity, wanted) // max(1, len(self._active)))


class CancelledRequests:
    """Requests that their clients cancelled; older ones have been replied to by then. Thread-safe.

    Of each client the newest are remembered, so one that cancels without end only loses its own.

    Attributes:
        any: Whether there are any: mostly not, and then there is nothing to look up.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcomes: OrderedDict[str, OrderedDict[str, Outcome]] = OrderedDict()  # by client, then by id
        self.any = False

    def add(self, client: str, ids: Iterable[str], outcome: Outcome) -> None:
        """Remember requests of a client that it waits for no more."""
        with self._lock:
            own = self._outcomes.setdefault(client, OrderedDict())
            self._outcomes.move_to_end(client)
            for each in ids:
                own[each] = outcome
                if len(own) > _CANCELLED_EACH:
                    own.popitem(last=False)
            if not own:
                del self._outcomes[client]
            elif len(self._outcomes) > _CANCELLING:
                self._outcomes.popitem(last=False)
            self.any = bool(self._outcomes)

    def pop(self, key: tuple[str, str] | None) -> Outcome | None:
        """Return how a request was cancelled, and forget it; None where it was not."""
        client, request = key or ("", "")
        with self._lock:
            own = self._outcomes.get(client)
            if own is None:
                return None
            outcome = own.pop(request, None)
            if not own:
                del self._outcomes[client]
                self.any = bool(self._outcomes)
            return outcome
