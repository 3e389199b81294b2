"""Calibrations of cameras, beside their pictures in bags of every kind."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mqinfer.bags.calibration import info_topic
from mqinfer.bags.frame import Frame
from mqinfer.bags.sources import open_source
from mqinfer.bags.writer import BagWriter, Storage
from mqinfer.cli.app import app
from mqinfer.images.decode import as_image
from mqinfer.images.picture import CameraInfo

FIRST = CameraInfo(
    8,
    6,
    "plumb_bob",
    (-0.25, 0.0625, 0.0, 0.0, 0.0),
    (5.0, 0.0, 4.0, 0.0, 5.0, 3.0, 0.0, 0.0, 1.0),
    (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0),
    (4.5, 0.0, 4.0, 0.0, 0.0, 4.5, 3.0, 0.0, 0.0, 0.0, 1.0, 0.0),
)
SECOND = replace(FIRST, distortion=(0.125,) * 8, distortion_model="rational_polynomial")
IMAGE, INFO = "/front/image_raw", "/front/camera_info"
SECOND_NS = 1_000_000_000
PIXELS = as_image(np.zeros((6, 8), np.uint8), "mono8")


def bag(folder: Path, storage: Storage, infos: list[tuple[int, CameraInfo]], options: Any = None) -> Path:
    """Write six pictures, one a second, and calibrations before those of a number."""
    path = folder / ("drive.bag" if storage == "bag" else storage)
    with BagWriter(path, storage) as writer:
        for number in range(6):
            for at, camera in infos:
                if at == number:
                    writer.write_camera(INFO, camera, number * SECOND_NS, number * SECOND_NS, **options or {})
            writer.write(IMAGE, PIXELS, number * SECOND_NS, number * SECOND_NS)
            writer.write("/rear/image_raw", PIXELS, number * SECOND_NS, number * SECOND_NS + 1)
    return path


def read(path: Path, **options: Any) -> list[Frame]:
    """Return the frames of the calibrated camera."""
    with closing(open_source(str(path), topics=[IMAGE], **options)) as source:
        return list(source.frames())


@pytest.mark.parametrize("storage", ["bag", "mcap", "sqlite3"])
def test_each_frame_has_the_calibration_that_holds_for_it(tmp_path: Path, storage: Storage) -> None:
    """The latest one, before which the first holds, whichever kind of bag names its matrices how."""
    path = bag(tmp_path, storage, [(1, FIRST), (4, SECOND)])
    assert [frame.camera for frame in read(path)] == [FIRST] * 4 + [SECOND] * 2
    assert len({id(frame.camera) for frame in read(path)}) == 2  # decoded once each: their maps are found quickly
    with closing(open_source(str(path))) as source:
        cameras = {frame.source: frame.camera for frame in source.frames()}
        assert {each.source: each.camera for each in source.streams()} == {IMAGE: FIRST, "/rear/image_raw": None}
    assert cameras == {IMAGE: SECOND, "/rear/image_raw": None}


@pytest.mark.parametrize("storage", ["bag", "mcap", "sqlite3"])
@pytest.mark.parametrize("infos", [[(0, FIRST)], [(5, FIRST)], [(0, SECOND), (2, FIRST), (5, SECOND)]])
def test_a_part_of_a_recording_has_the_calibration_from_before_it(
    tmp_path: Path, storage: Storage, infos: list[tuple[int, CameraInfo]]
) -> None:
    """A latched one came once, long before the part; and the one before counts, not the first nor the next."""
    frames = read(bag(tmp_path, storage, infos), start=2.5, duration=2)
    assert [frame.sequence for frame in frames] == [3, 4]
    assert [frame.camera for frame in frames] == [FIRST] * 2


def test_a_bag_without_calibrations(tmp_path: Path) -> None:
    """Frames come as before."""
    assert [frame.camera for frame in read(bag(tmp_path, "mcap", []))] == [None] * 6


@pytest.mark.parametrize("storage", ["bag", "mcap"])
def test_a_part_of_the_sensor_and_joined_pixels(tmp_path: Path, storage: Storage) -> None:
    """A calibration of the whole sensor is converted to what the camera sent: the same ray, another pixel."""
    sensor = replace(FIRST, width=1920, height=1200, intrinsic=(1000.0, 0, 960, 0, 1010.0, 600, 0, 0, 1))
    path = bag(tmp_path, storage, [(0, sensor)], {"binning": (2, 4), "roi": (160, 200, 1600, 800)})
    camera = read(path)[0].camera
    assert camera is not None
    assert (camera.width, camera.height) == (800, 200)
    assert list(camera.intrinsic) == [500, 0, 400, 0, 252.5, 100, 0, 0, 1]
    assert list(camera.projection) == [2.25, 0, (4 - 160) / 2, 0, 0, 1.125, (3 - 200) / 4, 0, 0, 0, 1, 0]


@pytest.mark.parametrize("storage", ["bag", "mcap", "sqlite3"])
def test_a_damaged_calibration_costs_no_frame(
    tmp_path: Path, storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    """Its message is passed over with a warning, and the pictures beside it are read."""
    path = bag(tmp_path, storage, [(0, replace(FIRST, distortion_model="\0marker"))])
    files = [path] if path.is_file() else sorted(path.iterdir())
    for file in files:
        file.write_bytes(file.read_bytes().replace(b"\0marker", b"\xff\xfemarke"))
    assert [frame.camera for frame in read(path)] == [None] * 6
    assert "calibration is passed over" in caplog.text
    assert INFO in caplog.text


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("/ns/image_raw", "/ns/camera_info"),
        ("/a/b/image_color", "/a/b/camera_info"),
        ("/ns/image_raw/compressed", "/ns/camera_info"),
        ("/depth/image/compressedDepth", "/depth/camera_info"),
        ("/image_raw", "/camera_info"),
        ("/image/compressed", "/camera_info"),
        ("image", "/camera_info"),
    ],
)
def test_the_topic_beside_the_pictures(topic: str, expected: str) -> None:
    """As image_transport finds it."""
    assert info_topic(topic) == expected


def test_bag_info_shows_calibrations(tmp_path: Path) -> None:
    """Distortion model and focal length; one of another size, or of zeros, is named as that."""
    other, none = replace(FIRST, width=80), replace(FIRST, intrinsic=(0.0,) * 9)
    shown = {
        "plumb_bob": FIRST,
        "f 5.0": FIRST,
        "of 80x6": other,
        "not calibrated": none,
        "a lens of glass": replace(FIRST, distortion_model="a lens of glass"),
        "no distortion": replace(FIRST, distortion_model=""),
    }
    for number, (text, camera) in enumerate(shown.items()):
        (tmp_path / str(number)).mkdir()
        path = bag(tmp_path / str(number), "mcap", [(0, camera)])
        printed = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["bag", "info", str(path)]).stdout
        assert text in printed, printed
