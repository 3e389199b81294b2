"""Files that an edge reads, copied, cut and confused: recordings, and what a spool and an earlier run left."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import numpy as np

from mqinfer.bags.points import POINT_TYPES, check_message, fields_of, read_points
from mqinfer.bags.ros2.messages import store
from mqinfer.bags.rosbag import foreign_errors
from mqinfer.bags.rosbag_source import RosbagSource
from mqinfer.edge_agent.resuming import RUN_FILE, open_earlier
from mqinfer.edge_agent.sinks.jsonl_sink import RESULTS_FILE, TIMES_FILE
from mqinfer.edge_agent.spooling.spool import Spool
from mqinfer.images.compressed import decode_compressed
from mqinfer.images.picture import CompressedImage, RawImage
from mqinfer.protocol.checksum import checksum
from mqinfer.protocol.limits import Limits
from tests.fuzz.model_files import scratch

__all__ = ["log", "mcap", "points", "ros1", "spooled"]

_LIMITS = Limits(tensor_bytes=4 << 20, image_pixels=1 << 20)


def ros1(data: bytes) -> None:
    """Read the frames of a ROS 1 bag."""
    _read(_folder() / "drive.bag", data)


def mcap(data: bytes) -> None:
    """Read the frames of a ROS 2 bag."""
    _read(_folder() / "drive.mcap", data)


def points(data: bytes) -> None:
    """Read the points of a message behind a byte, which says of which type it is."""
    kind, raw = POINT_TYPES[sum(data[:1]) % len(POINT_TYPES)], data[1:]
    with foreign_errors(Path("drive.mcap"), kind):
        check_message(kind, raw, is_cdr=True)
        message = store().deserialize_cdr(raw, kind)
    read_points([message], fields_of(message), np.dtype(np.float32))


def spooled(data: bytes) -> None:
    """Read a frame of a spool, whose checksum is right."""
    folder = _folder() / "spool"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    (folder / "000000000001.frame").write_bytes(" ".join(checksum((data,))).encode() + b"\n" + data)
    with closing(Spool(folder)) as spool:
        spool.after(0)


def log(data: bytes) -> None:
    """Find where an earlier run stopped, by its settings, its results and its times, with zero bytes between."""
    folder = _folder()
    for name, content in zip((RUN_FILE, RESULTS_FILE, TIMES_FILE), (data.split(b"\0", 2) + [b""] * 3)[:3], strict=True):
        (folder / name).write_bytes(content)
    open_earlier(folder, {"model": "m"})


def _read(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with closing(RosbagSource(path)) as source:
        source.streams()
        for count, frame in enumerate(source.frames()):
            if isinstance(frame.image, CompressedImage):
                decode_compressed(frame.image, _LIMITS)
            assert isinstance(frame.image, RawImage | CompressedImage)
            if count > 20:
                break


def _folder() -> Path:
    folder = scratch(os.getpid())
    folder.mkdir(exist_ok=True)
    return folder
