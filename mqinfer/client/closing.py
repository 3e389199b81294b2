"""What ends at the end of a `with` block, or with its client."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar
from weakref import WeakSet

from mqinfer.broker.process import Maker
from mqinfer.protocol.errors import Cancelled, LinkError

T = TypeVar("T")


class WithBlock(ABC):
    """Ends with its `with` block; a fork that leaves the block by an error has nothing to end."""

    _maker: Maker

    @abstractmethod
    def _leave(self) -> None:
        """End it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._maker.may_close(kind):
            self._leave()


class AsyncWithBlock(ABC):
    """Begins and ends with its `async with` block, as `WithBlock` otherwise."""

    _maker: Maker

    async def _enter(self) -> None:
        """Begin; a stream has nothing to."""
        return

    @abstractmethod
    async def _leave(self) -> None:
        """End it."""

    async def __aenter__(self) -> Self:
        await self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._maker.may_close(kind):
            await self._leave()


class Members(Generic[T]):
    """What ends with its client: its streams, or its watches.

    Args:
        end: Ends one.
    """

    def __init__(self, end: Callable[[T], None]) -> None:
        self._end = end
        self._lock = threading.Lock()
        self._members: WeakSet[T] = WeakSet()
        self._ended = False

    def add(self, member: T, failure: LinkError | None = None) -> T:
        """Add one, and return it.

        Args:
            member: New.
            failure: Why its client will never be connected again, if so.

        Raises:
            Cancelled: The client is closed.
            LinkError: The failure.
        """
        with self._lock:
            if self._ended:
                raise failure or Cancelled("the client is closed; make a new one")
            self._members.add(member)
        return member

    def end(self) -> None:
        """End all of them, and accept no more."""
        with self._lock:
            self._ended = True
            members = list(self._members)
        for member in members:
            self._end(member)
