"""Tasks of one stream on the threads of a pool, one after the other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor


class OneAtATime:
    """Runs tasks in the order of their submission, never two at once, on the threads of a shared pool. Thread-safe.

    Between two of its tasks the pool may run others, so streams take turns.
    """

    def __init__(self, pool: Executor) -> None:
        """Start without a task.

        Args:
            pool: Its threads run the tasks.
        """
        self._pool = pool
        self._lock = threading.Lock()
        self._tasks: deque[Callable[[], None]] = deque()  # the first one is running or submitted to the pool

    def submit(self, task: Callable[[], None]) -> None:
        """Queue a task; it must not raise."""
        with self._lock:
            self._tasks.append(task)
            is_first = len(self._tasks) == 1
        if is_first:
            self._pool.submit(self._run)

    def _run(self) -> None:
        try:
            self._tasks[0]()
        finally:
            with self._lock:
                self._tasks.popleft()
                is_more = bool(self._tasks)
            if is_more:
                self._pool.submit(self._run)
