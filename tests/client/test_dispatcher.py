from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mqinfer.client.dispatcher import Dispatcher
from mqinfer.client.pending import Entry
from mqinfer.client.result import InferResult
from mqinfer.client.retry_budget import RetryBudget
from mqinfer.protocol.states import ServedModel, WorkerState, WorkerStatus
from mqinfer.protocol.types import InferRequest, InferResponse, WorkerLoad

WORKERS = ["a", "b", "c"]


def ignore(result: InferResult) -> None:
    """Take no notice of an outcome."""


def make_entry(name: str, now: float = 0.0, timeout: float = 100.0) -> Entry:
    """Make an entry as a requester does."""
    return Entry(InferRequest(name, "m", ()), ignore, submitted=now, deadline=now + timeout, sent=now)


def state(worker: str, status: WorkerStatus = WorkerStatus.READY, boot: int = 1) -> WorkerState:
    """Say what a worker with a service time of 10 ms says."""
    return WorkerState(worker, status, boot, (ServedModel("m", "1"),), 8, 0, 10_000)


def reply(name: str, worker: str) -> InferResponse:
    """Answer a request."""
    return InferResponse(name, "m", worker=worker, load=WorkerLoad(1, 10_000, 4))


def dispatcher_with(*workers: str) -> Dispatcher:
    """Make a dispatcher that knows these workers."""
    dispatcher = Dispatcher(16)
    for worker in workers:
        dispatcher.state(state(worker), 0.0)
        dispatcher.fleet.heard(worker, WorkerLoad(1, 10_000, 4), 0.0)
    return dispatcher


def send(dispatcher: Dispatcher, name: str, now: float = 0.0) -> Entry:
    """Submit a request, and see it sent."""
    dispatcher.table.add(make_entry(name, now))
    entry = dispatcher.next(now)
    assert entry is not None
    assert entry.request.id == name
    return entry


def test_what_a_lost_worker_had_is_sent_to_another_at_once() -> None:
    """The will is enough: nobody waits for a time-out."""
    dispatcher = dispatcher_with("a")
    entry = send(dispatcher, "1")
    dispatcher.state(state("b"), 0.0)
    dispatcher.state(state("a", WorkerStatus.LOST), 0.0)
    assert dispatcher.next(0.1) is entry
    assert entry.lane is dispatcher.fleet.lane("b")
    assert (entry.attempts, entry.deaths) == (2, frozenset({("a", 1)}))


def test_two_deaths_are_enough() -> None:
    """The second worker that dies on a request makes it poison; its neighbour is sent on."""
    dispatcher = dispatcher_with("a", "b")
    poison = send(dispatcher, "poison")
    assert poison.lane
    dispatcher.state(state(poison.lane.worker, WorkerStatus.LOST), 0.0)
    assert dispatcher.next(0.0) is poison
    neighbour = send(dispatcher, "neighbour")
    assert neighbour.lane is poison.lane
    dispatcher.state(state(poison.lane.worker, WorkerStatus.LOST), 0.0)
    dispatcher.state(state("c"), 0.0)
    assert dispatcher.next(0.0) is neighbour
    assert dispatcher.next(0.0) is None
    assert dispatcher.wake(1.9) == []
    assert dispatcher.wake(2.0) == [poison]
    assert len(neighbour.deaths) == 1


def test_workers_that_come_back_did_not_die() -> None:
    """A state under the boot number of before takes the death back, and the request is sent again at once."""
    dispatcher = dispatcher_with("a", "b")
    entry = send(dispatcher, "1")
    for _ in range(2):
        assert entry.lane
        dispatcher.state(state(entry.lane.worker, WorkerStatus.LOST), 0.0)
        dispatcher.next(0.0)
    assert entry.is_deadly
    dispatcher.state(state("b"), 0.1)
    assert dispatcher.next(0.1) is entry
    assert dispatcher.wake(2.0) == []
    assert entry.attempts == 3


def test_a_broker_that_goes_down_makes_no_poison() -> None:
    """Its last words are the wills of all workers; then the connection to it is lost."""
    dispatcher = dispatcher_with("a", "b")
    entry = send(dispatcher, "1")
    for _ in range(2):
        assert entry.lane
        dispatcher.state(state(entry.lane.worker, WorkerStatus.LOST), 0.0)
        dispatcher.next(0.0)
    dispatcher.disconnected()
    assert not entry.deaths
    assert dispatcher.wake(2.0) == []


def test_a_stopped_worker_is_no_death() -> None:
    """A rolling restart makes no request poison."""
    dispatcher = dispatcher_with("a")
    entry = send(dispatcher, "1")
    dispatcher.state(state("a", WorkerStatus.STOPPED), 0.0)
    assert dispatcher.next(0.0) is entry
    assert entry.lane is None
    assert not entry.deaths


def test_who_would_be_late_lets_the_last_one_go_first() -> None:
    """A worker of 10 ms with two requests in hand needs 30 ms: the first has 20 ms left, the last has 100."""
    dispatcher = dispatcher_with("a")
    for name in ("1", "2"):
        send(dispatcher, name)
    first, last = make_entry("first", timeout=0.02), make_entry("last", timeout=0.1)
    for entry in (first, last):
        dispatcher.table.add(entry)
    assert dispatcher.next(0.0) is last
    assert dispatcher.next(0.0) is None
    assert dispatcher.wake(0.02) == [first]


def test_nobody_is_sent_to_be_late_but_to_an_idle_worker() -> None:
    """What can't be in time at a busy worker waits for it, and is sent all the same once it has nothing to do."""
    dispatcher = dispatcher_with("a")
    send(dispatcher, "1")
    hasty = make_entry("hasty", timeout=0.005)
    dispatcher.table.add(hasty)
    assert dispatcher.next(0.0) is None
    assert dispatcher.table.settle("1")
    assert dispatcher.next(0.0) is hasty


def test_silence_sends_a_request_elsewhere_after_the_time_of_an_attempt() -> None:
    """A second at least, and the worker that was silent is left alone."""
    dispatcher = dispatcher_with("a", "b")
    entry = send(dispatcher, "1")
    silent = entry.lane
    assert dispatcher.next_wake() == 1.0
    assert dispatcher.wake(0.99) == []
    assert dispatcher.next(0.99) is None
    dispatcher.wake(1.0)
    assert dispatcher.next(1.0) is entry
    assert entry.lane is not silent
    assert entry.attempts == 2


def test_a_long_way_is_no_silence() -> None:
    """A worker behind a link of 400 ms is not in doubt while the link takes its time, and is not asked twice."""
    dispatcher = dispatcher_with("a")
    for number in range(3):
        send(dispatcher, f"first {number}")
    for number in range(3):
        dispatcher.heard(reply(f"first {number}", "a"), 0.4)
        dispatcher.table.settle(f"first {number}")
    send(dispatcher, "2", 1.0)
    send(dispatcher, "3", 1.3)
    assert dispatcher.wake(1.3) == []
    assert dispatcher.next_wake() == pytest.approx(1.0 + 3 * (0.01 + 0.4))


def test_a_worker_that_answers_others_is_given_time() -> None:
    """Over a way that has become slow everything comes late: it is not sent again for that, unless it was lost."""
    dispatcher = dispatcher_with("a", "b")
    entry = send(dispatcher, "1")
    assert entry.lane
    for now in (0.9, 1.8, 2.7):
        dispatcher.fleet.heard(entry.lane.worker, WorkerLoad(1, 10_000), now)
        dispatcher.wake(now + 0.2)
        assert dispatcher.next(now + 0.2) is None
    dispatcher.fleet.heard(entry.lane.worker, WorkerLoad(1, 10_000), 10.0)
    dispatcher.wake(10.0)
    assert dispatcher.next(10.0) is entry
    assert entry.attempts == 2


def test_a_reply_to_an_earlier_attempt_is_as_good() -> None:
    """The first reply is taken, whoever sends it, and the other is late."""
    dispatcher = dispatcher_with("a", "b")
    entry = send(dispatcher, "1")
    silent = entry.lane
    assert silent
    dispatcher.wake(1.0)
    dispatcher.next(1.0)
    dispatcher.heard(reply("1", silent.worker), 1.1)
    assert dispatcher.table.settle("1") is entry
    assert dispatcher.table.settle("1") is None
    assert dispatcher.table.late == 1
    assert silent.outstanding == 0


def test_nobody_listens_on_a_lane() -> None:
    """PUBACK 0x10 closes the lane, and the request goes elsewhere with no delay."""
    dispatcher = dispatcher_with("a")
    entry = send(dispatcher, "1")
    dispatcher.unheard("1")
    assert dispatcher.next(0.0) is entry
    assert entry.lane is None


def test_a_busy_worker_is_left_alone_for_the_time_of_one_request() -> None:
    """Its window is zero meanwhile, and the request waits in the client."""
    dispatcher = dispatcher_with("a")
    entry = send(dispatcher, "1")
    assert dispatcher.busy("1", 0.0)
    assert dispatcher.next(0.005) is None
    wake = dispatcher.next_wake()
    assert wake is not None
    assert wake <= 0.011
    assert dispatcher.next(0.011) is entry


def test_an_opening_that_passes_between_two_looks_is_not_missed() -> None:
    """The timer asks a little later than the last look was: what opened in between is due, and once only."""
    dispatcher = dispatcher_with("a")
    send(dispatcher, "1")
    dispatcher.busy("1", 0.0)
    assert dispatcher.next(0.00999) is None
    opening = dispatcher.next_wake()
    assert opening == pytest.approx(0.01)
    dispatcher.wake(0.02)
    later = dispatcher.next_wake()
    assert later is not None
    assert later > 0.02


def test_retries_for_silence_keep_to_a_budget() -> None:
    """Where everybody is silent, not everything is sent again each second."""
    dispatcher = Dispatcher(1000)
    for number in range(500):
        dispatcher.table.add(make_entry(str(number)))
    sent = 0
    for tenth in range(300):
        now = tenth / 10
        dispatcher.wake(now)
        while dispatcher.next(now):
            sent += 1
    assert dispatcher.table.retries == sent - 500
    assert 0 < dispatcher.table.retries <= 16 + 50
    assert dispatcher.withheld > 0


def test_what_was_damaged_is_sent_again_at_once_within_the_budget() -> None:
    """Over a way that damages everything nothing goes round and round: beyond the budget it waits for its time-out."""
    dispatcher = dispatcher_with("a", "b")
    entry = send(dispatcher, "1")
    for attempt in range(2, 18):
        dispatcher.damaged("1")
        assert dispatcher.next(0.0) is entry
        assert entry.attempts == attempt
    dispatcher.damaged("1")
    assert (dispatcher.next(0.0), dispatcher.withheld, dispatcher.table.in_flight) == (None, 1, 1)
    dispatcher.damaged("whose id is damaged too")
    assert dispatcher.withheld == 1


def test_the_budget_is_a_share_and_a_burst() -> None:
    """Tokens don't pile up beyond the burst."""
    budget = RetryBudget(share=0.25, burst=2)
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    for _ in range(4):
        budget.earn()
    assert [budget.spend(), budget.spend()] == [True, False]
    for _ in range(1000):
        budget.earn()
    assert [budget.spend() for _ in range(3)] == [True, True, False]


class Delivery(RuleBasedStateMachine):
    """Workers come, die, stall and answer late, connections break: every request still leaves exactly once."""

    @initialize()
    def start(self) -> None:
        """Begin without workers."""
        self.dispatcher = Dispatcher(4)
        self.now = 0.0
        self.number = 0
        self.boot = dict.fromkeys(WORKERS, 0)
        self.asked: set[str] = set()
        self.ended: list[str] = []
        self.sent: list[tuple[str, str]] = []

    def end(self, entries: list[Entry]) -> None:
        """Note outcomes."""
        self.ended += [entry.request.id for entry in entries]

    @rule(timeout=st.floats(0, 30))
    def ask(self, timeout: float) -> None:
        """A caller asks."""
        self.number += 1
        self.asked.add(str(self.number))
        self.dispatcher.table.add(make_entry(str(self.number), self.now, timeout))

    @rule()
    def pump(self) -> None:
        """Everything that can be sent is sent."""
        while entry := self.dispatcher.next(self.now):
            self.sent.append((entry.request.id, entry.lane.worker if entry.lane else "a"))

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        """A worker answers something that it once got, perhaps for the second time."""
        if self.sent:
            name, worker = data.draw(st.sampled_from(self.sent))
            self.dispatcher.heard(reply(name, worker), self.now)
            entry = self.dispatcher.table.settle(name)
            self.end([entry] if entry else [])

    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        """A worker is busy, or nobody listens."""
        if self.sent:
            name, _ = data.draw(st.sampled_from(self.sent))
            if data.draw(st.booleans()):
                self.dispatcher.busy(name, self.now)
            else:
                self.dispatcher.unheard(name)

    @rule(worker=st.sampled_from(WORKERS), status=st.sampled_from(WorkerStatus), reborn=st.booleans())
    def say(self, worker: str, status: WorkerStatus, reborn: bool) -> None:  # noqa: FBT001  drawn by Hypothesis
        """A worker, or the broker for it, publishes a state; the boot number may be a new one, or a twin's."""
        self.boot[worker] += reborn
        self.dispatcher.state(state(worker, status, self.boot[worker]), self.now)

    @rule(seconds=st.floats(0, 5))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        self.end(self.dispatcher.wake(self.now))

    @rule()
    def disconnect(self) -> None:
        """The connection is lost."""
        self.dispatcher.disconnected()

    @invariant()
    def books_balance(self) -> None:
        """Nothing leaves twice, and what has not left is in the table."""
        if not hasattr(self, "dispatcher"):
            return
        assert len(self.ended) == len(set(self.ended))
        living = self.asked - set(self.ended)
        assert len(self.dispatcher.table) == len(living)
        assert all(name in self.dispatcher.table for name in living)

    @invariant()
    def lanes_owe_only_what_is_in_flight(self) -> None:
        """No worker is charged for a request that has left, and the timer is set for what is in flight."""
        if not hasattr(self, "dispatcher"):
            return
        owed = sum(lane.outstanding for name in WORKERS if (lane := self.dispatcher.fleet.lane(name)))
        assert owed <= self.dispatcher.table.in_flight <= 4
        if self.dispatcher.table.in_flight:
            wake = self.dispatcher.next_wake()
            assert wake is not None
            assert wake <= max(self.dispatcher.table.next_overdue(), self.now + 1e-9)

    def teardown(self) -> None:
        """At the end of time every request has its outcome."""
        if hasattr(self, "dispatcher"):
            self.end(self.dispatcher.wake(self.now + 100))
            assert set(self.ended) == self.asked


TestDelivery = Delivery.TestCase
TestDelivery.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
