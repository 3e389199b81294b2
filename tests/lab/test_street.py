from __future__ import annotations

import numpy as np
import pytest

from mqinfer.lab.drives.labels import Label
from mqinfer.lab.drives.street import StreetCamera
from mqinfer.protocol.errors import ConfigError


def test_a_frame_follows_from_its_seed_and_number() -> None:
    """Any frame can be rendered alone; the mask has a car exactly where a box or a car's edge is."""
    one, other = StreetCamera(4, 304, 304), StreetCamera(4, 304, 304)
    crowded = [number for number in range(200) if len(one.boxes(number))]
    scenes = {number: one.scene(number) for number in (0, crowded[2])}
    assert all(np.array_equal(scene.picture, other.scene(number).picture) for number, scene in scenes.items())
    left, top, right, bottom = (round(edge) for edge in one.boxes(crowded[2])[0])
    inside = scenes[crowded[2]].mask[top:bottom, left:right]
    assert (inside == Label.CAR).mean() > 0.5
    assert not len(one.boxes(0))
    assert not (scenes[0].mask == Label.CAR).any()


def test_most_of_the_picture_stands_still() -> None:
    """Two frames without cars differ by noise and light only; half of the frames or more have no car."""
    camera = StreetCamera(4, 304, 304)
    free = [number for number in range(300) if not len(camera.boxes(number))]
    one, other = (camera.scene(number).picture.astype(float) for number in free[:2])
    assert np.abs(one - other).mean() < 6
    assert 150 < len(free) < 300


@pytest.mark.parametrize(("seed", "width", "rate"), [(-1, 64, 1.0), (0, 31, 1.0), (0, 64, 0.0), (0, 64, float("nan"))])
def test_arguments_outside_their_bounds_are_refused(seed: int, width: int, rate: float) -> None:
    """A message with what is expected."""
    with pytest.raises(ConfigError, match="expected a seed of 0 or more"):
        StreetCamera(seed, width, 64, rate)
