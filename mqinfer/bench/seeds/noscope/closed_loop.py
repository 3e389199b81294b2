"""A queue of document 004 in simulated time: frames in order, a window of requests, and servers that each take one."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from random import Random


def closed_loop_s(
    services_s: Iterable[float], servers: int, window: int, *, client_s: float = 0.0, draw: Random | None = None
) -> float:
    """Return the seconds from the first frame until the last answer.

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
