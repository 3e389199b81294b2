from __future__ import annotations

from concurrent.futures import Future

from mqinfer.cloud_worker.supervision.supervisor import Inbox


def test_actions_run_in_order_and_an_error_goes_to_its_own_future() -> None:
    """An action that raises does not stop the others."""
    inbox, done = Inbox(), list[int]()
    failed: Future[None] = Future()
    assert inbox.put(lambda: done.append(1), Future())
    assert inbox.put(lambda: done.append(1 // 0), failed)
    assert inbox.put(lambda: done.append(3), Future())
    inbox.run_all()
    assert done == [1, 3]
    assert isinstance(failed.exception(0), ZeroDivisionError)


def test_actions_left_at_closing_are_returned_once() -> None:
    """None of them runs, and no further action is accepted."""
    inbox, done = Inbox(), list[int]()
    waiting: Future[None] = Future()
    assert inbox.put(lambda: done.append(1), waiting)
    assert inbox.close() == [waiting]
    assert not inbox.put(lambda: done.append(2), Future())
    inbox.run_all()
    assert (inbox.close(), done) == ([], [])
