"""Rectified pictures, and the way back to the recorded pixels, against OpenCV's projection of points."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqinfer.images.picture import CameraInfo
from mqinfer.images.placement import UNKNOWN, Placement, Resize
from mqinfer.images.rectification import rectification
from mqinfer.protocol.errors import BadImage

Points = npt.NDArray[np.float64]
SIZE = WIDTH, HEIGHT = 320, 200
TURN = tuple(cv2.Rodrigues(np.array([0.02, -0.03, 0.01]))[0].ravel().tolist())
SQUARE = np.ones((3, 3), np.uint8)
"""Reaches a pixel each way."""
NO_TURN = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)


def camera(model: str, *distortion: float, focal: float = 200.0, turn: tuple[float, ...] = TURN) -> CameraInfo:
    """Make a calibration whose rectified picture is turned, and a little wider than the recorded one."""
    k = (focal, 0.0, 162.0, 0.0, 1.02 * focal, 99.0, 0.0, 0.0, 1.0)
    p = (0.8 * focal, 0.0, 158.0, -20.0, 0.0, 0.8 * focal, 101.0, 0.0, 0.0, 0.0, 1.0, 0.0)
    return CameraInfo(WIDTH, HEIGHT, model, distortion, k, turn, p)


PLUMB_BOB = camera("plumb_bob", -0.3, 0.1, 0.002, -0.001, -0.015)
CAMERAS = {
    "plumb_bob": PLUMB_BOB,
    "four coefficients": camera("plumb_bob", 0.1, -0.02, 0.001, 0.002),
    "rational_polynomial": camera("rational_polynomial", 0.25, 0.05, 0.001, -0.0005, 0.002, 0.55, 0.08, 0.004),
    "equidistant": camera("equidistant", 0.03, -0.01, 0.004, -0.001, focal=120.0),
    "ideal fisheye": camera("equidistant", 0.0, 0.0, 0.0, 0.0, focal=120.0),
    "no distortion": camera(""),
}


def matrices(info: CameraInfo) -> tuple[Points, Points, Points]:
    """Return K, the left three columns of P, and R."""
    k, p = np.reshape(info.intrinsic, (3, 3)), np.reshape(info.projection, (3, 4))[:, :3]
    return k, np.ascontiguousarray(p), np.reshape(info.rectification, (3, 3))


def recorded(info: CameraInfo, points: Points) -> Points:
    """Return where points of the rectified picture, counted from its edge, were recorded: by OpenCV's projection."""
    k, p, r = matrices(info)
    rays = np.column_stack([points - 0.5, np.ones(len(points))]) @ np.linalg.inv(p @ r).T
    module: Any = cv2.fisheye if info.distortion_model == "equidistant" else cv2
    distortion = np.array(info.distortion or (0.0,) * 5)
    found = module.projectPoints(rays.reshape(-1, 1, 3), np.zeros(3), np.zeros(3), k, distortion)[0]
    return np.asarray(found).reshape(-1, 2) + 0.5


def outline(box: Points, steps: int = 400) -> Points:
    """Return many points of a box's outline, in their order."""
    left, top, right, bottom = box
    corners = np.array([(left, top), (right, top), (right, bottom), (left, bottom), (left, top)])
    return np.concatenate([np.linspace(*ends, steps) for ends in pairwise(corners)])


def bounds(points: Points) -> Points:
    """Return the box around points, cut off at the frame."""
    box: Points = np.clip(np.array([*points.min(0), *points.max(0)]), 0, np.array([*SIZE, *SIZE], float))
    return box


def paint(polygon: Points) -> npt.NDArray[np.uint8]:
    """Paint a frame black, and a polygon white, whose coordinates count from the edge of the first pixel."""
    large = np.zeros((HEIGHT * 4, WIDTH * 4), np.uint8)
    cv2.fillPoly(large, [np.rint((polygon * 4 - 0.5) * 16).astype(np.int32)], 255, cv2.LINE_8, 4)
    small: npt.NDArray[np.uint8] = cv2.resize(large, SIZE, interpolation=cv2.INTER_AREA).astype(np.uint8)
    return small


def overlap(one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> float:
    """Return the intersection over the union."""
    return float((one & other).sum() / (one | other).sum())


@pytest.mark.parametrize("name", CAMERAS)
def test_points_go_where_opencv_projects_them(name: str) -> None:
    """And those of the recorded picture come back."""
    found = rectification(CAMERAS[name], *SIZE)
    points = np.random.default_rng(3).uniform((0, 0), SIZE, (500, 2))
    there, is_seen = found.points_to_recorded(points)
    assert is_seen.all()
    np.testing.assert_allclose(there, recorded(CAMERAS[name], points), atol=1e-6)
    back, is_found = found.points_to_rectified(there)
    np.testing.assert_allclose(back[is_found], points[is_found], atol=0.01)
    assert is_found.all()


@pytest.mark.parametrize("name", [name for name in CAMERAS if name != "no distortion"])
def test_pixels_are_those_of_opencvs_own_maps(name: str) -> None:
    """Of colours, of grey and, by the nearest pixel, of distances."""
    info = CAMERAS[name]
    k, p, r = matrices(info)
    module: Any = cv2.fisheye if info.distortion_model == "equidistant" else cv2
    maps = module.initUndistortRectifyMap(k, np.array(info.distortion), r, p, SIZE, cv2.CV_16SC2)
    rng = np.random.default_rng(1)
    colours = rng.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    millimetres = rng.integers(1, 65536, (HEIGHT, WIDTH), np.uint16)
    found = rectification(info, *SIZE)
    for pixels in (colours, colours[:, :, 0]):
        expected = cv2.remap(pixels, maps[0], maps[1], cv2.INTER_LINEAR)
        assert np.mean(np.abs(found.apply(pixels).astype(int) - expected) > 2) < 0.002  # maps are rounded differently
    depth = found.apply(millimetres)
    assert np.isin(depth, [0, *millimetres.ravel()]).all()
    assert np.mean(depth != cv2.remap(millimetres, maps[0], maps[1], cv2.INTER_NEAREST)) < 0.005
    metres = found.apply(millimetres.astype(np.float32))
    np.testing.assert_array_equal(np.nan_to_num(metres), depth)


@pytest.mark.parametrize("resize", Resize)
@pytest.mark.parametrize("region", [None, (30, 20, 240, 150)])
@pytest.mark.parametrize("name", CAMERAS)
def test_boxes_and_masks_come_back_to_the_recorded_pixels(
    name: str, region: tuple[int, int, int, int] | None, resize: Resize
) -> None:
    """A box of the model's picture is, to a pixel, around what was recorded of it, and its mask covers that."""
    info, picture = CAMERAS[name], (128, 96)
    place = Placement.of(SIZE, picture, resize, region, info)
    left, top, width, height = place.region or (0, 0, *SIZE)
    scale = np.array([place.width / width, place.height / height])
    for box in ([40.0, 20, 70, 50], [20, 30, 120, 90], [60, 10, 64, 80]):
        inside = (np.array(box).reshape(2, 2) - (place.left, place.top)) / scale + (left, top)
        truth = recorded(info, outline(inside.ravel()))
        np.testing.assert_allclose(place.boxes_to_frame(np.array([box]))[0], bounds(truth), atol=1)
        mask = np.zeros(picture[::-1], np.uint8)
        mask[int(box[1]) : int(box[3]), int(box[0]) : int(box[2])] = 1
        mapped = place.mask_to_frame(mask)
        assert mapped.shape == (HEIGHT, WIDTH)
        wanted = np.where(mapped == UNKNOWN, 0, paint(truth))
        assert not (cv2.erode(wanted, SQUARE, borderValue=0) > 127)[mapped == 0].any()
        assert (cv2.dilate(wanted, SQUARE) > 127)[mapped == 1].all()
        assert overlap(mapped == 1, wanted > 127) > (0.95 if box[2] - box[0] > 4 else 0.85)


@settings(deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(CAMERAS)))
def test_any_box_is_around_what_was_recorded_of_it(data: st.DataObject, name: str) -> None:
    """Also one that reaches the edge of the rectified picture, or is as thin as a pixel."""
    sides = [sorted(data.draw(st.tuples(*[st.floats(0, side)] * 2))) for side in SIZE]
    box = np.array([sides[0][0], sides[1][0], sides[0][1], sides[1][1]])
    place = Placement.of(SIZE, SIZE, camera=CAMERAS[name])
    np.testing.assert_allclose(
        place.boxes_to_frame(box[np.newaxis])[0], bounds(recorded(CAMERAS[name], outline(box))), atol=1
    )


def test_what_the_model_saw_comes_back_pixel_for_pixel() -> None:
    """A rectified picture that is laid back is the recorded one, but for what the rectified one does not show."""
    smooth = cv2.GaussianBlur(np.random.default_rng(2).integers(0, 256, (HEIGHT, WIDTH), np.uint8), (0, 0), 6)
    pixels = cv2.normalize(smooth, None, 0, 255, cv2.NORM_MINMAX).astype(np.uint8)  # type: ignore[call-overload] # None
    found = rectification(replace(PLUMB_BOB, rectification=NO_TURN), *SIZE)
    back = found.to_recorded(found.apply(pixels), 0)
    seen = found.to_recorded(np.ones((HEIGHT, WIDTH), np.uint8), 0) == 1
    assert seen.mean() > 0.9
    inner = cv2.erode(seen.astype(np.uint8), SQUARE, iterations=2, borderValue=0) == 1
    assert np.abs(back.astype(int) - pixels)[inner].max() < 16
    assert np.abs(back.astype(int) - pixels)[inner].mean() < 2
    assert not back[~seen].any()


def test_beyond_the_sight_of_a_lens_is_nothing() -> None:
    """A fitted polynomial that turns back would show the middle of the picture again at its edge."""
    info = camera("plumb_bob", -0.5, 0.0, 0.0, 0.0, 0.0, focal=90.0, turn=NO_TURN)
    found = rectification(info, *SIZE)
    rectified = found.apply(np.full((HEIGHT, WIDTH), 255, np.uint8))
    radius = np.hypot(*(np.moveaxis(np.indices((HEIGHT, WIDTH)), 0, -1)[..., ::-1] - (158.0, 101.0)).T).T / (0.8 * 90)
    assert (rectified[radius < 0.8] == 255).all()
    assert not rectified[radius > np.sqrt(1 / 1.5) + 0.05].any()  # 1 - 3 * 0.5 * r^2 = 0
    box = Placement.of(SIZE, SIZE, camera=info).boxes_to_frame(np.array([[0.0, 0, *SIZE]]))
    assert (box[0, 2:] - box[0, :2] > 80).all()


def test_drivers_that_leave_out_p_and_r() -> None:
    """Then the picture keeps K, and is not turned."""
    bare = replace(PLUMB_BOB, rectification=(0.0,) * 9, projection=(0.0,) * 12)
    k = PLUMB_BOB.intrinsic
    full = replace(PLUMB_BOB, rectification=NO_TURN, projection=(*k[:3], 0.0, *k[3:6], 0.0, *k[6:], 0.0))
    pixels = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH), np.uint8)
    np.testing.assert_array_equal(rectification(bare, *SIZE).apply(pixels), rectification(full, *SIZE).apply(pixels))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 640}, "is of pictures of 640x200 pixels, and this one has 320x200"),
        ({"width": 0, "height": 0}, "0x0"),
        ({"intrinsic": (0.0,) * 9}, "not calibrated: K of its CameraInfo is 0"),
        ({"distortion_model": "thin glass"}, "'thin glass'.*plumb_bob, rational_polynomial, equidistant"),
        ({"distortion": (0.1, 0.2)}, "plumb_bob has 4 or 5 coefficients, not 2"),
        ({"distortion": (-1e30, 0.0, 0.0, 0.0, 0.0)}, "with D the lens sees nothing"),
        ({"distortion_model": "equidistant"}, "equidistant has 4 coefficients, not 5"),
        ({"distortion": (float("nan"),) * 5}, "not finite"),
        ({"projection": (float("inf"),) * 12}, "not finite"),
        ({"intrinsic": (1.0,) * 4}, "missing numbers"),
        ({"projection": (1.0,) + (0.0,) * 11}, "P and R lead to no picture"),
        ({"projection": (1e300,) * 12, "rectification": (1e300,) * 9}, "P and R lead to no picture"),
        (
            {"projection": (1e300, 0, 0, 0, 0, 1e300, 0, 0, 0, 0, 1e-9, 0), "rectification": NO_TURN},
            "P and R lead to no picture",
        ),
    ],
)
def test_bad_calibrations_are_refused(changes: dict[str, Any], message: str) -> None:
    """By what is wrong, whenever they are used."""
    for _ in range(2):
        with pytest.raises(BadImage, match=message):
            rectification(replace(PLUMB_BOB, **changes), *SIZE)


ANY = st.floats(allow_nan=False) | st.sampled_from([0.0, -1.0, 1e-300, 1e300, 5.0])


@settings(deadline=None, max_examples=60)
@given(
    model=st.sampled_from(["plumb_bob", "rational_polynomial", "equidistant", ""]),
    distortion=st.lists(ANY, max_size=8).map(tuple),
    k=st.tuples(*[ANY] * 9),
    r=st.tuples(*[ANY] * 9) | st.just(NO_TURN),
    p=st.tuples(*[ANY] * 12) | st.just(PLUMB_BOB.projection),
)
def test_a_calibration_of_any_numbers_is_refused_or_used(
    model: str, distortion: tuple[float, ...], k: tuple[float, ...], r: tuple[float, ...], p: tuple[float, ...]
) -> None:
    """Pictures keep their size, boxes are finite and inside the frame, and nothing else is raised."""
    info = CameraInfo(16, 12, model, distortion, k, r, p)
    try:
        found = rectification(info, 16, 12)
    except BadImage:
        return
    assert found.apply(np.full((12, 16, 3), 9, np.uint8)).shape == (12, 16, 3)
    place = Placement.of((16, 12), (16, 12), camera=info)
    assert place.mask_to_frame(np.ones((12, 16), np.uint8)).shape == (12, 16)
    boxes = place.boxes_to_frame(np.array([[0.0, 0, 16, 12], [3, 4, 5, 6]]))
    assert np.isfinite(boxes).all()
    assert (boxes >= 0).all()
    assert (boxes <= 16).all()
