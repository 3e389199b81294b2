"""The process that a connection belongs to: a child that was forked off has a copy of it, and must not use that.

The copy shares the parent's socket and, with it, its packet and request numbers, so the two would receive each other's
replies; and none of the parent's threads run in the child. So in the child each use raises at once, before any lock is
taken, since another thread may have held it at the fork. The child's copies of the descriptors are closed: nothing that
the child does, its end included, can write to the parent's connection or keep it open after the parent's end.
"""

from __future__ import annotations

import os
import threading
from typing import NoReturn, Protocol
from weakref import WeakSet


class _Abandonable(Protocol):
    def abandon(self) -> None:
        """Give up this copy in a child: no lock may be taken, and nothing sent."""


_abandonable: WeakSet[_Abandonable] = WeakSet()


def abandon_in_children(thing: _Abandonable) -> None:
    """Call a thing's `abandon` in every child that is forked off while it exists, before anything else runs there."""
    _abandonable.add(thing)


def _abandon_all() -> None:
    for thing in list(_abandonable):
        thing.abandon()


os.register_at_fork(after_in_child=_abandon_all)


def end_thread_in_child() -> NoReturn:
    """End a thread of the parent's that goes on in a child, behind a handler that forked; and with it the child.

    A process whose last thread returns runs the exit handlers of C libraries. Those of ONNX Runtime wait for threads
    that a child does not have (30 of 30 children hung), those of TensorFlow and PyTorch abort. So the child ends
    without them, unless the handler has started threads in it.
    """
    if threading.active_count() == 1:
        os._exit(0)
    raise SystemExit


class Maker:
    """The process that made an object, and the only one that may use it.

    Args:
        what: The object, for the error.

    Attributes:
        is_other: Whether this process is another one. A plain attribute, since a call for each request would cost more.
    """

    def __init__(self, what: str) -> None:
        self.is_other = False
        self._what = what
        self._pid = os.getpid()
        abandon_in_children(self)

    def abandon(self) -> None:
        """Mark this copy as one in a child."""
        self.is_other = True

    def may_close(self, error: type[BaseException] | None) -> bool:
        """Return whether the end of a `with` block closes the object: a fork that leaves by an error has nothing to.

        Args:
            error: What the block ends with.
        """
        return error is None or not self.is_other

    def check(self) -> None:
        """Raise in any process but the one that made the object.

        Raises:
            RuntimeError: This process was forked off later.
        """
        if self.is_other:
            raise RuntimeError(
                f"{self._what} was made in process {self._pid} and can't be used in process {os.getpid()}, a fork "
                "of it; make a new one in this process, or start processes by 'spawn' and not by 'fork'"
            )
