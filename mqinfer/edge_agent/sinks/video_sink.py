"""Write overlay videos, one MP4 for each stream."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.codecs.opencv import opencv
from mqinfer.edge_agent.sinks.overlay import draw_result
from mqinfer.edge_agent.sinks.sink import FileNames, Picture
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.errors import ConfigError

__all__ = ["VideoSink"]

_FALLBACK_RATE = 10.0


class VideoSink:
    """Writes `overlay-<stream>.mp4` with every frame, also those without a result (their caption names the reason).

    A frame that could not be decoded is black. Before the first decoded one it is left out, because a video has the
    size of its first picture.

    The rate follows from the log times of the first two frames, because a video has one rate only: a recording with an
    irregular rate plays faster or slower in places. The caption shows the stamp of each frame.

    Args:
        directory: For the files.
        classes: Names and colours from the model's card.

    Raises:
        MissingExtra: OpenCV is not installed.
    """

    def __init__(self, directory: Path, classes: Sequence[ClassInfo] = ()) -> None:
        self._cv2 = opencv()
        self._directory = directory
        self._classes = tuple(classes)
        self._names = FileNames()
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._videos: dict[str, _Video] = {}

    def write(self, frame: Frame, picture: Picture, result: InferResult) -> None:
        """Append a frame to the video of its stream.

        Raises:
            ConfigError: The video cannot be written.
        """
        if picture.size:
            self._shapes[frame.source] = picture.shape
        elif frame.source in self._shapes:
            picture = np.zeros(self._shapes[frame.source], np.uint8)
        else:
            return
        if frame.source not in self._videos:
            path = self._directory / f"overlay-{self._names.of(frame.source)}.mp4"
            self._videos[frame.source] = _Video(self._cv2, path)
        self._videos[frame.source].add(frame.log_time_ns, draw_result(frame, picture, result, self._classes))

    def close(self) -> tuple[Path, ...]:
        """Finish the videos, and return their paths.

        Raises:
            ConfigError: A video cannot be written.
        """
        for video in self._videos.values():
            video.close()
        return tuple(video.path for video in self._videos.values())


class _Video:
    """One MP4 file. It is opened at the second frame, when the rate is known."""

    def __init__(self, cv2: Any, path: Path) -> None:
        self.path = path
        self._cv2 = cv2
        self._first: tuple[int, Picture] | None = None
        self._writer: Any = None
        self._size = (0, 0)

    def add(self, log_time_ns: int, picture: Picture) -> None:
        if self._writer is not None:
            self._append(picture)
        elif self._first is None:
            self._first = (log_time_ns, picture)
        else:
            self._open(_rate(log_time_ns - self._first[0]))
            self._append(picture)

    def close(self) -> None:
        if self._writer is None:
            self._open(_FALLBACK_RATE)
        self._writer.release()

    def _open(self, rate: float) -> None:
        if self._first is None:
            return
        picture = self._first[1]
        self._size = (picture.shape[1], picture.shape[0])
        codec = self._cv2.VideoWriter_fourcc(*"mp4v")
        self._writer = self._cv2.VideoWriter(str(self.path), codec, rate, self._size)
        if not self._writer.isOpened():
            raise ConfigError(
                f"cannot write {self.path}: OpenCV can't open an MP4 of {self._size[0]}x{self._size[1]} at {rate:.3g} "
                "frames/s; choose another place, or leave out the video sink"
            )
        self._append(picture)

    def _append(self, picture: Picture) -> None:
        # VideoWriter silently drops frames of any other size.
        if (picture.shape[1], picture.shape[0]) != self._size:
            picture = self._cv2.resize(picture, self._size)
        self._writer.write(self._cv2.cvtColor(picture, self._cv2.COLOR_RGB2BGR))


def _rate(period_ns: int) -> float:
    """Return frames a second, 1 to 60, from the distance of two frames; the fallback if it is not positive."""
    return min(max(1e9 / period_ns, 1.0), 60.0) if period_ns > 0 else _FALLBACK_RATE
