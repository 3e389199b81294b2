"""Waiting for what another thread changes: in a thread, in a task of an asyncio loop, or by a callback.

Callbacks of futures run on the threads that deliver the replies: there nothing may wait for a reply.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from mqinfer.broker.process import Maker
from mqinfer.client.result import InferResult
from mqinfer.protocol.errors import MqinferError


class _Callback(threading.local):
    """What this thread is doing. `maker` is that of the client whose callbacks it runs, None outside of callbacks."""

    maker: Maker | None = None


callback = _Callback()


def check_may_wait(what: str) -> None:
    """Raise where this thread runs a callback, which would wait for itself.

    Args:
        what: The call, for the message.

    Raises:
        RuntimeError: It does.
    """
    maker = callback.maker
    if maker is not None and not maker.is_other:  # a process that was forked in a callback delivers no replies
        raise RuntimeError(
            f"{what} can't be called in a callback: it waits, and callbacks run on the thread that delivers the "
            "replies; call `submit` with another callback, or pass the result on to a thread of your own"
        )


class Notifier:
    """Wakes who waits for a change. Thread-safe.

    Attributes:
        changed: The lock of what changes; threads wait at it.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._watchers: tuple[Callable[[], None], ...] = ()

    def notify(self) -> None:
        """Wake all who wait, and call the watchers; the lock is not held."""
        with self.changed:
            self.changed.notify_all()
        for watcher in self._watchers:
            watcher()

    def watch(self, callback: Callable[[], None]) -> None:
        """Call something after each change, on the thread that changes it; it must not raise."""
        with self.changed:
            self._watchers = (*self._watchers, callback)

    def unwatch(self, callback: Callable[[], None]) -> None:
        """Stop calling it."""
        with self.changed:
            self._watchers = tuple(each for each in self._watchers if each is not callback)

    def wait(self, is_true: Callable[[], object], timeout: float | None, what: str) -> bool:
        """Wait in a thread until something is true; return whether it is.

        Args:
            is_true: Reads what changes; called with the lock held.
            timeout: In seconds; None to wait without end.
            what: The call that waits, for the message.

        Raises:
            RuntimeError: It would wait, and this is a callback.
        """
        with self.changed:
            if is_true():
                return True
            check_may_wait(what)
            return bool(self.changed.wait_for(is_true, timeout))

    async def until(self, is_true: Callable[[], object], timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Wait in an asyncio loop until something is true; return whether it is.

        Args:
            is_true: Reads what changes; called in the loop.
            timeout: In seconds; None to wait without end.
        """
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(changed.set)

        self.watch(wake)
        try:
            async with asyncio.timeout(timeout):
                while not is_true():
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            return bool(is_true())
        finally:
            self.unwatch(wake)
        return True


class ReplyFuture(Future[InferResult]):
    """The future of a request; waiting for it in a callback raises at once."""

    def result(self, timeout: float | None = None) -> InferResult:
        """Return the result, as `concurrent.futures.Future.result` does.

        Raises:
            RuntimeError: It would wait in a callback.
        """
        if callback.maker and not self.done():
            check_may_wait("result()")
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error or None, as `concurrent.futures.Future.exception` does.

        Raises:
            RuntimeError: It would wait in a callback.
        """
        if callback.maker and not self.done():
            check_may_wait("exception()")
        return super().exception(timeout)


def settle(future: ReplyFuture, maker: Maker, result: InferResult) -> None:
    """Set a future's result or error, which runs its callbacks on this thread."""
    if not future.set_running_or_notify_cancel():
        return
    outer, callback.maker = callback.maker, maker
    try:
        result.raise_for_outcome()
    except MqinferError as error:
        future.set_exception(error.with_traceback(None))  # its frames would keep the request, and this future itself
    else:
        future.set_result(result)
    finally:
        callback.maker = outer
