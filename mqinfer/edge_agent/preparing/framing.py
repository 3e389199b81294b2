"""What of a recorded frame the model gets: as it was recorded or rectified, all of it or a region."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Self

from numpy.typing import NDArray

from mqinfer.bags.frame import Frame, StreamInfo
from mqinfer.edge_agent.frames.by_source import check_sources, read_by_source, whole_number
from mqinfer.images.decode import used_bits
from mqinfer.images.picture import CameraInfo
from mqinfer.images.placement import Region
from mqinfer.images.rectification import rectification
from mqinfer.protocol.errors import BadImage, ConfigError, MqinferError

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
        expected = f"{_FEWEST} to {_MOST}, such as 12 or /topic=12"
        return cls(*read_by_source("--bit-depth", options, whole_number(_FEWEST, _MOST), expected))

    def check(self, sources: Sequence[str]) -> None:
        """Check that each source with an entry is there.

        Raises:
            ConfigError: One is not.
        """
        check_sources("--bit-depth", self.by_source, sources)

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


_REGION = re.compile(r"([0-9]{1,6}),([0-9]{1,6}),([1-9][0-9]{0,5}),([1-9][0-9]{0,5})")


@dataclass(frozen=True, slots=True)
class Framing:
    """The settings of `--rectify` and `--roi`.

    Attributes:
        rectify: Whether frames are rectified by the calibration that the recording has.
        others: Region of the sources without one of their own, in pixels of the rectified frame; None for all of it.
        by_source: Regions of single topics, files or devices.
    """

    rectify: bool = False
    others: Region | None = None
    by_source: Mapping[str, Region] = field(default_factory=dict)

    @classmethod
    def parse(cls, options: Iterable[str], *, rectify: bool = False) -> Self:
        """Read regions: `0,200,968,400` for all sources, and `/topic=0,200,968,400`.

        Raises:
            ConfigError: Something else.
        """
        expected = "X,Y,WIDTH,HEIGHT in pixels, such as 0,200,968,400 or /topic=0,200,968,400"
        return cls(rectify, *read_by_source("--roi", options, _read_region, expected))

    def check(self, streams: Sequence[StreamInfo]) -> None:
        """Check the settings against the sources, as far as their first frames and calibrations show.

        Of several sources one may have a calibration that is wrong: then its frames fail, and the others are sent.

        Raises:
            ConfigError: A source with a region is not there, a region is not inside its frames, a source has no
                calibration, or every source has one that is wrong.
        """
        check_sources("--roi", self.by_source, [stream.source for stream in streams])
        known = [stream for stream in streams if stream.width]
        for stream in known:
            try:
                _check_inside(self.by_source.get(stream.source, self.others), stream.width, stream.height)
            except BadImage as error:
                raise ConfigError(f"{stream.source}: {error}") from error
        if self.rectify:
            _check_calibrations(known)

    def region(self, frame: Frame) -> Region | None:
        """Return the part of a rectified frame that the model gets; None for all of it."""
        return self.by_source.get(frame.source, self.others)

    def camera(self, frame: Frame) -> CameraInfo | None:
        """Return the calibration by which a frame is rectified; None if it is not.

        Raises:
            BadImage: It is to be rectified, and has none.
        """
        if self.rectify and frame.camera is None:
            raise BadImage("the frame has no calibration: no CameraInfo could be read; leave out --rectify")
        return frame.camera if self.rectify else None

    def is_whole(self, frame: Frame) -> bool:
        """Whether the model gets the whole frame as it was recorded."""
        return not self.rectify and self.region(frame) is None

    def apply(self, frame: Frame, pixels: NDArray[Any]) -> NDArray[Any]:
        """Rectify the pixels of a frame, `[height, width, ...]`, and cut its region out.

        Raises:
            BadImage: The calibration or the region does not suit the frame.
        """
        if self.is_whole(frame):
            return pixels
        height, width = pixels.shape[:2]
        camera, region = self.camera(frame), self.region(frame)
        _check_inside(region, width, height)
        if camera is not None:
            pixels = rectification(camera, width, height).apply(pixels)
        if region is None:
            return pixels
        left, top, across, down = region
        return pixels[top : top + down, left : left + across]


def _read_region(text: str) -> Region | None:
    found = _REGION.fullmatch(text)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]), int(found[4]))


def _check_inside(region: Region | None, width: int, height: int) -> None:
    if region is not None and (region[0] + region[2] > width or region[1] + region[3] > height):
        raise BadImage(
            f"the region {','.join(map(str, region))} (left, top, width, height) is not inside the frame of "
            f"{width}x{height} pixels; correct --roi"
        )


def _check_calibrations(streams: Sequence[StreamInfo]) -> None:
    if without := [stream.source for stream in streams if stream.camera is None]:
        raise ConfigError(
            f"--rectify: the recording has no calibration of {', '.join(without)}: a bag has it on a topic "
            "camera_info beside the pictures; choose other topics with --topic, or leave out --rectify"
        )
    if already := [stream.source for stream in streams if "/image_rect" in stream.source and _bends(stream)]:
        raise ConfigError(
            f"--rectify: by its name {', '.join(already)} is rectified already; choose other topics with --topic, or "
            "leave out --rectify"
        )
    wrong = []
    for stream in streams:
        try:
            rectification(stream.camera, stream.width, stream.height)
        except BadImage as error:
            wrong.append(f"{stream.source}: {error}")
    if wrong and len(wrong) == len(streams):
        raise ConfigError(f"--rectify: {wrong[0]}")


def _bends(stream: StreamInfo) -> bool:
    return stream.camera is not None and any(stream.camera.distortion)
