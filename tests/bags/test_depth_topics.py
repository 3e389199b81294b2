"""Depth pictures of a bag are sent only if their topic is named."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mqinfer.bags.sources import open_source
from mqinfer.images.picture import CompressedImage, RawImage
from mqinfer.protocol.errors import ConfigError

Write = Callable[..., Path]
COLOUR = RawImage("rgb8", 1, 2, 6, is_bigendian=False, data=bytes(6))
DEPTH = [
    RawImage("16UC1", 1, 2, 4, is_bigendian=False, data=bytes(4)),
    RawImage("32FC1", 1, 2, 8, is_bigendian=False, data=bytes(8)),
    CompressedImage("16UC1; compressedDepth png", bytes(30)),
    CompressedImage("16UC1; png compressed ", bytes(30)),
]


def sources(path: Path, **options: Any) -> set[str]:
    """Return the topics whose frames are read."""
    with closing(open_source(str(path), **options)) as source:
        return {frame.source for frame in source.frames()}


@pytest.mark.parametrize("image", DEPTH)
def test_depth_is_left_out_with_one_line(
    tmp_path: Path, write_ros1: Write, recorded: Callable[..., Any], image: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless its topic is named; the line has the way to send it."""
    messages = [recorded("/rgb", 1, 1, COLOUR), recorded("/depth", 2, 2, image), recorded("/depth", 3, 3, image)]
    path = write_ros1(tmp_path / "drive.bag", messages)
    assert sources(path, depth=False) == {"/rgb"}
    (line,) = caplog.messages
    assert line.endswith("depth pictures are left out: /depth; if the model takes depth, name them: --topic /depth")
    assert sources(path, depth=False, topics=["/depth"]) == {"/depth"}
    assert sources(path) == {"/rgb", "/depth"}
    assert len(caplog.messages) == 1


def test_a_bag_of_depth_alone(tmp_path: Path, write_ros2: Write, recorded: Callable[..., Any]) -> None:
    """It is refused with the option that sends it."""
    path = write_ros2(tmp_path / "drive", [recorded("/depth", 1, 1, DEPTH[0])])
    with pytest.raises(ConfigError, match=r"all its pictures are depth pictures.*--topic /depth"):
        sources(path, depth=False)
