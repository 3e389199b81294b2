"""What `dynamic_batching` of a model's configuration means for its worker."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from mqinfer.cloud_worker.batching.adaptive import AdaptivePolicy
from mqinfer.cloud_worker.batching.batch_policy import BatchPolicy, FixedPolicy
from mqinfer.models.repository.config import DynamicBatching, TimeoutAction

__all__ = ["Schedule"]

log = logging.getLogger("mqinfer.cloud_worker")

_ANY_NUMBER = 1 << 62


@dataclass(frozen=True, slots=True)
class Schedule:
    """How requests wait and run.

    Attributes:
        batching: As configured; None for the defaults.
        max_rows: Rows of a batch at most.
    """

    batching: DynamicBatching | None
    max_rows: int

    def __post_init__(self) -> None:
        if self.batching is None:
            return
        if self.batching.priority_queue_policy:
            log.warning(
                "dynamic_batching.priority_queue_policy does nothing here: default_queue_policy is for all levels"
            )
        if self.batching.default_queue_policy.timeout_action is TimeoutAction.DELAY:
            log.warning(
                "dynamic_batching.default_queue_policy.timeout_action DELAY does nothing here: what is late expires"
            )

    def policy(self) -> BatchPolicy:
        """Make a policy: a fixed one where sizes or a delay are stated, otherwise one that finds out what pays."""
        stated = self.batching or DynamicBatching()
        if self.max_rows <= 1:
            return FixedPolicy(1)
        delay, target = stated.max_queue_delay_microseconds, stated.latency_target_microseconds
        if stated.preferred_batch_size or delay is not None:
            return FixedPolicy(self.max_rows, (delay or 0) / 1e6, stated.preferred_batch_size)
        return AdaptivePolicy(self.max_rows, None if target is None else target / 1e6)

    @property
    def in_order(self) -> bool:
        """Whether replies leave in the order in which their batches began."""
        return self.batching is not None and self.batching.preserve_ordering

    @property
    def max_waiting(self) -> int:
        """Requests that may wait."""
        stated = self.batching.default_queue_policy.max_queue_size if self.batching else 0
        return stated or _ANY_NUMBER

    def level(self, priority: int) -> int:
        """Give the level of a request's priority, 0 the highest; all are equal where no levels are configured."""
        if self.batching is None or not self.batching.priority_levels:
            return 0
        known = 1 <= priority <= self.batching.priority_levels
        return (priority if known else self.batching.default_priority_level or self.batching.priority_levels) - 1

    def deadline(self, received: float, stated: float) -> float:
        """Give a request's deadline: its own or that of the queue's policy, whichever is sooner.

        Args:
            received: When it came, in seconds by the worker's clock.
            stated: Its own deadline, by the same clock.
        """
        bound = self.batching.default_queue_policy.default_timeout_microseconds if self.batching else 0
        return min(stated, received + bound / 1e6) if bound else stated
