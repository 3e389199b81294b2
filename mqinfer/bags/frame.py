"""What every source yields: frames as they were recorded, decoded later and elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from mqinfer.protocol.types import Buffer

__all__ = ["CompressedImage", "Frame", "FrameSource", "RawImage", "StreamInfo"]


@dataclass(frozen=True, slots=True, eq=False)
class RawImage:
    """Pixels as `sensor_msgs/Image` carries them.

    Attributes:
        encoding: ROS name (`sensor_msgs/image_encodings.hpp`), such as `rgb8`, `mono16`, `bayer_rggb8`.
        height: Rows.
        width: Columns.
        step: Bytes of a full row, padding included.
        is_bigendian: Byte order of 16-bit and wider samples.
        data: At least `step * height` bytes.
    """

    encoding: str
    height: int
    width: int
    step: int
    is_bigendian: bool
    data: Buffer


@dataclass(frozen=True, slots=True, eq=False)
class CompressedImage:
    """Pixels as `sensor_msgs/CompressedImage` carries them: `format` is its free-form string."""

    format: str
    data: Buffer


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One frame of a stream.

    Attributes:
        source: Topic, file or device.
        sequence: Number within its source, from 0.
        capture_time_ns: Header stamp since the epoch, in nanoseconds.
        log_time_ns: When it was recorded, in nanoseconds; sources are merged and paced by this.
        frame_id: As in the header.
        image: As recorded.
    """

    source: str
    sequence: int
    capture_time_ns: int
    log_time_ns: int
    frame_id: str
    image: RawImage | CompressedImage


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """One image stream of a source, for `mqinfer bag info` and the summary.

    Attributes:
        source: Topic, file or device.
        message_type: Such as `sensor_msgs/msg/Image`.
        encoding: Of the first frame, empty if there is none.
        width: Of the first frame, in pixels.
        height: Of the first frame, in pixels.
        count: Frames, or None where it can't be known (a camera).
        rate: Frames a second by the log times, or None.
        is_image: Whether frames can be made from it.
    """

    source: str
    message_type: str
    encoding: str
    width: int
    height: int
    count: int | None
    rate: float | None
    is_image: bool = True


class FrameSource(Protocol):
    """Something that frames come from; opened by its constructor, closed by `close`."""

    def streams(self) -> tuple[StreamInfo, ...]:
        """List what it holds."""

    def frames(self) -> Iterator[Frame]:
        """Yield the frames of all chosen streams, merged by log time. May be called again for a new pass."""

    def close(self) -> None:
        """Close files and devices."""
