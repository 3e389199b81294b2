"""How much a caller may send in a second, beyond which it is refused until it has sent less."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from mqinfer.protocol.errors import ConfigError

_BURST_S = 1.0
"""What a caller may send at once is what its quota allows in this time; a larger request when it has sent nothing."""
_ROUNDING_S = 1e-6


@dataclass(frozen=True, slots=True)
class Quota:
    """What a caller may send.

    Attributes:
        requests: A second; infinite without a bound.
        bytes: A second; infinite without a bound.
        highest_priority: Of its requests, 1 being the highest; 0 for any.

    Raises:
        ConfigError: A bound is not above 0.
    """

    requests: float = math.inf
    bytes: float = math.inf
    highest_priority: int = 0

    def __post_init__(self) -> None:
        if not (self.requests > 0 and self.bytes > 0):
            raise ConfigError("requests_per_second or bytes_per_second is not above 0; leave it out for no bound")
        if self.highest_priority < 0:
            raise ConfigError("highest_priority is below 0; 1 is the highest, leave it out for any")


class Quotas:
    """What callers have used of their quotas. Not thread-safe.

    Args:
        quota_of: Returns the quota of a caller by name, None where there is none.
        clock: In seconds.
    """

    def __init__(self, quota_of: Callable[[str], Quota | None], clock: Callable[[], float] = time.monotonic) -> None:
        self._quota_of, self._clock = quota_of, clock
        self._paid: dict[str, tuple[float, float]] = {}  # until when requests, and bytes, of a caller count as sent

    def take(self, caller: str, size: int) -> float:
        """Count a request of so many bytes, and return 0; or count nothing, and return in how many seconds it may come.

        Each takes the time in which the quota would be used up by such requests alone (the virtual scheduling of GCRA,
        ITU-T I.371).
        """
        quota, now = self._quota_of(caller), self._clock()
        if quota is None:
            return 0.0
        costs = 1 / quota.requests, size / quota.bytes
        paid = [max(each, now) + cost for each, cost in zip(self._paid.get(caller, (now, now)), costs, strict=True)]
        wait = max(each - now - max(_BURST_S, cost) for each, cost in zip(paid, costs, strict=True))
        if wait > _ROUNDING_S:
            return wait
        self._paid[caller] = paid[0], paid[1]
        return 0.0

    def held(self, caller: str, priority: int) -> int:
        """Return the priority of a caller's request that asks for one: no higher than it may be."""
        quota = self._quota_of(caller)
        return priority if quota is None else max(priority, quota.highest_priority)
