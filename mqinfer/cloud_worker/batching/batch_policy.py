"""When a batch runs, and how large it is: the seam between the batcher and its policies, and the fixed policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Choice(NamedTuple):
    """What to do with the requests that wait.

    Attributes:
        rows: Rows of the next batch at most.
        wait: Seconds until it runs unless more come; 0 to run now.
    """

    rows: int
    wait: float = 0.0


class FinishedBatch(NamedTuple):
    """A batch that has ended.

    Attributes:
        rows: Its rows when it began.
        ran: The rows that the model ran: requests of the batch may have expired.
        seconds: How long it kept the model busy.
    """

    rows: int
    ran: int
    seconds: float


class BatchPolicy(Protocol):
    """Decides for the requests of one key. Not thread-safe; `now` is in seconds and never goes backward."""

    def came(self, waiting: int, now: float) -> None:
        """Learn from a request that came, after which `waiting` rows wait."""

    def choose(self, waiting: int, oldest: float, now: float, idle: int = 1) -> Choice:
        """Choose the next batch.

        Args:
            waiting: Rows that wait; 1 or more.
            oldest: When the first of them came, in seconds.
            now: The clock's reading, in seconds.
            idle: How many batches could begin now.
        """

    def began(self, rows: int, now: float) -> None:
        """Learn that a batch begins."""

    def ended(self, batch: FinishedBatch, waiting: int, now: float) -> None:
        """Learn from a batch that has ended, after which `waiting` rows wait."""


class FixedPolicy:
    """Triton's dynamic batcher: https://github.com/triton-inference-server/server, user_guide/batcher.md.

    A preferred size is run as soon as it can be formed, the largest of them first; so is a full batch where there is no
    preferred size. Otherwise the oldest request waits for company until its delay is over, and then what waits runs.
    """

    def __init__(self, max_rows: int, max_delay: float = 0.0, preferred: Sequence[int] = ()) -> None:
        """Set the bounds.

        Args:
            max_rows: Rows of a batch at most; 1 or more.
            max_delay: Seconds that a request may wait for others.
            preferred: Sizes; those above `max_rows` are left out.
        """
        self._max_rows = max(1, max_rows)
        self._max_delay = max_delay
        self._sizes = sorted({size for size in preferred if size <= self._max_rows} or {self._max_rows}, reverse=True)

    def came(self, waiting: int, now: float) -> None:
        """Learn nothing."""

    def choose(self, waiting: int, oldest: float, now: float, idle: int = 1) -> Choice:  # noqa: ARG002 - the contract's
        """Choose by size, then by delay."""
        for size in self._sizes:
            if size <= waiting:
                return Choice(size)
        return Choice(self._max_rows, max(0.0, oldest + self._max_delay - now))

    def began(self, rows: int, now: float) -> None:
        """Learn nothing."""

    def ended(self, batch: FinishedBatch, waiting: int, now: float) -> None:
        """Learn nothing."""
