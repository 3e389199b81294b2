"""Cropped, cut and rectified frames through a real worker: boxes lie on the recorded frame, to a pixel."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from mqinfer.bags.writer import BagWriter
from mqinfer.client import Client
from mqinfer.codecs import encode_tensor
from mqinfer.edge_agent.preparing.framing import Framing
from mqinfer.edge_agent.reporting.report import SessionReport
from mqinfer.images.decode import as_image
from mqinfer.images.picture import CameraInfo
from mqinfer.images.placement import Placement, Region
from mqinfer.protocol.header import IMAGE_ENCODING
from mqinfer.protocol.topics import Topics
from tests.commands import run_main
from tests.system.test_letterbox import FRAME, FRAME_HEIGHT, FRAME_WIDTH, SIDE, blob_detector

pytestmark = pytest.mark.broker
Serve = Callable[[Path], Topics]
Replayed = Callable[..., SessionReport]
Points = npt.NDArray[np.float64]

BOXES = {"red": [64, 64, 80, 80], "green": [96, 88, 112, 104]}
"""In the model's picture, on the cells of its detector."""
COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0)}
K, D = (200.0, 0.0, 158.0, 0.0, 205.0, 97.0, 0.0, 0.0, 1.0), (-0.3, 0.1, 0.001, -0.002, -0.015)
CAMERA = CameraInfo(
    *FRAME,
    "plumb_bob",
    D,
    K,
    tuple(cv2.Rodrigues(np.array([0.02, -0.03, 0.01]))[0].ravel().tolist()),
    (180.0, 0.0, 160.0, 0.0, 0.0, 180.0, 96.0, 0.0, 0.0, 0.0, 1.0, 0.0),
)


def of_picture(resize: str, region: Region) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return factor and offset that lead from the model's square picture to the frame, worked out by hand."""
    left, top, width, height = region
    size, corner = np.array([width, height]), np.array([left, top])
    if resize == "stretch":
        return size / SIDE, corner
    side = max(size) if resize == "letterbox" else min(size)
    return np.array([side, side]) / SIDE, corner + (size - side) / 2


def outline(box: list[int], steps: int = 100) -> Points:
    """Return many points of a box's outline, in their order."""
    left, top, right, bottom = box
    corners = np.array([(left, top), (right, top), (right, bottom), (left, bottom), (left, top)])
    return np.concatenate([np.linspace(*ends, steps) for ends in pairwise(corners)])


def recorded(points: Points) -> Points:
    """Return where OpenCV projects points of the rectified picture; both count from the edge of the first pixel."""
    p, r = np.reshape(CAMERA.projection, (3, 4))[:, :3], np.reshape(CAMERA.rectification, (3, 3))
    rays = np.column_stack([points - 0.5, np.ones(len(points))]) @ np.linalg.inv(p @ r).T
    found = cv2.projectPoints(rays, np.zeros(3), np.zeros(3), np.reshape(K, (3, 3)), np.array(D))[0]
    return np.asarray(found, np.float64).reshape(-1, 2) + 0.5


def painted(shapes: dict[str, Points]) -> npt.NDArray[np.uint8]:
    """Paint shapes in their colours on a grey frame, four times as large and then averaged."""
    large = np.full((FRAME_HEIGHT * 4, FRAME_WIDTH * 4, 3), 40, np.uint8)
    for name, points in shapes.items():
        cv2.fillPoly(large, [np.rint((points * 4 - 0.5) * 16).astype(np.int32)], COLOURS[name], cv2.LINE_8, 4)
    small: npt.NDArray[np.uint8] = cv2.resize(large, FRAME, interpolation=cv2.INTER_AREA).astype(np.uint8)
    return small


def bag(path: Path, pixels: npt.NDArray[np.uint8], cameras: dict[str, CameraInfo | None], count: int = 1) -> Path:
    """Record a picture on some topics, with their calibrations."""
    with BagWriter(path, "mcap") as writer:
        for number in range(count):
            for topic, camera in cameras.items():
                if camera and not number:
                    writer.write_camera(topic.replace("image_raw", "camera_info"), camera, 0, 0)
                writer.write(topic, as_image(pixels, "rgb8"), number * 10**8, number * 10**8)
    return path


def detections(folder: Path) -> dict[str, list[float]]:
    """Return the boxes that a replay found in its first frame, by class."""
    line = json.loads((folder / "results.jsonl").read_text().splitlines()[0])
    return {each["class"]: each["box"] for each in line["detections"]}


@pytest.mark.parametrize("resize", ["stretch", "letterbox", "crop"])
def test_boxes_of_a_replay_lie_on_the_recorded_frame(
    serving: Serve, replayed: Replayed, tmp_path: Path, resize: str
) -> None:
    """Whatever the way of resizing, of a whole frame or a region, as recorded and rectified."""
    topics = serving(blob_detector(tmp_path / "models", resize))
    for rectify in (False, True):
        for region in (None, (40, 16, 240, 160)):
            factor, offset = of_picture(resize, region or (0, 0, *FRAME))
            in_frame = {name: outline(box) * factor + offset for name, box in BOXES.items()}
            shapes = {name: recorded(points) if rectify else points for name, points in in_frame.items()}
            name = f"{rectify}-{region is None}"
            path = bag(tmp_path / f"bag-{name}", painted(shapes), {"/front/image_raw": CAMERA})
            framing = Framing(rectify, region)
            report = replayed(path, topics, "blobs", folder=tmp_path / name, encoding="png", framing=framing)
            assert report.snapshot.done == 1
            found = detections(tmp_path / name)
            assert found.keys() == shapes.keys()
            for each, points in shapes.items():
                np.testing.assert_allclose(found[each], [*points.min(0), *points.max(0)], atol=1)


def test_a_frame_of_another_size_is_cropped_by_the_worker(serving: Serve, broker_url: str, tmp_path: Path) -> None:
    """A sender without a card sends the frame as it is; what lies outside the middle is not seen."""
    topics = serving(blob_detector(tmp_path / "models", "crop"))
    factor, offset = of_picture("crop", (0, 0, *FRAME))
    truth = outline(BOXES["red"]) * factor + offset
    pixels = painted({"red": truth, "green": outline([8, 80, 40, 112])})
    picture = encode_tensor("images", pixels[None], "raw", {IMAGE_ENCODING: "rgb8"})
    with Client(broker_url, root=topics.root) as client:
        card = client.card("blobs")
        outputs = client.infer("blobs", {"images": picture}).outputs
    assert card.image is not None
    assert card.image.resize == "crop"
    assert outputs["classes"].tolist() == [0]
    placement = Placement.of(FRAME, (SIDE, SIDE), card.image.resize)
    found = placement.boxes_to_frame(outputs["boxes"])
    np.testing.assert_allclose(found, [[*truth.min(0), *truth.max(0)]], atol=1)


Replay = Callable[..., tuple[int, str]]


@pytest.fixture
def replay(capsys: pytest.CaptureFixture[str]) -> Replay:
    """Run the command without a broker; return its exit code and what it printed, in one line."""

    def run(source: Path, repository: Path, *options: object) -> tuple[int, str]:
        code = run_main("replay", source, "--model", "blobs", "--local", "--repository", repository, *options)
        captured = capsys.readouterr()
        return code, " ".join((captured.out + captured.err).split())

    return run


FRONT, REAR = "/front/image_raw", "/rear/image_raw"


@pytest.mark.parametrize(
    ("options", "camera", "code", "message"),
    [
        (["--rectify"], None, 2, f"--rectify: the recording has no calibration of {FRONT}"),
        (["--rectify"], replace(CAMERA, width=640), 2, "is of pictures of 640x192 pixels, and this one has 320x192"),
        (["--rectify"], replace(CAMERA, intrinsic=(0.0,) * 9), 2, "the camera is not calibrated"),
        (["--rectify"], replace(CAMERA, distortion_model="glass"), 2, "distortion model 'glass'"),
        (["--roi", "300,0,100,100"], None, 2, "the region 300,0,100,100 (left, top, width, height) is not inside"),
        (["--roi", "1,2,3"], None, 2, "--roi 1,2,3: expected X,Y,WIDTH,HEIGHT"),
        (["--roi", "0,0,0,5"], None, 2, "--roi 0,0,0,5: expected"),
        (["--roi", "/other=0,0,5,5"], None, 2, f"--roi: no image topic /other; there are {FRONT}"),
        (["--roi", f"{FRONT}=0,0,200,100", "--rectify"], CAMERA, 0, ""),
    ],
)
def test_bad_settings_and_calibrations_end_a_replay(
    replay: Replay, tmp_path: Path, options: list[str], camera: CameraInfo | None, code: int, message: str
) -> None:
    """With what is wrong and what to do, and an exit code for a wrong option."""
    path = bag(tmp_path / "bag", painted({}), {FRONT: camera}, count=4)
    ended, printed = replay(path, blob_detector(tmp_path / "models"), *options)
    assert ended == code, printed
    assert message in printed


def test_a_stream_with_a_wrong_calibration_does_not_stop_another(replay: Replay, tmp_path: Path) -> None:
    """Each of its frames fails with the reason, the frames of the other one have their results, and nothing is lost."""
    cameras: dict[str, CameraInfo | None] = {FRONT: CAMERA, REAR: replace(CAMERA, height=100)}
    path = bag(tmp_path / "bag", painted({}), cameras, count=5)
    ended, printed = replay(path, blob_detector(tmp_path / "models"), "--rectify", "--output", tmp_path / "out")
    assert ended == 1, printed
    lines, times = (
        [json.loads(line) for line in (tmp_path / "out" / f"{name}.jsonl").read_text().splitlines()]
        for name in ("results", "times")
    )
    by_source = {FRONT: ["ok"] * 5, REAR: ["error"] * 5}
    assert {source: [each["outcome"] for each in lines if each["source"] == source] for source in cameras} == by_source
    assert {each["error"]["code"] for each in lines if each["source"] == REAR} == {"bad_image"}
    assert all("320x100" in each["error"]["message"] for each in times if each["source"] == REAR)
