"""How many requests may be sent again because nothing was heard: a share of those sent, so no overload feeds itself.

With retries unbounded, one outage of a second doubled a load for good: every reply came after its request had been sent
again. A token bucket, as in Finagle's `RetryBudget` and gRPC's retry throttling.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RetryBudget"]


@dataclass(slots=True)
class RetryBudget:
    """Tokens: each request earns a share of one, each retry spends one. Not thread-safe.

    Attributes:
        share: Retries a request, in the long run.
        burst: Tokens at most, and at the beginning.
    """

    share: float = 0.1
    burst: float = 16.0
    _tokens: float = -1.0

    def __post_init__(self) -> None:
        self._tokens = self.burst

    def earn(self) -> None:
        """Note a request's first sending."""
        self._tokens = min(self.burst, self._tokens + self.share)

    def spend(self) -> bool:
        """Take a token; False where there is none left."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
