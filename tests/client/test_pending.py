from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule
from msgspec.structs import replace

from mqinfer.client.dispatch.pending import SLACK, PendingRequest, PendingTable, RequestPlace
from mqinfer.client.result import InferResult
from mqinfer.fair_queue import PRIORITY_TURNS
from mqinfer.protocol.types import InferRequest


def ignore(result: InferResult) -> None:
    """Take no notice of an outcome."""


def make_entry(name: str, now: float = 0.0, timeout: float = 100.0) -> PendingRequest:
    """Make an entry as a requester does."""
    return PendingRequest(InferRequest(name, "model", ()), ignore, submitted=now, deadline=now + timeout)


def queue_of(table: PendingTable) -> list[str]:
    """List what waits, in its order; these tests ask one model only."""
    return [name for queue in table.queues.values() for name in queue]


def launch_first(table: PendingTable, now: float) -> PendingRequest | None:
    """Send the first of the queue over its channel, as far as the window allows."""
    if len(table.in_flight) >= table.window or not table.queues:
        return None
    entry = next(iter(next(iter(table.queues.values())).values()))
    table.launch(entry, None, now)
    return entry


def next_alarm(table: PendingTable) -> float:
    """Return when the table has something to do next."""
    return table.alarms[0][0] if table.alarms else math.inf


class Table(RuleBasedStateMachine):
    """Drives a table as a requester would, beside a model of it made of plain lists."""

    sent = Bundle("sent")

    @initialize(window=st.integers(1, 4))
    def start(self, window: int) -> None:
        """Begin with an empty table at time 0."""
        self.table = PendingTable(window)
        self.window = window
        self.now = 0
        self.number = 0
        self.living: dict[str, PendingRequest] = {}
        self.left: list[str] = []
        self.queued: list[str] = []
        self.in_flight: list[str] = []
        self.backing_off: dict[str, int] = {}
        self.retries = 0

    def leave(self, name: str) -> None:
        """Note that an entry was given out."""
        assert name in self.living
        del self.living[name]
        self.left.append(name)
        for store in (self.queued, self.in_flight):
            if name in store:
                store.remove(name)
        self.backing_off.pop(name, None)

    @rule(timeout=st.integers(0, 20))
    def add(self, timeout: int) -> None:
        """A caller asks."""
        name = str(self.number)
        self.number += 1
        self.living[name] = make_entry(name, self.now, timeout)
        self.queued.append(name)
        self.table.add(self.living[name])

    @rule(target=sent)
    def send(self) -> str:
        """The next request goes out, in the order of the queue, as far as the window allows."""
        entry = launch_first(self.table, self.now)
        if len(self.in_flight) >= self.window or not self.queued:
            assert entry is None
            return "never asked"
        assert entry is not None
        name = self.queued.pop(0)
        assert entry is self.living[name]
        assert entry.sent == self.now
        self.retries += entry.attempts > 1
        self.in_flight.append(name)
        return name

    @rule(name=sent)
    def reply(self, name: str) -> None:
        """A reply comes: the first one takes the entry out, every other one is late."""
        entry = self.table.remove(name)
        assert entry is self.living.get(name)
        if entry is not None:
            assert entry.place is RequestPlace.ENDED
            self.leave(name)

    @rule(name=consumes(sent), delay=st.integers(0, 5))
    def back_off(self, name: str, delay: int) -> None:
        """A request is turned away, or set aside while it is queued; one that backs off already does so no longer."""
        if name not in self.living:
            return
        assert self.table.back_off(self.living[name], self.now + delay) is (name not in self.backing_off)
        for store in (self.queued, self.in_flight):
            if name in store:
                store.remove(name)
                self.backing_off[name] = self.now + delay

    @rule()
    def recall(self) -> None:
        """The connection is lost: what was in flight is sent first, in the order in which it was sent."""
        assert [entry.request.id for entry in self.table.recall()] == self.in_flight
        self.queued = self.in_flight + self.queued
        self.in_flight = []

    @rule(seconds=st.integers(0, 8))
    def wake(self, seconds: int) -> None:
        """Time passes: what is past its deadline leaves, what has backed off is queued again."""
        self.now += seconds
        overdue = {name for name, entry in self.living.items() if entry.deadline <= self.now}
        due = self.table.wake(self.now)
        expired = [entry.request.id for entry in due if entry.place is RequestPlace.ENDED]
        assert set(expired) == overdue
        assert len(expired) == len(overdue)
        for name in expired:
            self.leave(name)
        resumed = [name for name, until in self.backing_off.items() if until <= self.now]
        assert sorted(entry.request.id for entry in due if entry.place is RequestPlace.QUEUED) == sorted(resumed)
        queued = queue_of(self.table)[len(self.queued) :]
        assert sorted(queued) == sorted(resumed)
        assert [self.backing_off[name] for name in queued] == sorted(self.backing_off[name] for name in resumed)
        for name in queued:
            self.queued.append(name)
            del self.backing_off[name]
        assert next_alarm(self.table) > self.now

    @precondition(lambda self: self.living)
    @rule()
    def drain(self) -> None:
        """The client closes: everything is given out."""
        for entry in self.table.wake(math.inf):
            self.leave(entry.request.id)
        assert not self.living
        assert not self.table.alarms

    @invariant()
    def books_balance(self) -> None:
        """Every entry is in exactly one place, and has left at most once."""
        if not hasattr(self, "table"):
            return
        assert self.table.entries == self.living
        assert len(self.left) == len(set(self.left))
        assert list(self.table.in_flight) == self.in_flight
        assert len(self.in_flight) <= self.window
        assert queue_of(self.table) == self.queued
        assert self.table.queued == len(self.queued)
        assert self.table.retries == self.retries

    @invariant()
    def every_deadline_has_an_alarm(self) -> None:
        """The next alarm is never later than the next deadline."""
        if hasattr(self, "table") and self.living:
            assert next_alarm(self.table) <= min(entry.deadline for entry in self.living.values())


TestTable = Table.TestCase
TestTable.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=200))
def test_priorities_have_their_turns(asked: list[tuple[int, bool]]) -> None:
    """The line is in the order of turns whatever came and left, and among equals in the order of coming."""
    table = PendingTable(window=1000)
    waiting: dict[str, int] = {}
    for number, (priority, leaves) in enumerate(asked, 1):
        entry = make_entry(str(number))
        entry.request = replace(entry.request, priority=priority)
        table.add(entry)
        waiting[entry.request.id] = number + PRIORITY_TURNS * (priority if 0 < priority < 4 else 4)
        if leaves:
            name = min(waiting, key=lambda each: (waiting[each], int(each)))
            assert table.remove(name) is not None
            del waiting[name]
        assert queue_of(table) == sorted(waiting, key=lambda each: (waiting[each], int(each)))


def test_a_low_priority_is_overtaken_by_a_bounded_number() -> None:
    """Of a stream without end of high ones so many go first, and no more."""
    table = PendingTable(window=1)
    table.add(make_entry("low"))
    sent = []
    for number in range(4 * PRIORITY_TURNS):
        entry = make_entry(str(number))
        entry.request = replace(entry.request, priority=1)
        table.add(entry)
        launched = launch_first(table, 0.0)
        assert launched is not None
        sent.append(launched.request.id)
        table.remove(launched.request.id)
    assert sent.index("low") == 3 * PRIORITY_TURNS - 1


def test_the_alarms_of_settled_entries_do_not_pile_up() -> None:
    """Ten thousand requests with long deadlines that are answered at once leave no heap behind."""
    table = PendingTable(window=4)
    for number in range(10_000):
        table.add(make_entry(str(number)))
        launch_first(table, 0.0)
        assert table.remove(str(number))
        assert len(table.alarms) <= SLACK + 2


def test_a_request_that_backs_off_again_and_again_keeps_the_heap_small() -> None:
    """One alarm for the deadline and one for the end of the pause are enough."""
    table = PendingTable(window=1)
    table.add(make_entry("a", timeout=1e6))
    for now in range(1000):
        entry = launch_first(table, float(now))
        assert entry
        assert table.back_off(entry, now + 1.0)
        assert table.wake(now + 1.0) == [entry]
        assert len(table.alarms) <= 2


def test_a_new_connection_begins_a_new_count_of_refusals() -> None:
    """A request that was turned away before the connection was lost has its whole patience again after it."""
    table = PendingTable(window=2)
    for name in "ab":
        table.add(make_entry(name))
        sent = launch_first(table, 0.0)
        assert sent
        sent.trail.refused_since = 0.0
    table.back_off(table.entries["a"], 1.0)
    table.recall()
    table.wake(1.0)
    again = [launch_first(table, 5.0) for _ in "ab"]
    assert [entry and entry.trail.refused_since for entry in again] == [None, None]
