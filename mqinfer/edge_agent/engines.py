"""What computed a result: precision, engine and device, as the state of the worker that replied names them."""

from __future__ import annotations

from collections.abc import Callable

from mqinfer.client.result import InferResult
from mqinfer.protocol.states import ServedModel

__all__ = ["Engines"]

_MOST = 1024
"""Workers and versions that are remembered; names come from outside, so their number is bounded."""


class Engines:
    """Looks up what a worker serves, and remembers it: a worker may end between its reply and the look-up.

    Not thread-safe: the thread that writes results asks.

    Args:
        look_up: Returns what the last state of a worker holds of a model's version, or None.
    """

    def __init__(self, look_up: Callable[[str, str, str], ServedModel | None]) -> None:
        self._look_up = look_up
        self._known: dict[tuple[str, str, str], ServedModel] = {}

    def of(self, result: InferResult) -> ServedModel | None:
        """Return what the worker of a result serves; None where none replied or its state does not name the version."""
        key = result.worker, result.model_name, result.model_version
        served = self._look_up(*key) if result.worker else None
        if served is None:
            return self._known.get(key)
        if key not in self._known and len(self._known) >= _MOST:
            del self._known[next(iter(self._known))]
        self._known[key] = served
        return served
