"""One client under load, with a record of each request: its number, its outcome, its times, and whether it is right."""

from __future__ import annotations

import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Self

import numpy as np

from benchmarks.faults.workers import MODEL
from mqinfer.client.connection import connect, random_name
from mqinfer.client.options import ClientOptions, Silence
from mqinfer.client.request import make_request
from mqinfer.client.result import Counters, InferResult
from mqinfer.protocol.errors import MqinferError
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Outcome

_FIRST = 1000
"""Clients number their requests from multiples of this many millions, so that no two ask the same."""
_tags = count(1)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request with its outcome; times are monotonic seconds.

    Attributes:
        number: The number that it carried.
        outcome: How it ended.
        code: Of its error, empty where it succeeded.
        worker: Name of the worker that replied.
        attempts: How often it was sent.
        submitted: When the caller sent it.
        at: When it ended.
    """

    number: int
    outcome: Outcome
    code: str
    worker: str
    attempts: int
    submitted: float
    at: float

    @property
    def took(self) -> float:
        """Seconds from the submission to the outcome."""
        return self.at - self.submitted


class EchoTraffic:
    """Sends numbers to the echo model; a context manager.

    Args:
        url: Of the broker.
        topics: The topic root.
        window: Requests in flight at a time.
        width: Integers a request, as the model's rows have.
        name: Of the client; made up where None.
        max_pending: Requests without an outcome at a time.
        keeps: Whether `ended` is kept; a soak does not, so that its memory does not grow.
        lanes: Whether it chooses among the workers; False: the broker shares its requests out.
        silence: When a worker's silence means something.
    """

    def __init__(  # noqa: PLR0913 - each is one knob of a scenario
        self,
        url: str,
        topics: Topics,
        *,
        window: int = 16,
        width: int = 2,
        name: str | None = None,
        max_pending: int = 1024,
        keeps: bool = True,
        lanes: bool = True,
        silence: Silence = Silence(),  # noqa: B008 - frozen
    ) -> None:
        options = ClientOptions(window=window, max_pending=max_pending, lanes=lanes, silence=silence)
        self.requester = connect(url, name or random_name(), topics, options)
        self.ended: list[RequestRecord] = []
        self.asked = 0
        self.wrong = 0
        """Replies that carried other numbers than the request."""
        self._keeps = keeps
        self._finished = 0
        self._took = array("d")
        self._tally: Counter[tuple[Outcome, str]] = Counter()
        self._times = bytearray()  # outcomes by number, for numbers that this class chose
        self._given: Counter[int] = Counter()  # the same for numbers that the caller chose
        self.width = width
        self._first = next(_tags) * _FIRST * 1_000_000
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.requester.close()

    def ask(self, timeout: float, number: int | None = None) -> int:
        """Submit one request without waiting; return the number that it carries."""
        if number is None:
            number = self._first + len(self._times)
            self._times.append(0)
        self.asked += 1
        submitted = time.monotonic()
        request = make_request(MODEL, {"x": np.full((1, self.width), number, np.int64)}, {})
        self.requester.submit(request, timeout, lambda result: self._record(number, submitted, result))
        return number

    def burst(self, requests: int, timeout: float = 60.0) -> None:
        """Submit so many requests at once."""
        for _ in range(requests):
            self.ask(timeout)

    def pace(self, rate: float, requests: int, timeout: float = 60.0) -> None:
        """Submit so many requests at a rate a second; a late one is sent late, not left out."""
        start = time.monotonic()
        for number in range(requests):
            time.sleep(max(0.0, start + number / rate - time.monotonic()))
            self.ask(timeout)

    def wait(self, timeout: float = 90.0) -> None:
        """Wait until every request has an outcome.

        Raises:
            TimeoutError: A request has none.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._finished >= self.asked, timeout):
                raise TimeoutError(f"{self._finished} outcomes of {self.asked} requests after {timeout:g} s")

    def served(self) -> Counters:
        """Wait, and verify that each request has succeeded.

        Raises:
            MqinferError: One has not, or as `check`.
        """
        self.wait()
        counters = self.check()
        if counters.outcomes[Outcome.OK] != self.asked:
            raise MqinferError(f"not every request succeeded: {self.outcomes()}")
        return counters

    def check(self, repeated: int | None = None) -> Counters:
        """Verify the invariant: each request has exactly one outcome, with its own numbers, and the sums balance.

        Args:
            repeated: A number that was sent more than once on purpose.

        Raises:
            MqinferError: They do not, which is a defect of mqinfer.
        """
        counters = self.requester.counters()
        twice = [place for place, times in enumerate(self._times) if times != 1]
        twice += [number for number, times in self._given.items() if times != 1 and number != repeated]
        ended: Counter[Outcome] = Counter()
        for (outcome, _), times in self._tally.items():
            ended[outcome] += times
        faults = {
            "outcomes not exactly once": twice,
            "replies with other numbers": self.wrong,
            "missing outcomes": self.asked - self._finished,
            "submitted by the client only": counters.submitted - self.asked,
            "off balance": counters.submitted - counters.pending - sum(counters.outcomes.values()),
            "outcomes that differ": ended - Counter(counters.outcomes),
        }
        if found := {what: fault for what, fault in faults.items() if fault}:
            raise MqinferError(f"the outcomes do not add up: {found}; {counters}")
        return counters

    def outcomes(self) -> dict[str, int]:
        """Return the number of requests by error code, or by outcome where there was no error."""
        return {code or outcome.value: times for (outcome, code), times in self._tally.items()}

    def publishes(self) -> float:
        """Return how often a request was published, in the mean."""
        return (self.asked + self.requester.counters().retries) / max(1, self.asked)

    def percentile(self, share: float) -> float:
        """Return the time within which this share of the successful requests ended, in seconds."""
        took = sorted(self._took)
        return took[min(len(took) - 1, int(share * len(took)))]

    def _record(self, number: int, submitted: float, result: InferResult) -> None:
        now = time.monotonic()
        right = result.outcome is not Outcome.OK or bool((result.outputs["x"] == number).all())
        code = result.error.code if result.error else ""
        with self._changed:
            self.wrong += not right
            self._finished += 1
            self._tally[result.outcome, code] += 1
            if 0 <= (place := number - self._first) < len(self._times):
                self._times[place] += 1
            else:
                self._given[number] += 1
            if result.outcome is Outcome.OK:
                self._took.append(now - submitted)
            if self._keeps:
                self.ended.append(
                    RequestRecord(number, result.outcome, code, result.worker, result.attempts, submitted, now)
                )
            self._changed.notify_all()


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[threading.Thread]:
    """Run a function on a thread while the body runs; wait for both."""
    thread = threading.Thread(target=work, name="beside", daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        thread.join()
