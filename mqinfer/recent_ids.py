"""Ids that were seen lately, up to a number: what came before is forgotten. Pure."""

from __future__ import annotations

from collections.abc import Hashable


class RecentIds:
    """The ids that were added last. Not thread-safe, but for `in`.

    Args:
        most: Number of ids that are kept; the oldest go first.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._ids: dict[Hashable, None] = {}

    def __contains__(self, each: Hashable) -> bool:
        return each in self._ids

    def add(self, each: Hashable) -> bool:
        """Add an id, or renew it; return whether it is new."""
        is_new = not self.discard(each)
        self._ids[each] = None
        if len(self._ids) > self._most:
            del self._ids[next(iter(self._ids))]
        return is_new

    def discard(self, each: Hashable) -> bool:
        """Forget an id; return whether it was there."""
        if each not in self._ids:
            return False
        del self._ids[each]
        return True
