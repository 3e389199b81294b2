"""What every source yields: frames as they were recorded, which are decoded later."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from mqinfer.images.picture import CameraInfo, CompressedImage, RawImage
from mqinfer.protocol.errors import ConfigError
from mqinfer.value_object import value_object


@value_object(eq=False)
class Frame:
    """One frame of a stream.

    Attributes:
        source: Topic, file or device.
        sequence: Number within its source, from 0 for the first frame of the recording, wherever reading starts.
        capture_time_ns: Header stamp since the epoch, in nanoseconds.
        log_time_ns: When it was recorded, in nanoseconds; sources are merged and paced by this.
        frame_id: As in the header.
        image: As recorded; empty where it has points.
        camera: Calibration of the camera, where the recording has it.
        joined: Frames of other streams that go to the model with this one, in one request.
        missed: How many frames of these streams were left out since the frame before, by source and reason.
        points: The message of a PointCloud2 or LaserScan, or several of Imu, which `mqinfer.bags.points` reads.
    """

    source: str
    sequence: int
    capture_time_ns: int
    log_time_ns: int
    frame_id: str
    image: RawImage | CompressedImage
    camera: CameraInfo | None = None
    joined: tuple[Frame, ...] = ()
    missed: Mapping[tuple[str, str], int] = field(default_factory=dict)
    points: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """One stream of a source, for `mqinfer bag info` and the summary.

    Attributes:
        source: Topic, file or device.
        message_type: Such as `sensor_msgs/msg/Image`.
        encoding: Encoding of the first frame, or fields of its points; empty if there is none.
        width: Columns of the first frame.
        height: Rows of the first frame.
        count: Number of frames, or None if it is unknown (a camera).
        rate: Frames a second by the log times, or None.
        is_image: Whether it has pictures.
        camera: First calibration of its camera; None if the recording has none.
        published: By how many, and with which quality of service; empty where it is no topic of a running system.
    """

    source: str
    message_type: str
    encoding: str
    width: int
    height: int
    count: int | None
    rate: float | None
    is_image: bool = True
    camera: CameraInfo | None = None
    published: str = ""


class FrameSource(Protocol):
    """A source of frames; opened by its constructor, closed by `close`."""

    def streams(self) -> tuple[StreamInfo, ...]:
        """List its streams."""

    def frames(self) -> Iterator[Frame]:
        """Yield the frames of all chosen streams, merged by log time. May be called again for a new pass."""

    def close(self) -> None:
        """Close files and devices."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The part of a recording from `start` seconds after the first frame, for `duration` seconds (None: to the end).

    Raises:
        ConfigError: A negative start, or a duration that is not positive.
    """

    start: float = 0.0
    duration: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.start) and self.start >= 0):
            raise ConfigError(f"start is {self.start}; expected seconds after the first frame, 0 or more")
        if self.duration is not None and not (math.isfinite(self.duration) and self.duration > 0):
            raise ConfigError(f"duration is {self.duration}; expected a positive number of seconds")

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left out."""
        return self.start == 0 and self.duration is None

    def bounds(self, first_ns: int) -> tuple[int, int | None]:
        """Return the first instant inside, and the first one after the end (None: no end), in nanoseconds."""
        begin = first_ns + round(self.start * 1e9)
        return begin, None if self.duration is None else begin + round(self.duration * 1e9)


WHOLE = TimeRange()
