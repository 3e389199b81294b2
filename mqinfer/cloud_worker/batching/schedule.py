"""What `dynamic_batching` of a model's configuration means for its worker."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

from mqinfer.cloud_worker.batching.adaptive import AdaptivePolicy
from mqinfer.cloud_worker.batching.batcher import BatchPolicy, FixedPolicy
from mqinfer.logs import log_once
from mqinfer.models.repository.config import DynamicBatching, TimeoutAction

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
        warn = partial(log_once, log, logging.WARNING)
        if self.batching.priority_queue_policy:
            warn("dynamic_batching.priority_queue_policy does nothing here: default_queue_policy is for all levels")
        if self.batching.default_queue_policy.timeout_action is TimeoutAction.DELAY:
            warn("dynamic_batching.default_queue_policy.timeout_action DELAY does nothing here: what is late expires")

    def policy(self) -> BatchPolicy:
        """Make a policy: a fixed one where sizes or a delay are stated, otherwise one that measures what pays."""
        stated = self.batching or DynamicBatching()
        if self.max_rows <= 1:
            return FixedPolicy(1)
        delay, target = stated.max_queue_delay_microseconds, stated.latency_target_microseconds
        if self.gathers:
            return FixedPolicy(self.max_rows, (delay or 0) / 1e6, stated.preferred_batch_size)
        return AdaptivePolicy(self.max_rows, None if target is None else target / 1e6)

    @property
    def gathers(self) -> bool:
        """Whether the configuration states batch sizes or a delay, so that a request may have to wait for others."""
        stated = self.batching
        return stated is not None and bool(
            stated.preferred_batch_size or stated.max_queue_delay_microseconds is not None
        )

    @property
    def in_order(self) -> bool:
        """Whether replies are sent in the order in which their batches began."""
        return self.batching is not None and self.batching.preserve_ordering

    @property
    def max_queued(self) -> int:
        """Requests that may wait for the model."""
        stated = self.batching.default_queue_policy.max_queue_size if self.batching else 0
        return stated or _ANY_NUMBER

    @property
    def queue_timeout_s(self) -> float | None:
        """Seconds after which a request expires whatever its own deadline; None for no such bound."""
        stated = self.batching.default_queue_policy.default_timeout_microseconds if self.batching else 0
        return stated / 1e6 if stated else None
