"""The part of a recording that is wanted."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mqinfer.protocol.errors import ConfigError

__all__ = ["WHOLE", "Span"]


@dataclass(frozen=True, slots=True)
class Span:
    """From `start` seconds after the first frame, for `duration` seconds (None: to the end).

    Raises:
        ConfigError: A negative start, or a duration that is not positive.
    """

    start: float = 0.0
    duration: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.start) and self.start >= 0):
            raise ConfigError(f"start is {self.start}; it counts seconds from the first frame: 0 or more")
        if self.duration is not None and not (math.isfinite(self.duration) and self.duration > 0):
            raise ConfigError(f"duration is {self.duration}; it must be a positive number of seconds")

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left out."""
        return self.start == 0 and self.duration is None

    def bounds(self, first_ns: int) -> tuple[int, int | None]:
        """Give the first wanted instant and the first one no longer wanted, in nanoseconds."""
        begin = first_ns + round(self.start * 1e9)
        return begin, None if self.duration is None else begin + round(self.duration * 1e9)


WHOLE = Span()
