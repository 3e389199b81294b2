import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest

from mqinfer.bags.sources import open_source
from mqinfer.client.requester import Requester
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.images.decode import to_rgb
from mqinfer.lab.drives.recording import IMAGE_TOPIC, write_drive
from tests.segmenter import HEIGHT, WIDTH, write_segmenter
from tests.settings import run_session, settings_of

FRAMES = 8


@pytest.fixture
def requester(edge: Callable[..., Requester], tmp_path: Path) -> Requester:
    """A client of an ONNX model that makes masks."""
    return edge(write_segmenter(tmp_path / "models"), "mask")


def write_video(path: Path, pictures: list[np.ndarray]) -> Path:
    """Write RGB pictures with FFV1, which keeps them."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = pictures[0].shape[1], pictures[0].shape[0], "bgr0"
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        container.mux(stream.encode())
    return path


def write_folder(path: Path, pictures: list[np.ndarray]) -> Path:
    """Write RGB pictures as PNG files."""
    path.mkdir()
    for number, picture in enumerate(pictures):
        cv2.imwrite(str(path / f"{number}.png"), np.ascontiguousarray(picture[:, :, ::-1]))
    return path


@pytest.mark.parametrize(("encoding", "size"), [("rgb8", (WIDTH, HEIGHT)), ("bayer_rggb8", (200, 136))])
def test_one_drive_in_five_kinds_of_files_gives_the_same_masks(
    requester: Requester, tmp_path: Path, encoding: str, size: tuple[int, int]
) -> None:
    """ROS 1 bag, ROS 2 sqlite3 and MCAP, video and folder, each without loss: bit by bit, resized or not."""

    def record(name: str, ros: Any, storage: Any = None) -> Path:
        width, height = size
        how: dict[str, Any] = {"width": width, "height": height, "encoding": encoding, "truth_topic": False}
        return write_drive(tmp_path / name, ros=ros, storage=storage, frames=FRAMES, seed=6, **how)

    kinds = {"ros1": record("a.bag", 1), "sqlite3": record("b", 2, "sqlite3"), "mcap": record("c", 2, "mcap")}
    with closing(open_source(str(kinds["ros1"]))) as source:
        pictures = [np.array(to_rgb(frame.image)) for frame in source.frames()]
    kinds |= {"video": write_video(tmp_path / "d.mkv", pictures), "folder": write_folder(tmp_path / "e", pictures)}
    found = {}
    for kind, path in kinds.items():
        out, topics = tmp_path / f"out-{kind}", () if kind in {"video", "folder"} else (IMAGE_TOPIC,)
        settings = settings_of(path, ReplayOptions("mask"), topics=topics, encoding="lz4", folder=out, sinks=("jsonl",))
        run_session(settings, requester)
        lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
        found[kind] = [(line["sequence"], line["outputs"]["output"]["hash"]) for line in lines]
    assert len(set(found["ros1"])) == FRAMES
    assert len({hashed for _, hashed in found["ros1"]}) > 1
    assert found == dict.fromkeys(kinds, found["ros1"])
