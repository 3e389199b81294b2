"""Write overlay videos, one MP4 for each stream."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.codecs.opencv import opencv
from mqinfer.edge_agent.sinks.mp4 import Mp4File, read_clip
from mqinfer.edge_agent.sinks.overlay import draw_result
from mqinfer.edge_agent.sinks.sink import FileNames, Picture, set_aside, writing
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.errors import ConfigError

__all__ = ["VideoSink"]

_FALLBACK_RATE = 10.0
_CLIP_S = 1.0
"""A clip holds a second of video, or the frames of a second of the clock where that is less; a kill loses no more."""


class VideoSink:
    """Writes `overlay-<stream>.mp4` with every frame, also those without a result (their caption names the reason).

    The file can be read while it grows, and after the process was killed: at most the last second is missing.

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
        with ExitStack() as videos:  # closes all, also if one fails
            for video in self._videos.values():
                videos.callback(video.close)
        return tuple(video.path for video in self._videos.values())


class _Video:
    """One MP4 file. It is opened at the second frame, when the rate is known.

    OpenCV encodes a clip of a second into a file without a name, and the clip is appended as soon as it is complete.
    """

    def __init__(self, cv2: Any, path: Path) -> None:
        self.path = path
        self._cv2 = cv2
        self._first: tuple[int, Picture] | None = None
        self._rate = 0.0
        self._size = (0, 0)
        self._file: Mp4File | None = None
        self._encoder: Any = None
        self._clip: BinaryIO | None = None
        self._count = 0
        self._started = 0.0

    def add(self, log_time_ns: int, picture: Picture) -> None:
        if self._rate:
            self._append(picture)
        elif self._first is None:
            self._first = (log_time_ns, picture)
        else:
            self._begin(_rate(log_time_ns - self._first[0]))
            self._append(picture)

    def close(self) -> None:
        if self._first is not None:
            self._begin(_FALLBACK_RATE)
        try:
            self._finish_clip()
        finally:
            if self._file:
                with writing(self.path):
                    self._file.close()

    def _begin(self, rate: float) -> None:
        if self._first is None:
            return
        picture = self._first[1]
        self._first, self._rate = None, rate
        self._size = (picture.shape[1] & -2, picture.shape[0] & -2)  # what OpenCV makes of odd sizes
        self._append(picture)

    def _append(self, picture: Picture) -> None:
        if self._encoder is None:
            self._start_clip()
        # VideoWriter silently drops frames of any other size.
        if (picture.shape[1], picture.shape[0]) != self._size:
            picture = self._cv2.resize(picture, self._size)
        self._encoder.write(self._cv2.cvtColor(picture, self._cv2.COLOR_RGB2BGR))
        self._count += 1
        if self._count >= self._rate or time.monotonic() - self._started >= _CLIP_S:
            self._finish_clip()

    def _start_clip(self) -> None:
        path = self.path.with_suffix(".clip.mp4")
        encoder = self._cv2.VideoWriter(str(path), self._cv2.VideoWriter_fourcc(*"mp4v"), self._rate, self._size)
        if not encoder.isOpened():
            raise ConfigError(
                f"cannot write {self.path}: OpenCV can't open an MP4 of {self._size[0]}x{self._size[1]} at "
                f"{self._rate:.3g} frames/s; choose another place, or leave out the video sink"
            )
        with writing(self.path):
            self._clip = path.open("rb")
            path.unlink()  # nothing of it is left if this process is killed
        self._encoder, self._count, self._started = encoder, 0, time.monotonic()

    def _finish_clip(self) -> None:
        """Append the clip to the file."""
        encoder, clip, self._encoder, self._clip = self._encoder, self._clip, None, None
        if encoder is None or clip is None:
            return
        encoder.release()
        with writing(self.path), clip:
            try:
                found = read_clip(clip.read())
            except ValueError as error:  # OpenCV does not report a disk that is full
                raise OSError(f"the encoder could not write a second of video: {error}") from error
            if len(found.sizes) != self._count:
                raise OSError(f"the encoder wrote {len(found.sizes)} of {self._count} frames")
            if self._file is None:
                set_aside(self.path)
                self._file = Mp4File(self.path, *self._size)
            self._file.append(found)


def _rate(period_ns: int) -> float:
    """Return frames a second, 1 to 60, from the distance of two frames; the fallback if it is not positive."""
    return min(max(1e9 / period_ns, 1.0), 60.0) if period_ns > 0 else _FALLBACK_RATE
