from __future__ import annotations

from itertools import chain, pairwise

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mqinfer.cloud_worker.batching.batcher import (
    Batch,
    Batcher,
    Choice,
    FinishedBatch,
    FixedPolicy,
    Ready,
)
from mqinfer.fair_queue import PRIORITY_TURNS, FairQueue


class Noting(FixedPolicy):
    """A fixed policy that notes what it is told."""

    def __init__(self, max_rows: int, max_delay: float = 0.0) -> None:
        super().__init__(max_rows, max_delay)
        self.told: list[tuple[object, ...]] = []

    def came(self, waiting: int, now: float) -> None:
        """Note it."""
        self.told.append(("came", waiting, now))

    def began(self, rows: int, now: float) -> None:
        """Note it."""
        self.told.append(("began", rows, now))

    def ended(self, batch: FinishedBatch, waiting: int, now: float) -> None:
        """Note it."""
        self.told.append(("ended", tuple(batch), waiting, now))


def fixed(max_rows: int, delay: float = 0.0) -> Batcher[int]:
    """Make a batcher with a fixed policy."""
    return Batcher(lambda: FixedPolicy(max_rows, delay))


def turn_giver() -> FairQueue[int]:
    """Make a queue for its turns alone."""
    return FairQueue()


def take_all(batcher: Batcher[int], now: float = 0.0) -> list[list[int]]:
    """Take batches until nothing is ready."""
    batches = []
    while isinstance(batch := batcher.take(now), Batch):
        batches.append(batch.items)
    return batches


class Batching(RuleBasedStateMachine):
    """Drives a batcher beside a plain list of what waits. Times are whole numbers, so that sums are exact."""

    @initialize(max_rows=st.integers(1, 6), delay=st.sampled_from([0, 3, 10]), levels=st.integers(1, 3))
    def start(self, max_rows: int, delay: int, levels: int) -> None:
        """Begin with nothing."""
        self.batcher = fixed(max_rows, delay)
        self.turns: FairQueue[int] = FairQueue()
        self.max_rows, self.delay, self.levels = max_rows, delay, levels
        self.now = self.number = 0
        self.waiting: dict[int, tuple[Ready[int], float, int]] = {}  # ready, place, arrival

    @rule(
        key=st.sampled_from("abc"),
        rows=st.integers(0, 6),
        client=st.sampled_from("AB"),
        level=st.integers(0, 2),
    )
    def add(self, key: str, rows: int, client: str, level: int) -> None:
        """A request comes."""
        ready = Ready(self.number, key, min(rows, self.max_rows), client, level % self.levels)
        turn = self.turns.next_turn(client)
        self.waiting[self.number] = (ready, turn + ready.level * PRIORITY_TURNS, self.now)
        self.number += 1
        self.batcher.add(ready, self.now, turn)

    @rule(seconds=st.integers(0, 5))
    def tick(self, seconds: int) -> None:
        """Time passes."""
        self.now += seconds

    @rule()
    def take(self) -> None:
        """What is ready is taken, or the wait is told, after which there is a batch."""
        taken = self.batcher.take(self.now)
        if isinstance(taken, float | int):
            assert taken > 0
            assert not any(self.ready(key) for key in "abc")
            self.now += int(taken)
            taken = self.batcher.take(self.now)
            assert isinstance(taken, Batch)
        if taken is not None:
            self.check(taken)

    @rule()
    def clear(self) -> None:
        """Everything is taken at once."""
        assert sorted(self.batcher.clear()) == sorted(self.waiting)
        self.waiting = {}

    @rule(client=st.sampled_from("AB"))
    def pop_last(self, client: str) -> None:
        """The last in line of a client is taken out, if there is any."""
        mine = {number for number, (ready, _, _) in self.waiting.items() if ready.client == client}
        assert self.batcher.count_by_client()[client] == len(mine)
        gone = self.batcher.pop_last(client)
        assert (gone is None) is (not mine)
        if gone is not None:
            _, place, _ = self.waiting.pop(gone)
            assert all((self.waiting[number][1], number) < (place, gone) for number in mine - {gone})

    def check(self, batch: Batch[int]) -> None:
        """One key, not too many rows, in the order of their places, and nothing of the key before them is left."""
        taken = [self.waiting[item] for item in batch.items]
        assert {ready.key for ready, _, _ in taken} == {batch.key}
        assert batch.rows == sum(ready.rows for ready, _, _ in taken)
        assert batch.rows <= self.max_rows
        self.turns.served(batch.turn)
        for item in batch.items:
            self.waiting.pop(item)
        places = [(place, ready.item) for ready, place, _ in taken]
        left = [(place, ready.item) for ready, place, _ in self.waiting.values() if ready.key == batch.key]
        assert places == sorted(places)
        assert all(places[-1] < each for each in left)

    def ready(self, key: str) -> bool:
        """Whether a key's requests may run: full, or the first one has waited long enough."""
        mine = [(ready, came) for ready, _, came in self.waiting.values() if ready.key == key]
        full = sum(ready.rows for ready, _ in mine) >= self.max_rows
        return bool(mine) and (full or self.now - min(came for _, came in mine) >= self.delay)

    @invariant()
    def nothing_is_lost(self) -> None:
        """The count is right."""
        if hasattr(self, "batcher"):
            assert len(self.batcher) == len(self.waiting)
            if not self.waiting:
                assert self.batcher.take(self.now) is None


TestBatching = Batching.TestCase


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 4)), max_size=40))
def test_without_a_delay_everything_leaves_at_once(requests: list[tuple[str, int]]) -> None:
    """With delay 0 `take` goes on until nothing is left."""
    batcher = fixed(4)
    for number, (key, rows) in enumerate(requests):
        batcher.add(Ready(number, key, rows), 0.0)
    assert sorted(chain.from_iterable(take_all(batcher))) == list(range(len(requests)))
    assert len(batcher) == 0


def test_a_request_larger_than_a_batch_runs_alone() -> None:
    """It is not lost and blocks nobody, though admission should have refused it."""
    batcher = fixed(2)
    batcher.add(Ready(5, "key", 5), 0.0)
    batcher.add(Ready(1, "key", 1), 0.0)
    assert take_all(batcher) == [[5], [1]]


@given(st.integers(1, 40), st.integers(1, 8))
def test_a_flood_of_one_client_does_not_hold_up_another(flood: int, size: int) -> None:
    """Whoever has sent less is in the next batch but one, however many wait."""
    batcher, turns = fixed(size), turn_giver()
    for number in range(flood):
        batcher.add(Ready(number, "key", 1, "A"), 0.0, turns.next_turn("A"))
    first = batcher.take(0.0)
    assert isinstance(first, Batch)
    turns.served(first.turn)
    batcher.add(Ready(-1, "key", 1, "B"), 0.0, turns.next_turn("B"))
    batches = take_all(batcher)
    assert -1 in [*chain.from_iterable(batches[:2])][: size + 1]
    assert first.items + [item for batch in batches for item in batch if item >= 0] == list(range(flood))


def test_two_floods_take_turns() -> None:
    """Round robin, from the moment at which the second client comes."""
    batcher, turns = fixed(2), turn_giver()
    for client in "AB":
        for number in range(4):
            batcher.add(Ready(number + 10 * (client == "B"), "key", 1, client), 0.0, turns.next_turn(client))
    assert take_all(batcher) == [[0, 10], [1, 11], [2, 12], [3, 13]]


def test_priorities_go_first_but_not_for_ever() -> None:
    """A higher level goes before; a lower one waits for a bounded number of turns."""
    batcher, turns = fixed(1), turn_giver()
    batcher.add(Ready(-1, "key", 1, "low", 1), 0.0, turns.next_turn("low"))
    for number in range(3 * PRIORITY_TURNS):
        batcher.add(Ready(number, "key", 1, "high", 0), 0.0, turns.next_turn("high"))
    served = [*chain.from_iterable(take_all(batcher))]
    assert served.index(-1) == PRIORITY_TURNS
    assert served[0] == 0


@given(st.integers(1, 64), st.sets(st.integers(1, 80)), st.integers(1, 100))
def test_preferred_sizes(max_rows: int, preferred: set[int], waiting: int) -> None:
    """The largest preferred size that can be formed runs at once; without any, what waits runs after the delay."""
    policy = FixedPolicy(max_rows, 5.0, sorted(preferred))
    usable = [size for size in preferred if size <= max_rows] or [max_rows]
    formed = [size for size in usable if size <= waiting]
    early, late = policy.choose(waiting, 10.0, 12.0), policy.choose(waiting, 10.0, 15.0)
    assert early == (Choice(max(formed)) if formed else Choice(max_rows, 3.0))
    assert late == (Choice(max(formed)) if formed else Choice(max_rows))


def test_policies_are_told_what_happens_to_their_key() -> None:
    """Rows that wait when one comes and when a batch ends, and what a batch was and took."""
    made: list[Noting] = []

    def make() -> Noting:
        made.append(Noting(2))
        return made[-1]

    batcher: Batcher[int] = Batcher(make)
    for number, key in enumerate("aaab"):
        batcher.add(Ready(number, key, 1), float(number))
    batch = batcher.take(5.0)
    assert isinstance(batch, Batch)
    batcher.ended(batch, 1, 6.0)
    assert len(made) == 2
    assert made[0].told == [("came", n + 1, n) for n in range(3)] + [("began", 2, 5.0), ("ended", (2, 1, 1.0), 1, 6.0)]
    assert made[1].told == [("came", 1, 3.0)]


def test_policies_are_kept_for_a_bounded_number_of_keys() -> None:
    """A key that comes again finds what was learned; a thousand others do not fill the memory."""
    made: list[int] = []

    def make() -> FixedPolicy:
        made.append(len(made))
        return FixedPolicy(4)

    batcher: Batcher[int] = Batcher(make)
    for number in range(1000):
        batcher.add(Ready(number, "again", 1), 0.0)
        batcher.add(Ready(number, number, 1), 0.0)
        take_all(batcher)
    assert len(made) == 1001
    assert len(batcher._known) <= 32


@given(st.lists(st.tuples(st.sampled_from("ABCD"), st.booleans()), max_size=200))
def test_turns_are_fair(events: list[tuple[str, bool]]) -> None:
    """Between two clients that always wait, the difference of the turns served is at most one."""
    turns: FairQueue[int] = FairQueue()
    waiting: list[tuple[float, int, str]] = []
    for number, (client, serve) in enumerate(events):
        waiting.append((turns.next_turn(client), number, client))
        if serve:
            first = min(waiting)
            waiting.remove(first)
            turns.served(first[0])
    for client in "ABCD":
        mine = [(turn, number) for turn, number, each in waiting if each == client]
        assert mine == sorted(mine)
        assert all(later[0] - sooner[0] >= 1 for sooner, later in pairwise(mine))
    heads = [min(turn for turn, _, each in waiting if each == client) for client in {each for *_, each in waiting}]
    assert all(turn <= turns.next_turn("new") + 1 for turn in heads)


def test_clients_without_debts_are_forgotten() -> None:
    """Ten thousand clients that were served leave no more than a thousand entries."""
    turns: FairQueue[int] = FairQueue()
    for number in range(10_000):
        turns.served(turns.next_turn(f"client-{number}") + 1)
    assert turns.remembered_clients <= 1024
