"""The requests that clients took back while a worker may have had them: pure, bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable

from mqinfer.protocol.types import Outcome

__all__ = ["TakenBack"]

_MOST = 4096


class TakenBack:
    """Ids by client, the newest 4096. Not thread-safe: its owner holds a lock."""

    def __init__(self) -> None:
        self._keys: OrderedDict[Hashable, Outcome] = OrderedDict()

    def __bool__(self) -> bool:
        """Tell whether there are any: most of the time there are none, and nothing more need be looked at."""
        return bool(self._keys)

    def add(self, keys: Iterable[Hashable], outcome: Outcome) -> None:
        """Note requests; those of long ago are forgotten, since they were answered or skipped by then."""
        for key in keys:
            self._keys[key] = outcome
            if len(self._keys) > _MOST:
                self._keys.popitem(last=False)

    def pop(self, key: Hashable) -> Outcome | None:
        """Tell whether a request was taken back, and how; it is forgotten then."""
        return self._keys.pop(key, None)
