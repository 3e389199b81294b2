"""How many bits of 16-bit samples a camera uses, and a hint where nobody said so."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

from mqinfer.bags.frame import Frame
from mqinfer.images.decode import used_bits
from mqinfer.protocol.errors import ConfigError, MqinferError

__all__ = ["BitDepths"]

log = logging.getLogger("mqinfer.edge_agent")
_FEWEST, _MOST = 8, 16


@dataclass(frozen=True, slots=True)
class BitDepths:
    """The true bits of 16-bit samples. Thread-safe; the hint comes once a source, whoever shares this.

    Attributes:
        others: Of the sources without an entry of their own; None for 16.
        by_source: Of single topics, files or devices.
    """

    others: int | None = None
    by_source: Mapping[str, int] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set, repr=False, compare=False)
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    @classmethod
    def parse(cls, options: Iterable[str]) -> BitDepths:
        """Read `12`, for all sources, and `/topic=12`.

        Raises:
            ConfigError: Something else, or a number outside 8 to 16.
        """
        others: int | None = None
        by_source: dict[str, int] = {}
        for option in options:
            source, _, number = option.rpartition("=")
            if not (number.isascii() and number.isdigit() and _FEWEST <= int(number) <= _MOST):
                raise ConfigError(f"--bit-depth {option}: expected {_FEWEST} to {_MOST}, such as 12 or /topic=12")
            if source:
                by_source[source] = int(number)
            else:
                others = int(number)
        return cls(others, by_source)

    def check(self, sources: Sequence[str]) -> None:
        """Check that each source with an entry is there.

        Raises:
            ConfigError: One is not.
        """
        if missing := [source for source in self.by_source if source not in sources]:
            raise ConfigError(f"--bit-depth: no image topic {', '.join(missing)}; there are {', '.join(sources)}")

    def of(self, frame: Frame) -> int | None:
        """Return the bits of a frame's samples, None for 16; log a hint if its source's first frame needs fewer."""
        depth = self.by_source.get(frame.source, self.others)
        if depth is None and frame.source not in self._seen:
            self._look_at(frame)
        return depth

    def _look_at(self, frame: Frame) -> None:
        with self._lock:
            if frame.source in self._seen:
                return
            self._seen.add(frame.source)
        try:
            bits = used_bits(frame.image)
        except MqinferError:  # the frame's own outcome reports that
            return
        if bits is not None and bits < _MOST:
            log.warning(
                "%s: the samples of its first frame fit in %d bits; taken as 16 bits, the pictures are dark. "
                "If the camera has %d bits, replay with --bit-depth %s=%d",
                *(frame.source, bits, bits, frame.source, bits),
            )
