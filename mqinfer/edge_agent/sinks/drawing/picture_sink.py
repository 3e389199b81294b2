"""Write an overlay picture as PNG every N results of each stream."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.codecs.opencv import opencv
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.output_files import replacing, set_aside
from mqinfer.edge_agent.sinks.drawing.overlay import draw_result, encode_picture
from mqinfer.edge_agent.sinks.sink import StreamNames
from mqinfer.protocol.types import Outcome


class PictureSink:
    """Writes `overlay-<stream>-<sequence>.png` for the first result of a stream and every n-th after it.

    Args:
        directory: For the files.
        every: n; 1 for all results.

    Raises:
        MissingExtra: OpenCV is not installed.
    """

    def __init__(self, directory: Path, every: int = 10) -> None:
        opencv()
        self._directory = directory
        self._every = every
        self._names = StreamNames()
        self._answered: Counter[str] = Counter()
        self._written: list[Path] = []
        self._has_kept = False

    def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:
        """Write a picture if the frame is the first or the n-th.

        Raises:
            ConfigError: The file cannot be written.
        """
        if result.outcome is not Outcome.OK:
            return
        number = self._answered[frame.source]
        self._answered[frame.source] += 1
        if number % self._every:
            return
        path = self._directory / f"overlay-{self._names.of(frame.source)}-{frame.sequence:06d}.png"
        drawn = draw_result(frame, view, result)
        with replacing(path) as unfinished:
            unfinished.write_bytes(encode_picture(drawn, ".png"))
            if set_aside(path, level=logging.DEBUG if self._has_kept else logging.WARNING):
                self._has_kept = True  # one message stands for all pictures
        self._written.append(path)

    def close(self) -> tuple[Path, ...]:
        """Return the paths of the pictures."""
        return tuple(self._written)
