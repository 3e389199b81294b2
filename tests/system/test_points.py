"""Points of a laser, beams of a scan and samples of an IMU reach a model with a picture as one request, bit-exact."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner, Result

from mqinfer.bags.writer import BagWriter
from mqinfer.cli.app import app
from mqinfer.cli.exit_codes import ExitCode
from mqinfer.images.picture import RawImage
from mqinfer.protocol.topics import Topics
from tests.bags.point_messages import cloud, field, imu, scan
from tests.system.test_detections import blob_detector

pytestmark = pytest.mark.broker

HEIGHT, WIDTH, FRAMES, DAMAGED, LOST = 6, 8, 9, 5, 7
"""One cloud lacks a field, and another one was not recorded."""
MS = 1_000_000
CAMERA, LIDAR, SCAN, IMU = "/camera", "/lidar", "/scan", "/imu"
CONFIG = """
[image]
input = "camera"

[[points]]
input = "points"
fields = ["intensity", "x", "y", "z"]
padding = -5
mask = "there"

[[points]]
input = "beams"
fields = ["ranges", "angles"]
not_finite = "pad"
padding = -1

[[points]]
input = "motion"
fields = ["angular_velocity.x", "linear_acceleration.z", "orientation.w"]
mask = "moved"
"""
INPUTS: list[tuple[str, str, list[int]]] = [
    ("camera", "UINT8", [1, HEIGHT, WIDTH, 3]),
    ("points", "FP32", [1, 8, 4]),
    ("there", "BOOL", [1, 8]),
    ("beams", "FP32", [1, 2, 5]),
    ("motion", "FP64", [1, 40, 3]),
    ("moved", "FP32", [1, 40]),
]
JOIN = "--join", f"camera={CAMERA},points={LIDAR},beams={SCAN}", "--join", f"motion={IMU}", "--tolerance", "0.02"
Expected = dict[int, dict[str, NDArray[Any]]]


def pixels(number: int) -> NDArray[np.uint8]:
    """Return the picture of a moment."""
    return np.random.default_rng(number).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)


def lidar(number: int) -> NDArray[Any]:
    """Return 0, 4, 8, … points, one not finite from the third time on; every other time big-endian."""
    order = "<>"[number % 2]
    kind = np.dtype(
        [("x", order + "f4"), ("y", order + "f4"), ("ring", "u1"), ("intensity", order + "u2"), ("z", order + "f8")]
    )
    points = np.zeros(4 * number, kind)
    for name in ("x", "y", "z"):
        points[name] = np.random.default_rng(number).normal(size=4 * number)
    points["intensity"] = np.arange(4 * number) * 300
    if number > 1:
        points["y"][number] = (np.nan, np.inf)[number % 2]
    return points


def as_cloud(points: NDArray[Any], stamp: int, make: Callable[..., Any], without: str = "") -> Any:
    """Return points as a message of two rows, each with three bytes behind it."""
    kinds = {"f4": 7, "u1": 2, "u2": 4, "f8": 8}
    named: Mapping[str, Any] = points.dtype.fields or {}
    fields = [
        field(name, offset, kinds[kind.str[1:]], make=make)
        for name, (kind, offset, *_) in named.items()
        if name != without
    ]
    width, step = len(points) // 2, points.itemsize
    data = b"".join(row.tobytes() + b"xyz" for row in points.reshape(2, width))
    big = points.dtype["x"].byteorder == ">"
    return cloud(fields, (width, 2), (step, width * step + 3), data, stamp, is_bigendian=big, make=make)


def drive(path: Path, storage: Any) -> Path:
    """Write a drive of 10 Hz, points up to 3 ms off and recorded late, and an IMU of 100 Hz."""
    with BagWriter(path, storage) as bag:
        messages: list[tuple[int, str, Any]] = []
        for number in range(FRAMES):
            stamp = (1000 + 100 * number) * MS
            image = RawImage("rgb8", HEIGHT, WIDTH, 3 * WIDTH, is_bigendian=False, data=pixels(number).tobytes())
            messages.append((stamp, CAMERA, (image, stamp)))
            late, off = stamp + 70 * MS, stamp + (number % 7 - 3) * MS
            without = "intensity" if number == DAMAGED else ""
            if number != LOST:
                messages.append((late, LIDAR, as_cloud(lidar(number), off, bag.message, without)))
            ranges = [1.5, np.inf, number, np.nan, 0.1]
            messages.append((late, SCAN, scan(ranges, [], off, bag.message)))
        for number in range(100):
            stamp = (975 + 10 * number) * MS
            messages.append((stamp + 30 * MS, IMU, imu(number, stamp, bag.message)))
        for log_time, topic, message in sorted(messages, key=lambda each: each[0]):
            if topic == CAMERA:
                bag.write(topic, message[0], message[1], log_time)
            else:
                bag.add(topic, message, log_time)
    return path


def expected() -> Expected:
    """Return what the model is to get, made of the recorded arrays without the reader."""
    found: Expected = {}
    for number in set(range(FRAMES)) - {DAMAGED, LOST}:
        points = lidar(number)
        points = points[np.isfinite(points["y"])]
        if len(points) > 8:
            points = points[[each * len(points) // 8 for each in range(8)]]
        rows = np.full((8, 4), -5, np.float32)
        for column, name in enumerate(("intensity", "x", "y", "z")):
            rows[: len(points), column] = points[name]
        beams = np.array([[1.5, -1, number, -1, 0.1], [-1, -1, -0.5, -1, 0]], np.float32)
        last = 2 + 10 * number  # the last sample until the picture
        numbers = np.arange(max(0, last - 39), last + 1, dtype=np.float64)
        motion = np.zeros((40, 3))
        motion[: len(numbers)] = np.stack([numbers + 0.25, np.full(len(numbers), 0.5), numbers / 8], 1)
        found[number] = {
            "camera": pixels(number)[None],
            "points": rows[None],
            "there": (np.arange(8) < len(points))[None],
            "beams": beams[None],
            "motion": motion[None],
            "moved": (np.arange(40) < len(numbers)).astype(np.float32)[None],
        }
    return found


@pytest.fixture
def command(
    serving: Callable[[Path], Topics], write_echo: Callable[..., Path], broker_url: str
) -> Callable[..., Result]:
    """Run mqinfer against a worker whose model `fusion` returns its inputs."""
    write_echo("plain", ("x", "UINT8", [1, HEIGHT, WIDTH, 3]))
    write_echo(
        "lone", INPUTS[1], config='max_batch_size = 1\n[[points]]\ninput = "points"\nfields = ["x", "y", "z", "t"]'
    )
    root = serving(write_echo("fusion", *INPUTS, config=CONFIG)).root

    def run(name: str, *arguments: str) -> Result:
        return CliRunner().invoke(app, [name, "--broker", broker_url, "--root", root, *arguments])

    return run


@pytest.mark.parametrize("storage", ["bag", "mcap", "sqlite3"])
def test_one_request(command: Callable[..., Result], tmp_path: Path, storage: Any) -> None:
    """Every array is that of the recording, bit by bit; what can't be read or has no partner costs itself alone."""
    path = drive(tmp_path / ("drive.bag" if storage == "bag" else "drive"), storage)
    how = "--encoding", "png", "--output", str(tmp_path / "out"), "--sink", "npz", "--sink", "jsonl", "--summary"
    done = command("replay", str(path), "--model", "fusion", *JOIN, *how, str(tmp_path / "summary.json"))
    assert done.exit_code == 1, done.output  # the damaged one
    wanted = expected()
    for number, arrays in wanted.items():
        with np.load(tmp_path / f"out/outputs/camera/{number:06d}.npz") as found:
            assert {*found.files} == {*arrays}
            for name, array in arrays.items():
                assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
                assert found[name].tobytes() == array.tobytes(), (number, name)
    lines = {
        each["sequence"]: each for each in map(json.loads, (tmp_path / "out/results.jsonl").read_text().splitlines())
    }
    assert [number for number, line in lines.items() if line["outcome"] == "ok"] == sorted(wanted)
    assert lines[DAMAGED]["error"]["code"] == "bad_image"
    assert (
        "/lidar, frame 5, which goes with it: its points have no field 'intensity'; they have x, y, ring, z"
        in done.output
    )
    assert [each["source"] for each in lines[0]["joined"]] == [LIDAR, SCAN, IMU]
    assert lines[2]["joined"][2]["capture_time_ns"] == (975 + 10 * 22) * MS
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["missed"] == {
        CAMERA: {"not every other topic has a frame within the tolerance": 1},
        SCAN: {"not every other topic has a frame within the tolerance": 1},
    }
    read, lost = 4 * sum(wanted), {number: int(number > 1) for number in wanted}
    assert summary["points"][LIDAR] == {
        "read": read,
        "not_finite": sum(lost.values()),
        "left_out": sum(max(0, 4 * number - lost[number] - 8) for number in wanted),
    }
    samples = sum(min(40, 3 + 10 * number) for number in wanted)
    assert summary["points"][IMU] == {"read": samples, "not_finite": 0, "left_out": 0}
    assert f"points of {IMU}: 0 left_out, 0 not_finite, {samples} read" in done.output


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        (
            "fusion",
            [],
            "takes 4 pictures and points in one request (camera, points, beams, motion); name their topics: ",
        ),
        (
            "fusion",
            ["--join", f"{CAMERA},{LIDAR}"],
            "takes 4 pictures and points in one request (camera, points, beams, ",
        ),
        (
            "fusion",
            ["--join", f"camera={CAMERA},dots={LIDAR}"],
            "has no input 'dots' for a topic; it has camera, ",
        ),
        (
            "fusion",
            ["--join", f"{LIDAR},{CAMERA},{SCAN},{IMU}"],
            "/lidar has points; name the topic of the main picture first",
        ),
        (
            "fusion",
            ["--join", f"points={CAMERA},camera={LIDAR},beams={SCAN},motion={IMU}"],
            "name the input of a picture first, since the first is the main picture: points",
        ),
        (
            "fusion",
            [*JOIN, "--spool", "spool"],
            "--spool is for pictures alone; leave it out, or join no topics of points",
        ),
        ("plain", ["--topic", LIDAR], f"no image topic {LIDAR}; its image topics are {CAMERA}"),
        ("lone", ["--topic", CAMERA], "model 'lone' takes points without a picture"),
    ],
)
def test_what_is_refused(
    command: Callable[..., Result],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    arguments: list[str],
    message: str,
) -> None:
    """Before anything is sent, with what to write."""
    monkeypatch.chdir(tmp_path)
    done = command("replay", str(drive(tmp_path / "drive", "mcap")), "--model", model, *arguments)
    assert message in str(done.exception)


def test_points_are_not_redacted(command: Callable[..., Result], tmp_path: Path) -> None:
    """They may show what the detector finds in pictures, so none is sent."""
    redact = "--redact", str(blob_detector(tmp_path / "detectors") / "blobs")
    done = command("replay", str(drive(tmp_path / "drive", "mcap")), "--model", "fusion", *JOIN, *redact)
    assert f"--redact is for pictures alone; leave it out, or join no topics of points: {IMU}" in str(done.exception)


def test_topics_of_the_other_kind(command: Callable[..., Result], tmp_path: Path) -> None:
    """Points for a picture, or the reverse, end the run with the frame's error."""
    path = str(drive(tmp_path / "drive", "mcap"))
    done = command(
        "replay", path, "--model", "fusion", "--join", f"{CAMERA},{SCAN},{LIDAR},{IMU}", "--tolerance", "0.02"
    )
    assert done.exit_code == ExitCode.FAILED
    assert "its points have no field 'intensity'; they have ranges, angles" in done.output
