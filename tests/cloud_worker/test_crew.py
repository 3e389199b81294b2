from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.cloud_worker.batching.batch_policy import FixedPolicy
from mqinfer.cloud_worker.batching.batcher import Batcher, Ready
from mqinfer.cloud_worker.serving.pipeline import Crew, Ran


def nothing() -> None:
    """Finish without doing anything."""


def fixed(max_rows: int, delay: float = 0.0) -> Batcher[int]:
    """Make a batcher with a fixed policy."""
    return Batcher(lambda: FixedPolicy(max_rows, delay))


class Shop:
    """A crew whose jobs are hooks, and what it did."""

    def __init__(self, threads: int = 2, batcher: Batcher[int] | None = None, **options: Any) -> None:
        self.done: list[int] = []
        self.on_decode: Callable[[int], Ready[int] | None] = self.pass_on
        self.on_run: Callable[[Sequence[int]], Callable[[], None]] = self.note
        self.crew: Crew[int, int] = Crew(batcher or fixed(4), self._decode, self._run, threads, **options)
        self.crew.start()

    def _decode(self, message: int) -> Ready[int] | None:
        return self.on_decode(message)

    def _run(self, batch: Sequence[int]) -> Ran:
        return Ran(len(batch), self.on_run(batch))

    def pass_on(self, message: int) -> Ready[int] | None:
        """Decode a message to itself."""
        return Ready(message, "key", 1)

    def note(self, batch: Sequence[int]) -> Callable[[], None]:
        """Run a batch by noting it."""
        self.done += batch
        return nothing


@pytest.fixture
def open_shop() -> Iterator[Callable[..., Shop]]:
    """Start crews that are stopped with the test."""
    shops: list[Shop] = []

    def make(threads: int = 2, batcher: Batcher[int] | None = None, **options: Any) -> Shop:
        shops.append(Shop(threads, batcher, **options))
        return shops[-1]

    yield make
    for shop in shops:
        shop.crew.stop()


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
        shop.crew.receive(number)
    assert shop.crew.drain(30)
    assert shop.crew.stop() == ([], [])
    assert sorted(shop.done) == list(range(count))
    assert shop.crew.depth == 0


def test_decoding_goes_on_while_the_model_runs(open_shop: Callable[..., Shop]) -> None:
    """With two threads the second message is decoded while the first one runs, and runs after it."""
    shop = open_shop()
    in_run, release, decoded = threading.Event(), threading.Event(), threading.Event()

    def run(batch: Sequence[int]) -> Callable[[], None]:
        in_run.set()
        assert release.wait(10)
        return shop.note(batch)

    def decode(message: int) -> Ready[int] | None:
        if message == 2:
            decoded.set()
        return shop.pass_on(message)

    shop.on_run, shop.on_decode = run, decode
    shop.crew.receive(1)
    assert in_run.wait(10)
    shop.crew.receive(2)
    assert decoded.wait(10)
    assert shop.crew.depth >= 2
    assert not shop.crew.drain(0.01)
    release.set()
    assert shop.crew.drain(10)
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
        return lambda: shop.done.append(-1 if second_ran.wait(10) else -2)

    shop.on_run = run
    shop.crew.receive(1)
    shop.crew.receive(2)
    assert shop.crew.drain(20)
    assert sorted(shop.done) in ([-1, 1, 2], [1, 2])


def test_a_due_batch_does_not_wait_for_a_decoding(open_shop: Callable[..., Shop]) -> None:
    """While one thread decodes, the other one watches the delay of the batch that waits."""
    shop = open_shop(2, fixed(4, 0.05))
    ran, entered = threading.Event(), threading.Event()

    def run(batch: Sequence[int]) -> Callable[[], None]:
        ran.set()
        return shop.note(batch)

    def decode(message: int) -> Ready[int] | None:
        if message == 2:
            entered.set()
            assert ran.wait(10), "the batch waits for the decoding"
        return shop.pass_on(message)

    shop.on_run, shop.on_decode = run, decode
    for _ in range(10):
        ran.clear()
        entered.clear()
        shop.crew.receive(1)
        shop.crew.receive(2)
        assert shop.crew.drain(20)
    assert len(shop.done) == 20


@pytest.mark.parametrize("where", ["decode", "run", "finish"])
def test_an_exception_costs_one_job(
    open_shop: Callable[..., Shop], where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A defect is logged; depth returns to 0, and the next message is served, also by a single thread."""
    shop = open_shop(1)
    broken = True

    def fail(*_: object) -> None:
        if broken:
            raise ZeroDivisionError

    def decode(message: int) -> Ready[int] | None:
        if where == "decode":
            fail()
        return shop.pass_on(message)

    def run(batch: Sequence[int]) -> Callable[[], None]:
        if where == "run":
            fail()
        shop.note(batch)
        return fail if where == "finish" else nothing

    shop.on_decode, shop.on_run = decode, run
    with caplog.at_level(logging.CRITICAL, "mqinfer"):
        for number in range(5):
            shop.crew.receive(number)
        assert shop.crew.drain(10)
    assert shop.crew.depth == 0
    broken = False
    shop.crew.receive(99)
    assert shop.crew.drain(10)
    assert shop.done[-1] == 99


def test_stopping_gives_back_what_nobody_began(open_shop: Callable[..., Shop]) -> None:
    """The job in hand is finished; what still waits, decoded or not, is handed back."""
    shop = open_shop(2, fixed(1))
    in_run, release, entered = threading.Event(), threading.Event(), threading.Event()

    def run(batch: Sequence[int]) -> Callable[[], None]:
        in_run.set()
        assert release.wait(10)
        return shop.note(batch)

    shop.on_run = run
    shop.crew.receive(1)
    assert in_run.wait(10)
    shop.crew.receive(4)
    while shop.crew.waiting != 1 or len(shop.crew._batcher) != 1:
        time.sleep(0)  # until the other thread has decoded it

    def hold(_: int) -> None:
        entered.set()
        assert release.wait(10)

    shop.on_decode = hold
    shop.crew.receive(0)
    assert entered.wait(10)
    for number in (2, 3):
        shop.crew.receive(number)
    stopper = threading.Thread(target=lambda: left.extend(shop.crew.stop()))
    left: list[list[int]] = []
    stopper.start()
    while not shop.crew._closing:
        time.sleep(0)  # until `stop` has begun: it waits for the run
    release.set()
    stopper.join(10)
    assert left == [[2, 3], [4]]
    assert shop.done == [1]
    assert shop.crew.depth == 0


def test_a_crew_that_was_never_started_can_be_stopped() -> None:
    """Stopping is safe whatever came before."""
    crew: Crew[int, int] = Crew(fixed(1), lambda _: None, lambda _: Ran(1, nothing), 2)
    assert crew.stop() == ([], [])


def test_as_many_batches_run_as_the_engine_takes(open_shop: Callable[..., Shop]) -> None:
    """Three streams run three batches at a time, never four, and a thread is left for decoding."""
    shop = open_shop(2, fixed(1), concurrency=3)
    assert len(shop.crew._threads) == 4
    running, most, lock = [0], [0], threading.Lock()
    all_in, release = threading.Barrier(3), threading.Event()

    def run(batch: Sequence[int]) -> Callable[[], None]:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        if max(batch) < 3:
            all_in.wait(10)  # the first three are in here together
        assert release.wait(10)
        with lock:
            running[0] -= 1
        return shop.note(batch)

    shop.on_run = run
    for number in range(9):
        shop.crew.receive(number)
    while shop.crew._intake:
        time.sleep(0)  # until the fourth thread has taken the last one to decode it
    release.set()
    assert shop.crew.drain(20)
    assert sorted(shop.done) == list(range(9))
    assert most == [3]


def test_finishing_in_order(open_shop: Callable[..., Shop]) -> None:
    """Where order matters a batch that is quicker waits with its replies for the one that began before."""
    shop = open_shop(3, fixed(1), concurrency=2, in_order=True)
    answered: list[int] = []
    second_ran = threading.Event()

    def run(batch: Sequence[int]) -> Callable[[], None]:
        if batch[0] == 0:
            assert second_ran.wait(10)
        elif batch[0] == 1:
            second_ran.set()
        return lambda: answered.extend(batch)

    shop.on_run = run
    for number in range(20):
        shop.crew.receive(number)
    assert shop.crew.drain(20)
    assert answered == list(range(20))


def test_a_clients_requests_keep_their_order_whichever_thread_is_quicker(open_shop: Callable[..., Shop]) -> None:
    """The second of a client waits for the first one's decoding; another client's does not."""
    shop = open_shop(3, fixed(1))
    first_may_go, others_ran = threading.Event(), threading.Event()

    def decode(message: int) -> Ready[int] | None:
        if message == 0:
            assert first_may_go.wait(10)
        return Ready(message, "key", 1)

    def run(batch: Sequence[int]) -> Callable[[], None]:
        if batch[0] == 10:
            others_ran.set()
        return shop.note(batch)

    shop.on_decode, shop.on_run = decode, run
    shop.crew.receive(0, "A")
    shop.crew.receive(1, "A")
    shop.crew.receive(10, "B")
    assert others_ran.wait(10)
    first_may_go.set()
    assert shop.crew.drain(10)
    assert shop.done == [10, 0, 1]


def test_whoever_has_most_gives_way() -> None:
    """The last request of the client with most goes out, decoded or not; nobody gives way to an equal."""
    crew: Crew[int, int] = Crew(fixed(8), lambda _: None, lambda _: Ran(1, nothing), 2)
    assert crew.give_way("B") is None
    for number in range(3):
        crew.receive(number, "A")
    assert crew.give_way("A") is None
    assert crew.give_way("B") == 2
    crew.receive(10, "B")
    assert crew.give_way("B") is None
    crew._intake.clear()
    for number in range(3):
        crew._batcher.add(Ready(number + 100, "key", 1, "A"), 0.0, float(number))
    assert crew.give_way("B") == 102
    assert crew.waiting == 2
