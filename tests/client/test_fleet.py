from __future__ import annotations

import heapq
import math
from collections import Counter
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqinfer.client.dispatch.fleet import Fleet, NoLane
from mqinfer.client.dispatch.lane import Lane
from mqinfer.client.options import Silence
from mqinfer.protocol.states import ServedModel, WorkerState, WorkerStatus
from mqinfer.protocol.types import WorkerLoad

SILENCE = Silence(doubt=0.05, attempt=1.0, quarantine=1.0)


ANY = ("m", None)


def state(
    worker: str, service_ms: float = 10, status: WorkerStatus = WorkerStatus.READY, incarnation: int = 1
) -> WorkerState:
    """Return the state of a worker of the model `m`."""
    return WorkerState(worker, status, incarnation, (ServedModel("m", "1"),), 64, 0, round(service_ms * 1e3))


def update_load(fleet: Fleet, worker: str, load: WorkerLoad, now: float) -> None:
    """Store what a worker's reply reports."""
    lane = fleet.lane(worker)
    assert lane is not None
    lane.update_load(load, now)


def fleet_of(**service_ms: float) -> Fleet:
    """Make a fleet of workers with these service times."""
    fleet = Fleet(SILENCE)
    for worker, each in service_ms.items():
        fleet.update(state(worker, each))
        update_load(fleet, worker, WorkerLoad(1, round(each * 1e3), window=4), 0.0)
    return fleet


def chosen(fleet: Fleet, now: float = 0.0, queued: int = 1) -> Lane:
    """Choose, and insist on a lane."""
    lane = fleet.choose(ANY, now, queued=queued)
    assert isinstance(lane, Lane)
    return lane


def send(fleet: Fleet, name: str, now: float = 0.0, *, queued: int = 1) -> Lane:
    """Send a request to the lane that is chosen for it."""
    lane = chosen(fleet, now, queued)
    fleet.sent(name, lane, now)
    return lane


def test_a_worker_that_has_not_answered_gets_one_request() -> None:
    """Only its reply tells how many other clients it serves."""
    fleet = Fleet(SILENCE)
    fleet.update(state("a"))
    send(fleet, "1")
    assert fleet.choose(ANY, 0.0) is NoLane.WAIT


def test_without_workers_the_channel_is_taken() -> None:
    """So that any worker may answer, and the broker tells if there is none."""
    fleet = fleet_of(a=10)
    assert fleet.choose(("other", None), 0.0) is NoLane.SHARED
    assert fleet.choose(("m", "2"), 0.0) is NoLane.SHARED
    assert fleet.choose(("m", "1"), 0.0) is fleet.lane("a")


def test_a_worker_of_another_version_gets_only_what_names_it() -> None:
    """Requests without a version are for the default one."""
    fleet = Fleet(SILENCE)
    fleet.update(WorkerState("old", WorkerStatus.READY, 1, (ServedModel("m", "1", default=False),), 8, 0, 10))
    fleet.update(WorkerState("new", WorkerStatus.READY, 1, (ServedModel("m", "2"),), 8, 0, 10))
    assert fleet.choose(ANY, 0.0) is fleet.lane("new")
    assert fleet.choose(("m", "1"), 0.0) is fleet.lane("old")


def test_the_least_expected_finish_wins() -> None:
    """A worker five times slower is taken when the fast one has about five in hand, and not long before."""
    fleet = fleet_of(fast=100, slow=500)
    for worker in ("fast", "slow"):
        lane = fleet.lane(worker)
        assert lane is not None
        lane.limit = 8
    order = [send(fleet, str(number)).worker for number in range(6)]
    assert Counter(order[:3]) == {"fast": 3}
    assert "slow" in order


def test_waiting_for_a_full_fast_worker_beats_a_slow_idle_one() -> None:
    """Unless so much waits that the slow one would be done before the last of it."""
    fleet = fleet_of(fast=10, slow=100)
    for number in range(4):
        send(fleet, str(number))
    assert fleet.choose(ANY, 0.0, queued=1) is NoLane.WAIT
    assert chosen(fleet, queued=100).worker == "slow"


def test_the_first_worker_to_reply_does_not_get_all_that_is_queued() -> None:
    """Until all have replied, or are in doubt, each has two requests in flight at most."""
    fleet = Fleet(SILENCE)
    for worker in "abc":
        fleet.update(state(worker, 20))
    lanes = [send(fleet, worker) for worker in "abc"]
    assert [lane.worker for lane in lanes] == ["a", "b", "c"]
    assert fleet.choose(ANY, 0.0, queued=100) is NoLane.WAIT
    lanes[0].in_flight.clear()
    update_load(fleet, "a", WorkerLoad(1, 20_000, 16), 0.02)
    assert [send(fleet, name, 0.02, queued=100).worker for name in "12"] == ["a", "a"]
    assert fleet.choose(ANY, 0.02, queued=100) is NoLane.WAIT
    lanes[1].in_flight.clear()
    update_load(fleet, "b", WorkerLoad(1, 20_000, 16), 0.02)
    assert [send(fleet, name, 0.02, queued=100).worker for name in "34"] == ["b", "b"]
    assert fleet.choose(ANY, 0.02, queued=100) is NoLane.WAIT
    assert chosen(fleet, 0.07, queued=100).worker in "ab"


def test_a_silent_worker_gets_nothing_more_until_it_replies() -> None:
    """Doubt begins after three times the expected time, long before a request counts as unanswered."""
    fleet = fleet_of(a=20, b=20)
    first = send(fleet, "1")
    assert first.is_usable(0.05)
    assert not first.is_usable(0.07)
    assert all(chosen(fleet, 0.07) is not first for _ in range(3))
    first.in_flight.pop("1")
    update_load(fleet, first.worker, WorkerLoad(1, 20_000), 0.08)
    assert first.is_usable(0.08)


def test_quarantine_doubles_and_ends_with_one_request() -> None:
    """A worker that let an attempt time out gets one request at a time until it answers."""
    fleet = fleet_of(a=10)
    lane = chosen(fleet)
    lane.quarantine.begin(1.0, SILENCE)
    assert fleet.choose(ANY, 1.9) is NoLane.WAIT
    assert fleet.next_opening(1.9) == pytest.approx(2.0)
    assert chosen(fleet, 2.0) is lane
    fleet.sent("1", lane, 2.0)
    assert fleet.choose(ANY, 2.0) is NoLane.WAIT
    lane.in_flight.pop("1")
    lane.quarantine.begin(3.0, SILENCE)
    assert fleet.next_opening(3.0) == pytest.approx(5.0)
    update_load(fleet, "a", WorkerLoad(1, 10_000), 4.0)
    fleet.sent("1", lane, 4.0)
    assert chosen(fleet, 4.0) is lane


@pytest.mark.parametrize("status", [WorkerStatus.LOST, WorkerStatus.DRAINING])
def test_a_twin_that_goes_is_not_the_worker_that_goes(status: WorkerStatus) -> None:
    """A worker is known by its incarnation; its lane is given up where it is lost, and closed where it drains."""
    fleet = fleet_of(a=10)
    lane = chosen(fleet)
    assert fleet.update(state("a", status=status, incarnation=99)) is None
    assert chosen(fleet) is lane
    assert fleet.update(state("a", status=status)) is (lane if status is WorkerStatus.LOST else None)
    assert fleet.choose(ANY, 0.0) is NoLane.SHARED


def test_a_worker_that_begins_anew_gives_up_what_it_had() -> None:
    """Its new incarnation shows that the process which had the requests is gone."""
    fleet = fleet_of(a=10)
    lane = send(fleet, "1")
    assert fleet.update(state("a", incarnation=2)) is lane
    assert chosen(fleet).in_flight == {}


def test_a_draining_worker_keeps_what_it_has_and_gets_nothing() -> None:
    """It answers what is in its hands."""
    fleet = fleet_of(a=10)
    send(fleet, "1")
    assert fleet.update(state("a", status=WorkerStatus.DRAINING)) is None
    assert fleet.choose(ANY, 0.0) is NoLane.SHARED
    lane = fleet.lane("a")
    assert lane is not None
    assert list(lane.in_flight) == ["1"]


def test_a_request_that_a_worker_crashed_on_is_kept_apart_from_its_like() -> None:
    """Else one of the two would be blamed for the other."""
    fleet = fleet_of(a=10, b=10)
    first = send(fleet, "1")
    second = fleet.choose(ANY, 0.0, avoid={first})
    assert isinstance(second, Lane)
    assert second is not first
    assert fleet.choose(ANY, 0.0, avoid={first, second}) is NoLane.WAIT
    assert isinstance(fleet.choose(ANY, 0.0), Lane)


def makespan(services: list[float], requests: int, clients: int) -> float:
    """Simulate clients that send everything at once, each with a fleet of its own; give the time of the last reply."""
    fleets = [fleet_of(**{f"w{n}": each * 1e3 for n, each in enumerate(services)}) for _ in range(clients)]
    left = [requests // clients] * clients
    free_at = dict.fromkeys((f"w{n}" for n in range(len(services))), 0.0)
    depth: Counter[str] = Counter()
    events: list[tuple[float, int, int, str, str]] = []
    numbers = count()
    patient = Silence(doubt=1e9, attempt=1e9)
    for fleet in fleets:
        for worker in free_at:
            lane = fleet.lane(worker)
            assert lane is not None
            lane.silence = patient
            lane.limit = 4

    def pump(client: int, now: float) -> None:
        while left[client] and isinstance(lane := fleets[client].choose(ANY, now, queued=left[client]), Lane):
            number = next(numbers)
            fleets[client].sent(str(number), lane, now)
            left[client] -= 1
            depth[lane.worker] += 1
            free_at[lane.worker] = max(free_at[lane.worker], now) + services[int(lane.worker[1:])]
            heapq.heappush(events, (free_at[lane.worker], number, client, lane.worker, str(number)))

    for client in range(clients):
        pump(client, 0.0)
    now = 0.0
    while events:
        now, _, client, worker, request = heapq.heappop(events)
        lane = fleets[client].lane(worker)
        assert lane is not None
        lane.in_flight.pop(request)
        update_load(fleets[client], worker, WorkerLoad(depth[worker], round(services[int(worker[1:])] * 1e6)), now)
        depth[worker] -= 1
        pump(client, now)
    assert not any(left)
    return now


@pytest.mark.parametrize(("clients", "bound"), [(1, 1.15), (4, 1.25)])
@pytest.mark.parametrize("services", [[0.02, 0.2], [0.02, 0.02, 0.1], [0.01, 0.01]])
def test_unlike_workers_finish_together(services: list[float], clients: int, bound: float) -> None:
    """The last reply comes at most 15 % (one client) or 25 % (four) after the ideal; blind turns take up to 5.5x."""
    ideal = 300 / sum(1 / each for each in services)
    assert makespan(services, 300, clients) <= bound * ideal


@given(st.lists(st.floats(0.001, 0.2), min_size=1, max_size=5))
def test_any_mix_of_workers_comes_near_the_ideal(services: list[float]) -> None:
    """One client with 500 requests: within 15 % of the ideal, and the longest single service beyond it."""
    ideal = 500 / sum(1 / each for each in services)
    assert makespan(services, 500, 1) <= 1.15 * ideal + max(services)


def test_equal_workers_take_turns_although_their_figures_differ_a_little() -> None:
    """What differs by the machine's noise is equal."""
    fleet = fleet_of(a=1.0, b=1.4, c=2.0, d=1.1)
    order = []
    for number in range(40):
        lane = send(fleet, str(number))
        lane.in_flight.pop(str(number))
        order.append(lane.worker)
    assert Counter(order) == dict.fromkeys("abcd", 10)


def serve_for(fleet: Fleet, start: float, seconds: float, rate: float, services: dict[str, float]) -> Counter[str]:
    """Send so many requests a second to workers that need so long, one after the other; give who got how many.

    Workers smooth their figures as they do (`LoadMeter`); nothing is queued, as the requests are far apart.
    """
    got: Counter[str] = Counter()
    for number in range(round(seconds * rate)):
        now = start + number / rate
        lane = send(fleet, str(number), now)
        got[lane.worker] += 1
        lane.in_flight.pop(str(number))
        smoothed = lane.times.service + 0.2 * (services[lane.worker] - lane.times.service)
        update_load(fleet, lane.worker, WorkerLoad(1, round(smoothed * 1e6)), now + services[lane.worker])
    return got


def test_a_worker_that_was_slow_once_comes_back() -> None:
    """It gets one request now and then, more often while its replies get better, until it has its full share."""
    fleet = fleet_of(a=20, b=20, c=400)
    assert serve_for(fleet, 0.0, 120, 20, {"a": 0.02, "b": 0.02, "c": 0.4})["c"] <= 6
    again = {"a": 0.02, "b": 0.02, "c": 0.02}
    assert serve_for(fleet, 120.0, 140, 20, again)["c"] > 14
    served = serve_for(fleet, 260.0, 60, 20, again)
    assert min(served.values()) >= 399


@given(
    st.lists(st.floats(0.06, 2.0), min_size=1, max_size=3), st.sampled_from([0.2, 1.0, 10.0, 40.0]), st.floats(10, 200)
)
def test_asking_slow_workers_anew_costs_little(slow: list[float], rate: float, seconds: float) -> None:
    """Up to three take fewer than 5 % of the requests, so that p95 stays; each costs 4 % of the fast worker's time."""
    services = {"fast": 0.02} | {f"w{number}": each for number, each in enumerate(slow)}
    fleet = fleet_of(**{name: each * 1e3 for name, each in services.items()})
    got = serve_for(fleet, 0.0, seconds, rate, services)
    assert got.total() - got["fast"] <= 0.05 * got.total()
    for number, each in enumerate(slow):
        most = 0.04 * 0.02 * got.total() / (each - 0.02)
        assert got[f"w{number}"] <= most + 1


def test_a_slow_worker_is_not_asked_anew_with_a_request_that_has_no_time_for_it() -> None:
    """One that can wait is sent there, once; the next goes to the fast worker again."""
    fleet = fleet_of(fast=20, slow=400)
    serve_for(fleet, 0.0, 6, 100, {"fast": 0.02, "slow": 0.4})
    now = 60.0
    urgent = fleet.choose(ANY, now, deadline=now + 0.3)
    assert isinstance(urgent, Lane)
    assert urgent.worker == "fast"
    assert send(fleet, "1", now).worker == "slow"
    assert send(fleet, "2", now).worker == "fast"


def test_choosing_changes_nothing() -> None:
    """However often it is asked, the answer is the same until something is sent."""
    fleet = fleet_of(a=20, b=20, c=400)
    first = chosen(fleet, 30.0)
    assert all(chosen(fleet, 30.0) is first for _ in range(200))
    fleet.sent("1", first, 30.0)
    assert chosen(fleet, 30.0) is not first


def test_pauses_double_for_days() -> None:
    """A worker that lets every attempt time out is in quarantine for half a minute each time, and never longer."""
    fleet = fleet_of(a=10)
    lane = chosen(fleet)
    for _ in range(3000):
        lane.quarantine.begin(0.0, SILENCE)
    assert lane.opens_at == SILENCE.quarantine_most


def test_nobody_storms_a_channel_without_subscribers() -> None:
    """One request at a time tries again, later each time; a worker's state ends that at once."""
    fleet = Fleet()
    assert fleet.choose(ANY, 0.0) is NoLane.SHARED
    assert fleet.channels.close(ANY, 0.0, 0.02) == 0.0
    assert fleet.choose(ANY, 0.01) is NoLane.WAIT
    assert fleet.choose(("other", None), 0.01) is NoLane.SHARED
    assert fleet.next_opening(0.01) == pytest.approx(0.02)
    assert fleet.choose(ANY, 0.02) is NoLane.SHARED
    fleet.channels.sent(ANY, 0.02)
    assert fleet.choose(ANY, 0.02) is NoLane.WAIT
    assert fleet.channels.close(ANY, 0.03, 0.02) == 0.0
    assert fleet.next_opening(0.03) == pytest.approx(0.07)
    fleet.update(state("a"))
    assert fleet.next_opening(0.03) == math.inf
    fleet.update(state("a", status=WorkerStatus.LOST))
    assert fleet.choose(ANY, 0.03) is NoLane.SHARED


LATER = st.floats(0.0, 3.0)
ASKED: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "channel": st.sampled_from([ANY, ("m", "1"), ("m", "2"), ("other", None)]),
        "queued": st.integers(1, 50),
        "deadline": st.floats(0.0, 10.0) | st.just(math.inf),
    }
)


class Choosing(RuleBasedStateMachine):
    """Two fleets get the same events, and one of them is asked far more often where a request would go.

    Asking must change nothing, whatever the state of the workers: both decide alike from then on.
    """

    @initialize()
    def start(self) -> None:
        """Begin with a worker each that is fast, slow, and of unknown speed."""
        self.fleets = Fleet(SILENCE), Fleet(SILENCE)
        self.now = 0.0
        self.number = 0
        self.sent: list[tuple[str, str]] = []
        for worker, service_ms in (("a", 10.0), ("b", 100.0), ("c", 0.0)):
            for fleet in self.fleets:
                fleet.update(state(worker, service_ms))

    def lanes(self, worker: str) -> list[Lane]:
        """Return a worker's lane in both fleets, where it is known."""
        return [lane for fleet in self.fleets if (lane := fleet.lane(worker))]

    @rule(asked=st.lists(ASKED, min_size=1, max_size=5), times=st.integers(1, 100), later=LATER)
    def ask(self, asked: list[dict[str, Any]], times: int, later: float) -> None:
        """Ask the first fleet alone, many times, for now and for later."""
        for each in asked:
            for number in range(times):
                self.fleets[0].choose(now=self.now + later * (number % 2), **each)

    @rule(asked=ASKED)
    def send(self, asked: dict[str, Any]) -> None:
        """Both choose the same, and send it there."""
        first, second = (fleet.choose(now=self.now, **asked) for fleet in self.fleets)
        self.number += 1
        assert first is second if isinstance(first, NoLane) else isinstance(second, Lane)
        if first is NoLane.WAIT:
            return
        if isinstance(first, Lane) and isinstance(second, Lane):
            due = [
                fleet.sent(str(self.number), to, self.now)
                for fleet, to in zip(self.fleets, (first, second), strict=True)
            ]
            assert (first.worker, first.in_flight) == (second.worker, second.in_flight)
            self.sent.append((str(self.number), first.worker))
        else:
            due = [fleet.channels.sent(asked["channel"], self.now) for fleet in self.fleets]
        assert due[0] == due[1]

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), load=st.builds(WorkerLoad, st.integers(1, 5), st.integers(1, 200_000), st.integers(0, 6)))
    def reply(self, data: st.DataObject, load: WorkerLoad) -> None:
        """A worker replies to something that it has."""
        name, worker = self.sent.pop(data.draw(st.integers(0, len(self.sent) - 1)))
        for lane in self.lanes(worker):
            lane.in_flight.pop(name, None)
            lane.update_load(load, self.now)

    @rule(worker=st.sampled_from("abc"), quarantined=st.booleans())
    def trouble(self, worker: str, quarantined: bool) -> None:  # noqa: FBT001  drawn by Hypothesis
        """A worker lets a request time out, or turns one away."""
        for lane in self.lanes(worker):
            if quarantined:
                lane.quarantine.begin(self.now, SILENCE)
            else:
                lane.pause(self.now, 0.1)

    @rule(worker=st.sampled_from("abc"), status=st.sampled_from(WorkerStatus), incarnation=st.integers(1, 2))
    def publish(self, worker: str, status: WorkerStatus, incarnation: int) -> None:
        """A worker's state comes."""
        for fleet in self.fleets:
            fleet.update(state(worker, 20, status, incarnation))

    @rule(channel=st.sampled_from([ANY, ("other", None)]), opens=st.booleans())
    def miss(self, channel: tuple[str, str | None], opens: bool) -> None:  # noqa: FBT001  drawn by Hypothesis
        """Nobody subscribes to a channel, or its reply comes."""
        for fleet in self.fleets:
            if opens:
                fleet.channels.replied(channel[0], 0.1)
            else:
                fleet.channels.close(channel, self.now, 0.02)

    @rule(seconds=LATER)
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds

    @invariant()
    def both_open_alike(self) -> None:
        """The next time at which anything can be sent is the same."""
        if hasattr(self, "fleets"):
            assert self.fleets[0].next_opening(self.now) == self.fleets[1].next_opening(self.now)


TestChoosing = Choosing.TestCase
TestChoosing.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


def test_a_request_waits_for_the_worker_that_can_decode_it() -> None:
    """It goes to its worker's lane, waits while that is full, and goes anywhere once that takes none of its kind."""
    fleet = fleet_of(fast=10, slow=100)
    assert fleet.pinned("slow", ANY, 0.0) is fleet.lane("slow")
    slow = fleet.lane("slow")
    assert slow
    for number in range(4):
        fleet.sent(f"{number}", slow, 0.0)
    assert fleet.pinned("slow", ANY, 0.0) is NoLane.WAIT
    assert fleet.pinned("slow", ("another", None), 0.0) is None
    assert fleet.pinned("nobody", ANY, 0.0) is None
    assert fleet.pinned("slow", ANY, 1000.0) is None, "it is silent"
    fleet.update(state("slow", status=WorkerStatus.LOST))
    assert fleet.pinned("slow", ANY, 0.0) is None
