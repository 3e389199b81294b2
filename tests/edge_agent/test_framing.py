"""Regions and rectified frames at the edge: what is sent of them, what sinks show, and what the spool keeps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from mqinfer.bags.frame import Frame, StreamInfo
from mqinfer.codecs import decode_tensor, encode_tensor
from mqinfer.codecs.opencv import opencv
from mqinfer.edge_agent.frames.table import PreparedFrame
from mqinfer.edge_agent.frames.times import EdgeStage
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.preparing.framing import Framing
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.preparing.quality_ladder import QualityStep
from mqinfer.edge_agent.sinks.drawing.overlay import draw_overlay, encode_mask
from mqinfer.edge_agent.spooling.backlog import _frame_in, _frame_of, _placed, _with_pixels
from mqinfer.edge_agent.spooling.spool import Spool, SpooledFrame
from mqinfer.images.decode import as_image
from mqinfer.images.picture import CameraInfo, CompressedImage
from mqinfer.images.placement import UNKNOWN, fit
from mqinfer.images.rectification import rectification
from mqinfer.protocol.card import ClassInfo, ColourOrder, ImageContract, Resize
from mqinfer.protocol.errors import BadImage, ConfigError, MissingExtra
from mqinfer.protocol.types import Capture, EncodedTensor

WIDTH, HEIGHT = 96, 64
CAMERA = CameraInfo(
    WIDTH,
    HEIGHT,
    "plumb_bob",
    (-0.3, 0.1, 0.0, 0.0, 0.0),
    (60.0, 0.0, 47.5, 0.0, 60.0, 31.5, 0.0, 0.0, 1.0),
    (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0),
    (55.0, 0.0, 47.5, 0.0, 0.0, 55.0, 31.5, 0.0, 0.0, 0.0, 1.0, 0.0),
)
PIXELS = cv2.GaussianBlur(np.random.default_rng(4).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8), (0, 0), 4)
FRAME = Frame("/front", 3, 10, 11, "camera", as_image(PIXELS, "rgb8"), CAMERA)
REGION = 10, 6, 60, 40
LETTERBOX = ImageContract("x", 48, 48, resize=Resize.LETTERBOX, fill=9)


def ignore(stage: EdgeStage, nanoseconds: int) -> None:
    """Take no notice."""


def prepared(framing: Framing, contract: ImageContract = LETTERBOX, encoding: str = "lz4") -> PreparedFrame:
    """Prepare the frame."""
    return Preparer(contract, encoding, framing=framing).prepare(FRAME, ignore)


def sent(found: PreparedFrame) -> npt.NDArray[np.uint8]:
    """Return the picture that travels."""
    picture: npt.NDArray[np.uint8] = decode_tensor(found.tensors[0])[0]
    return picture


def test_the_region_of_the_rectified_frame_travels_alone() -> None:
    """Placed like any frame; the sinks get the frame as it was recorded."""
    left, top, width, height = REGION
    rectified = rectification(CAMERA, WIDTH, HEIGHT).apply(PIXELS)
    for rectify, pixels in ((False, PIXELS), (True, rectified)):
        found = prepared(Framing(rectify, REGION))
        np.testing.assert_array_equal(sent(found)[8:40], fit(pixels[top : top + height, left : left + width], 48, 32))
        assert (sent(found)[:8] == 9).all()
        assert found.placement.region == REGION
        assert found.placement.camera == (CAMERA if rectify else None)
        np.testing.assert_array_equal(found.picture(), PIXELS)


def test_regions_of_single_topics() -> None:
    """A topic's own counts before the one of all."""
    framing = Framing.parse(["0,0,10,10", "/front=1,2,30,20"])
    assert framing.region(FRAME) == (1, 2, 30, 20)
    assert framing.region(replace(FRAME, source="/rear")) == (0, 0, 10, 10)
    assert not framing.is_whole(FRAME)
    assert Framing().is_whole(FRAME)


def test_a_jpeg_whose_region_is_wanted_does_not_pass_untouched() -> None:
    """Its bytes hold all of it, also where the model takes pictures of any size."""
    data = bytes(encode_tensor("x", PIXELS, "jpeg:90").data)
    frame = replace(FRAME, image=CompressedImage("jpeg", data))
    for framing, shape in ((Framing(), (1, HEIGHT, WIDTH, 3)), (Framing(others=REGION), (1, 40, 60, 3))):
        found = Preparer(ImageContract("x"), "jpeg:90", framing=framing).prepare(frame, ignore)
        assert found.tensors[0].shape == shape
    assert Preparer(ImageContract("x"), "jpeg:90").prepare(frame, ignore).tensors[0].data is data


@pytest.mark.parametrize("encoding", ["raw", "lz4"])
def test_frames_as_the_model_takes_them_need_no_opencv(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """RGB in the model's size; a smaller one has to be made by OpenCV, and its error says so."""
    opencv.cache_clear()
    monkeypatch.setitem(sys.modules, "cv2", None)
    found = Preparer(ImageContract("x", WIDTH, HEIGHT), encoding).prepare(FRAME, ignore)
    np.testing.assert_array_equal(sent(found), PIXELS)
    with pytest.raises(MissingExtra, match="opencv-python-headless is not installed"):
        prepared(Framing(), encoding=encoding)


@pytest.mark.parametrize(("width", "height"), [(None, None), (48, None)])
def test_a_model_of_any_size_sees_the_picture_that_was_sent(width: int | None, height: int | None) -> None:
    """Boxes in a picture that was sent smaller are mapped by its own size."""
    found = Preparer(ImageContract("x", width, height), "lz4").prepare(FRAME, ignore, QualityStep(None, 0.5))
    rows, columns = found.tensors[0].shape[1:3]
    assert found.placement.picture == (width or columns, height or rows)
    whole = np.array([[0, 0, *found.placement.picture]])
    np.testing.assert_array_equal(found.placement.boxes_to_frame(whole), [[0, 0, WIDTH, HEIGHT]])


@pytest.mark.parametrize(("dtype", "kind"), [(np.uint16, "16UC1"), (np.float32, "32FC1")])
def test_depth_is_rectified_by_its_nearest_pixel(dtype: type, kind: str) -> None:
    """No distance is made up, and outside of what was recorded nothing was measured."""
    depth: npt.NDArray[Any] = np.random.default_rng(0).integers(1, 5000, (HEIGHT, WIDTH)).astype(dtype)
    wider = replace(CAMERA, projection=(30.0, *CAMERA.projection[1:5], 30.0, *CAMERA.projection[6:]))
    frame = replace(FRAME, image=as_image(depth, kind), camera=wider)
    contract = ImageContract("x", WIDTH, HEIGHT, ColourOrder.DEPTH)
    found = Preparer(contract, "lz4", framing=Framing(rectify=True)).prepare(frame, ignore)
    values = np.nan_to_num(sent(found)[..., 0])
    assert np.isin(values, [0, *depth.ravel()]).all()
    assert values[0, 0] == 0
    assert found.picture().shape == (HEIGHT, WIDTH, 3)


def test_mosaics_are_rectified_once_they_have_colours() -> None:
    """A mosaic that is to travel as recorded does not, if it is rectified: its pixels would be mixed."""
    mosaic = replace(FRAME, image=as_image(np.ascontiguousarray(PIXELS[..., 1]), "bayer_rggb8"))
    contract = ImageContract("x", WIDTH, HEIGHT)
    for framing, kind in ((Framing(), "bayer_rggb8"), (Framing(rectify=True), "rgb8")):
        found = Preparer(contract, "bayer", framing=framing).prepare(mosaic, ignore)
        assert found.tensors[0].parameters["image_encoding"] == kind


@pytest.mark.parametrize(
    ("framing", "frame", "message"),
    [
        (Framing(rectify=True), replace(FRAME, camera=None), "has no calibration"),
        (Framing(rectify=True), replace(FRAME, camera=replace(CAMERA, width=95)), "of pictures of 95x64"),
        (Framing(others=(90, 0, 7, 1)), FRAME, "90,0,7,1 .* is not inside the frame of 96x64"),
        (Framing(by_source={"/front": (0, 60, 1, 5)}), FRAME, "is not inside"),
    ],
)
def test_frames_that_the_settings_do_not_suit(framing: Framing, frame: Frame, message: str) -> None:
    """They fail with the reason."""
    with pytest.raises(BadImage, match=message):
        Preparer(LETTERBOX, "lz4", framing=framing).prepare(frame, ignore)


def test_sources_are_checked_before_a_frame_is_read() -> None:
    """One with a wrong calibration among others is no reason to refuse all, nor is one of unknown size."""
    right = StreamInfo("/front", "t", "rgb8", WIDTH, HEIGHT, 9, 1.0, camera=CAMERA)
    wrong = replace(right, source="/rear", camera=replace(CAMERA, width=1))
    Framing(rectify=True).check([right, wrong])
    Framing(rectify=True, others=REGION).check([replace(right, width=0, height=0, camera=None, count=0)])
    with pytest.raises(ConfigError, match="--rectify: /rear: its CameraInfo is of pictures of 1x64"):
        Framing(rectify=True).check([wrong])
    with pytest.raises(ConfigError, match="by its name /front/image_rect_color is rectified already"):
        Framing(rectify=True).check([right, replace(right, source="/front/image_rect_color")])
    with pytest.raises(ConfigError, match="no calibration of /rear"):
        Framing(rectify=True).check([right, replace(wrong, camera=None)])
    with pytest.raises(ConfigError, match="/rear: the region 90,0,7,1"):
        Framing(by_source={"/rear": (90, 0, 7, 1)}).check([right, wrong])


CLASSES = (ClassInfo("road", (255, 0, 0)), ClassInfo("sky", (0, 0, 255)))


def test_sinks_leave_out_what_the_model_did_not_see() -> None:
    """Overlays keep its colours, counts have its share, masks are transparent there; other masks are as they were."""
    left, top, width, height = REGION
    found = prepared(Framing(others=REGION))
    view = FrameView(found.picture(), found.placement, {"mask": np.ones((1, 48, 48), np.uint8)}, classes=CLASSES)
    assert view.answer.mask is not None
    assert view.answer.seen is not None
    inside = np.zeros((HEIGHT, WIDTH), bool)
    inside[top : top + height, left : left + width] = True
    np.testing.assert_array_equal(view.answer.seen, inside)
    np.testing.assert_array_equal(view.answer.mask, np.where(inside, 1, UNKNOWN))
    drawn = draw_overlay(view.pixels, view.answer.mask, CLASSES, seen=view.answer.seen)
    np.testing.assert_array_equal(drawn[~inside], PIXELS[~inside])
    assert (drawn[inside] != PIXELS[inside]).any(axis=-1).all()
    shares = view.outputs_in_words["mask"]["class_shares"]
    share = round(inside.mean(), 6)
    assert shares == {"road": 0.0, "sky": share, "unknown": pytest.approx(1 - share, abs=1e-6)}
    png = cv2.imdecode(
        np.frombuffer(encode_mask(view.answer.mask, CLASSES, is_partial=True), np.uint8), cv2.IMREAD_UNCHANGED
    )
    assert png is not None
    np.testing.assert_array_equal(png[..., 3] == 255, inside)
    whole = prepared(Framing())
    assert FrameView(whole.picture(), whole.placement, view.outputs).answer.seen is None


def test_a_picture_that_was_sent_does_not_stand_for_the_frame_if_it_is_another() -> None:
    """A rectified JPEG of the frame's size is not shown beside boxes of the recorded one."""
    contract = ImageContract("x", WIDTH, HEIGHT)
    for rectify in (False, True):
        found = prepared(Framing(rectify), contract, "jpeg:90")
        view = FrameView(found.picture(), found.placement, {}, found.tensors[0])
        assert (view.jpeg(FRAME.image) is None) == rectify


Stored = Callable[..., SpooledFrame]


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    """Store tensors in a spool, and return what the next run finds there."""

    def store(tensors: tuple[EncodedTensor, ...], **further: Any) -> SpooledFrame:
        with closing(Spool(tmp_path)) as spool:
            spool.put(SpooledFrame(Capture("/front", 3, 10, "camera"), 5, 11, tensors=tensors, **further))
        with closing(Spool(tmp_path)) as again:
            found = again.after(0)
        assert found is not None
        return found

    return store


@pytest.mark.parametrize("framing", [Framing(), Framing(others=REGION), Framing(rectify=True), Framing(True, REGION)])
def test_the_next_run_knows_where_a_spooled_frame_lies(stored: Stored, framing: Framing) -> None:
    """Boxes go to the recorded frame, and that is shown as far as it was sent, in its own size."""
    before = prepared(framing)
    found = stored(before.tensors, cameras=(CAMERA,), placement=before.placement)
    assert found.placement == before.placement
    assert _frame_of(found).camera == CAMERA
    placement = _placed(found, Preparer(LETTERBOX, "lz4").placement(48, 48))
    assert placement == before.placement
    shown = _frame_in(found, placement)
    seen = placement.region_to_frame(np.ones((REGION[3], REGION[2]) if placement.region else (HEIGHT, WIDTH)))
    inner = cv2.erode(seen, np.ones((5, 5)), borderValue=0) == 1
    assert shown.shape == PIXELS.shape
    assert inner.any()
    assert np.abs(shown.astype(int) - PIXELS)[inner].mean() < 6
    assert not shown[seen == 0].any()


def test_a_spooled_frame_of_another_models_size_stands_for_itself(stored: Stored) -> None:
    """The model takes other pictures by now, so the stored one is resized again: it is the frame."""
    before = prepared(Framing(others=REGION))
    found = stored(before.tensors, cameras=[None], placement=before.placement)
    as_sent = Preparer(ImageContract("x", 30, 30), "lz4").placement(48, 48)
    assert _placed(found, as_sent) is as_sent


def test_a_frame_that_was_stored_before_its_model_was_known_is_rectified_later(stored: Stored) -> None:
    """Its calibration is stored with it, and the same picture is sent."""
    recorded = Preparer(ImageContract(""), "lz4").prepare(FRAME, ignore)
    found = stored(recorded.tensors, cameras=(CAMERA,))
    assert found.is_recorded
    assert found.placement is None
    again = _with_pixels(_frame_of(found), found)
    framing = Framing(rectify=True, by_source={"/front": REGION})
    later = Preparer(LETTERBOX, "lz4", framing=framing).prepare(again, ignore)
    np.testing.assert_array_equal(sent(later), sent(prepared(framing)))
    assert later.placement == prepared(framing).placement
