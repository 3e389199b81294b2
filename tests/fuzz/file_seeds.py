"""First inputs of the targets that read files of an edge, and calls of a gateway and a dashboard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from mqinfer.bags.ros2.messages import serialize
from mqinfer.codecs import encode_tensor
from mqinfer.edge_agent.spooling.spool import Spool, SpooledFrame
from mqinfer.gateway.messages import message_class
from mqinfer.lab.drives.recording import write_drive
from mqinfer.protocol.types import Capture
from tests.bags.point_messages import cloud, field, imu, scan

__all__ = ["connects", "grpcs", "logs", "mcap", "points", "ros1", "spooled", "tfs"]


def grpcs() -> Iterator[bytes]:
    """Requests with raw and with typed contents."""
    for contents in (b"", b"\x32\x08" + bytes(8), b"\x42\x01a", b"\x12\x01\x01", b"\x0a\x02\x01\x00"):
        message = message_class("inference.ModelInferRequest")(model_name="m", model_version="1", id="i")
        entry = message.inputs.add(name="x", datatype="FP32", shape=[1, 2])
        if contents:
            entry.contents.append(contents)
        else:
            message.raw_input_contents.append(bytes(8))
            message.parameters["priority"].int64_param = 1
        message.outputs.add(name="y")
        yield message.SerializeToString()


def tfs() -> Iterator[bytes]:
    """Rows, columns, binary data and examples."""
    contents: tuple[dict[str, Any], ...] = (
        {"instances": [[1.0, 2, 3], [4, 5, 6]]},
        {"instances": [{"x": [[1, 2]], "y": "a"}, {"x": [[3, 4]], "y": {"b64": "YQ=="}}]},
        {"inputs": {"x": [[1, 2]], "y": ["a"]}, "signature_name": "s"},
        {"inputs": {"b_bytes": [["a"]], "f": [True]}},
        {"context": {"u": 1}, "examples": [{"a": 1.5, "b": [1, 2], "c": "t", "d": {"b64": "YQ=="}}]},
        {"instances": [{}] * 30},
    )
    for content in contents:
        yield json.dumps(content).encode()


def connects() -> Iterator[bytes]:
    """Of MQTT 5 and 3.1.1, with a login and without."""
    yield b"\0\4MQTT\5\2\0\x3c\5\x11\0\0\0\0\0\1c"
    yield b"\0\4MQTT\4\xc2\0\x3c\0\1c\0\1u\0\1p"


def ros1() -> Iterator[bytes]:
    """A small drive."""
    with TemporaryDirectory() as folder:
        path = write_drive(Path(folder, "drive.bag"), ros=1, frames=3, seed=1, width=32, height=32, truth_topic=False)
        yield path.read_bytes()


def mcap() -> Iterator[bytes]:
    """A small drive."""
    with TemporaryDirectory() as folder:
        path = write_drive(
            Path(folder, "drive"), ros=2, frames=3, seed=1, width=32, height=32, truth_topic=False, storage="mcap"
        )
        yield next(path.glob("*.mcap")).read_bytes()


def points() -> Iterator[bytes]:
    """A message of each type, behind its number."""
    fields = [field("x", 0, 7), field("intensity", 4, 4)]
    made = cloud(fields, (3, 2), (7, 23), bytes(range(46))), scan([1, 2], [3, 4]), imu(5)
    yield from (bytes([number]) + serialize(each) for number, each in enumerate(made))


def spooled() -> Iterator[bytes]:
    """Frames of one tensor and of two, without their checksum."""
    one = encode_tensor("x", np.zeros((1, 2, 2), np.uint8))
    for tensors in ((one,), (one, one)):
        with TemporaryDirectory() as folder:
            with closing(Spool(Path(folder))) as spool:
                spool.put(SpooledFrame(Capture("camera", 1, 2, "f"), 4, 3, tensors=tensors))
            yield next(Path(folder).glob("*.frame")).read_bytes().partition(b"\n")[2]


def logs() -> Iterator[bytes]:
    """A run of two frames, and one that failed."""
    line = {"source": "c", "sequence": 0, "log_time_ns": 1, "capture_time_ns": 2, "outcome": "ok", "model_hash": "h"}
    failed = {**line, "sequence": 1, "outcome": "error", "error": {"code": "internal", "message": "m"}}
    for last in (line, failed):
        text = b"".join(json.dumps(each).encode() + b"\n" for each in (line, last))
        yield b"\0".join((json.dumps({"model": "m"}).encode(), text, text))
