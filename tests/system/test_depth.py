"""Depth pictures reach a model that takes them in metres, and nothing else does."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from mqinfer.bags.writer import BagWriter
from mqinfer.cli.app import app
from mqinfer.edge_agent.reporting.report import SessionReport
from mqinfer.images.picture import CompressedImage, RawImage
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Outcome
from tests.onnx_files import save_onnx

pytestmark = pytest.mark.broker
Serve = Callable[[Path], Topics]
Replayed = Callable[..., SessionReport]

HEIGHT, WIDTH = 6, 8
"""Of the model's input; frames have twice as many rows and columns."""
NEAR_M = 2.0
MILLIMETRES = np.random.default_rng(5).integers(1, 5000, (2 * HEIGHT, 2 * WIDTH)).astype(np.uint16)
MILLIMETRES[:, :4] = 0
CENTRES = np.s_[1::2, 1::2]
"""The pixels that lie at the centres of the model's."""
METRES = (MILLIMETRES[CENTRES] / 1000).astype(np.float32)


def depth_models(repository: Path) -> Path:
    """Make two models: one returns its input in metres and a mask of what is near, the other takes colours."""
    nodes = [
        helper.make_node("Identity", ["depth"], ["metres"]),
        helper.make_node("Less", ["depth", "limit"], ["is_near"]),
        helper.make_node("Cast", ["is_near"], ["bytes"], to=TensorProto.UINT8),
        helper.make_node("Squeeze", ["bytes", "axis"], ["near"]),
    ]
    picture = TensorProto.FLOAT, [1, 1, HEIGHT, WIDTH]
    outputs = {"metres": picture, "near": (TensorProto.UINT8, [1, HEIGHT, WIDTH])}
    constants = {"limit": np.float32(NEAR_M), "axis": [1]}
    save_onnx(repository / "depth" / "1" / "model.onnx", nodes, {"depth": picture}, outputs, constants)
    (repository / "depth" / "model.toml").write_text('[image]\ncolour = "depth"\n')
    (repository / "colours" / "1").mkdir(parents=True)
    tables = f'[[input]]\nname = "image"\ndatatype = "UINT8"\nshape = [1, {HEIGHT}, {WIDTH}, 3]\n'
    (repository / "colours" / "1" / "model.echo").write_text(tables)
    return repository


def raw(array: npt.NDArray[Any], encoding: str) -> RawImage:
    """Return an image message, big-endian where the array is."""
    height, width = array.shape[:2]
    is_bigendian = array.dtype.byteorder == ">"
    return RawImage(encoding, height, width, array.strides[0], is_bigendian=is_bigendian, data=array.tobytes())


def floats() -> npt.NDArray[np.float32]:
    """Return the same distances in metres, NaN where nothing was measured, and one out of range."""
    metres: npt.NDArray[np.float32] = np.divide(MILLIMETRES, 1000, dtype=np.float32)
    metres[MILLIMETRES == 0] = np.nan
    metres[1, 1] = np.inf
    return metres


def png() -> bytes:
    """Return the millimetres as a PNG file of 16 bits."""
    return cv2.imencode(".png", MILLIMETRES)[1].tobytes()


DEPTH: dict[str, RawImage | CompressedImage] = {
    "/millimetres": raw(MILLIMETRES, "16UC1"),
    "/bigendian": raw(MILLIMETRES.astype(">u2"), "16UC1"),
    "/metres": raw(floats(), "32FC1"),
    "/compressed": CompressedImage("16UC1; compressedDepth png", struct.pack("<iff", 0, 0.0, 0.0) + png()),
    "/mono16": raw(MILLIMETRES, "mono16"),
}
COLOURS = raw(np.full((2 * HEIGHT, 2 * WIDTH, 3), 90, np.uint8), "rgb8")


def drive(path: Path) -> Path:
    """Write a bag with all kinds of depth pictures, and one of colours."""
    with BagWriter(path, "mcap") as bag:
        for number, (topic, image) in enumerate({**DEPTH, "/camera": COLOURS}.items(), 1):
            bag.write(topic, image, number, number)
    return path


def lines(report_folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results by topic, each with the message of its error."""
    files = [(report_folder / name).read_text().splitlines() for name in ("results.jsonl", "times.jsonl")]
    found = [(json.loads(one), json.loads(other)) for one, other in zip(*files, strict=True)]
    return {line["source"]: line | {"error": (line["error"] or {}) | (times["error"] or {})} for line, times in found}


@pytest.mark.parametrize("encoding", [None, "shuffle-lz4", "raw"])
def test_a_bags_depth_reaches_the_model_in_metres(
    serving: Serve, replayed: Replayed, tmp_path: Path, encoding: str | None
) -> None:
    """Each kind of depth picture, to the nearest pixel and exactly; 0 where nothing was measured."""
    topics = serving(depth_models(tmp_path / "models"))
    bag = drive(tmp_path / "drive.mcap")
    options = {"topics": list(DEPTH), "encoding": encoding, "folder": tmp_path / "out"}
    report = replayed(bag, topics, "depth", **options, sinks=["jsonl", "mcap", "pictures"], picture_every=1)
    assert report.snapshot.outcomes[Outcome.OK] == len(DEPTH)
    for topic, line in lines(tmp_path / "out").items():
        found = np.array(line["outputs"]["metres"]["values"], np.float32).reshape(HEIGHT, WIDTH)
        np.testing.assert_array_equal(found, METRES, topic)
    assert len(sorted((tmp_path / "out").rglob("*.png"))) == len(DEPTH)


def test_colours_for_a_depth_model_and_depth_for_a_colour_model_are_refused(
    serving: Serve, replayed: Replayed, tmp_path: Path
) -> None:
    """Frame by frame, with what the model takes; the other frames are served."""
    topics = serving(depth_models(tmp_path / "models"))
    bag = drive(tmp_path / "drive.mcap")
    named = ["/camera", "/millimetres", "/metres", "/compressed"]
    replayed(bag, topics, "depth", topics=named, folder=tmp_path / "depth", sinks=["jsonl"])
    replayed(bag, topics, "colours", topics=named, folder=tmp_path / "colours", sinks=["jsonl"])
    found = lines(tmp_path / "depth")
    assert [topic for topic, line in found.items() if line["outcome"] != "ok"] == ["/camera"]
    assert found["/camera"]["error"]["code"] == "bad_image"
    assert "rgb8 is no depth picture; the model takes 16UC1" in found["/camera"]["error"]["message"]
    found = lines(tmp_path / "colours")
    assert [topic for topic, line in found.items() if line["outcome"] == "ok"] == ["/camera"]
    for topic in named[1:]:
        assert f"{topic} has depth pictures, and the model takes colours" in found[topic]["error"]["message"]


def test_a_lossy_codec_is_refused_before_the_first_frame(serving: Serve, replayed: Replayed, tmp_path: Path) -> None:
    """With the codecs that carry depth."""
    topics = serving(depth_models(tmp_path / "models"))
    with pytest.raises(ConfigError, match=r"'jpeg' can't carry; choose one of raw, lz4, shuffle-lz4, png"):
        replayed(drive(tmp_path / "drive.mcap"), topics, "depth", topics=["/metres"], encoding="jpeg:90")


def test_png_files_of_16_bits_are_millimetres(
    serving: Serve, replayed: Replayed, broker_url: str, tmp_path: Path
) -> None:
    """In a folder, where the edge resizes, and one given to `infer`, where the worker does."""
    topics = serving(depth_models(tmp_path / "models"))
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "0.png").write_bytes(png())
    replayed(folder, topics, "depth", folder=tmp_path / "out", sinks=["jsonl"], encoding="png")
    (line,) = lines(tmp_path / "out").values()
    np.testing.assert_array_equal(np.array(line["outputs"]["metres"]["values"], np.float32), METRES.reshape(-1))
    where = "--broker", broker_url, "--root", topics.root
    arguments = ["infer", "depth", *where, "--input", f"depth={folder / '0.png'}", "--output", f"{tmp_path / 'x.npz'}"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    with np.load(tmp_path / "x.npz") as outputs:
        np.testing.assert_array_equal(outputs["metres"][0, 0], METRES)
        np.testing.assert_array_equal(outputs["near"][0], METRES < NEAR_M)
    colours = folder / "colours.jpg"
    cv2.imwrite(str(colours), np.full((4, 4, 3), 90, np.uint8))
    refused = CliRunner().invoke(app, ["infer", "depth", *where, "--input", f"depth={colours}"])
    assert refused.exit_code != 0
    assert "is no depth picture; the model takes" in str(refused.exception or refused.output)
