"""Callbacks of futures run on the threads that deliver the replies: there nothing may wait for a reply."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from mqinfer.broker.process import Maker
from mqinfer.client.result import InferResult
from mqinfer.protocol.errors import MqinferError

__all__ = ["ReplyFuture", "callback", "check_may_wait", "settle"]


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
        future.set_exception(error)
    else:
        future.set_result(result)
    finally:
        callback.maker = outer
