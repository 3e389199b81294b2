"""A video file, decoded by OpenCV."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mqinfer.bags.frame import Frame, RawImage, StreamInfo
from mqinfer.bags.opencv import opencv
from mqinfer.bags.span import WHOLE, Span
from mqinfer.protocol.errors import SourceError

__all__ = ["VideoSource", "raw_bgr"]

log = logging.getLogger("mqinfer.bags")


def raw_bgr(picture: NDArray[np.uint8]) -> RawImage:
    """Wrap what OpenCV's capture returns, `[H, W, 3]` BGR, without a copy."""
    picture = np.ascontiguousarray(picture)
    height, width = picture.shape[:2]
    data = picture.reshape(-1).data
    return RawImage("bgr8", height, width, width * 3, is_bigendian=False, data=data)


class VideoSource:
    """Frames of mp4, avi, mkv and whatever else the installed OpenCV reads.

    Capture stamp and log time both count from the beginning of the video: a file has no other clock.

    Args:
        path: The file.
        span: The part that is wanted.

    Raises:
        SourceError: OpenCV can't open it.
    """

    def __init__(self, path: Path, *, span: Span = WHOLE) -> None:
        self._path = path
        self._span = span
        self._capture = self._open()

    def _open(self) -> Any:
        try:
            with self._path.open("rb"):
                pass
        except OSError as failed:
            raise SourceError(f"{self._path}: {failed.strerror}") from failed
        capture = opencv().VideoCapture(str(self._path))
        if not capture.isOpened():
            raise SourceError(
                f"{self._path}: neither a bag, a picture nor a video that OpenCV can open; "
                "if it is a video, it may be cut off or of a codec that is missing here"
            )
        return capture

    def streams(self) -> tuple[StreamInfo, ...]:
        """List the video as one stream; the count is the container's own."""
        cv2, capture = opencv(), self._capture
        width, height = int(capture.get(cv2.CAP_PROP_FRAME_WIDTH)), int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT))
        count = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
        return (
            StreamInfo(str(self._path), "video", "bgr8", width, height, count if count > 0 else None, self._rate()),
        )

    def _rate(self) -> float | None:
        rate = float(self._capture.get(opencv().CAP_PROP_FPS))
        return rate if math.isfinite(rate) and rate > 0 else None

    def frames(self) -> Iterator[Frame]:
        """Yield the frames of the span; a pass begins at its start and ends the one before it."""
        cv2 = opencv()
        begin, end = self._span.bounds(0)
        self._capture.release()
        self._capture = capture = self._open()
        if begin:
            capture.set(cv2.CAP_PROP_POS_MSEC, begin / 1e6)
        period, time_ns, sequence = round(1e9 / (self._rate() or 25.0)), -1, 0
        while True:
            is_read, picture = capture.read()
            if not is_read:
                return
            stamp = round(capture.get(cv2.CAP_PROP_POS_MSEC) * 1e6)
            # Some containers carry no times; time must move on all the same.
            time_ns = stamp if stamp > time_ns else time_ns + period
            if end is not None and time_ns >= end:
                return
            if time_ns >= begin:
                yield Frame(str(self._path), sequence, time_ns, time_ns, "", raw_bgr(picture))
                sequence += 1

    def close(self) -> None:
        """Close the file."""
        self._capture.release()
