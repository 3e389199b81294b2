"""Pictures of two cameras, or of two moments, reach a model with two picture inputs as one request."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner, Result

from mqinfer.bags.joining import Join
from mqinfer.bags.writer import BagWriter
from mqinfer.cli.app import app
from mqinfer.cli.exit_codes import ExitCode, exit_code
from mqinfer.edge_agent.reporting.report import SessionReport
from mqinfer.images.picture import CameraInfo, RawImage
from mqinfer.images.rectification import rectification
from mqinfer.protocol.errors import ConfigError, SourceError
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Outcome
from tests.onnx_files import save_onnx

pytestmark = pytest.mark.broker
Serve = Callable[[Path], Topics]
Replayed = Callable[..., SessionReport]

HEIGHT, WIDTH, FRAMES = 12, 16, 12
MS = 1_000_000
LEFT, RIGHT = "/stereo/left/image_raw", "/stereo/right/image_raw"
DROPPED, DAMAGED = 5, 7
"""Numbers of the right camera's frame that is not there, and of the one that is shorter than it states."""
STEREO = """
[[image]]
input = "left"

[[image]]
input = "right"
colour = "bgr"
scale = 2
"""
"""Contracts that differ, so that each input must get its own."""


def stereo_models(repository: Path) -> Path:
    """Make a model that returns the mean of each channel of its two pictures, with and without a configuration."""
    nodes = [
        helper.make_node("ReduceMean", [side], [f"{side}_mean"], axes=[2, 3], keepdims=0) for side in ("left", "right")
    ]
    picture, mean = (TensorProto.FLOAT, [-1, 3, HEIGHT, WIDTH]), (TensorProto.FLOAT, [-1, 3])
    pictures, means = {"left": picture, "right": picture}, {"left_mean": mean, "right_mean": mean}
    for name, config in (("stereo", STEREO), ("plain", "")):
        save_onnx(repository / name / "1" / "model.onnx", nodes, pictures, means)
        (repository / name / "model.toml").write_text(config)
    return repository


def picture(*colour: int) -> RawImage:
    """Make a picture of one colour, twice as large as the model's."""
    pixels = np.full((2 * HEIGHT, 2 * WIDTH, 3), colour, np.uint8)
    return RawImage("rgb8", 2 * HEIGHT, 2 * WIDTH, 6 * WIDTH, is_bigendian=False, data=pixels.tobytes())


def stereo_drive(path: Path) -> Path:
    """Write a bag whose right camera is up to 3 ms off, recorded late, with one frame dropped and one damaged."""
    messages: list[tuple[int, str, RawImage, int]] = []
    for number in range(FRAMES):
        stamp = 1_000 * MS + number * 100 * MS
        messages.append((stamp, LEFT, picture(number, 20, 30), stamp))
        right = picture(number, 50, 60)
        if number == DAMAGED:
            right = RawImage("rgb8", 2 * HEIGHT, 2 * WIDTH, 6 * WIDTH, is_bigendian=False, data=bytes(100))
        if number != DROPPED:
            messages.append((stamp + 130 * MS, RIGHT, right, stamp + (number % 7 - 3) * MS))
    with BagWriter(path, "mcap") as bag:
        for log_time, topic, image, stamp in sorted(messages, key=lambda each: each[0]):
            bag.write(topic, image, stamp, log_time)
    return path


@pytest.fixture
def command(serving: Serve, broker_url: str, tmp_path: Path) -> Callable[..., Result]:
    """Run mqinfer against a worker that serves the models."""
    root = serving(stereo_models(tmp_path / "models")).root

    def run(name: str, *arguments: str) -> Result:
        return CliRunner().invoke(app, [name, "--broker", broker_url, "--root", root, *arguments])

    return run


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return the results."""
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_a_stereo_bag(command: Callable[..., Result], tmp_path: Path) -> None:
    """Each pair is one request, with the right frames; what has no partner or is damaged costs itself alone."""
    bag, out = stereo_drive(tmp_path / "drive.mcap"), tmp_path / "out"
    how = "--encoding", "lz4", "--output", str(out), "--sink", "jsonl", "--sink", "pictures", "--picture-every", "1"
    joins = "--join", f"right={RIGHT}", "--join", f"left={LEFT}", "--tolerance", "0.02"
    done = command("replay", str(bag), "--model", "stereo", *joins, *how, "--summary", str(tmp_path / "summary.json"))
    assert done.exit_code == 1, done.output  # the damaged pair
    found = lines(out)
    assert [line["sequence"] for line in found] == list(range(FRAMES - 1))  # the right camera is the main one here
    numbers = [number for number in range(FRAMES) if number != DROPPED]
    for line, number in zip(found, numbers, strict=True):
        (joined,) = line["joined"]
        assert (line["source"], joined["source"], joined["sequence"]) == (RIGHT, LEFT, number)
        if number == DAMAGED:
            assert (line["outcome"], line["error"]["code"]) == ("error", "bad_image")
            continue
        assert line["outcome"] == "ok"
        assert line["outputs"]["left_mean"]["values"] == [number, 20, 30]
        assert line["outputs"]["right_mean"]["values"] == [120, 100, 2 * number]
    assert [line["sequence"] for line in found if "missed" in line] == [DROPPED]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["missed"] == {LEFT: {"no frame within the tolerance": 1}}
    assert (summary["requests"], summary["outcomes"]["ok"]) == (FRAMES - 1, FRAMES - 2)
    assert f"1 x {LEFT}: no frame within the tolerance; not sent" in done.output
    shown = cv2.imread(str(next(out.rglob("*.png"))))
    assert shown is not None
    assert shown.shape[:2] >= (2 * HEIGHT, 2 * WIDTH)


def test_frames_that_never_go_together(command: Callable[..., Result], tmp_path: Path) -> None:
    """The run ends with what to do, and with each frame counted."""
    with BagWriter(tmp_path / "drive.mcap", "mcap") as bag:
        for number in range(4):
            bag.write((LEFT, RIGHT)[number % 2], picture(1, 2, 3), number, number)
    done = command("replay", str(tmp_path / "drive.mcap"), "--model", "stereo", "--join", f"{LEFT},{RIGHT}")
    assert done.exit_code == ExitCode.USAGE
    assert "no frames go together, so none was sent" in done.output
    assert f"2 x {RIGHT}: no frame within the tolerance; not sent" in done.output


def test_the_frame_before(command: Callable[..., Result], tmp_path: Path) -> None:
    """As for optical flow, with a model whose inputs are recognised by their shapes."""
    bag, out = stereo_drive(tmp_path / "drive.mcap"), tmp_path / "out"
    how = "--encoding", "png", "--output", str(out), "--sink", "jsonl"
    done = command("replay", str(bag), "--model", "plain", "--topic", LEFT, "--join", "left=previous", *how)
    assert done.exit_code == 0, done.output
    assert [
        (line["sequence"], line["outputs"]["left_mean"]["values"][0], line["outputs"]["right_mean"]["values"][0])
        for line in lines(out)
    ] == [(number, number - 1, number) for number in range(1, FRAMES)]


def test_a_rectified_pair(command: Callable[..., Result], tmp_path: Path) -> None:
    """Each frame is rectified by the calibration of its own camera."""
    random = np.random.default_rng(4)
    sides = {LEFT: 0.4, RIGHT: -0.3}
    seen: dict[str, Any] = {}
    with BagWriter(tmp_path / "drive.mcap", "mcap") as bag:
        for topic, bend in sides.items():
            intrinsic = (20.0, 0.0, WIDTH / 2, 0.0, 20.0, HEIGHT / 2, 0.0, 0.0, 1.0)
            projection = (20.0, 0.0, WIDTH / 2, 0.0, 0.0, 20.0, HEIGHT / 2, 0.0, 0.0, 0.0, 1.0, 0.0)
            identity = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)
            camera = CameraInfo(WIDTH, HEIGHT, "plumb_bob", (bend, 0.0, 0.0, 0.0, 0.0), intrinsic, identity, projection)
            pixels = random.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
            bag.write_camera(topic.replace("image_raw", "camera_info"), camera, 1, 1)
            bag.write(
                topic, RawImage("rgb8", HEIGHT, WIDTH, 3 * WIDTH, is_bigendian=False, data=pixels.tobytes()), 2, 2
            )
            seen[topic] = rectification(camera, WIDTH, HEIGHT).apply(pixels).mean((0, 1))
            assert abs(seen[topic] - pixels.mean((0, 1))).max() > 0.5
    how = "--rectify", "--encoding", "lz4", "--output", str(tmp_path / "out"), "--sink", "jsonl"
    done = command("replay", str(tmp_path / "drive.mcap"), "--model", "plain", "--join", f"{LEFT},{RIGHT}", *how)
    assert done.exit_code == 0, done.output
    (line,) = lines(tmp_path / "out")
    for side, topic in (("left", LEFT), ("right", RIGHT)):
        np.testing.assert_allclose(line["outputs"][f"{side}_mean"]["values"], seen[topic], rtol=1e-5)


def test_pairs_are_kept_in_the_spool(
    serving: Serve, replayed: Replayed, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Together, as recorded while the model is not known, and sent together by the next run."""
    bag, spool = stereo_drive(tmp_path / "drive.mcap"), tmp_path / "spool"
    join = Join.parse([f"left={LEFT}", f"right={RIGHT}"], 0.02)
    how = {"join": join, "encoding": "lz4", "spool": spool, "folder": tmp_path / "out", "sinks": ["jsonl"]}
    first = replayed(bag, Topics(unique("nobody")), "stereo", card_timeout=0.1, **how)
    assert len(list(spool.glob("*.frame"))) == FRAMES - 2  # without the damaged one
    assert first.snapshot.frames_read == FRAMES - 1
    topics = serving(stereo_models(tmp_path / "models"))
    second = replayed(bag, topics, "stereo", duration=0.01, **how)
    assert second.snapshot.outcomes[Outcome.OK] == FRAMES - 2
    found = lines(tmp_path / "out")
    assert [line["sequence"] for line in found] == [each for each in range(FRAMES) if each not in {DROPPED, DAMAGED}]
    for line in found:
        number = line["sequence"]
        assert [each["source"] for each in line["joined"]] == [RIGHT]
        assert line["outputs"]["left_mean"]["values"] == [number, 20, 30]
        assert line["outputs"]["right_mean"]["values"] == [120, 100, 2 * number]
    assert not list(spool.glob("*.frame"))


def test_infer_with_two_pictures(command: Callable[..., Result], tmp_path: Path) -> None:
    """Each file goes to the input named, at its own size."""
    for side, colour in (("left", (30, 20, 10)), ("right", (60, 50, 40))):
        cv2.imwrite(str(tmp_path / f"{side}.png"), np.full((30, 40, 3), colour, np.uint8))
    inputs = [f"--input={side}={tmp_path / side}.png" for side in ("left", "right")]
    done = command("infer", "stereo", *inputs)
    assert done.exit_code == 0, done.output
    outputs = json.loads(done.output)["outputs"]
    assert outputs["left_mean"]["values"] == [10, 20, 30]
    assert outputs["right_mean"]["values"] == [120, 100, 80]
    one = command("infer", "stereo", inputs[0])
    assert one.exit_code != 0
    assert "takes the inputs ['left', 'right'], not ['left']" in str(one.exception or one.output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "model 'stereo' takes 2 pictures in one request (left, right); name their topics: --join left=/TOPIC"),
        (["--join", f"{LEFT},/stereo/middle"], "no image topic /stereo/middle; its image topics are"),
        (
            ["--join", f"left={LEFT}", "--join", f"depth={RIGHT}"],
            "has no input 'depth' for a topic; it has left, ",
        ),
        (["--join", f"{LEFT},{RIGHT}", "--tolerance", "-1"], "--tolerance -1.0: expected seconds, 0 or more"),
        (["--join", f"{LEFT},{RIGHT}", "--topic", LEFT], "--join names the topics; leave out --topic"),
        (["--tolerance", "0.1"], "name these with --join"),
    ],
)
def test_wrong_arguments(command: Callable[..., Result], tmp_path: Path, arguments: list[str], message: str) -> None:
    """Nothing is sent, and the message has what to write."""
    bag = stereo_drive(tmp_path / "drive.mcap")
    done = command("replay", str(bag), "--model", "stereo", *arguments)
    assert isinstance(done.exception, ConfigError | SourceError)
    is_option = isinstance(done.exception, ConfigError)  # a topic may be in another bag
    assert exit_code(done.exception) is (ExitCode.USAGE if is_option else ExitCode.FAILED)
    assert message in str(done.exception)
