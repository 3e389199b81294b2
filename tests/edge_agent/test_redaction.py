"""Which pixels `--redact` fills, which frames it leaves out, and which detectors it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from mqinfer.bags.frame import Frame, StreamInfo
from mqinfer.edge_agent.redaction import DEPTH, GREY, LEAST_MARGIN, RedactedSource, Redactor
from mqinfer.edge_agent.reporting.report import Redacted
from mqinfer.edge_agent.settings import PreparingSettings
from mqinfer.images.decode import as_image, to_rgb
from mqinfer.images.picture import RawImage
from mqinfer.images.pixel_format import Demosaic
from mqinfer.lab.drives.mosaic import raw_image
from mqinfer.protocol.errors import ConfigError, ModelNotLoadable
from tests.onnx_files import save_onnx

HEIGHT, WIDTH = 60, 80
BOX = [20, 16, 40, 32]
"""Left, top, right and bottom of the only box, in the detector's pixels."""


@dataclass
class Frames:
    """A source of frames that are there already."""

    given: Sequence[Frame]

    def streams(self) -> tuple[StreamInfo, ...]:
        """List none."""
        return ()

    def frames(self) -> Iterator[Frame]:
        """Yield them."""
        yield from self.given

    def close(self) -> None:
        """Have nothing open."""


def detector(folder: Path, boxes: Any, scores: Any = None, config: str = "", outputs: str = "boxes scores") -> Path:
    """Make a detector that always finds the same, with the outputs' names."""
    found = [np.asarray(boxes, np.float32), np.ones(len(boxes), np.float32) if scores is None else scores]
    names = outputs.split()
    nodes = [helper.make_node("Identity", [f"held-{name}"], [name]) for name in names]
    held = {f"held-{name}": array for name, array in zip(names, found, strict=False)}
    ends = {name: (TensorProto.FLOAT, list(array.shape)) for name, array in zip(names, found, strict=False)}
    picture = {"image": (TensorProto.UINT8, [1, HEIGHT, WIDTH, 3])}
    save_onnx(folder / "fixed/1/model.onnx", nodes, picture, ends, held)
    (folder / "fixed/model.toml").write_text(config)
    return folder / "fixed"


def frame(image: RawImage, sequence: int = 0, **missed: int) -> Frame:
    """Return a frame of the stream `/front`."""
    return Frame("/front", sequence, 0, 0, "", image, missed={("/front", why): count for why, count in missed.items()})


def picture(scale: int = 1) -> Any:
    """Return noise, so many times as large as the detector's picture."""
    return np.random.default_rng(1).integers(0, 128, (scale * HEIGHT, scale * WIDTH, 3), np.uint8)


def redacted(model: Path, *frames: Frame, **preparing: Any) -> tuple[list[Frame], RedactedSource]:
    """Return the frames of a source that could be redacted."""
    with closing(Redactor(model)) as redactor:
        source = RedactedSource(Frames(frames), redactor, PreparingSettings(None, **preparing))
        return list(source.frames()), source


@pytest.mark.parametrize("scale", [1, 3, 20])
def test_a_box_is_filled_with_a_margin_and_nothing_else_is(tmp_path: Path, scale: int) -> None:
    """It is a tenth of the box on each side, at least 8 pixels, and a pixel of the detector."""
    pixels = picture(scale)
    (found,), source = redacted(detector(tmp_path, [BOX]), frame(as_image(pixels, "rgb8")))
    across, down = (max(LEAST_MARGIN, scale, size * scale // 10) for size in (20, 16))
    left, top, right, bottom = (side * scale for side in BOX)
    expected = pixels.copy()
    expected[top - down : bottom + down, left - across : right + across] = GREY
    assert (to_rgb(found.image) == expected).all()
    assert source.counts() == Redacted(1, 1)


def test_a_box_at_the_edge_and_one_outside(tmp_path: Path) -> None:
    """What is outside the picture is cut off."""
    (found,), _ = redacted(detector(tmp_path, [[-9, -9, 4, 4], [70, 50, 99, 99]]), frame(as_image(picture(), "rgb8")))
    pixels, expected = to_rgb(found.image), picture()
    expected[: 4 + LEAST_MARGIN, : 4 + LEAST_MARGIN] = expected[50 - LEAST_MARGIN :, 70 - LEAST_MARGIN :] = GREY
    assert (pixels == expected).all()


@pytest.mark.parametrize("method", list(Demosaic))
@pytest.mark.parametrize("encoding", ["bayer_rggb8", "bayer_bggr8", "bayer_grbg16", "bayer_gbrg16"])
def test_samples_of_a_box_have_no_part_in_pixels_beside_it(tmp_path: Path, encoding: str, method: Demosaic) -> None:
    """Demosaicing reaches over a box's edge by less than the margin."""
    model = detector(tmp_path, [BOX])
    images = []
    for level in (0, 200):
        pixels = picture()
        pixels[BOX[1] : BOX[3], BOX[0] : BOX[2]] = level
        (found,), _ = redacted(model, frame(raw_image(pixels, encoding)), demosaic=method)
        assert found.image.encoding == "rgb8"  # type: ignore[union-attr]
        images.append(to_rgb(found.image))
    assert (images[0] == images[1]).all()
    assert (images[0] != GREY).any()


def test_every_box_is_filled_of_however_many(tmp_path: Path) -> None:
    """A result keeps its 100 best boxes; here the 101st counts as well."""
    boxes = [[0, 0, 1, 1]] * 100 + [BOX]
    scores = np.linspace(1, 0.01, 101, dtype=np.float32)
    (found,), source = redacted(detector(tmp_path, boxes, scores), frame(as_image(picture(), "rgb8")))
    assert (to_rgb(found.image)[BOX[1] : BOX[3], BOX[0] : BOX[2]] == GREY).all()
    assert source.counts() == Redacted(1, 101)


def test_frames_without_boxes_go_on(tmp_path: Path) -> None:
    """They are counted as none, with the frames that the source missed before them."""
    model = detector(tmp_path, np.zeros((0, 4)))
    (found,), source = redacted(model, frame(as_image(picture(), "rgb8"), lost=2))
    assert (to_rgb(found.image) == picture()).all()
    assert found.missed == {("/front", "lost"): 2}
    assert (source.counts(), source.missed) == (Redacted(0, 0), {})


def test_depth_is_left_out(tmp_path: Path) -> None:
    """Distances have no grey that says nothing; the frame after it carries the count."""
    depth = as_image(np.ones((HEIGHT, WIDTH), np.uint16), "16UC1")
    light = as_image(picture(), "rgb8")
    (found,), source = redacted(detector(tmp_path, [BOX]), frame(depth), frame(light, 1), frame(depth, 2))
    assert (found.sequence, found.missed) == (1, {("/front", DEPTH): 1})
    assert source.missed == {("/front", DEPTH): 1}


@pytest.mark.parametrize(
    ("boxes", "scores", "config", "outputs", "words"),
    [
        ([BOX, [9, 9, 1, 1]], None, "", "boxes scores", "1 of 2 boxes can be read"),
        ([BOX, [1, 1, np.inf, 9]], None, "", "boxes scores", "1 of 2 boxes can be read"),
        ([BOX], np.array([np.nan], np.float32), "", "boxes scores", "output 'scores' has NaN"),
        ([BOX], None, "", "places scores", "expected boxes"),
        ([BOX], None, "", "boxes points", "1 boxes can be read"),
        ([BOX, BOX], np.ones(3, np.float32), "", "boxes scores", "expected boxes"),
        ([BOX], None, '[image]\ninput = "image"\nresize = "crop"\n', "boxes scores", "crop"),
    ],
)
def test_a_detector_whose_answer_may_lack_a_box_is_refused(
    tmp_path: Path, boxes: Any, scores: Any, config: str, outputs: str, words: str
) -> None:
    """Before the first frame, by its answer to a black picture."""
    with pytest.raises(ConfigError, match=words) as error:
        Redactor(detector(tmp_path, boxes, scores, config, outputs))
    assert str(error.value).startswith(f"--redact {tmp_path / 'fixed'}: ")


def test_a_full_answer_may_lack_a_box(tmp_path: Path) -> None:
    """Where post-processing kept as many boxes as it may, the frame is left out."""
    rows = np.array([[[0, 0, 10, 10], [30, 30, 40, 40], [60, 40, 70, 50]]], np.float32)
    config = '[detection]\nboxes = "rows"\nscores = "points"\nmax_detections = {}\n'
    points = np.ones((1, 3, 1), np.float32)
    with closing(Redactor(detector(tmp_path / "more", rows, points, config.format(4), "rows points"))) as redactor:
        assert redactor.redact(picture())[1] == 3
    with pytest.raises(ConfigError, match="raise max_detections"):
        Redactor(detector(tmp_path / "full", rows, points, config.format(3), "rows points"))


@pytest.mark.parametrize(("box", "count"), [((60, 40, np.inf, 10), 2), ((60, 40, -10, 10), 2), ((60, 40, 9, 9), 4097)])
def test_no_likely_candidate_is_lost(tmp_path: Path, box: tuple[float, ...], count: int) -> None:
    """Post-processing drops what it can't read, and those behind 4096 better ones; elsewhere that is no matter."""
    rows, scores = np.full((1, count, 4), 9, np.float32), np.ones((1, count, 1), np.float32)
    rows[0, -1], scores[0, -1] = box, 0.5
    config = '[detection]\nboxes = "rows"\nscores = "points"\nbox_format = "cxcywh"\nscore_threshold = {}\n'
    with pytest.raises(ConfigError, match=f"{count - 1} of {count} candidates can be read"):
        Redactor(detector(tmp_path / "all", rows, scores, config.format(0.5), "rows points"))
    with closing(Redactor(detector(tmp_path / "best", rows, scores, config.format(0.6), "rows points"))) as redactor:
        assert redactor.redact(picture())[1] == 1


def test_an_ensemble_is_refused(tmp_path: Path) -> None:
    """What its steps drop can't be seen."""
    detector(tmp_path, [BOX])
    ways = "input_map = {image = 'image'}\noutput_map = {boxes = 'boxes', scores = 'scores'}\n"
    (tmp_path / "two/1").mkdir(parents=True)
    (tmp_path / "two/model.toml").write_text(
        "platform = 'ensemble'\ninput = [{name = 'image'}]\noutput = [{name = 'boxes'}, {name = 'scores'}]\n"
        f"[[ensemble_scheduling.step]]\nmodel_name = 'fixed'\n{ways}"
    )
    with pytest.raises(ConfigError, match="expected one model: an ensemble's steps may drop boxes"):
        Redactor(tmp_path / "two")


def test_a_model_that_is_not_there_and_one_without_a_picture(tmp_path: Path, write_echo: Callable[..., Path]) -> None:
    """The errors name the folder."""
    with pytest.raises(ModelNotLoadable, match="nowhere"):
        Redactor(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="expected a detector that takes one picture"):
        Redactor(write_echo("numbers", ("x", "FP32", [-1, 4])) / "numbers")
