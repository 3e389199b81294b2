"""A process that publishes pictures as cyclonedds itself writes them, from types that are declared here by hand.

Each line of its standard input is a command: `publish TOPIC KIND LATCHED`, `wait`, `send FIRST COUNT PAUSE_MS`, or
`bytes HEX`.
"""

import os
import sys
import time
from dataclasses import dataclass
from typing import Any

from cyclonedds.domain import DomainParticipant
from cyclonedds.idl import IdlStruct
from cyclonedds.idl.types import int32, sequence, uint8, uint32
from cyclonedds.pub import DataWriter
from cyclonedds.qos import Policy, Qos
from cyclonedds.topic import Topic

from tests.bags.ros2_picture import HEIGHT, WIDTH, pixels


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
class Range(IdlStruct, typename="sensor_msgs::msg::dds_::Range_"):  # type: ignore[misc, call-arg] # noqa: D101
    field_of_view: uint32


KINDS = {"Image": Image, "Range": Range}


class Raw(Image):
    """A picture whose bytes are what the test says."""

    def __init__(self, cdr: bytes) -> None:
        self.cdr = cdr

    def serialize(self, **_: Any) -> bytes:
        """Return them."""
        return self.cdr


def main() -> None:
    """Obey."""
    participant = DomainParticipant(int(os.environ["ROS_DOMAIN_ID"]))
    writer: Any = None
    for line in sys.stdin:
        what, *words = line.split()
        if what == "publish":
            durability = Policy.Durability.TransientLocal if words[2] == "1" else Policy.Durability.Volatile
            last = Policy.History.KeepLast(10)
            kept = Policy.DurabilityService(0, last, -1, -1, -1)  # for those that come later, as ROS 2 sets it
            quality = Qos(Policy.Reliability.Reliable(10**10), durability, last, kept)
            writer = DataWriter(participant, Topic(participant, f"rt{words[0]}", KINDS[words[1]]), quality)
        elif what == "wait":
            while not writer.get_publication_matched_status().current_count:
                time.sleep(0.01)
        elif what == "send":
            first, count, pause = map(int, words)
            for number in range(first, first + count):
                header = Header(Time(number, 7), "front optical")
                writer.write(Image(header, HEIGHT, WIDTH, "mono8", 0, WIDTH, list(pixels(number))))
                time.sleep(pause / 1000)
        elif what == "bytes":
            writer.write(Raw(bytes.fromhex(words[0])))
        print("done", flush=True)  # noqa: T201 - the test waits for it


if __name__ == "__main__":
    main()
