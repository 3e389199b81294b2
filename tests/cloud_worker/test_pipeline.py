from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.cloud_worker.batching.batcher import Batcher, FixedPolicy, Ready
from mqinfer.cloud_worker.serving.pipeline import FinishedRun, Pipeline
from tests.patience import PATIENCE_S, wait_until


def nothing() -> None:
    """Finish without doing anything."""


def fixed(max_rows: int, delay: float = 0.0) -> Batcher[int]:
    """Make a batcher with a fixed policy."""
    return Batcher(lambda: FixedPolicy(max_rows, delay))


class Shop:
    """A pipeline whose steps are hooks, and what it did."""

    def __init__(self, threads: int = 2, batcher: Batcher[int] | None = None, **options: Any) -> None:
        self.done: list[int] = []
        self.on_prepare: Callable[[int], Ready[int] | None] = self.pass_on
        self.on_run: Callable[[Sequence[int]], Callable[[], None]] = self.note
        self.pipeline: Pipeline[int, int] = Pipeline(
            fixed(4) if batcher is None else batcher, self._prepare, self._run, threads, **options
        )
        self.pipeline.start()

    def _prepare(self, message: int) -> Ready[int] | None:
        return self.on_prepare(message)

    def _run(self, batch: Sequence[int]) -> FinishedRun:
        return FinishedRun(len(batch), self.on_run(batch))

    def pass_on(self, message: int) -> Ready[int] | None:
        """Decode a message to itself."""
        return Ready(message, "key", 1)

    def note(self, batch: Sequence[int]) -> Callable[[], None]:
        """Run a batch by noting it."""
        self.done += batch
        return nothing


@pytest.fixture
def open_shop() -> Iterator[Callable[..., Shop]]:
    """Start pipelines that are stopped with the test."""
    shops: list[Shop] = []

    def make(threads: int = 2, batcher: Batcher[int] | None = None, **options: Any) -> Shop:
        shops.append(Shop(threads, batcher, **options))
        return shops[-1]

    yield make
    for shop in shops:
        shop.pipeline.stop()


@given(threads=st.integers(1, 4), count=st.integers(0, 60), delay=st.sampled_from([0.0, 0.001]))
def test_everything_is_done_once_and_one_at_a_time(threads: int, count: int, delay: float) -> None:
    """Whatever the number of threads, every message is run exactly once, and runs never overlap."""
    shop = Shop(threads, fixed(4, delay))
    running = threading.Lock()

    def run(batch: Sequence[int]) -> Callable[[], None]:
        assert running.acquire(blocking=False), "two runs at a time"
        shop.done += batch
        running.release()
        return nothing

    shop.on_run = run
    for number in range(count):
        shop.pipeline.receive(number)
    assert shop.pipeline.drain(PATIENCE_S)
    assert shop.pipeline.stop() == []
    assert sorted(shop.done) == list(range(count))
    assert shop.pipeline.depth == 0


def test_preparing_goes_on_while_the_model_runs(open_shop: Callable[..., Shop]) -> None:
    """With two threads the second message is prepared while the first one runs, and runs after it."""
    shop = open_shop()
    in_run, release, prepared = threading.Event(), threading.Event(), threading.Event()

    def run(batch: Sequence[int]) -> Callable[[], None]:
        in_run.set()
        assert release.wait(PATIENCE_S)
        return shop.note(batch)

    def prepare(message: int) -> Ready[int] | None:
        if message == 2:
            prepared.set()
        return shop.pass_on(message)

    shop.on_run, shop.on_prepare = run, prepare
    shop.pipeline.receive(1)
    assert in_run.wait(PATIENCE_S)
    shop.pipeline.receive(2)
    assert prepared.wait(PATIENCE_S)
    assert shop.pipeline.depth >= 2
    assert not shop.pipeline.drain(0.01)
    release.set()
    assert shop.pipeline.drain(PATIENCE_S)
    assert shop.done == [1, 2]


def test_the_next_batch_runs_while_the_last_one_is_answered(open_shop: Callable[..., Shop]) -> None:
    """What `run` returns is called outside the run, so encoding does not hold up the model."""
    shop = open_shop()
    second_ran = threading.Event()

    def run(batch: Sequence[int]) -> Callable[[], None]:
        shop.done += batch
        if 2 in batch:
            second_ran.set()
            return nothing
        return lambda: shop.done.append(-1 if second_ran.wait(PATIENCE_S) else -2)

    shop.on_run = run
    shop.pipeline.receive(1)
    shop.pipeline.receive(2)
    assert shop.pipeline.drain(PATIENCE_S)
    assert sorted(shop.done) in ([-1, 1, 2], [1, 2])


def test_a_due_batch_does_not_wait_for_another_to_be_prepared(open_shop: Callable[..., Shop]) -> None:
    """While one thread prepares, the other one watches the delay of the batch that waits."""
    shop = open_shop(2, fixed(4, 0.05))
    ran, entered = threading.Event(), threading.Event()

    def run(batch: Sequence[int]) -> Callable[[], None]:
        ran.set()
        return shop.note(batch)

    def prepare(message: int) -> Ready[int] | None:
        if message == 2:
            entered.set()
            assert ran.wait(PATIENCE_S), "the batch waits for the preparation"
        return shop.pass_on(message)

    shop.on_run, shop.on_prepare = run, prepare
    for _ in range(10):
        ran.clear()
        entered.clear()
        shop.pipeline.receive(1)
        shop.pipeline.receive(2)
        assert shop.pipeline.drain(PATIENCE_S)
    assert len(shop.done) == 20


@pytest.mark.parametrize("where", ["prepare", "run", "finish"])
def test_an_exception_costs_one_request(
    open_shop: Callable[..., Shop], where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A defect is logged; depth returns to 0, and the next message is served, also by a single thread."""
    shop = open_shop(1)
    broken = True

    def fail(*_: object) -> None:
        if broken:
            raise ZeroDivisionError

    def prepare(message: int) -> Ready[int] | None:
        if where == "prepare":
            fail()
        return shop.pass_on(message)

    def run(batch: Sequence[int]) -> Callable[[], None]:
        if where == "run":
            fail()
        shop.note(batch)
        return fail if where == "finish" else nothing

    shop.on_prepare, shop.on_run = prepare, run
    with caplog.at_level(logging.CRITICAL, "mqinfer"):
        for number in range(5):
            shop.pipeline.receive(number)
        assert shop.pipeline.drain(PATIENCE_S)
    assert shop.pipeline.depth == 0
    broken = False
    shop.pipeline.receive(99)
    assert shop.pipeline.drain(PATIENCE_S)
    assert shop.done[-1] == 99


def test_stopping_returns_what_nobody_began(open_shop: Callable[..., Shop]) -> None:
    """The run that has begun is finished; what is queued, prepared or not, is returned."""
    shop = open_shop(2, fixed(1))
    in_run, release, entered = threading.Event(), threading.Event(), threading.Event()

    def run(batch: Sequence[int]) -> Callable[[], None]:
        in_run.set()
        assert release.wait(PATIENCE_S)
        return shop.note(batch)

    shop.on_run = run
    shop.pipeline.receive(1)
    assert in_run.wait(PATIENCE_S)
    shop.pipeline.receive(4)
    while shop.pipeline.queued != 1 or shop.pipeline.prepared != 1:
        time.sleep(0)  # until the other thread has prepared it

    def hold(_: int) -> None:
        entered.set()
        assert release.wait(PATIENCE_S)

    shop.on_prepare = hold
    shop.pipeline.receive(0)
    assert entered.wait(PATIENCE_S)
    for number in (2, 3):
        shop.pipeline.receive(number)
    stopper = threading.Thread(target=lambda: left.extend(shop.pipeline.stop()))
    left: list[int] = []
    stopper.start()
    while not shop.pipeline._closing:
        time.sleep(0)  # until `stop` has begun: it waits for the run
    release.set()
    stopper.join(PATIENCE_S)
    assert left == [2, 3, 4]
    assert shop.done == [1]
    assert shop.pipeline.depth == 0


def test_a_pipeline_that_was_never_started_can_be_stopped() -> None:
    """Stopping is safe whatever came before."""
    pipeline: Pipeline[int, int] = Pipeline(fixed(1), lambda _: None, lambda _: FinishedRun(1, nothing), 2)
    assert pipeline.stop() == []


def test_as_many_batches_run_as_the_engine_takes(open_shop: Callable[..., Shop]) -> None:
    """Three streams run three batches at a time, never four, and a thread is left for preparing."""
    shop = open_shop(2, fixed(1), concurrency=3)
    assert shop.pipeline.threads == 4
    running, most, lock = [0], [0], threading.Lock()
    all_in, release = threading.Barrier(3), threading.Event()

    def run(batch: Sequence[int]) -> Callable[[], None]:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        if max(batch) < 3:
            all_in.wait(PATIENCE_S)  # the first three are in here together
        assert release.wait(PATIENCE_S)
        with lock:
            running[0] -= 1
        return shop.note(batch)

    shop.on_run = run
    for number in range(9):
        shop.pipeline.receive(number)
    while shop.pipeline.queued > shop.pipeline.prepared:
        time.sleep(0)  # until the fourth thread has taken the last one to prepare it
    release.set()
    assert shop.pipeline.drain(PATIENCE_S)
    assert sorted(shop.done) == list(range(9))
    assert most == [3]


def test_finishing_in_order(open_shop: Callable[..., Shop]) -> None:
    """Where order matters a batch that is quicker waits with its replies for the one that began before."""
    shop = open_shop(3, fixed(1), concurrency=2, in_order=True)
    answered: list[int] = []
    second_ran = threading.Event()

    def run(batch: Sequence[int]) -> Callable[[], None]:
        if batch[0] == 0:
            assert second_ran.wait(PATIENCE_S)
        elif batch[0] == 1:
            second_ran.set()
        return lambda: answered.extend(batch)

    shop.on_run = run
    for number in range(20):
        shop.pipeline.receive(number)
    assert shop.pipeline.drain(PATIENCE_S)
    assert answered == list(range(20))


def test_the_client_with_most_makes_room(open_shop: Callable[..., Shop]) -> None:
    """Its last request goes out, prepared or not; nobody makes room for an equal."""
    pipeline: Pipeline[int, int] = Pipeline(fixed(8), lambda _: None, lambda _: FinishedRun(1, nothing), 2)
    assert pipeline.evict("B") is None
    for number in range(3):
        pipeline.receive(number, "A")
    assert pipeline.evict("A") is None
    assert pipeline.evict("B") == 2
    pipeline.receive(10, "B")
    assert pipeline.evict("B") is None
    shop = open_shop(2, fixed(8, 1000.0))
    shop.on_prepare = lambda number: Ready(number, "key", 1, "A")
    for number in range(3):
        shop.pipeline.receive(number + 100, "A")
    while shop.pipeline.prepared < 3:
        time.sleep(0)  # until the threads have prepared them; a batch waits for company
    assert shop.pipeline.evict("B") == 102
    assert shop.pipeline.queued == 2


def test_what_each_thread_works_on_is_recorded_and_cleared() -> None:
    """A request while it is prepared, a batch while it runs and is replied to, and nothing afterwards."""
    recorded: list[tuple[int, tuple[int, ...]]] = []
    shop = Shop(record=lambda number, items: recorded.append((number, tuple(items))))
    shop.pipeline.receive(7)
    assert shop.pipeline.drain(PATIENCE_S)
    shop.pipeline.stop()
    assert [items for _, items in recorded] == [(7,), (), (7,), ()]


def test_what_waits_for_its_turn_to_reply_is_not_recorded() -> None:
    """Where order matters a batch that has run waits for one that does not end: it is not to blame for that."""
    released, waits = threading.Event(), threading.Event()
    recorded: dict[int, tuple[int, ...]] = {}

    def record(number: int, items: Sequence[int]) -> None:
        recorded[number] = tuple(items)
        if not items and 2 in shop.done:
            waits.set()

    def run(batch: Sequence[int]) -> Callable[[], None]:
        if 1 in batch:
            released.wait(60)
        shop.done += batch
        return nothing

    shop = Shop(3, fixed(1), concurrency=2, in_order=True, record=record)
    shop.on_run = run
    shop.pipeline.receive(1)
    shop.pipeline.receive(2)
    assert waits.wait(60)
    running = {item for items in list(recorded.values()) for item in items}
    released.set()
    assert shop.pipeline.drain(PATIENCE_S)
    shop.pipeline.stop()
    assert running == {1}


@pytest.mark.parametrize(("threads", "in_order"), [(2, False), (2, True), (4, False), (4, True)])
def test_what_is_prepared_is_bounded_by_its_bytes(open_shop: Callable[..., Shop], threads: int, in_order: Any) -> None:
    """With more than the bound nothing further is prepared; a thread goes beyond it by its own request at most."""
    shop = open_shop(threads, in_order=in_order, most_bytes=1000)
    lock, gate, alive, most = threading.Lock(), threading.Event(), 0, 0

    def prepare(number: int) -> Ready[int]:
        nonlocal alive, most
        with lock:
            alive += 300
            most = max(most, alive)
        return Ready(number, number % 3, 1, nbytes=300)

    def run(batch: Sequence[int]) -> Callable[[], None]:
        nonlocal alive
        assert gate.wait(60)
        shop.done += batch
        with lock:
            alive -= 300 * len(batch)
        return nothing

    shop.on_prepare, shop.on_run = prepare, run
    for number in range(60):
        shop.pipeline.receive(number)
    wait_until(lambda: alive > 1000)
    gate.set()
    assert shop.pipeline.drain(60)
    assert sorted(shop.done) == list(range(60))
    assert 1000 < most <= 1000 + 300 * threads


def test_room_is_free_again_for_what_is_evicted(open_shop: Callable[..., Shop]) -> None:
    """A prepared request that makes room for another client counts no more; all others are served."""
    shop = open_shop(most_bytes=1000)
    gate = threading.Event()

    def run(batch: Sequence[int]) -> Callable[[], None]:
        assert gate.wait(60)
        return shop.note(batch)

    shop.on_run = run
    shop.on_prepare = lambda number: Ready(number, number, 1, "A", nbytes=600)
    for number in range(2):
        shop.pipeline.receive(number, "A")
    wait_until(lambda: shop.pipeline.prepared == 1)
    shop.pipeline.receive(2, "A")
    assert shop.pipeline.evict("B") in {1, 2}
    gate.set()
    assert shop.pipeline.drain(60)
    for number in range(3, 9):
        shop.pipeline.receive(number, "A")
    assert shop.pipeline.drain(60)
    assert len(shop.done) == 8
