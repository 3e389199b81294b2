"""NumPy files and what else keeps large outputs: all of their elements, and numbers of each pixel as colours."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest

from mqinfer.answers.depth import find_depth
from mqinfer.answers.words import describe_outputs
from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.output_files import write_npz
from mqinfer.edge_agent.sinks.drawing.overlay import draw_result
from mqinfer.edge_agent.sinks.factory import open_sinks
from mqinfer.edge_agent.sinks.sink import Earlier
from mqinfer.images.picture import RawImage
from mqinfer.images.placement import Placement
from mqinfer.protocol.card import ModelCard, Resize
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import ErrorInfo, Outcome
from tests.mcap_files import decoded, messages

CARD = ModelCard(name="deep", platform="onnx_onnxv1")
PIXELS = np.full((80, 320, 3), 100, np.uint8)
PLACEMENT = Placement.of((320, 80), (160, 160), Resize.LETTERBOX)
DEPTH = np.tile(np.linspace(0.5, 40, 16, dtype=np.float32), (16, 1))[np.newaxis, :, :, np.newaxis]
CODES = np.arange(2 * 8 * 8, dtype=np.float16).reshape(1, 2, 8, 8)
OUTPUTS: dict[str, Array] = {"depth": DEPTH, "codes": CODES, "score": np.array([0.5], np.float32)}


def frame(number: int, source: str = "/camera/front") -> Frame:
    """Return a frame."""
    return Frame(source, number, 1, 2, "", RawImage("rgb8", 80, 320, 960, is_bigendian=False, data=PIXELS.tobytes()))


def result(outputs: dict[str, Array]) -> InferResult:
    """Return a result that is fine."""
    return InferResult("1", Outcome.OK, "deep", "1", "sha256:a", outputs)


def write(
    directory: Path, kind: str, frames: list[Frame], outputs: dict[str, Array], done: Earlier | None = None
) -> None:
    """Write the same outputs for some frames."""
    sinks = open_sinks(directory, CARD, [kind], goes_on_with=done)
    for each in frames:
        sinks.write(each, FrameView(PIXELS, PLACEMENT, outputs), result(outputs))
    sinks.close()
    assert sinks.failure is None


def files(directory: Path) -> list[str]:
    """Return the paths of all files."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_each_frame_has_all_its_outputs(tmp_path: Path) -> None:
    """A frame that failed has no file."""
    write(tmp_path, "npz", [frame(3)], OUTPUTS)
    sinks = open_sinks(tmp_path, CARD, ["npz"], goes_on_with=Earlier())
    failed = InferResult("1", Outcome.ERROR, "deep", error=ErrorInfo("expired", "late"))
    sinks.write(frame(4), FrameView(PIXELS, PLACEMENT), failed)
    assert files(tmp_path) == ["outputs/camera-front/000003.npz"]
    with np.load(tmp_path / "outputs/camera-front/000003.npz", allow_pickle=False) as kept:
        assert {name: kept[name].dtype for name in kept} == {name: each.dtype for name, each in OUTPUTS.items()}
        assert all(np.array_equal(kept[name], each) for name, each in OUTPUTS.items())


def test_a_run_that_goes_on_keeps_its_files_and_another_sets_them_aside(tmp_path: Path) -> None:
    """As the JSON lines."""
    write(tmp_path, "npz", [frame(0), frame(1)], OUTPUTS)
    write(tmp_path, "npz", [frame(1), frame(2)], OUTPUTS, done=Earlier("sha256:a", 2))
    assert len(files(tmp_path)) == 3
    write(tmp_path, "npz", [frame(0)], OUTPUTS)
    assert len(files(tmp_path / "outputs.1")) == 3
    assert len(files(tmp_path / "outputs")) == 1


def test_streams_keep_their_folders_in_any_order(tmp_path: Path) -> None:
    """Whatever their names, they share none, and none is outside."""
    names = ["/a/b", "/a-b", "a/b", "../../a/b", "..", "/", "/a b", "a", "x" * 500, "\udc80", "/a\0b"]
    write(tmp_path, "npz", [frame(0, name) for name in names], OUTPUTS)
    before = files(tmp_path)
    write(tmp_path, "npz", [frame(0, name) for name in reversed(names)], OUTPUTS, done=Earlier())
    assert files(tmp_path) == before
    assert len(before) == len(names)
    assert {"outputs/a-b/000000.npz", "outputs/a/000000.npz"} < set(before)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..\\x", "a/../../b", "..", "file", "", "a\nb"])
def test_names_of_outputs_make_no_paths(tmp_path: Path, name: str) -> None:
    """They are those of members of an archive, which some programs take for paths."""
    write_npz(tmp_path / "x.npz", {name: np.zeros(2), "b": np.ones(2)})
    with np.load(tmp_path / "x.npz") as kept:
        assert len(kept.files) == 2
        assert not any(part in {"", "..", "."} for each in kept.files for part in each.replace("\\", "/").split("/"))
        assert kept["b"].sum() + kept["b-2" if "b-2" in kept else "b"].sum() in {2.0, 4.0}


def test_strings_are_kept_without_pickle(tmp_path: Path) -> None:
    """One long one among many does not make all of them long."""
    texts = np.array([b"cat", "dög", b""], np.object_)
    uneven = np.array([b"x" * 100_000] + [b"y\0"] * 1000, np.object_)
    write_npz(tmp_path / "x.npz", {"texts": texts, "uneven": uneven})
    assert (tmp_path / "x.npz").stat().st_size < 200_000
    with np.load(tmp_path / "x.npz", allow_pickle=False) as kept:
        assert kept["texts"].tolist() == [b"cat", "dög".encode(), b""]
        ends = kept["uneven.ends"]
        assert kept["uneven"][ends[-2] : ends[-1]].tobytes() == b"y\0"


def test_numbers_of_each_pixel_are_found() -> None:
    """Neither a class mask, nor scores, nor candidates of another shape than the picture."""
    found = find_depth({"codes": CODES, "depth": DEPTH}, (160, 160))
    assert found is not None
    assert (found.name, found.least, found.greatest) == ("depth", 0.5, 40.0)
    mask = np.zeros((1, 16, 16), np.uint8)
    for outputs in (
        {"m": mask},
        {"x": np.zeros((1, 84, 8400), np.float32)},
        {"confidence": DEPTH},
        {"masks": mask + 1.0, "boxes": np.zeros((1, 4), np.float32)},
        {"d": DEPTH * np.nan},
    ):
        assert find_depth(outputs, (160, 160)) is None


def test_they_are_drawn_as_colours_with_their_scale() -> None:
    """On the recorded frame, without the margins; what is not finite stays as it is."""
    values = DEPTH.copy()
    values[0, :, 15] = np.nan
    view = FrameView(PIXELS, PLACEMENT, {"depth": values})
    levels = view.depth_levels
    assert levels is not None
    assert levels[0, [0, 299, 300]].tolist() == [0, 254, 255]
    drawn = draw_result(frame(0), view, result(view.outputs))  # type: ignore[arg-type]
    red, _, blue = drawn[0, 290].tolist()
    assert red > blue
    assert drawn[0, 310].tolist() == [100, 100, 100]
    plain = draw_result(frame(0), FrameView(PIXELS, PLACEMENT), result({}))
    assert plain.shape == drawn.shape
    assert not np.array_equal(plain[60:70, 10:50], drawn[60:70, 10:50])


def test_large_outputs_are_in_mcap(tmp_path: Path) -> None:
    """All elements, and the overlay; small ones are in the result alone."""
    write(tmp_path, "mcap", [frame(0)], OUTPUTS)
    read = {topic.rpartition("/")[2]: body for topic, _, _, body in messages(tmp_path / "results.mcap")}
    kept = read["outputs"]["outputs"]
    assert list(kept) == ["depth", "codes"]
    assert np.frombuffer(base64.b64decode(kept["codes"]["data"]), np.float16).tolist() == CODES.ravel().tolist()
    assert kept["depth"] | {"data": ""} == {"datatype": "FP32", "shape": [1, 16, 16, 1], "data": ""}
    left, middle = decoded(read["overlay"]["data"])[20, [2, 300]].tolist()
    assert left[0] < middle[0]
    described = read["result"]["outputs"]
    assert (described["depth"]["least"], described["depth"]["greatest"]) == (0.5, 40.0)


def test_large_outputs_are_described_by_their_extremes() -> None:
    """Of the finite numbers; strings have none."""
    values = np.zeros(100, np.float32)
    values[:3] = np.nan, np.inf, -2
    described = describe_outputs({"x": values, "s": np.full(100, b"x", np.object_)}, ())
    assert (described["x"]["least"], described["x"]["greatest"]) == (-2.0, 0.0)
    assert "least" not in described["s"]


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    """A device is written as it is, and what it answers is an error; as root, one was made a file."""
    (tmp_path / "x.npz").symlink_to("/dev/full")
    with pytest.raises(ConfigError, match="No space left on device"):
        write_npz(tmp_path / "x.npz", {"a": np.zeros(2)})
    assert [(each.name, each.is_symlink()) for each in tmp_path.iterdir()] == [("x.npz", True)]
