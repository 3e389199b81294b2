from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer._version import __version__
from mqinfer.bags.frame import Frame
from mqinfer.bags.sources import open_source
from mqinfer.bags.writer import BagWriter
from mqinfer.client.connection import connect, random_name
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.replay import Replay
from mqinfer.edge_agent.reporting.report import SessionReport
from mqinfer.edge_agent.reporting.statistics import ReplayStatistics
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.images.picture import RawImage
from mqinfer.lab.drives.recording import write_drive
from mqinfer.protocol.card import ImageContract
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Outcome

pytestmark = pytest.mark.broker
Serve = Callable[[Path], Topics]
Replayed = Callable[..., SessionReport]


def echo_images(repository: Path, width: int, height: int) -> Path:
    """Make a repository with a model that returns its picture."""
    folder = repository / "echo" / "1"
    folder.mkdir(parents=True)
    shape = [1, height, width, 3]
    (folder / "model.echo").write_text(f'[[input]]\nname = "input"\ndatatype = "UINT8"\nshape = {shape}\n')
    return repository


def mask_graph(repository: Path) -> Path:
    """Make a repository with a frozen graph: 968x608 RGB in, a mask out."""
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    def brightest(pixels: Any) -> Any:
        return tf.identity(tf.cast(tf.argmax(pixels, axis=-1), tf.uint8), "output")

    traced = tf.function(brightest, input_signature=[tf.TensorSpec([1, 608, 968, 3], tf.uint8, "input")])

    folder = repository / "brightest" / "1"
    folder.mkdir(parents=True)
    frozen = convert_variables_to_constants_v2(traced.get_concrete_function())
    (folder / "model.pb").write_bytes(frozen.graph.as_graph_def().SerializeToString())
    return repository


def lines(report: SessionReport) -> list[dict[str, object]]:
    """Read the JSON lines that a replay wrote."""
    (path,) = (path for path in report.files if path.name == "results.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("ros", [1, 2])
def test_a_synthetic_drive_comes_back_frame_by_frame(
    tmp_path: Path, serving: Serve, replayed: Replayed, ros: int
) -> None:
    """Every frame of both topics has one outcome, in reading order, under its own capture stamp; the sums balance."""
    bag = write_drive(
        tmp_path / ("drive.bag" if ros == 1 else "drive"),
        ros=1 if ros == 1 else 2,
        frames=12,
        seed=5,
        width=96,
        height=64,
    )
    topics = serving(echo_images(tmp_path / "models", 96, 64))

    report = replayed(bag, topics, "echo", folder=tmp_path / "out", encoding="png")

    source = open_source(str(bag))
    expected = [(frame.source, frame.sequence, frame.capture_time_ns) for frame in source.frames()]
    source.close()
    assert expected == [(line["source"], line["sequence"], line["capture_time_ns"]) for line in lines(report)]
    assert {outcome: count for outcome, count in report.snapshot.outcomes.items() if count} == {Outcome.OK: 24}
    times = [json.loads(line) for line in (tmp_path / "out" / "times.jsonl").read_text().splitlines()]
    assert {(line["precision"], line["device"]) for line in times} == {("fp32", "cpu")}
    assert {line["backend"] for line in times} == {
        f"mqinfer {__version__}"
    }  # the echo model of the worker that replied


@pytest.mark.shared_data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("bag", "frames"),
    [("bags/tiny_svo.bag", 10), ("bags/spot_raw.bag", 3), ("bags/rerun_mcap/rosbag2_2025_09_10-13_03_56_0.mcap", 2)],
)
def test_real_bags_go_through_a_frozen_graph(
    tmp_path: Path, shared_data: Path, serving: Serve, replayed: Replayed, bag: str, frames: int
) -> None:
    """In foreign bags every frame of every image topic but depth is `ok`, with the stamp of its header."""
    topics = serving(mask_graph(tmp_path / "models"))

    report = replayed(shared_data / bag, topics, "brightest", folder=tmp_path / "out", sinks=["jsonl", "mcap"])

    source = open_source(str(shared_data / bag), depth=False)
    expected = {(frame.source, frame.sequence): frame.capture_time_ns for frame in source.frames()}
    source.close()
    got = {(line["source"], line["sequence"]): line["capture_time_ns"] for line in lines(report)}
    assert expected == got
    assert frames == len(got) == report.snapshot.outcomes[Outcome.OK]


class Keep:
    """A sink that keeps the model's outputs."""

    def __init__(self) -> None:
        self.results: list[InferResult] = []

    def write(self, _frame: Frame, _view: FrameView, result: InferResult) -> None:
        """Keep the outputs of a result."""
        self.results.append(result)

    def close(self) -> tuple[Path, ...]:
        """Return no files."""
        return ()


@pytest.mark.shared_data
def test_a_replayed_mosaic_is_near_the_truth(
    tmp_path: Path, shared_data: Path, serving: Serve, broker_url: str
) -> None:
    """The lighthouse as a `bayer_rggb16` message: the model's input is within 27 dB of the true picture."""
    import cv2

    mosaic = cv2.imread(str(shared_data / "bayer" / "Lighthouse_CFA_RGGB_u16.png"), cv2.IMREAD_UNCHANGED)
    truth = cv2.imread(str(shared_data / "bayer" / "Lighthouse_u16.png"), cv2.IMREAD_UNCHANGED)
    assert mosaic is not None
    assert truth is not None
    height, width = mosaic.shape
    with BagWriter(tmp_path / "lighthouse.bag", "bag") as bag:
        image = RawImage("bayer_rggb16", height, width, 2 * width, is_bigendian=False, data=mosaic.tobytes())
        bag.write("/camera", image, 1_000_000_007, 2_000_000_000)
    topics = serving(echo_images(tmp_path / "models", width, height))
    preparer = Preparer(ImageContract("input", width, height), "raw")
    keep = Keep()

    with (
        closing(connect(broker_url, random_name(), topics)) as requester,
        closing(open_source(str(tmp_path / "lighthouse.bag"))) as drive,
    ):
        Replay(requester, preparer, ReplayOptions("echo"), ReplayStatistics(), keep).run(drive.frames())

    (result,) = keep.results
    inner = np.s_[2:-2, 2:-2]
    error = ((result.outputs["input"][0][inner].astype(float) - truth[..., ::-1][inner] / 257) ** 2).mean()
    assert 10 * np.log10(255**2 / error) >= 27.0
    assert result.capture.capture_time_ns == 1_000_000_007
