"""A process that publishes as cyclonedds itself writes messages, from types that are declared here by hand.

Each line of its standard input is a command: `publish TOPIC KIND LATCHED`, `wait TOPIC`,
`send TOPIC FIRST COUNT PAUSE_MS`, or `bytes TOPIC HEX`.
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from cyclonedds.domain import DomainParticipant
from cyclonedds.idl import IdlStruct
from cyclonedds.idl.types import array, float64, int32, sequence, uint8, uint32
from cyclonedds.pub import DataWriter
from cyclonedds.qos import Policy, Qos
from cyclonedds.topic import Topic

from tests.ros2.picture import FRAME_ID, HEIGHT, LENS, NANOSECONDS, WIDTH, pixels


@dataclass
class Time(IdlStruct, typename="builtin_interfaces::msg::dds_::Time_"):  # type: ignore[misc, call-arg] # noqa: D101
    sec: int32
    nanosec: uint32


@dataclass
class Header(IdlStruct, typename="std_msgs::msg::dds_::Header_"):  # type: ignore[misc, call-arg] # noqa: D101
    stamp: Time
    frame_id: str


@dataclass
class Image(IdlStruct, typename="sensor_msgs::msg::dds_::Image_"):  # type: ignore[misc, call-arg] # noqa: D101
    header: Header
    height: uint32
    width: uint32
    encoding: str
    is_bigendian: uint8
    step: uint32
    data: sequence[uint8]


@dataclass
class CompressedImage(IdlStruct, typename="sensor_msgs::msg::dds_::CompressedImage_"):  # type: ignore[misc, call-arg] # noqa: D101
    header: Header
    format: str
    data: sequence[uint8]


@dataclass
class Region(IdlStruct, typename="sensor_msgs::msg::dds_::RegionOfInterest_"):  # type: ignore[misc, call-arg] # noqa: D101
    x_offset: uint32
    y_offset: uint32
    height: uint32
    width: uint32
    do_rectify: bool


@dataclass
class CameraInfo(IdlStruct, typename="sensor_msgs::msg::dds_::CameraInfo_"):  # type: ignore[misc, call-arg] # noqa: D101
    header: Header
    height: uint32
    width: uint32
    distortion_model: str
    d: sequence[float64]
    k: array[float64, 9]
    r: array[float64, 9]
    p: array[float64, 12]
    binning_x: uint32
    binning_y: uint32
    roi: Region


@dataclass
class Range(IdlStruct, typename="sensor_msgs::msg::dds_::Range_"):  # type: ignore[misc, call-arg] # noqa: D101
    field_of_view: uint32


@dataclass
class Own(IdlStruct, typename="my_msgs::msg::dds_::Own_"):  # type: ignore[misc, call-arg] # noqa: D101
    first: uint32
    second: str


class Raw(Image):
    """A picture whose bytes are what the test says."""

    def __init__(self, cdr: bytes) -> None:
        self.cdr = cdr

    def serialize(self, **_: Any) -> bytes:
        """Return them."""
        return self.cdr


def header(number: int) -> Header:
    """Return the header of a numbered message."""
    return Header(Time(number, NANOSECONDS), FRAME_ID)


def png(number: int) -> list[int]:
    """Return a picture as the bytes of a PNG."""
    return list(cv2.imencode(".png", np.frombuffer(pixels(number), np.uint8).reshape(HEIGHT, WIDTH))[1].tobytes())


MESSAGES: dict[str, tuple[Any, Callable[[int], Any]]] = {
    "Image": (Image, lambda number: Image(header(number), HEIGHT, WIDTH, "mono8", 0, WIDTH, list(pixels(number)))),
    "CompressedImage": (
        CompressedImage,
        lambda number: CompressedImage(header(number), "mono8; png compressed mono8", png(number)),
    ),
    "CameraInfo": (
        CameraInfo,
        lambda number: CameraInfo(
            header(number),
            LENS.height,
            LENS.width,
            LENS.distortion_model,
            list(LENS.distortion),
            list(LENS.intrinsic),
            list(LENS.rectification),
            list(LENS.projection),
            0,
            0,
            Region(0, 0, 0, 0, False),
        ),
    ),
    "Range": (Range, Range),
    "Own": (Own, lambda number: Own(number, "text")),
}
"""The types by name, with what makes a numbered message."""


def quality(*, is_latched: bool) -> Qos:
    """Return what a writer offers."""
    durability = Policy.Durability.TransientLocal if is_latched else Policy.Durability.Volatile
    last = Policy.History.KeepLast(10)
    kept = Policy.DurabilityService(0, last, -1, -1, -1)  # for those that come later, as ROS 2 sets it
    return Qos(Policy.Reliability.Reliable(10**10), durability, last, kept)


def main() -> None:
    """Obey."""
    participant = DomainParticipant(int(os.environ["ROS_DOMAIN_ID"]))
    writers: dict[str, tuple[Any, Callable[[int], Any]]] = {}
    for line in sys.stdin:
        what, name, *words = line.split()
        if what == "publish":
            kind, make = MESSAGES[words[0]]
            topic = Topic(participant, f"rt{name}", kind)
            writers[name] = DataWriter(participant, topic, quality(is_latched=words[1] == "1")), make
        writer, make = writers[name]
        if what == "wait":
            while not writer.get_publication_matched_status().current_count:
                time.sleep(0.01)
        elif what == "send":
            first, count, pause = map(int, words)
            for number in range(first, first + count):
                writer.write(make(number))
                time.sleep(pause / 1000)
        elif what == "bytes":
            writer.write(Raw(bytes.fromhex(words[0])))
        print("done", flush=True)  # noqa: T201 - the test waits for it


if __name__ == "__main__":
    main()
