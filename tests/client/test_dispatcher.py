from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from mqinfer.broker.link import ReasonCode
from mqinfer.client.dispatch.dispatcher import Dispatcher, Ended
from mqinfer.client.dispatch.pending import PendingRequest, RequestPlace, RetryBudget
from mqinfer.client.options import ClientOptions
from mqinfer.client.result import InferResult
from mqinfer.protocol.errors import (
    BadTopic,
    Cancelled,
    Corrupted,
    Expired,
    MessageTooLarge,
    NotAuthorized,
    NotConnected,
    NoWorker,
    Poison,
    Rejected,
)
from mqinfer.protocol.states import ServedModel, WorkerState, WorkerStatus
from mqinfer.protocol.types import ErrorInfo, InferRequest, InferResponse, Outcome, WorkerLoad

WORKERS = ["a", "b", "c"]


def ignore(result: InferResult) -> None:
    """Take no notice of an outcome."""


def make_entry(name: str, now: float = 0.0, timeout: float = 100.0) -> PendingRequest:
    """Make an entry as a requester does."""
    return PendingRequest(InferRequest(name, "m", ()), ignore, submitted=now, deadline=now + timeout)


def state(worker: str, status: WorkerStatus = WorkerStatus.READY, incarnation: int = 1) -> WorkerState:
    """Return the state of a worker with a service time of 10 ms."""
    return WorkerState(worker, status, incarnation, (ServedModel("m", "1"),), 8, 0, 10_000)


def reply(name: str, worker: str) -> InferResponse:
    """Answer a request."""
    return InferResponse(name, "m", worker=worker, load=WorkerLoad(1, 10_000, 4))


def refusal(name: str, code: str = Rejected.code) -> InferResponse:
    """Turn a request away."""
    return InferResponse(name, "m", outcome=Outcome.REJECTED, error=ErrorInfo(code, "4 requests in hand"))


def dispatcher_with(*workers: str, shed: bool = False) -> Dispatcher:
    """Make a dispatcher that knows these workers: each has replied once."""
    dispatcher = Dispatcher("car-1", ClientOptions(shed=shed))
    for worker in workers:
        dispatcher.update(state(worker), 0.0)
    for entry in [send(dispatcher, f"of before {worker}") for worker in workers]:
        dispatcher.replied(reply(entry.request.id, worker_of(entry)), 0.0)
        dispatcher.settle(entry.request.id, Outcome.OK)
    return dispatcher


def send(dispatcher: Dispatcher, name: str, now: float = 0.0) -> PendingRequest:
    """Submit a request, and see it sent."""
    dispatcher.submit(make_entry(name, now))
    return sent(dispatcher, now, name)


def sent(dispatcher: Dispatcher, now: float, name: str) -> PendingRequest:
    """See a request sent, and acknowledged by the broker."""
    entry = dispatcher.take(now).send
    assert entry is not None
    assert entry.request.id == name
    dispatcher.acked(entry, entry.attempts, ReasonCode.SUCCESS, now)
    return entry


def worker_of(entry: PendingRequest) -> str:
    """Return the worker that a request was sent to; empty where it went over its channel."""
    return entry.lane.worker if entry.lane else ""


def lose(dispatcher: Dispatcher, entry: PendingRequest) -> None:
    """Lose the worker that has a request."""
    dispatcher.update(state(worker_of(entry), WorkerStatus.LOST), 0.0)


def errors(ended: Sequence[Ended]) -> dict[str, type[Exception]]:
    """Return which requests ended, and as what."""
    return {entry.request.id: type(why) for entry, why in ended}


def crash(dispatcher: Dispatcher, entry: PendingRequest, now: float = 0.0, *, report_first: bool = False) -> None:
    """Crash the worker that has a request: the broker publishes its will, and its server what happened."""
    worker = worker_of(entry)
    both = [WorkerStatus.LOST, WorkerStatus.CRASHED]
    for status in reversed(both) if report_first else both:
        dispatcher.update(state(worker, status), now)


def test_what_a_lost_worker_had_is_sent_to_another_at_once() -> None:
    """The will is enough: nobody waits for a time-out."""
    dispatcher = dispatcher_with("a")
    entry = send(dispatcher, "1")
    dispatcher.update(state("b"), 0.0)
    dispatcher.update(state("a", WorkerStatus.LOST), 0.0)
    assert dispatcher.take(0.1).send is entry
    assert worker_of(entry) == "b"
    assert (entry.attempts, entry.trail.lost_on, entry.trail.crashed_on) == (2, frozenset({("a", 1)}), frozenset())


@pytest.mark.parametrize("report_first", [False, True])
def test_two_crashes_are_enough(report_first: bool) -> None:  # noqa: FBT001  a parameter of the test
    """A request that two workers crashed on is poison, whichever report comes first; its neighbour is sent on."""
    dispatcher = dispatcher_with("a", "b")
    poison = send(dispatcher, "poison")
    crash(dispatcher, poison, report_first=report_first)
    assert sent(dispatcher, 0.0, "poison") is poison
    neighbour = send(dispatcher, "neighbour")
    assert neighbour.lane is poison.lane
    crash(dispatcher, poison, report_first=report_first)
    dispatcher.update(state("c"), 0.0)
    step = dispatcher.take(0.0)
    assert errors(step.ended) == {"poison": Poison}
    assert "the workers a, b crashed" in str(step.ended[0][1])
    assert step.send is neighbour
    assert len(neighbour.trail.crashed_on) == 1


def test_what_a_worker_was_lost_with_waits_for_a_worker_that_is_known() -> None:
    """Over the model's channel it would reach the next worker unseen, and a third one: there its crash is nobody's."""
    dispatcher = dispatcher_with("a")
    poison = send(dispatcher, "poison")
    crash(dispatcher, poison, report_first=False)
    assert dispatcher.take(0.0).send is None
    other = send(dispatcher, "other")
    assert other.lane is None
    dispatcher.update(state("a", incarnation=2), 1.0)
    assert sent(dispatcher, 1.0, "poison") is poison
    assert worker_of(poison) == "a"


def test_a_lost_connection_is_no_crash() -> None:
    """Two workers whose connections are taken over for good convict nobody: after two seconds a third one is asked."""
    dispatcher = dispatcher_with("a", "b", "c")
    entry = send(dispatcher, "1")
    lose(dispatcher, entry)
    assert sent(dispatcher, 0.0, "1") is entry
    lose(dispatcher, entry)
    assert dispatcher.take(1.9).send is None
    assert dispatcher.wake_at == 2.0
    assert sent(dispatcher, 2.0, "1") is entry
    assert not dispatcher.take(2.0).ended


def test_a_report_that_comes_while_a_request_is_set_aside_decides() -> None:
    """The second crash may be reported a second after the will: no third worker has the request by then."""
    dispatcher = dispatcher_with("a", "b", "c")
    entry = send(dispatcher, "1")
    crash(dispatcher, entry)
    sent(dispatcher, 0.0, "1")
    second = worker_of(entry)
    lose(dispatcher, entry)
    assert dispatcher.take(1.0).send is None
    dispatcher.update(state(second, WorkerStatus.CRASHED), 1.0)
    assert errors(dispatcher.take(1.0).ended) == {"1": Poison}
    assert entry.attempts == 2


def test_only_the_crash_of_the_process_that_had_a_request_counts() -> None:
    """Reports of other workers, of other incarnations, of what it never had, and twice the same one, change nothing."""
    dispatcher = dispatcher_with("a", "b", "c")
    entry = send(dispatcher, "1")
    first = worker_of(entry)
    for incarnation in (1, 2, 1):
        dispatcher.update(state(first, WorkerStatus.CRASHED, incarnation), 0.0)
    sent(dispatcher, 0.0, "1")
    for worker in {"a", "b", "c"} - {worker_of(entry)}:
        dispatcher.update(state(worker, WorkerStatus.CRASHED), 0.0)
    assert not dispatcher.take(0.0).ended
    assert entry.trail.crashed_on == {(first, 1)}


def report(dispatcher: Dispatcher, worker: str, *running: str, incarnation: int = 1, now: float = 0.0) -> None:
    """Report a crash with the requests that the process worked on."""
    dispatcher.update(WorkerState(worker, WorkerStatus.CRASHED, incarnation, running=running), now)


def test_a_report_counts_for_what_it_names_wherever_that_is() -> None:
    """In flight elsewhere or queued, acknowledged or not; ids of other clients change nothing."""
    dispatcher = dispatcher_with("a", "b", "c")
    dispatcher.submit(make_entry("1"))
    entry = dispatcher.take(0.0).send
    assert entry
    first = worker_of(entry)
    assert dispatcher.take(1.0).send is entry
    report(dispatcher, first, "1", "somebody else's", now=1.5)
    assert entry.place is RequestPlace.IN_FLIGHT
    assert entry.trail.crashed_on == {(first, 1)}
    report(dispatcher, worker_of(entry), "1", now=2.0)
    assert errors(dispatcher.take(2.0).ended) == {"1": Poison}


def test_a_report_exculpates_what_it_does_not_name() -> None:
    """Beside two different culprits an innocent request is suspected by nobody, and need not be kept apart."""
    dispatcher = dispatcher_with("a", "b", "c")
    innocent = send(dispatcher, "innocent")
    for culprit in ("x", "y"):
        worker = worker_of(innocent) or ""
        dispatcher.update(state(worker, WorkerStatus.LOST), 0.0)
        report(dispatcher, worker, culprit)
        assert not innocent.trail.lost_on
        assert sent(dispatcher, 0.0, "innocent") is innocent
    assert not dispatcher.take(10.0).ended


def test_a_report_frees_what_was_set_aside() -> None:
    """Two workers were lost with it; the second one's report names another request, so that it is sent at once."""
    dispatcher = dispatcher_with("a", "b", "c")
    entry = send(dispatcher, "1")
    crash(dispatcher, entry)
    sent(dispatcher, 0.0, "1")
    second = worker_of(entry)
    lose(dispatcher, entry)
    assert dispatcher.take(0.1).send is None
    report(dispatcher, second, "another", now=0.1)
    assert sent(dispatcher, 0.1, "1") is entry
    assert len(entry.trail.lost_on) == 1


def silent_on_two() -> tuple[Dispatcher, PendingRequest, str, str]:
    """Return a dispatcher of four workers, a request that two of them are silent on, and the two."""
    dispatcher = dispatcher_with("a", "b", "c", "d")
    entry = send(dispatcher, "1")
    first = worker_of(entry)
    sent(dispatcher, 1.0, "1")
    second = worker_of(entry)
    for now in (2.5, 3.5, 50.0):
        assert dispatcher.take(now).send is None
    assert (entry.attempts, entry.place) == (2, RequestPlace.IN_FLIGHT)
    return dispatcher, entry, first, second


def test_no_third_worker_gets_a_request_that_two_are_silent_on() -> None:
    """It waits for its deadline."""
    dispatcher, *_ = silent_on_two()
    assert errors(dispatcher.take(100.0).ended) == {"1": Expired}


@pytest.mark.parametrize("which", [0, 1])
def test_a_worker_that_replies_frees_what_waits_for_it(which: int) -> None:
    """To whatever: it was slow, and does not work on that request alone."""
    dispatcher, entry, *workers = silent_on_two()
    (lane,) = [lane for lane in entry.trail.silent if lane.worker == workers[which]]
    lane.update_load(WorkerLoad(1, 10_000, 4), 50.5)
    assert dispatcher.take(60.0).send is entry


@pytest.mark.parametrize("which", [0, 1])
def test_a_silent_worker_that_is_lost_frees_what_waits_for_it(which: int) -> None:
    """Two seconds later, if no crash is reported by then."""
    dispatcher, entry, *workers = silent_on_two()
    dispatcher.update(state(workers[which], WorkerStatus.LOST), 50.0)
    assert dispatcher.take(51.9).send is None
    assert dispatcher.take(53.0).send is entry
    assert entry.attempts == 3


@pytest.mark.parametrize("which", [0, 1])
def test_two_silent_workers_that_are_killed_are_all_that_a_request_takes(which: int) -> None:
    """Each is lost and reported; whichever comes first, the request is sent to nobody until the second one's report."""
    dispatcher, _, *workers = silent_on_two()
    for worker, now in ((workers[which], 50.0), (workers[1 - which], 70.0)):
        assert dispatcher.take(now).send is None
        dispatcher.update(state(worker, WorkerStatus.LOST), now)
        assert dispatcher.take(now + 0.1).send is None
        report(dispatcher, worker, "1", now=now + 0.1)
    assert errors(dispatcher.take(70.2).ended) == {"1": Poison}


def test_losses_without_a_report_make_nothing_poison() -> None:
    """Whether each process leaves its name to a later one or is lost, none is known to have ended because of it."""
    dispatcher = dispatcher_with("a")
    entry = send(dispatcher, "1")
    for later in range(2, 8):
        now = 5.0 * later
        if later % 2:
            dispatcher.update(state("a", WorkerStatus.LOST, later - 1), now)
        dispatcher.update(state("a", incarnation=later), now)
        step = dispatcher.take(now + 3.0)
        assert not step.ended
        if step.send is entry:
            dispatcher.acked(entry, entry.attempts, ReasonCode.SUCCESS, now + 3.0)
    assert entry.attempts > 4


def test_what_is_held_waits_for_the_report_of_its_silent_worker() -> None:
    """The will of the worker comes first: the request that is set aside is not sent to a third one in between."""
    dispatcher = dispatcher_with("a", "b", "c")
    entry = send(dispatcher, "1")
    first = worker_of(entry)
    sent(dispatcher, 1.0, "1")
    report(dispatcher, worker_of(entry), "1", now=1.5)
    assert dispatcher.take(3.6).send is None
    assert entry.place is RequestPlace.BACKING_OFF
    before = entry.due_at - 0.01
    dispatcher.update(state(first, WorkerStatus.LOST), before)
    assert dispatcher.take(before + 0.02).send is None
    report(dispatcher, first, "1", now=before + 0.03)
    assert errors(dispatcher.take(before + 0.04).ended) == {"1": Poison}


def test_what_crashed_one_worker_and_silences_another_goes_to_no_third() -> None:
    """The second one is about to be killed for it."""
    dispatcher = dispatcher_with("a", "b", "c")
    entry = send(dispatcher, "1")
    report(dispatcher, worker_of(entry), "1")
    assert sent(dispatcher, 0.0, "1") is entry
    for now in (1.5, 20.0):
        assert dispatcher.take(now).send is None


def test_a_culprit_in_flight_is_kept_apart_from_others() -> None:
    """It went elsewhere before its crash was reported: nobody that another worker was lost with follows it there."""
    dispatcher = dispatcher_with("a", "b")
    entry = send(dispatcher, "1")
    first = worker_of(entry)
    sent(dispatcher, 1.0, "1")
    assert entry.lane
    entry.lane.limit = 4
    report(dispatcher, first, "1", now=1.1)
    suspect = make_entry("2")
    suspect.trail.lost_on = frozenset({("c", 1)})
    dispatcher.submit(suspect)
    assert dispatcher.take(1.1).send is None
    dispatcher.settle("1", Outcome.OK)
    assert dispatcher.take(1.1).send is suspect
    assert suspect.lane is entry.lane


def test_a_worker_that_comes_back_did_not_crash() -> None:
    """A state under the incarnation of before takes the loss back: only its connection was lost."""
    dispatcher = dispatcher_with("a", "b")
    entry = send(dispatcher, "1")
    first = worker_of(entry)
    lose(dispatcher, entry)
    sent(dispatcher, 0.0, "1")
    dispatcher.update(state(first), 0.0)
    lose(dispatcher, entry)
    step = dispatcher.take(0.1)
    assert step.send is entry
    assert not step.ended
    assert (entry.attempts, len(entry.trail.lost_on)) == (3, 1)


def test_a_worker_that_comes_back_calls_back_nothing_that_is_in_flight() -> None:
    """A request that a third worker has by then stays there."""
    dispatcher = dispatcher_with("a", "b", "c")
    entry = send(dispatcher, "1")
    first = worker_of(entry)
    lose(dispatcher, entry)
    sent(dispatcher, 0.0, "1")
    lose(dispatcher, entry)
    sent(dispatcher, 2.0, "1")
    dispatcher.update(state(first), 2.1)
    assert dispatcher.take(2.1).send is None
    assert (entry.attempts, entry.place, len(entry.trail.lost_on)) == (3, RequestPlace.IN_FLIGHT, 1)


def test_a_worker_that_is_started_again_was_lost() -> None:
    """Its new incarnation may be published before the will of the old one is, or instead of it, and before a report."""
    dispatcher = dispatcher_with("a")
    entry = send(dispatcher, "1")
    dispatcher.update(state("a", incarnation=2), 0.0)
    assert sent(dispatcher, 0.1, "1") is entry
    dispatcher.update(state("a", incarnation=3), 0.1)
    assert not dispatcher.take(0.1).ended
    for incarnation in (1, 2):
        dispatcher.update(state("a", WorkerStatus.CRASHED, incarnation), 0.2)
    assert errors(dispatcher.take(0.2).ended) == {"1": Poison}


def test_two_workers_whose_connections_were_cut_did_not_crash() -> None:
    """A request that both had is set aside until the first of them is back, and then sent at once."""
    dispatcher = dispatcher_with("a", "b")
    entry = send(dispatcher, "1")
    first = worker_of(entry)
    lose(dispatcher, entry)
    sent(dispatcher, 0.0, "1")
    lose(dispatcher, entry)
    assert dispatcher.take(0.1).send is None
    dispatcher.update(state(first), 0.2)
    assert sent(dispatcher, 0.2, "1") is entry
    assert not dispatcher.take(5.0).ended
    assert len(entry.trail.lost_on) == 1


@pytest.mark.parametrize("seed", range(50))
def test_partitions_convict_nobody(seed: int) -> None:
    """Seven of eight workers are cut off at once and for good; their wills come within the 15 s of the keep-alive."""
    random = Random(seed)  # noqa: S311  the same partition each time
    dispatcher = dispatcher_with(*"abcdefgh")
    cut = set(random.sample("abcdefgh", 7))
    within = random.choice([0.5, 2.0, 15.0])
    wills = sorted((random.uniform(0.0, within), worker) for worker in cut)
    replies: list[tuple[float, PendingRequest, str]] = []
    ended: dict[str, type[Exception]] = {}
    asked = 0
    for tick in range(2000):
        now = tick / 100
        while wills and wills[0][0] <= now:
            dispatcher.update(state(wills.pop(0)[1], WorkerStatus.LOST), now)
        if tick % 2 == 0:
            asked += 1
            dispatcher.submit(make_entry(f"request {asked}", now, 10.0))
        while entry := (step := dispatcher.take(now)).send:
            ended |= errors(step.ended)
            dispatcher.acked(entry, entry.attempts, ReasonCode.SUCCESS, now)
            replies.append((now + 0.01, entry, worker_of(entry)))
        ended |= errors(step.ended)
        due, replies = [each for each in replies if each[0] <= now], [each for each in replies if each[0] > now]
        for _, entry, worker in due:
            if worker not in cut and dispatcher.replied(reply(entry.request.id, worker), now):
                dispatcher.settle(entry.request.id, Outcome.OK)
    assert Poison not in ended.values()
    assert dispatcher.counters().outcomes[Outcome.OK] > 500


def test_a_state_that_is_removed_removes_its_worker() -> None:
    """What it had goes elsewhere at once, and nothing counts as a loss; an unknown one changes nothing."""
    dispatcher = dispatcher_with("a")
    entry = send(dispatcher, "1")
    dispatcher.update(state("b"), 0.0)
    for worker in ("a", "a", "unknown"):
        dispatcher.update(worker, 0.0)
    assert dispatcher.take(0.0).send is entry
    assert (worker_of(entry), entry.attempts, entry.trail.lost_on) == ("b", 2, frozenset())


def test_a_broker_that_goes_down_makes_no_poison() -> None:
    """Its last messages are the wills of all workers: what it did not acknowledge before, no worker had."""
    dispatcher = dispatcher_with("a", "b")
    entry = send(dispatcher, "1")
    lose(dispatcher, entry)
    assert dispatcher.take(0.0).send is entry
    lose(dispatcher, entry)
    assert dispatcher.take(0.0) is not None
    dispatcher.connection(False, 0.0)
    assert not entry.trail.lost_on
    assert not dispatcher.take(2.0, connected=False).ended
    assert entry.place is RequestPlace.QUEUED


def test_a_stopped_worker_is_no_crash() -> None:
    """A rolling restart makes no request poison."""
    dispatcher = dispatcher_with("a")
    entry = send(dispatcher, "1")
    dispatcher.update(state("a", WorkerStatus.STOPPED), 0.0)
    assert dispatcher.take(0.0).send is entry
    assert entry.lane is None
    assert not entry.trail.lost_on


def test_who_would_be_late_is_not_sent() -> None:
    """A worker of 10 ms with two requests in flight needs 30 ms: the first has 20 ms left, the others have 100."""
    dispatcher = dispatcher_with("a")
    for name in ("1", "2"):
        send(dispatcher, name)
    for name, timeout in (("late", 0.02), ("first", 0.1), ("second", 0.1)):
        dispatcher.submit(make_entry(name, timeout=timeout))
    sent(dispatcher, 0.0, "first")
    assert errors(dispatcher.take(0.02).ended) == {"late": Expired}


def test_nobody_is_sent_to_be_late_but_to_an_idle_worker() -> None:
    """What can't be in time at a busy worker waits for it, and is sent all the same once it has nothing to do."""
    dispatcher = dispatcher_with("a")
    send(dispatcher, "1")
    dispatcher.submit(make_entry("hasty", timeout=0.005))
    assert dispatcher.take(0.0).send is None
    assert dispatcher.settle("1", Outcome.OK)
    sent(dispatcher, 0.0, "hasty")


def test_silence_sends_a_request_elsewhere_after_the_time_of_an_attempt() -> None:
    """A second at least, and the worker that was silent is left alone."""
    dispatcher = dispatcher_with("a", "b")
    entry = send(dispatcher, "1")
    silent = entry.lane
    assert dispatcher.wake_at == 1.0
    assert dispatcher.take(0.99).send is None
    assert dispatcher.take(1.0).send is entry
    assert entry.lane is not silent
    assert entry.attempts == 2


def test_a_slow_link_is_no_silence() -> None:
    """A worker behind a link of 400 ms is not in doubt while the link takes its time, and is not asked twice."""
    dispatcher = dispatcher_with("a")
    for number in range(3):
        send(dispatcher, f"first {number}")
    for number in range(3):
        assert dispatcher.replied(reply(f"first {number}", "a"), 0.4)
        dispatcher.settle(f"first {number}", Outcome.OK)
    send(dispatcher, "2", 1.0)
    send(dispatcher, "3", 1.3)
    assert dispatcher.take(1.3).send is None
    assert dispatcher.wake_at == pytest.approx(1.0 + 3 * (0.01 + 0.4))


def test_a_worker_that_answers_others_is_given_time() -> None:
    """Over a link that has become slow everything comes late: it is not sent again for that, unless it was lost."""
    dispatcher = dispatcher_with("a")
    entry = send(dispatcher, "1")
    others = [send(dispatcher, name) for name in ("2", "3", "4")]
    dispatcher.update(state("b"), 0.0)
    for now, other in zip((0.9, 1.8, 2.7), others, strict=True):
        assert dispatcher.replied(reply(other.request.id, "a"), now)
        dispatcher.settle(other.request.id, Outcome.OK)
        assert dispatcher.take(now + 0.2).send is None
    assert dispatcher.take(10.0).send is entry
    assert worker_of(entry) == "b"
    assert entry.attempts == 2


@pytest.mark.parametrize(
    ("change", "topic"),
    [
        ({"model_name": "other"}, "results/m/car-1/1"),
        ({"model_name": ""}, "results/m/car-1/1"),
        ({"model_version": "2"}, "results/m/car-1/1"),
        ({"worker": "b"}, "results/m/car-1/1"),
        ({"attempt": 2}, "results/m/car-1/1"),
        ({}, "results/other/car-1/1"),
        ({}, "results/m/car-1/2"),
        ({"outcome": Outcome.REJECTED, "model_name": "other"}, "results/m/car-1/1"),
        ({"outcome": Outcome.REJECTED, "worker": "b"}, "results/m/car-1/1"),
    ],
)
def test_a_reply_that_is_not_of_its_request_is_dropped(change: dict[str, Any], topic: str) -> None:
    """Another model, version, worker, attempt or topic: it is counted, and the request waits for its own reply."""
    dispatcher = dispatcher_with("a")
    request = InferRequest("1", "m", (), model_version="1", response_topic="results/m/car-1/1")
    dispatcher.submit(PendingRequest(request, ignore, submitted=0.0, deadline=100.0))
    entry = sent(dispatcher, 0.0, "1")
    dispatcher.update(state("b"), 0.0)
    own = replace(reply("1", "a"), model_version="1")
    assert not dispatcher.replied(replace(own, **change), 0.0, topic)
    assert dispatcher.take(0.0).send is None
    counters = dispatcher.counters()
    assert (counters.mismatched, counters.in_flight, entry.attempts) == (1, 1, 1)
    assert dispatcher.replied(own, 0.0, "results/m/car-1/1")
    assert not dispatcher.replied(own, 0.0, "results/m/car-1/1")  # while the first one is decoded
    assert dispatcher.counters().late == 1
    assert dispatcher.settle("1", Outcome.OK) is entry


def test_an_error_may_come_without_the_version() -> None:
    """A worker that has no such version can't name it; a worker that does not name itself is not refused either."""
    dispatcher = dispatcher_with("a")
    request = InferRequest("1", "m", (), model_version="1")
    dispatcher.submit(PendingRequest(request, ignore, submitted=0.0, deadline=100.0))
    sent(dispatcher, 0.0, "1")
    assert dispatcher.replied(InferResponse("1", "m", outcome=Outcome.ERROR), 0.0)


def test_a_reply_names_no_other_workers_load() -> None:
    """Whoever never got a request of this client can't make another worker seem busy, or its silence be forgotten."""
    dispatcher = dispatcher_with("a", "b")
    hostile = WorkerLoad(2**62, 2**62, 1)
    for worker in "ab":
        for name in ("never asked", f"of before {worker}"):
            dispatcher.replied(InferResponse(name, "m", worker=worker, load=hostile), 0.0)
    entries = [send(dispatcher, str(number)) for number in range(8)]
    assert sorted(worker_of(entry) for entry in entries) == ["a"] * 4 + ["b"] * 4


def test_a_reply_over_the_channel_tells_of_its_worker() -> None:
    """Any worker may have such a request; its state came meanwhile, and its first reply opens its window."""
    dispatcher = Dispatcher("car-1")
    entry = send(dispatcher, "1")
    assert entry.lane is None
    dispatcher.update(state("a"), 0.0)
    assert dispatcher.replied(reply("1", "a"), 0.0)
    dispatcher.settle("1", Outcome.OK)
    assert [worker_of(send(dispatcher, name)) for name in "2345"] == ["a"] * 4


def test_a_late_reply_of_the_worker_that_had_the_request_tells_of_it() -> None:
    """It was silent for the time of an attempt, and runs all the same: it gets requests again, and once only."""
    dispatcher = dispatcher_with("a")
    entry = send(dispatcher, "1")
    dispatcher.update(state("b"), 1.0)
    assert dispatcher.take(1.0).send is entry
    assert worker_of(entry) == "b"
    dispatcher.update(state("b", WorkerStatus.STOPPED), 1.1)
    assert dispatcher.take(1.1).send is None
    late = dispatcher.counters().late
    assert dispatcher.replied(reply("1", "a"), 1.2)
    assert dispatcher.settle("1", Outcome.OK) is entry
    assert dispatcher.counters().late == late
    assert worker_of(send(dispatcher, "2", 1.2)) == "a"


@pytest.mark.parametrize("code", [ReasonCode.NOT_AUTHORIZED, ReasonCode.NO_MATCHING_SUBSCRIBERS, None])
def test_a_lane_that_can_not_be_used_fails_no_request(code: ReasonCode | None) -> None:
    """Neither the broker's refusal nor a name that makes no topic: it goes to the next one, at last to the channel."""
    dispatcher = dispatcher_with("a", "b")
    entry = send(dispatcher, "1")
    for _ in range(2):
        assert entry.lane is not None
        if code is None:
            dispatcher.unsent(entry, entry.attempts, BadTopic("no name"), 0.0)
        else:
            dispatcher.acked(entry, entry.attempts, code, 0.0)
        assert sent(dispatcher, 0.0, "1") is entry
    assert entry.lane is None
    dispatcher.unsent(entry, entry.attempts, BadTopic("no name"), 0.0)
    assert errors(dispatcher.take(0.0).ended) == {"1": BadTopic}


def test_a_reply_to_an_earlier_attempt_is_as_good() -> None:
    """The first reply is taken, whoever sends it, and the other is late."""
    dispatcher = dispatcher_with("a", "b")
    entry = send(dispatcher, "1")
    silent = entry.lane
    assert silent
    late = dispatcher.counters().late
    assert dispatcher.take(1.0).send is entry
    assert dispatcher.replied(reply("1", silent.worker), 1.1)
    assert dispatcher.settle("1", Outcome.OK) is entry
    assert dispatcher.settle("1", Outcome.OK) is None
    assert dispatcher.counters().late == late + 1
    assert not silent.in_flight


def test_nobody_subscribes_to_a_lane() -> None:
    """PUBACK 0x10 closes the lane, and the request goes elsewhere with no delay."""
    dispatcher = dispatcher_with("a")
    entry = send(dispatcher, "1")
    dispatcher.acked(entry, 1, ReasonCode.NO_MATCHING_SUBSCRIBERS, 0.0)
    assert dispatcher.take(0.0).send is entry
    assert entry.lane is None


def test_an_acknowledgement_of_an_earlier_attempt_changes_nothing() -> None:
    """It may come after the request was sent elsewhere."""
    dispatcher = dispatcher_with("a", "b")
    entry = send(dispatcher, "1")
    assert dispatcher.take(1.0).send is entry
    dispatcher.acked(entry, 1, ReasonCode.NOT_AUTHORIZED, 1.0)
    dispatcher.unsent(entry, 1, MessageTooLarge("too large"), 1.0)
    assert not dispatcher.take(1.0).ended
    for attempt in (2, 3, 4):
        dispatcher.acked(entry, attempt, ReasonCode.NOT_AUTHORIZED, 3.0)
        step = dispatcher.take(3.0)
    assert errors(step.ended) == {"1": NotAuthorized}


def test_a_busy_worker_is_left_alone_for_the_time_of_one_request() -> None:
    """Its limit is zero meanwhile, and the request is queued in the client."""
    dispatcher = dispatcher_with("a")
    entry = send(dispatcher, "1")
    assert not dispatcher.replied(refusal("1"), 0.0)
    assert dispatcher.take(0.005).send is None
    assert dispatcher.wake_at <= 0.011
    assert dispatcher.take(0.011).send is entry


def test_patience_with_busy_workers_ends() -> None:
    """A request that is turned away for two seconds ends as rejected, with what the worker stated."""
    dispatcher = dispatcher_with("a")
    send(dispatcher, "1")
    for now in (0.0, 1.0, 1.9):
        dispatcher.replied(refusal("1"), now)
        sent(dispatcher, now + 0.05, "1")
    dispatcher.replied(refusal("1"), 2.0)
    ended = dispatcher.take(2.0).ended
    assert errors(ended) == {"1": Rejected}
    assert "4 requests in hand" in str(ended[0][1])


def test_a_full_queue_of_the_model_ends_a_request_that_may_be_shed() -> None:
    """It goes to each worker once, and waits for none of them; other clients send it again."""
    full = replace(refusal("1"), parameters={"queue_full": True})
    dispatcher = dispatcher_with("a", "b", shed=True)
    first = worker_of(send(dispatcher, "1"))
    assert not dispatcher.replied(full, 0.0)
    assert worker_of(sent(dispatcher, 0.0, "1")) != first
    assert not dispatcher.replied(full, 0.0)
    assert errors(dispatcher.take(0.0).ended) == {"1": Rejected}
    dispatcher = dispatcher_with("a")
    send(dispatcher, "1")
    dispatcher.replied(full, 0.0)
    assert sent(dispatcher, 0.02, "1").attempts == 2


def test_what_comes_for_a_request_that_backs_off() -> None:
    """A second refusal, doubled or late, leaves it alone; a reply to its first attempt is its outcome."""
    dispatcher = Dispatcher("car-1", ClientOptions(backoff=60.0))
    entry = send(dispatcher, "1")
    for _ in range(2):
        assert not dispatcher.replied(refusal("1"), 0.0)
        assert (entry.place, entry.due_at) == (RequestPlace.BACKING_OFF, 1.0)
    assert not dispatcher.take(0.0).ended
    assert dispatcher.replied(reply("1", "a"), 0.1)
    assert dispatcher.settle("1", Outcome.OK) is entry
    assert entry.attempts == 1


def test_patience_without_a_worker_ends() -> None:
    """One request at a time tries the channel; each ends as `no_worker` once it has tried for the whole patience."""
    dispatcher = Dispatcher("car-1", ClientOptions(patience=1.0))
    for name in "12":
        dispatcher.submit(make_entry(name))
    ended: dict[str, type[Exception]] = {}
    now, tries = 0.0, 0
    while len(ended) < 2:
        step = dispatcher.take(now)
        ended |= errors(step.ended)
        if step.send:
            tries += 1
            dispatcher.acked(step.send, step.send.attempts, ReasonCode.NO_MATCHING_SUBSCRIBERS, now)
        elif not ended:
            assert dispatcher.wake_at > now
            now = dispatcher.wake_at
    assert ended == {"1": NoWorker, "2": NoWorker}
    assert now == pytest.approx(1.0)
    assert tries <= 10


def test_patience_does_not_end_while_workers_reconnect() -> None:
    """After a connection was lost there are six seconds until a missing worker counts as missing."""
    dispatcher = Dispatcher("car-1")
    dispatcher.connection(False, 0.0)
    dispatcher.connection(True, 10.0)
    entry = send(dispatcher, "1", 10.0)
    for now in (10.0, 13.0, 15.9):
        dispatcher.acked(entry, entry.attempts, ReasonCode.NO_MATCHING_SUBSCRIBERS, now)
        assert not dispatcher.take(now).ended
        assert dispatcher.take(now + 1.0).send is entry
    dispatcher.acked(entry, entry.attempts, ReasonCode.NO_MATCHING_SUBSCRIBERS, 16.9)
    assert errors(dispatcher.take(16.9).ended) == {"1": NoWorker}


def test_an_opening_that_passes_between_two_looks_is_not_missed() -> None:
    """The timer asks a little later than the last look was: what opened in between is due, and once only."""
    dispatcher = dispatcher_with("a")
    entry = send(dispatcher, "1")
    dispatcher.replied(refusal("1"), 0.0)
    assert dispatcher.take(0.00999).send is None
    assert dispatcher.wake_at == pytest.approx(0.01)
    assert dispatcher.take(0.02).send is entry
    assert dispatcher.wake_at > 0.02


def test_retries_for_silence_keep_to_a_budget() -> None:
    """Where everybody is silent, not everything is sent again each second."""
    dispatcher = Dispatcher("car-1", ClientOptions(window=1000))
    for number in range(500):
        dispatcher.submit(make_entry(str(number)))
    sendings = 0
    for tenth in range(300):
        while dispatcher.take(tenth / 10).send:
            sendings += 1
    counters = dispatcher.counters()
    assert counters.retries == sendings - 500
    assert 0 < counters.retries <= 16 + 50
    assert counters.withheld > 0


def test_lost_replies_beyond_the_budget_take_no_place() -> None:
    """Lost replies that are not asked for again speak against a worker once; others go there soon; one may be late."""
    dispatcher = Dispatcher("car-1", ClientOptions(window=24))
    dispatcher.update(state("a"), 0.0)
    first = send(dispatcher, "of before")
    dispatcher.replied(replace(reply("of before", "a"), load=WorkerLoad(1, 10_000, 24)), 0.0)
    dispatcher.settle(first.request.id, Outcome.OK)
    dispatcher._budget = RetryBudget(burst=0.0)
    lost = [send(dispatcher, str(number)) for number in range(24)]
    dispatcher.submit(make_entry("honest"))
    now = 0.0
    while (step := dispatcher.take(now)).send is None:
        now += 0.1
        assert now < 3.0
    assert step.send.request.id == "honest"
    assert [*dispatcher.table.withheld.values()] == lost
    assert dispatcher.counters().withheld == len(lost)
    assert dispatcher.replied(reply("0", "a"), now)
    dispatcher.settle("0", Outcome.OK)
    assert "0" not in dispatcher.table.withheld


def test_what_was_damaged_is_sent_again_at_once_within_the_budget() -> None:
    """Over a link that damages everything nothing goes round and round: beyond the budget it waits for its time-out."""
    dispatcher = dispatcher_with("a", "b")
    entry = send(dispatcher, "1")
    for attempt in range(2, 18):
        if attempt % 2:
            dispatcher.corrupted("1")
        else:
            assert not dispatcher.replied(refusal("1", Corrupted.code), 0.0)
        assert dispatcher.take(0.0).send is entry
        assert entry.attempts == attempt
    dispatcher.corrupted("1")
    assert dispatcher.take(0.0).send is None
    assert (dispatcher.counters().withheld, dispatcher.counters().in_flight) == (1, 1)
    dispatcher.corrupted("whose id is damaged too")
    assert dispatcher.counters().withheld == 1


def test_what_can_not_be_sent_ends_one_after_the_other() -> None:
    """Hundreds of requests that the broker would not take: a loop ends them, however many there are."""
    dispatcher = dispatcher_with("a")
    for number in range(3000):
        dispatcher.submit(make_entry(str(number)))
    ended: list[Ended] = []
    while entry := (step := dispatcher.take(0.0)).send:
        ended += step.ended
        dispatcher.unsent(entry, entry.attempts, MessageTooLarge("too large"), 0.0)
    ended += step.ended
    assert errors(ended) == dict.fromkeys(map(str, range(3000)), MessageTooLarge)
    assert dispatcher.counters().pending == 0


def test_what_finds_no_connection_is_sent_later() -> None:
    """After the back-off; nothing is sent meanwhile, and nothing else while the connection is away."""
    dispatcher = dispatcher_with("a")
    entry = send(dispatcher, "1")
    dispatcher.unsent(entry, 1, NotConnected("down"), 0.0)
    assert dispatcher.take(0.01).send is None
    assert dispatcher.wake_at == pytest.approx(0.02)
    assert dispatcher.take(0.02, connected=False).send is None
    assert dispatcher.take(0.03).send is entry


def test_cancelled_requests_are_gone() -> None:
    """Each ends once, wherever it was."""
    dispatcher = dispatcher_with("a")
    first = send(dispatcher, "1")
    for name in "23":
        dispatcher.submit(make_entry(name))
    late = dispatcher.counters().late
    for ended in (first, None):
        assert dispatcher.settle("1", Outcome.CANCELLED, is_reply=False) is ended
    assert dispatcher.counters().late == late
    assert errors(dispatcher.cancel_all(Cancelled("closed"))) == {"2": Cancelled, "3": Cancelled}
    assert dispatcher.take(1000.0).send is None
    assert dispatcher.counters().outcomes[Outcome.CANCELLED] == 3


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
    """Workers come, crash, stall and answer late, connections break: every request still leaves exactly once."""

    @initialize()
    def start(self) -> None:
        """Begin without workers."""
        self.dispatcher = Dispatcher("car-1", ClientOptions(window=4))
        self.now = 0.0
        self.number = 0
        self.incarnation = dict.fromkeys(WORKERS, 0)
        self.asked: dict[str, PendingRequest] = {}
        self.ended: list[str] = []
        self.sent: list[tuple[PendingRequest, int, str]] = []

    def end(self, ended: Sequence[Ended]) -> None:
        """Note outcomes."""
        self.ended += [entry.request.id for entry, _ in ended]

    @rule(timeout=st.floats(0, 30))
    def ask(self, timeout: float) -> None:
        """A caller asks."""
        self.number += 1
        entry = self.asked[str(self.number)] = make_entry(str(self.number), self.now, timeout)
        self.dispatcher.submit(entry)

    @rule(acknowledged=st.booleans())
    def pump(self, acknowledged: bool) -> None:  # noqa: FBT001  drawn by Hypothesis
        """Everything that can be sent is sent."""
        while True:
            step = self.dispatcher.take(self.now)
            self.end(step.ended)
            entry = step.send
            if entry is None:
                return
            self.sent.append((entry, entry.attempts, worker_of(entry) or "a"))
            if acknowledged:
                self.dispatcher.acked(entry, entry.attempts, ReasonCode.SUCCESS, self.now)

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        """A worker answers something that it once got, perhaps for the second time."""
        if self.sent:
            entry, _, worker = data.draw(st.sampled_from(self.sent))
            name = entry.request.id
            if self.dispatcher.replied(reply(name, worker), self.now):
                assert self.dispatcher.settle(name, Outcome.OK) is entry
                self.ended.append(name)

    @rule(data=st.data(), why=st.sampled_from([NotConnected("down"), MessageTooLarge("too large"), None]))
    def refuse(self, data: st.DataObject, why: NotConnected | MessageTooLarge | None) -> None:
        """A worker is busy, nobody subscribes, or it can't be sent."""
        if self.sent:
            entry, attempt, _ = data.draw(st.sampled_from(self.sent))
            if why is not None:
                self.dispatcher.unsent(entry, attempt, why, self.now)
            elif data.draw(st.booleans()):
                self.dispatcher.replied(refusal(entry.request.id), self.now)
            else:
                self.dispatcher.acked(entry, attempt, data.draw(st.sampled_from(ReasonCode)), self.now)

    @rule(worker=st.sampled_from(WORKERS), status=st.sampled_from(WorkerStatus), reborn=st.booleans())
    def publish_state(self, worker: str, status: WorkerStatus, reborn: bool) -> None:  # noqa: FBT001  as above
        """A worker, or the broker for it, publishes a state; the incarnation may be a new one, or a twin's."""
        self.incarnation[worker] += reborn
        self.dispatcher.update(state(worker, status, self.incarnation[worker]), self.now)

    @rule(seconds=st.floats(0, 5))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        self.end(self.dispatcher.take(self.now, connected=False).ended)

    @rule()
    def disconnect(self) -> None:
        """The connection is lost, and comes back."""
        self.dispatcher.connection(False, 0.0)
        self.dispatcher.connection(True, self.now)

    @invariant()
    def books_balance(self) -> None:
        """Nothing leaves twice, and what has not left is pending."""
        if not hasattr(self, "dispatcher"):
            return
        self.end(self.dispatcher.take(self.now, connected=False).ended)
        assert len(self.ended) == len(set(self.ended))
        living = self.asked.keys() - set(self.ended)
        counters = self.dispatcher.counters()
        assert counters.pending == len(living)
        assert counters.submitted == len(self.asked) == counters.pending + sum(counters.outcomes.values())
        assert all((entry.place is not RequestPlace.ENDED) == (name in living) for name, entry in self.asked.items())

    @invariant()
    def lanes_have_only_what_is_in_flight(self) -> None:
        """No worker is charged for a request that has left, and the timer is set for what is in flight."""
        if not hasattr(self, "dispatcher"):
            return
        in_flight = [entry for entry in self.asked.values() if entry.place is RequestPlace.IN_FLIGHT]
        lanes = {id(entry.lane): entry.lane for entry in self.asked.values() if entry.lane}.values()
        assert sum(len(lane.in_flight) for lane in lanes) <= len(in_flight) <= 4
        assert self.dispatcher.counters().in_flight == len(in_flight)
        if in_flight:
            assert self.dispatcher.wake_at <= max(min(entry.due_at for entry in in_flight), self.now)

    def teardown(self) -> None:
        """At the end of time every request has its outcome."""
        if hasattr(self, "dispatcher"):
            self.end(self.dispatcher.take(self.now + 100).ended)
            assert set(self.ended) == set(self.asked)


TestDelivery = Delivery.TestCase
TestDelivery.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
