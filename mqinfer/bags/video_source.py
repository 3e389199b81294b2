"""Read frames through OpenCV: from a video file, or from a camera at this machine or in the network."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from stat import S_ISREG
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mqinfer.bags.frame import WHOLE, Frame, Span, StreamInfo
from mqinfer.codecs.opencv import opencv
from mqinfer.images.picture import RawImage
from mqinfer.protocol.errors import ConfigError, SourceError

__all__ = ["VIDEO_SUFFIXES", "CameraSource", "VideoSource", "raw_bgr"]

# fmt: off
VIDEO_SUFFIXES = (
    ".3gp", ".avi", ".flv", ".h264", ".hevc", ".m2ts", ".m4v", ".mjpeg", ".mjpg", ".mkv",
    ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".ts", ".webm", ".wmv", ".y4m",
)
# fmt: on
"""Files with other suffixes are refused: FFmpeg, which OpenCV uses, plays even text files as films of a terminal."""

_OPENED_MS = 10_000
"""A stream that is not open after this time is refused."""
_STALLED_S = 5.0
"""A stream that yields no frame for so long has stopped; OpenCV would wait 30 s, and no signal is handled meanwhile."""
_NOMINAL_RATE = 25.0
"""Frames a second of a file that states no rate."""


def raw_bgr(picture: NDArray[np.uint8]) -> RawImage:
    """Wrap what OpenCV's capture returns, `[H, W, 3]` BGR, without a copy."""
    picture = np.ascontiguousarray(picture)
    height, width = picture.shape[:2]
    data = picture.reshape(-1).data
    return RawImage("bgr8", height, width, width * 3, is_bigendian=False, data=data)


class VideoSource:
    """Frames of mp4, avi, mkv and whatever else the installed OpenCV reads.

    Capture stamp and log time both count from the start of the video: a file has no other clock.

    Args:
        path: The file.
        span: The part to read.

    Raises:
        SourceError: OpenCV cannot open it.
    """

    def __init__(self, path: Path, *, span: Span = WHOLE) -> None:
        self._path = path
        self._span = span
        self._capture = self._open()

    def _open(self) -> Any:
        try:
            if not S_ISREG(self._path.stat().st_mode):  # opening a pipe may wait for ever
                raise SourceError(f"{self._path}: not a file; expected a video file, camera:0, or the URL of a camera")
            with self._path.open("rb"):
                pass
        except OSError as failed:
            raise SourceError(f"{self._path}: {failed.strerror}") from failed
        capture = opencv().VideoCapture(str(self._path))
        if not capture.isOpened():
            raise SourceError(
                f"{self._path}: OpenCV can't open this video; it is cut off, or its codec is not installed"
            )
        return capture

    def streams(self) -> tuple[StreamInfo, ...]:
        """List the video as one stream; the count comes from the container, and only for the whole video."""
        cv2, capture = opencv(), self._capture
        width, height = int(capture.get(cv2.CAP_PROP_FRAME_WIDTH)), int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT))
        count = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
        known = count if count > 0 and self._span.is_whole else None
        return (StreamInfo(str(self._path), "video", "bgr8", width, height, known, self._rate()),)

    def _rate(self) -> float | None:
        rate = float(self._capture.get(opencv().CAP_PROP_FPS))
        return rate if math.isfinite(rate) and rate > 0 else None

    def frames(self) -> Iterator[Frame]:
        """Yield the frames of the span; a new pass ends the previous one.

        Raises:
            SourceError: No picture can be decoded.
        """
        begin, end = self._span.bounds(0)
        for sequence, time_ns, picture in self._pictures(begin):
            if end is not None and time_ns >= end:
                return
            yield Frame(str(self._path), sequence, time_ns, time_ns, "", raw_bgr(picture))

    def _pictures(self, begin: int) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
        cv2 = opencv()
        self._capture.release()
        self._capture = capture = self._open()
        if begin:
            capture.set(cv2.CAP_PROP_POS_MSEC, begin / 1e6)
        period, time_ns = round(1e9 / (self._rate() or _NOMINAL_RATE)), None
        for index in count(_position(capture)):
            is_read, picture = capture.read()
            if not is_read:
                break
            stamp = round(capture.get(cv2.CAP_PROP_POS_MSEC) * 1e6)
            # Some containers have no times; the log time must grow all the same.
            time_ns = stamp if time_ns is None or stamp > time_ns else time_ns + period
            if time_ns >= begin:
                yield index, time_ns, picture
        if time_ns is None and not begin:
            raise SourceError(
                f"{self._path}: no picture can be decoded from this video; it is damaged, or its codec is unknown"
            )

    def close(self) -> None:
        """Close the file."""
        self._capture.release()


def _position(capture: Any) -> int:
    """Return the number of the next frame, which OpenCV computes from its time and the nominal rate."""
    position: float = capture.get(opencv().CAP_PROP_POS_FRAMES)
    return max(0, round(position))


class CameraSource:
    """Frames of a live source, stamped when they arrive.

    Args:
        spec: `camera:0` for a local device, or the URL of a stream (RTSP, HTTP).
        span: How long to read; a live source has no later start.
        clock: Nanoseconds since the epoch.
        timeout: How long to wait for a frame of a stream, in seconds; also bounds how long a stop takes.

    Raises:
        SourceError: The device or stream cannot be opened.
        ConfigError: A start was asked for.
    """

    def __init__(
        self, spec: str, *, span: Span = WHOLE, clock: Callable[[], int] = time.time_ns, timeout: float = _STALLED_S
    ) -> None:
        if span.start:
            raise ConfigError(f"{spec}: a live source starts now; leave out the start of {span.start} s")
        self._spec = spec
        self._span = span
        self._clock = clock
        self._capture = _open(spec, timeout)

    def streams(self) -> tuple[StreamInfo, ...]:
        """List the camera as one stream of unknown length."""
        cv2, get = opencv(), self._capture.get
        width, height = int(get(cv2.CAP_PROP_FRAME_WIDTH)), int(get(cv2.CAP_PROP_FRAME_HEIGHT))
        return (StreamInfo(self._spec, "camera", "bgr8", width, height, None, get(cv2.CAP_PROP_FPS) or None),)

    def frames(self) -> Iterator[Frame]:
        """Yield frames until the duration is over.

        Raises:
            SourceError: The camera stopped.
        """
        _, end = self._span.bounds(self._clock())
        sequence = 0
        while True:
            is_read, picture = self._capture.read()
            now = self._clock()
            if end is not None and now >= end:
                return
            if not is_read:
                raise SourceError(
                    f"{self._spec}: the camera stopped or stalled after {sequence} frames; check that it is connected"
                )
            yield Frame(self._spec, sequence, now, now, "", raw_bgr(picture))
            sequence += 1

    def close(self) -> None:
        """Close the device."""
        self._capture.release()


def _open(spec: str, timeout: float) -> Any:
    cv2 = opencv()
    if spec.startswith("camera:"):
        capture = cv2.VideoCapture(int(spec.removeprefix("camera:")))  # Video4Linux waits 10 s for a frame
    else:
        limits = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, _OPENED_MS, cv2.CAP_PROP_READ_TIMEOUT_MSEC, round(1000 * timeout)]
        capture = cv2.VideoCapture(spec, cv2.CAP_FFMPEG, limits)
    if not capture.isOpened():
        raise SourceError(f"{spec}: can't be opened; check that the device or URL exists and no other program holds it")
    return capture
