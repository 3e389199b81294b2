"""Frames of one stream in turn, on threads that several streams share."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from mqinfer.edge_agent.remote import InTurn, OneAtATime


def test_tasks_keep_their_order_and_never_overlap() -> None:
    """Two streams of tasks on four threads: each in order, one at a time, and one that waits holds up no other."""
    order: dict[str, list[int]] = {"a": [], "b": []}
    running = {"a": 0, "b": 0}
    gate, done = threading.Event(), threading.Semaphore(0)

    def task(stream: str, number: int) -> None:
        running[stream] += 1
        assert running[stream] == 1
        if (stream, number) == ("a", 3):
            assert gate.wait(60)
        order[stream].append(number)
        running[stream] -= 1
        done.release()

    with ThreadPoolExecutor(4) as pool:
        streams = {name: OneAtATime(pool.submit) for name in order}
        for number in range(50):
            for name, stream in streams.items():
                stream.submit(partial(task, name, number))
        for _ in range(50 + 3):  # all of one stream, and of the other what comes before the one that waits
            assert done.acquire(timeout=60)
        assert order["b"] == list(range(50))
        assert order["a"] == [0, 1, 2]
        gate.set()
        for _ in range(47):
            assert done.acquire(timeout=60)
    assert order["a"] == list(range(50))


def test_a_higher_priority_goes_first() -> None:
    """What waits for a thread runs by priority, among equals in the order of coming; none for ever."""
    asked = [("none", 0), ("two", 2), ("one", 1), ("two again", 2), ("nine", 9)] + [(str(n), 1) for n in range(200)]
    ran: list[str] = []
    gate = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        in_turn = InTurn(pool)
        pool.submit(gate.wait, 60)
        for name, priority in asked:
            in_turn.submit(priority, partial(ran.append, name))
        gate.set()
    assert sorted(ran) == sorted(name for name, _ in asked)
    assert ran[:2] == ["one", "0"]
    assert 60 <= ran.index("two") < ran.index("two again") < 70
    assert 185 <= ran.index("none") < ran.index("nine") < 200
