"""The formulas of the documents, each in one place, and 004's queue; tests hold them to the published numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random

import numpy as np


@dataclass(frozen=True, slots=True)
class LatencyFit:
    """The law of document 004, L = A + X / N_S: seconds until all requests to the reference have their answers.

    Attributes:
        fixed_s: A: the part that more servers do not shorten, T_n + T_c.q.
        divided_s: X: the part that they share, N_R T_s.c.
    """

    fixed_s: float
    divided_s: float

    def latency_s(self, servers: int) -> float:
        """Return what the law predicts for a number of servers."""
        return self.fixed_s + self.divided_s / servers


def fit_latency(servers: Sequence[int], seconds: Sequence[float]) -> LatencyFit:
    """Fit the law by least squares; of two points the fit is exact.

    Args:
        servers: Numbers of reference servers, at least two different ones.
        seconds: Latency with each.
    """
    divided, fixed = np.polyfit(1 / np.asarray(servers, float), seconds, 1).tolist()
    return LatencyFit(fixed, divided)


def time_saved(before: float, after: float) -> float:
    """Return the first reading of "p % faster": the share of the time that is saved."""
    return 1 - after / before


def rate_gained(before: float, after: float) -> float:
    """Return the second reading of "p % faster": the rate's increase."""
    return before / after - 1


def event_bytes(events: int, *, graph: bool) -> int:
    """Return the bytes of document 002's input: 100 particles of 3 features, and for the graph their neighbours."""
    return events * 4 * (300 + (10_000 if graph else 0))


def break_even_mbit(raw_bytes: float, encoded_bytes: float, added_cpu_s: float) -> float:
    """Return the bandwidth in Mbit/s below which compression pays: 8 x bytes saved > link x added processor time."""
    return 8e-6 * (raw_bytes - encoded_bytes) / added_cpu_s if added_cpu_s > 0 else float("inf")


def closed_loop_s(
    services_s: Iterable[float], servers: int, window: int, *, client_s: float = 0.0, draw: Random | None = None
) -> float:
    """Return the seconds from the first frame until the last answer of 004's queue, in simulated time.

    The client works on one frame after another, and waits while the window is full. A request stays with its server.

    Args:
        services_s: Time of the server for each frame, in seconds; 0 for one that the client answers.
        servers: Their number.
        window: Requests in flight at most.
        client_s: Time of the client for each frame, in seconds.
        draw: Chooses the server at random; None for the one that is free first.
    """
    free = [0.0] * servers
    ends: list[float] = []
    now = 0.0
    for service in services_s:
        now += client_s
        if not service:
            continue
        if len(ends) == window:
            now = max(now, heappop(ends))
        server = draw.randrange(servers) if draw else min(range(servers), key=free.__getitem__)
        free[server] = max(now, free[server]) + service
        heappush(ends, free[server])
    return max([now, *ends])
