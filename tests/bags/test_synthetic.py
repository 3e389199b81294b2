"""Synthetic drives: the same for the same seed, picture and mask in step, and plausible as a road scene."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqinfer.bags.sources import open_source
from mqinfer.images.decode import to_rgb
from mqinfer.images.lens import Distortion
from mqinfer.images.placement import fit
from mqinfer.images.rectification import rectification
from mqinfer.lab.drives.camera import Course, PinholeCamera
from mqinfer.lab.drives.lessons import lesson_drive, lessons_key
from mqinfer.lab.drives.recording import write_drive
from mqinfer.lab.drives.synthetic import CLASSES, Label, SyntheticDrive
from mqinfer.protocol.errors import ConfigError

WIDTH, HEIGHT = 242, 152


def small(seed: int, rate: float = 10.0) -> SyntheticDrive:
    """A drive whose frames render quickly."""
    return SyntheticDrive(seed, WIDTH, HEIGHT, rate)


def test_same_seed_same_frames() -> None:
    """A frame depends on seed and number alone, not on what was rendered before it."""
    first, second = small(11), small(11)
    first.scene(0)
    assert np.array_equal(first.scene(7).picture, second.scene(7).picture)
    assert np.array_equal(first.scene(3).mask, second.scene(3).mask)


def test_other_seed_other_drive() -> None:
    """Seeds differ in their masks, so it is not the noise alone."""
    masks = [small(seed).scene(0).mask for seed in range(6)]
    assert all((masks[0] != mask).mean() > 0.02 for mask in masks[1:])


def test_drive_moves() -> None:
    """Frames follow one another closely, and a second later the scene is another one."""
    drive = small(5)
    now, next_frame, later = (drive.scene(index).mask for index in (10, 11, 30))
    assert 0 < (now != next_frame).mean() < (now != later).mean()


@settings(max_examples=20)
@given(seed=st.integers(0, 10**9), index=st.integers(0, 10**5))
def test_any_frame_is_a_road_scene(seed: int, index: int) -> None:
    """Any seed and frame: right shapes, sky above, road below, and only classes that there are."""
    scene = small(seed).scene(index)
    assert scene.picture.shape == (HEIGHT, WIDTH, 3)
    assert scene.picture.dtype == scene.mask.dtype == np.uint8
    assert scene.mask.shape == (HEIGHT, WIDTH)
    assert scene.mask.max() < len(CLASSES)
    assert (scene.mask[-20:] != Label.SKY).all()
    road = {Label.ROAD, Label.LANE_MARK, Label.CAR}
    assert np.isin(scene.mask[-12:, WIDTH // 2 - 8 : WIDTH // 2 + 8], list(road)).mean() > 0.9
    assert Label.ROAD not in scene.mask[: HEIGHT // 3]


def test_all_classes_occur() -> None:
    """A handful of drives shows every class."""
    seen = {int(number) for seed in range(12) for number in np.unique(small(seed).scene(4).mask)}
    assert seen == set(Label) == set(range(len(CLASSES)))


def test_picture_agrees_with_mask() -> None:
    """Lane marks are brighter than the asphalt beside them, and sky bluer than asphalt, in every drive."""
    for seed in range(8):
        scene = SyntheticDrive(seed).scene(2)
        colour = {label: scene.picture[scene.mask == label].mean(axis=0) for label in (Label.ROAD, Label.LANE_MARK)}
        assert colour[Label.LANE_MARK].sum() > 1.25 * colour[Label.ROAD].sum()


def test_outlines_agree_to_the_pixel() -> None:
    """Where the mask steps from sky to building, the picture steps in the same row, not beside it."""
    steps_at_the_outline, steps_beside = [], []
    for seed in range(10):
        scene = SyntheticDrive(seed).scene(1)
        grey = scene.picture.astype(int).sum(axis=2)
        above, below = scene.mask[3:-4], scene.mask[4:-3]
        rows, columns = np.nonzero((above == Label.SKY) & (below == Label.BUILDING))
        steps_at_the_outline.append(np.abs(grey[rows + 4, columns] - grey[rows + 3, columns]))
        steps_beside.append(np.abs(grey[rows + 2, columns] - grey[rows + 1, columns]))
    assert np.concatenate(steps_at_the_outline).mean() > 5 * np.concatenate(steps_beside).mean()


def test_noise_and_exposure() -> None:
    """Flat sky is noisy from frame to frame, and the exposure drifts by a few per cent."""
    drive = SyntheticDrive(2)
    scenes = [drive.scene(index) for index in range(0, 60, 6)]
    sky = np.logical_and.reduce([scene.mask == Label.SKY for scene in scenes])
    light = [scene.picture[sky].mean() for scene in scenes]
    assert 0.02 < np.ptp(light) / np.mean(light) < 0.3
    noise = scenes[0].picture.astype(int) - drive.scene(1).picture
    assert 2 < noise[sky].std() < 9


@pytest.mark.parametrize(
    ("seed", "width", "height", "rate"), [(-1, 96, 64, 10.0), (0, 16, 64, 10.0), (0, 96, 31, 10.0), (0, 96, 64, 0.0)]
)
def test_bad_arguments(seed: int, width: int, height: int, rate: float) -> None:
    """Each is refused with what is allowed."""
    with pytest.raises(ConfigError, match="seed of 0 or more"):
        SyntheticDrive(seed, width, height, rate)


def test_classes_have_names_and_colours_of_their_own() -> None:
    """So that masks can be drawn and read."""
    assert len({info.name for info in CLASSES}) == len({info.colour for info in CLASSES}) == len(CLASSES)


def test_projection() -> None:
    """On a straight road: the horizon for far points, the pinhole formula for near ones, a metre as the nearest."""
    straight = Course((0.0,), (100.0,), (0.0,))
    view = PinholeCamera(968, 608, straight.offsets(12.0), right=0.0)
    assert view.project(np.array([1e9, 0.0, 0.0])) == pytest.approx([484, view.horizon], abs=1e-3)
    assert view.project(np.array([10.0, 2.0, 1.55])) == pytest.approx([484 + 0.2 * view.focal, view.horizon])
    assert view.project(np.array([-5.0, 1.0, 0.0])) == pytest.approx(view.project(np.array([1.0, 1.0, 0.0])))


def test_course_bends() -> None:
    """A constant curvature of 1/200 m is a parabola nearby: 25 m sideways after 100 m."""
    course = Course((0.005,), (1e12,), (np.pi / 2,))
    assert course.offsets(0.0)[100] == pytest.approx(25, rel=0.02)


def test_lessons() -> None:
    """A lesson is the drive's frame through a mosaic and back: nearly the picture, exactly the mask."""
    picture, mask = next(iter(islice(lesson_drive(3), 1, 2)))
    scene = SyntheticDrive(3, rate=1 / 4).scene(1)
    assert np.array_equal(mask, scene.mask)
    assert 0 < np.abs(picture.astype(int) - scene.picture).mean() < 6
    assert len(lessons_key()) == 64


@pytest.mark.parametrize("lens", Distortion)
def test_a_drive_through_a_lens(tmp_path: Path, lens: Distortion) -> None:
    """Bent frames with their calibration, and masks in step: rectified, the drive is as if there was no lens."""
    path = write_drive(
        tmp_path / "drive", ros=2, frames=1, seed=1, width=WIDTH, height=HEIGHT, encoding="rgb8", lens=lens
    )
    with closing(open_source(str(path), topics=["/camera/image_raw"])) as source:
        (frame,) = source.frames()
    assert frame.camera is not None
    assert frame.camera.distortion_model == lens
    rectified = rectification(frame.camera, WIDTH, HEIGHT).apply(to_rgb(frame.image))
    assert (rectified.max(axis=-1) > 0).mean() > 0.99
    plain = small(1).scene(0).picture
    focal = 0.78 * WIDTH
    zoom = frame.camera.projection[0] / focal
    middle = np.array([WIDTH / 2, HEIGHT / 2])
    x, y = np.rint(middle - middle / zoom).astype(int)
    part = fit(np.ascontiguousarray(plain[y : HEIGHT - y, x : WIDTH - x]), WIDTH, HEIGHT)
    assert np.abs(rectified.astype(int) - part).mean() < 8
    assert np.abs(to_rgb(frame.image).astype(int) - plain).mean() > 8
