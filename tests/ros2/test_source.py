"""Topics of ROS 2 over DDS."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from typing import Any

import numpy as np
import pytest

from mqinfer.bags.frame import Frame
from mqinfer.bags.ros2.messages import (
    VISION,
    CdrError,
    dds_topic,
    dds_type,
    deserialize,
    ros_topic,
    ros_type,
    serialize,
    store,
    type_hash,
)
from mqinfer.bags.ros2.node import dds_settings, domain_id
from mqinfer.bags.ros2.source import BROKEN, SLOW, Ros2Source
from mqinfer.images.picture import RawImage
from mqinfer.protocol.errors import ConfigError, SourceError
from tests.ros2.picture import FRAME_ID, HEIGHT, NANOSECONDS, WIDTH, pixels

IMAGE = "sensor_msgs/msg/Image"


def numbers(frames: list[Frame]) -> list[int]:
    """Return the numbers of pictures, each of which has its own pixels, stamp and frame."""
    found = []
    for frame in frames:
        number, rest = divmod(frame.capture_time_ns, 10**9)
        assert (rest, frame.frame_id, frame.source) == (NANOSECONDS, FRAME_ID, frames[0].source)
        assert isinstance(frame.image, RawImage)
        assert (frame.image.height, frame.image.width, frame.image.encoding) == (HEIGHT, WIDTH, "mono8")
        assert bytes(frame.image.data) == pixels(number)
        found.append(number)
    assert [frame.sequence for frame in frames] == list(range(len(frames)))
    return found


@pytest.mark.slow
class TestSource:
    """A publisher in another process."""

    def test_a_thousand_pictures_are_read_or_counted(self, publish: Callable[[], Any], topic: str) -> None:
        """Pixels are equal and the order kept; with a slow reader each picture came or is in the counts."""
        publisher = publish()
        publisher.tell(f"publish {topic} Image 0")
        with closing(Ros2Source(topic)) as source:
            publisher.tell(f"wait {topic}")
            sending = threading.Thread(target=publisher.tell, args=(f"send {topic} 0 1000 1",), name="test-sending")
            sending.start()
            frames = source.frames()
            found = list(islice(frames, 3))  # then nobody reads until all were sent
            sending.join()
            while numbers(found)[-1] < 999:
                found.append(next(frames))
        missed: Counter[tuple[str, str]] = Counter()
        for frame in found:
            missed.update(frame.missed)
        assert set(missed) == {(topic, SLOW)}
        assert len(found) + missed.total() == 1000
        assert numbers(found) == sorted(set(numbers(found)))

    def test_a_publisher_that_is_killed_and_comes_back(self, publish: Callable[[], Any], topic: str) -> None:
        """The stream goes on with the new one."""
        first = publish()
        first.tell(f"publish {topic} Image 0")
        with closing(Ros2Source(topic)) as source:
            frames = source.frames()
            first.tell(f"wait {topic}", f"send {topic} 1 1 0")
            found = [next(frames)]
            first.kill()
            second = publish()
            second.tell(f"publish {topic} Image 0", f"wait {topic}", f"send {topic} 2 50 20")
            found.append(next(frames))
        before, after = numbers(found)  # the first ones may not reach a reader that just learns of the publisher
        assert before == 1 < after

    def test_who_comes_late_gets_what_is_kept(self, publish: Callable[[], Any], topic: str) -> None:
        """Of a publisher that is transient local."""
        publisher = publish()
        publisher.tell(f"publish {topic} Image 1", f"send {topic} 1 3 0")
        with closing(Ros2Source(topic)) as source:
            assert numbers(list(islice(source.frames(), 3))) == [1, 2, 3]

    def test_another_type_is_refused_by_name(self, publish: Callable[[], Any], topic: str) -> None:
        """So is a topic that nobody publishes, where the stop comes first."""
        publisher = publish()
        publisher.tell(f"publish {topic} Range 0")
        with pytest.raises(SourceError, match=rf"{topic} has sensor_msgs/msg/Range, no pictures in domain \d+"):
            Ros2Source(topic)
        with pytest.raises(SourceError, match="is published by nobody"):
            Ros2Source(f"{topic}/none", is_stopped=lambda: True)

    def test_another_domain_is_not_heard(
        self, publish: Callable[[], Any], topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The same topic in two domains: only the pictures of one come."""
        mine = publish()
        mine.tell(f"publish {topic} Image 0")
        with closing(Ros2Source(topic)) as source:
            monkeypatch.setenv("ROS_DOMAIN_ID", str(int(os.environ["ROS_DOMAIN_ID"]) + 100))
            other = publish()
            other.tell(f"publish {topic} Image 1", f"send {topic} 50 3 0")
            mine.tell(f"wait {topic}", f"send {topic} 1 3 0")
            assert numbers(list(islice(source.frames(), 3))) == [1, 2, 3]

    def test_bytes_that_are_no_message_cost_themselves(self, publish: Callable[[], Any], topic: str) -> None:
        """Texts that are no UTF-8 are counted, and the next picture comes; DDS itself lets no lengths by that lie."""
        publisher = publish()
        publisher.tell(f"publish {topic} Image 0")
        types = store().types
        header = types["std_msgs/msg/Header"](types["builtin_interfaces/msg/Time"](1, 2), "xy")
        whole = serialize(types[IMAGE](header, 1, 1, "mono8", 0, 1, np.ones(1, np.uint8)))
        broken = [whole.replace(b"xy", b"\xff\xfe").hex(), whole.replace(b"mono8", b"\xf0\x80oo8").hex()]
        with closing(Ros2Source(topic)) as source:
            publisher.tell(f"wait {topic}", *(f"bytes {topic} {each}" for each in broken), f"send {topic} 9 1 0")
            frame = next(source.frames())
        assert numbers([frame]) == [9]
        assert frame.missed == {(topic, BROKEN): len(broken)}


def test_names_are_those_of_ros_2() -> None:
    """There and back; what is no topic of ROS 2 has no name there."""
    assert (dds_topic("/a/b"), ros_topic("rt/a/b"), ros_topic("rq/add/Request")) == ("rt/a/b", "/a/b", None)
    assert (dds_type(IMAGE), ros_type(dds_type(IMAGE))) == ("sensor_msgs::msg::dds_::Image_", IMAGE)
    assert ros_type("HelloWorld") == "HelloWorld"


def test_hashes_are_those_of_ros_2() -> None:
    """As `ros2 topic info -v` shows them; those of vision_msgs are made of its definitions."""
    assert type_hash(IMAGE) == "RIHS01_d31d41a9a4c4bc8eae9be757b0beed306564f7526c88ea6a4588fb9582527d47"
    assert all(type_hash(kind).startswith("RIHS01_") for kind in VISION)
    assert type_hash("my_msgs/msg/Unknown") == ""


def test_the_variables_of_ros_2() -> None:
    """Domain, reach and peers; the user's own settings come last, and so before these."""
    assert (domain_id({}), domain_id({"ROS_DOMAIN_ID": "42"})) == (0, 42)
    for wrong in ("-1", "233", "x"):
        with pytest.raises(ConfigError, match="expected 0 to 232"):
            domain_id({"ROS_DOMAIN_ID": wrong})
    assert dds_settings({"CYCLONEDDS_URI": "file:///x.xml"}).endswith(",file:///x.xml")
    assert '<Peer address="a&amp;b"/><Peer address="c"/>' in dds_settings({"ROS_STATIC_PEERS": "a&b; c;"})
    local = dds_settings({"ROS_AUTOMATIC_DISCOVERY_RANGE": "localhost"})
    assert "<AllowMulticast>false</AllowMulticast>" in local
    assert '<Peer address="localhost"/>' in local
    assert 'address="127.0.0.1"' in dds_settings({"ROS_LOCALHOST_ONLY": "1"})
    assert "<Tag>" in dds_settings({"ROS_AUTOMATIC_DISCOVERY_RANGE": "OFF"})
    with pytest.raises(ConfigError, match="SYSTEM_DEFAULT"):
        dds_settings({"ROS_AUTOMATIC_DISCOVERY_RANGE": "WORLD"})


@pytest.mark.parametrize("cut", range(0, 64, 3))
def test_a_message_that_is_cut_is_an_error(cut: int) -> None:
    """Of its own kind, whatever the parser raises."""
    with pytest.raises(CdrError):
        deserialize((b"\0\1\0\0" + bytes(range(1, 80)))[:cut], IMAGE)
