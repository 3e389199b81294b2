from __future__ import annotations

from concurrent.futures import Future

from mqinfer.cloud_worker.supervision.inbox import Inbox


def test_actions_are_done_in_order_and_a_failed_one_tells_its_own_future() -> None:
    """One that fails holds up no other."""
    inbox, done = Inbox(), list[int]()
    failed: Future[None] = Future()
    assert inbox.put(lambda: done.append(1), Future())
    assert inbox.put(lambda: done.append(1 // 0), failed)
    assert inbox.put(lambda: done.append(3), Future())
    inbox.work_off()
    assert done == [1, 3]
    assert isinstance(failed.exception(0), ZeroDivisionError)


def test_what_waits_when_it_closes_is_handed_back_once() -> None:
    """Nothing of it is done, and nothing more comes in."""
    inbox, done = Inbox(), list[int]()
    waiting: Future[None] = Future()
    assert inbox.put(lambda: done.append(1), waiting)
    assert inbox.close() == [waiting]
    assert not inbox.put(lambda: done.append(2), Future())
    inbox.work_off()
    assert (inbox.close(), done) == ([], [])
