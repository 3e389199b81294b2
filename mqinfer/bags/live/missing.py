"""Count the frames that a live source lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mqinfer.bags.frame import Frame, FrameSource, StreamInfo


class CountingSource:
    """A source as it is, and the sum of what its frames say is missing.

    Args:
        source: Where the frames come from.

    Attributes:
        missed: Frames that are missing so far, by source and reason.
    """

    def __init__(self, source: FrameSource) -> None:
        self.missed: Counter[tuple[str, str]] = Counter()
        self._source = source

    def streams(self) -> tuple[StreamInfo, ...]:
        """List its streams."""
        return self._source.streams()

    def frames(self) -> Iterator[Frame]:
        """Yield its frames."""
        for frame in self._source.frames():
            self.missed.update(frame.missed)
            yield frame

    def close(self) -> None:
        """Close it."""
        self._source.close()
