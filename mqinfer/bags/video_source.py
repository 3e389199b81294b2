"""Read frames from a video file with PyAV."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG

import numpy as np
from numpy.typing import NDArray

from mqinfer.bags.frame import WHOLE, Frame, Span, StreamInfo
from mqinfer.bags.video_decoder import VideoDecoder
from mqinfer.images.picture import RawImage
from mqinfer.protocol.errors import SourceError

__all__ = ["VIDEO_SUFFIXES", "VideoSource", "raw_bgr"]

# fmt: off
VIDEO_SUFFIXES = (
    ".3gp", ".avi", ".flv", ".h264", ".hevc", ".m2ts", ".m4v", ".mjpeg", ".mjpg", ".mkv",
    ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".ts", ".webm", ".wmv", ".y4m",
)
# fmt: on
"""Files with other suffixes are refused: FFmpeg plays even text files as films of a terminal."""


def raw_bgr(picture: NDArray[np.uint8]) -> RawImage:
    """Wrap what OpenCV's capture returns, `[H, W, 3]` BGR, without a copy."""
    picture = np.ascontiguousarray(picture)
    height, width = picture.shape[:2]
    data = picture.reshape(-1).data
    return RawImage("bgr8", height, width, width * 3, is_bigendian=False, data=data)


class VideoSource:
    """Frames of mp4, avi, mkv and whatever else FFmpeg reads.

    Capture stamp and log time both count from the start of the video: a file has no other clock.

    Args:
        path: The file.
        span: The part to read.

    Raises:
        SourceError: It cannot be opened.
        MissingExtra: PyAV is not installed.
    """

    def __init__(self, path: Path, *, span: Span = WHOLE) -> None:
        self._path = path
        self._span = span
        self._decoder = self._open()

    def _open(self, *, is_careful: bool = False) -> VideoDecoder:
        try:
            if not S_ISREG(self._path.stat().st_mode):  # opening a pipe may wait for ever
                raise SourceError(f"{self._path}: not a file; expected a video file, camera:0, or the URL of a camera")
            with self._path.open("rb"):
                pass
        except OSError as failed:
            raise SourceError(f"{self._path}: {failed.strerror}") from failed
        return VideoDecoder(self._path, is_careful=is_careful)

    def streams(self) -> tuple[StreamInfo, ...]:
        """List the video as one stream; the count comes from the container, and only for the whole video."""
        width, height = self._decoder.size
        count = self._decoder.count if self._span.is_whole else None
        return (StreamInfo(str(self._path), "video", "bgr8", width, height, count, self._decoder.rate),)

    def frames(self) -> Iterator[Frame]:
        """Yield the frames of the span; a new pass ends the previous one.

        Raises:
            SourceError: Frames are missing: the video is cut off or damaged. Those that can be decoded were yielded.
        """
        begin, end = self._span.bounds(0)
        decoder, last, time_ns = self._reopen(), -1, -1
        for last, time_ns, picture in decoder.pictures(begin):
            if end is not None and time_ns >= end:
                break
            yield self._frame(last, time_ns, picture)
        is_part = end is not None and time_ns >= end
        lost, total = (0, 0) if is_part else decoder.lost()
        if decoder.is_tail_lost:
            careful = self._reopen(is_careful=True)
            for last, time_ns, picture in careful.pictures(max(begin, time_ns + 1)):  # noqa: B020 - its start is set
                if end is not None and time_ns >= end:
                    break
                yield self._frame(last, time_ns, picture)
                lost -= 1
        if time_ns < 0 and not begin:
            raise SourceError(
                f"{self._path}: no picture can be decoded from this video; it is damaged, or its codec is unknown"
            )
        if lost > 0:
            raise SourceError(f"{self._path}: the video is cut off or damaged: {lost} of {total} frames are missing")
        if decoder.is_damaged:
            raise SourceError(f"{self._path}: the video is damaged: some of its pictures are missing or wrong")
        if decoder.is_cut and not is_part:
            raise SourceError(f"{self._path}: the video is cut off: its end is missing")

    def _reopen(self, *, is_careful: bool = False) -> VideoDecoder:
        self._decoder.close()
        self._decoder = self._open(is_careful=is_careful)
        return self._decoder

    def _frame(self, index: int, time_ns: int, picture: NDArray[np.uint8]) -> Frame:
        return Frame(str(self._path), index, time_ns, time_ns, "", raw_bgr(picture))

    def close(self) -> None:
        """Close the file."""
        self._decoder.close()
