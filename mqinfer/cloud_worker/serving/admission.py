"""Which requests a worker accepts: bounds by bytes, an equal share of the capacity for each client, cancellations."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterable

from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.protocol.types import Outcome

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
_CANCELLED_EACH, _CANCELLING = 256, 64
"""Cancelled requests remembered of each client at most, and clients that have any: the newest of both."""


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
                self._forget(now - _FORGET_S)
            if self._bytes and self._bytes + size > self._options.capacity_bytes:
                return False
            self._bytes += size
            return True

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

    def _forget(self, before: float) -> None:
        while len(self._active) > _MOST or next(iter(self._active.values())) < before:
            self._active.popitem(last=False)


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
