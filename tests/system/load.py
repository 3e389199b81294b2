"""Requests to a model that are kept in flight while something else happens."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import Future

import numpy as np

from mqinfer import Client
from mqinfer.client.result import InferResult

__all__ = ["Load", "X"]

X = np.zeros((1, 4), np.float32)
"""An input of an echo model."""


class Load:
    """A thread that keeps requests without a version in flight until `finish`.

    Attributes:
        futures: All requests so far.
        workers: How many replies came from each worker process so far.
    """

    def __init__(self, client: Client, model: str = "echo", *, window: int = 16, least: int = 0) -> None:
        self._client, self._model, self._least = client, model, least
        self.futures: list[Future[InferResult]] = []
        self.workers: Counter[str] = Counter()
        self._room, self._enough = threading.Semaphore(window), threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()

    def _run(self) -> None:
        while not self._enough.is_set() or len(self.futures) < self._least:
            self._room.acquire()
            future = self._client.submit(self._model, {"x": X}, timeout=120)
            future.add_done_callback(self._on_reply)
            self.futures.append(future)

    def _on_reply(self, future: Future[InferResult]) -> None:
        self._room.release()
        if future.exception() is None:
            self.workers[future.result().worker] += 1

    def stop(self) -> None:
        """Stop sending, and wait until what is in flight has its outcome."""
        self._enough.set()
        self._thread.join()
        for future in self.futures:
            future.exception(120)

    def finish(self) -> list[InferResult]:
        """Stop, and return all results; raise the error of a failed one."""
        self.stop()
        return [future.result() for future in self.futures]
