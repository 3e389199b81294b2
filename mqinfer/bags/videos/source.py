"""Read frames from a video file with PyAV."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from stat import S_ISREG

import numpy as np
from numpy.typing import NDArray

from mqinfer.bags.frame import WHOLE, Frame, StreamInfo, TimeRange
from mqinfer.bags.videos.decoder import VideoFileDecoder
from mqinfer.images.picture import RawImage
from mqinfer.logs import encodable
from mqinfer.protocol.errors import SourceError

log = logging.getLogger("mqinfer.bags")
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

    def __init__(self, path: Path, *, span: TimeRange = WHOLE) -> None:
        self._path, self._name = path, encodable(str(path))
        self._span = span
        self._decoder = self._open()

    def _open(self, *, is_careful: bool = False) -> VideoFileDecoder:
        try:
            if not S_ISREG(self._path.stat().st_mode):  # opening a pipe may wait for ever
                raise SourceError(f"{self._path}: not a file; expected a video file, camera:0, or the URL of a camera")
            with self._path.open("rb"):
                pass
        except OSError as failed:
            raise SourceError(f"{self._path}: {failed.strerror}") from failed
        return VideoFileDecoder(self._path, is_careful=is_careful)

    def streams(self) -> tuple[StreamInfo, ...]:
        """List the video as one stream; the count comes from the container, and only for the whole video."""
        width, height = self._decoder.size
        count = self._decoder.count if self._span.is_whole else None
        return (StreamInfo(self._name, "video", "bgr8", width, height, count, self._decoder.rate),)

    def frames(self) -> Iterator[Frame]:
        """Yield the frames of the span; a new pass ends the previous one.

        Raises:
            SourceError: Frames are missing: the video is cut off or damaged. Those that can be decoded were yielded.
        """
        begin, end = self._span.bounds(0)
        decoder = self._reopen()
        _, time_ns, is_part = yield from self._until(end, decoder.pictures(begin))
        lost, total = (0, 0) if is_part else decoder.lost()
        if decoder.is_tail_lost:
            careful = self._reopen(is_careful=True)
            found, later_ns, _ = yield from self._until(end, careful.pictures(max(begin, time_ns + 1)))
            lost, time_ns = lost - found, max(time_ns, later_ns)
        if time_ns < 0 and not begin:
            raise SourceError(
                f"{self._path}: no picture can be decoded from this video; it is damaged, or its codec is unknown"
            )
        if lost > 0:
            raise SourceError(f"{self._path}: the video is cut off or damaged: {lost} of {total} frames are missing")
        if decoder.is_cut and not is_part:
            raise SourceError(f"{self._path}: the video is cut off: its end is missing")
        if not is_part:
            self._check_behind(decoder)
        if decoder.is_damaged:
            raise SourceError(f"{self._path}: the video is damaged: some of its pictures are missing or wrong")

    def _check_behind(self, decoder: VideoFileDecoder) -> None:
        """Raise for another video behind this one, and log what else is not read."""
        place, is_video = decoder.behind() or (0, False)
        if is_video:
            raise SourceError(
                f"{self._path}: another video begins at byte {place}; make two files of it: "
                f"tail -c +{place + 1} FILE > SECOND{self._path.suffix}"
            )
        if place and (left := self._path.stat().st_size - place):
            log.warning("%s: %d bytes behind the video are not read", self._path, left)

    def _until(
        self, end: int | None, pictures: Iterable[tuple[int, int, NDArray[np.uint8]]]
    ) -> Generator[Frame, None, tuple[int, int, bool]]:
        """Yield the frames before `end`; return their number, the time that was reached, and whether that is `end`."""
        count, time_ns = 0, -1
        for index, time_ns, picture in pictures:
            if end is not None and time_ns >= end:
                return count, time_ns, True
            yield self._frame(index, time_ns, picture)
            count += 1
        return count, time_ns, False

    def _reopen(self, *, is_careful: bool = False) -> VideoFileDecoder:
        self._decoder.close()
        self._decoder = self._open(is_careful=is_careful)
        return self._decoder

    def _frame(self, index: int, time_ns: int, picture: NDArray[np.uint8]) -> Frame:
        return Frame(self._name, index, time_ns, time_ns, "", raw_bgr(picture))

    def close(self) -> None:
        """Close the file."""
        self._decoder.close()
