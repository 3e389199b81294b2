"""Write overlay videos, one MP4 for each stream."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from mqinfer.answers.outputs import Picture
from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.output_files import set_aside, writing
from mqinfer.edge_agent.sinks.drawing.overlay import draw_result
from mqinfer.edge_agent.sinks.sink import StreamNames
from mqinfer.extras import import_extra

_FALLBACK_RATE = Fraction(10)
_FRAGMENT_S = 1.0
"""A fragment holds a second of video, or the frames of a second of the clock where these are fewer."""
_MUXER = {"movflags": "hybrid_fragmented+frag_keyframe", "flush_packets": "1"}
"""Fragments while the file grows; once it is closed, a plain MP4 that every player can seek."""
_ENCODER = {"preset": "veryfast", "tune": "zerolatency", "forced-idr": "1"}


class VideoSink:
    """Writes `overlay-<stream>.mp4` with every frame, also those without a result (their caption names the reason).

    The file can be read while it grows, and after the process was killed: at most the last second is missing.

    A frame that could not be decoded is black. Before the first decoded one it is left out, because a video has the
    size of its first picture.

    The rate follows from the log times of the first two frames, because players count on one rate: a recording with an
    irregular rate plays faster or slower in places. The caption shows the stamp of each frame.

    Args:
        directory: For the files.

    Raises:
        MissingExtra: PyAV is not installed.
    """

    def __init__(self, directory: Path) -> None:
        self._av = import_extra("av", "edge")
        self._directory = directory
        self._names = StreamNames()
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._videos: dict[str, _Video] = {}

    def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:
        """Append a frame to the video of its stream.

        Raises:
            ConfigError: The video cannot be written.
        """
        if view.pixels.size:
            self._shapes[frame.source] = view.pixels.shape
        elif frame.source in self._shapes:
            view = replace(view, pixels=np.zeros(self._shapes[frame.source], np.uint8))
        else:
            return
        drawn = draw_result(frame, view, result)
        if frame.source not in self._videos:
            path = self._directory / f"overlay-{self._names.of(frame.source)}.mp4"
            self._videos[frame.source] = _Video(self._av, path)
        self._videos[frame.source].add(frame.log_time_ns, drawn)

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
    """One MP4 file. It is opened at the second frame, when the rate is known."""

    def __init__(self, av: Any, path: Path) -> None:
        self.path = path
        self._av = av
        self._first: tuple[int, Picture] | None = None
        self._file: Any = None
        self._stream: Any = None
        self._count = 0
        self._fragment, self._fragment_until = 0, 0.0

    def add(self, log_time_ns: int, picture: Picture) -> None:
        if self._file:
            self._append(picture)
        elif self._first is None:
            self._first = (log_time_ns, picture)
        else:
            self._begin(self._first[1], _rate(log_time_ns - self._first[0]))
            self._append(picture)

    def close(self) -> None:
        if self._file is None and self._first is not None:
            self._begin(self._first[1], _FALLBACK_RATE)
        if self._file:
            try:
                self._encode(None)
            finally:
                with writing(self.path):
                    self._file.close()

    def _begin(self, first: Picture, rate: Fraction) -> None:
        with writing(self.path):
            set_aside(self.path)
            self._file = self._av.open(str(self.path), "w", format="mp4", options=_MUXER)
        self._stream = self._file.add_stream("libx264", rate=rate, options=_ENCODER)
        self._stream.width, self._stream.height = first.shape[1] & -2, first.shape[0] & -2  # the codec takes even ones
        self._stream.pix_fmt = "yuv420p"
        self._append(first)

    def _append(self, picture: Picture) -> None:
        image = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
        image = image.reformat(self._stream.width, self._stream.height)
        now = time.monotonic()
        if self._count - self._fragment >= self._stream.codec_context.framerate or now >= self._fragment_until:
            image.pict_type = self._av.video.frame.PictureType.I  # begins a fragment
            self._fragment, self._fragment_until = self._count, now + _FRAGMENT_S
        self._count += 1
        self._encode(image)

    def _encode(self, image: Any) -> None:
        with writing(self.path):
            self._file.mux(self._stream.encode(image))


def _rate(period_ns: int) -> Fraction:
    """Return frames a second, 1 to 60, from the distance of two frames; the fallback if it is not positive."""
    if period_ns <= 0:
        return _FALLBACK_RATE
    return min(max(Fraction(10**9, period_ns), Fraction(1)), Fraction(60)).limit_denominator(1000)
