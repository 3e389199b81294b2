"""Open a source, whose kind follows from its name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mqinfer.bags.folder_source import PICTURE_SUFFIXES, FolderSource
from mqinfer.bags.frame import FrameSource, Span
from mqinfer.bags.rosbag import is_bag
from mqinfer.bags.rosbag_source import RosbagSource
from mqinfer.bags.video_source import VIDEO_SUFFIXES, CameraSource, VideoSource
from mqinfer.protocol.errors import SourceError

__all__ = ["is_live", "open_source"]

_LIVE = re.compile(r"(camera:[0-9]+|(rtsps?|https?|rtmp|udp|tcp)://.+)")


def is_live(spec: str) -> bool:
    """Return whether a source is a camera or a stream, `camera:0` or a URL, and not a file."""
    return _LIVE.fullmatch(spec) is not None


def open_source(
    spec: str,
    *,
    topics: Sequence[str] = (),
    start: float = 0.0,
    duration: float | None = None,
    depth: bool = True,
) -> FrameSource:
    """Open a bag, a video, a folder of pictures, a picture, or a camera.

    Args:
        spec: A path, `camera:0`, or a URL of a network camera.
        topics: Image topics of a bag; empty for all.
        start: Where to start, in seconds after the first frame.
        duration: How much to read, in seconds; None for all.
        depth: Whether a bag's depth pictures are read where no topics are named.

    Raises:
        SourceError: It does not exist, is not readable, or has no such images; the message lists what it has.
        ConfigError: A negative start, or a duration that is not positive.
        MissingExtra: rosbags or OpenCV is not installed.
    """
    span = Span(start, duration)
    if is_live(spec):
        _refuse_topics(spec, topics)
        return CameraSource(spec, span=span)
    path = Path(spec)
    if is_bag(path):
        return RosbagSource(path, topics=topics, span=span, depth=depth)
    _refuse_topics(spec, topics)
    if path.is_dir() or path.suffix.lower() in PICTURE_SUFFIXES:
        return FolderSource(path, span=span)
    if path.suffix.lower() in VIDEO_SUFFIXES:
        return VideoSource(path, span=span)
    raise SourceError(
        f"{spec}: neither a bag (.bag, .mcap, .db3) nor a video ({', '.join(VIDEO_SUFFIXES)}) nor a picture"
    )


def _refuse_topics(spec: str, topics: Sequence[str]) -> None:
    if topics:
        raise SourceError(f"{spec}: only bags have topics; leave out {', '.join(topics)}")
