"""`mqinfer bag info ros2:`: what is on the air."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from mqinfer.bags.info import describe
from mqinfer.protocol.errors import SourceError
from tests.commands import mqinfer
from tests.ros2.picture import HEIGHT, LENS, WIDTH

pytestmark = pytest.mark.slow


def test_all_topics_with_what_they_are(publish: Callable[[], Any], topic: str) -> None:
    """Type, publishers, quality of service, rate, and of pictures encoding, size and lens."""
    first, second, space = publish(), publish(), topic.removesuffix("/image_raw")
    first.tell(f"publish {topic} Image 0", f"publish {space}/camera_info CameraInfo 1", f"publish {space}/own Own 0")
    second.tell(f"publish {topic} Image 1", f"publish {space}/image_raw/compressed CompressedImage 1")
    second.tell(f"send {space}/image_raw/compressed 1 5 20")
    first.tell(f"send {space}/camera_info 1 1 0")
    sending = threading.Thread(target=first.tell, args=(f"send {topic} 1 400 10",), name="test-sending")
    sending.start()
    found = {each.source: each for each in describe("ros2:", 3.0).streams if each.source.startswith(space)}
    sending.join()
    assert list(found) == [f"{space}/{name}" for name in ("camera_info", "image_raw", "image_raw/compressed", "own")]
    raw, compressed = found[topic], found[f"{topic}/compressed"]
    assert raw.published == "by 2, reliable, transient local; reliable, volatile"
    assert compressed.published == "by 1, reliable, transient local"
    assert (raw.message_type, raw.encoding, raw.width, raw.height) == ("sensor_msgs/msg/Image", "mono8", WIDTH, HEIGHT)
    assert (compressed.width, compressed.height, compressed.count) == (WIDTH, HEIGHT, 5)
    assert raw.camera == compressed.camera == LENS
    assert 1 < (raw.count or 0) <= 400
    assert 1 < (raw.rate or 0) <= 100
    assert 1 < (compressed.rate or 0) <= 50
    own = found[f"{space}/own"]  # a type that is not known here, of a publisher that announces all of it
    assert (own.message_type, own.count, own.rate, own.is_image) == ("my_msgs/msg/Own", None, None, False)


def test_the_command(publish: Callable[[], Any], topic: str) -> None:
    """It lists one topic; where nobody publishes it, those that there are."""
    publisher = publish()
    publisher.tell(f"publish {topic} Image 1", f"send {topic} 1 3 10")
    listed = mqinfer("bag", "info", f"ros2:{topic}", "--duration", 1)
    assert listed.returncode == 0, listed.stderr
    assert "ROS 2, domain " in listed.stdout
    assert f"{WIDTH}x{HEIGHT}" in listed.stdout
    with pytest.raises(SourceError, match=rf"nobody publishes /none in ROS 2, domain \d+, watched .* {topic}"):
        describe("ros2:/none", 1.0)


def test_nothing_is_on_the_air(domain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says so, and what to look at."""
    monkeypatch.setenv("ROS_DOMAIN_ID", str(domain + 110))
    with pytest.raises(SourceError, match=r"nobody publishes a topic in .* watched for 0\.5 s; look at ROS_DOMAIN_ID"):
        describe("ros2:", 0.5)
