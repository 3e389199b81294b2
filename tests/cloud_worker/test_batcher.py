from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mqinfer.cloud_worker.batcher import Batcher

Item = tuple[int, str, int, int]
"""Number, key, rows and arrival of a request."""


class Batching(RuleBasedStateMachine):
    """Drives a batcher beside a plain list of what waits. Times are whole numbers, so that sums are exact."""

    @initialize(max_rows=st.integers(1, 6), delay=st.sampled_from([0, 3, 10]))
    def start(self, max_rows: int, delay: int) -> None:
        """Begin with nothing."""
        self.batcher: Batcher[Item] = Batcher(max_rows, delay)
        self.max_rows, self.delay = max_rows, delay
        self.now = self.number = 0
        self.waiting: list[Item] = []

    @rule(key=st.sampled_from("abc"), rows=st.integers(0, 6))
    def add(self, key: str, rows: int) -> None:
        """A request comes."""
        item = (self.number, key, min(rows, self.max_rows), self.now)
        self.number += 1
        self.waiting.append(item)
        self.batcher.add(item, key, item[2], self.now)

    @rule(seconds=st.integers(0, 5))
    def tick(self, seconds: int) -> None:
        """Time passes."""
        self.now += seconds

    @rule()
    def take(self) -> None:
        """A batch is taken exactly when `wait` says so."""
        wait = self.batcher.wait(self.now)
        batch = self.batcher.take(self.now)
        assert bool(batch) is (wait == 0)
        if batch:
            self.check(batch)

    @rule()
    def take_when_due(self) -> None:
        """After exactly the wait there is a batch."""
        wait = self.batcher.wait(self.now)
        if wait is not None:
            self.now += int(wait)
            batch = self.batcher.take(self.now)
            assert batch
            self.check(batch)

    @rule()
    def clear(self) -> None:
        """Everything is taken at once."""
        assert sorted(self.batcher.clear()) == self.waiting
        self.waiting = []

    def check(self, batch: list[Item]) -> None:
        """One key, not too many rows, the oldest of that key in their order, and ready before any other key."""
        (key,) = {item[1] for item in batch}
        rows = sum(item[2] for item in batch)
        assert rows <= self.max_rows
        mine = [item for item in self.waiting if item[1] == key]
        assert batch == mine[: len(batch)]
        left = mine[len(batch) :]
        assert not left or rows + left[0][2] > self.max_rows
        assert self.ready(key)
        older = {item[1] for item in self.waiting if item[3] < batch[0][3]}
        assert not any(self.ready(other) for other in older)
        self.waiting = [item for item in self.waiting if item not in batch]

    def ready(self, key: str) -> bool:
        """Whether a key's requests may run: full, or the first one has waited long enough."""
        mine = [item for item in self.waiting if item[1] == key]
        return bool(mine) and (sum(i[2] for i in mine) >= self.max_rows or self.now - mine[0][3] >= self.delay)

    @invariant()
    def nothing_is_lost(self) -> None:
        """The count is right, and `wait` says None exactly when nothing waits."""
        if hasattr(self, "batcher"):
            assert len(self.batcher) == len(self.waiting)
            assert (self.batcher.wait(self.now) is None) is (not self.waiting)


TestBatching = Batching.TestCase


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 4)), max_size=40))
def test_without_a_delay_everything_leaves_at_once(requests: list[tuple[str, int]]) -> None:
    """With delay 0 `take` goes on until nothing is left."""
    batcher: Batcher[int] = Batcher(4)
    for number, (key, rows) in enumerate(requests):
        batcher.add(number, key, rows, 0.0)
    taken: list[int] = []
    while batch := batcher.take(0.0):
        taken += batch
    assert sorted(taken) == list(range(len(requests)))
    assert len(batcher) == 0


def test_a_request_larger_than_a_batch_runs_alone() -> None:
    """It is not lost and blocks nobody, though admission should have refused it."""
    batcher: Batcher[str] = Batcher(2)
    batcher.add("large", "key", 5, 0.0)
    batcher.add("small", "key", 1, 0.0)
    assert batcher.take(0.0) == ["large"]
    assert batcher.take(0.0) == ["small"]
