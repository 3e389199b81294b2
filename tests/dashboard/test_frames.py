"""What a tile draws, in Chromium, of real edges and workers: pixels are compared, not what the page says of itself."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from mqinfer.edge_agent.sinks.drawing.overlay import palette
from mqinfer.lab.drives.labels import CLASSES
from tests.dashboard.chromium import PageOf, script
from tests.dashboard.numbered import COLUMNS, LEVELS, ROWS, palette_rows
from tests.dashboard.pixels import mask_pixels
from tests.dashboard.running import PICTURES, RunningSite

pytestmark = [pytest.mark.broker, pytest.mark.slow]  # processes

FRAMES = 200


def test_masks_have_the_palette_of_the_classes(site: RunningSite, page_of: PageOf) -> None:
    """Each pixel of a mask's canvas has the card's colour of the class that another client decoded there."""
    watched = page_of(site.url)
    watched.wait_for_tiles(len(site.edges))
    colours, seen, classes = palette(CLASSES), Counter[int](), set[int]()
    while len(seen) < 20:
        sequence, pixels = mask_pixels(watched, "car-3")
        mask = site.witness.mask("car-3", "/camera/image_raw", sequence)
        assert (pixels[:, :, 3] == 255).all()
        assert np.array_equal(pixels[:, :, :3], colours[mask])
        seen[sequence] += 1
        classes.update(np.unique(mask).tolist())
    assert len(classes) > 2, "the model sees one class everywhere"


def test_mask_and_picture_are_of_one_frame(site: RunningSite, page_of: PageOf) -> None:
    """In each of 200 drawn frames both canvases carry the number of the sequence that the tile states."""
    watched = page_of(site.url)
    watched.wait_for_tiles(len(site.edges))
    shape = {"count": FRAMES, "rows": ROWS, "columns": COLUMNS, "levels": LEVELS, "palette": palette_rows()}
    seen = watched.page.evaluate(script("numbers"), shape | {"keys": ["car-1", "car-2"], "timeoutMs": 240_000})
    assert len(seen) == FRAMES
    for each in seen:
        number = int(each["sequence"]) % PICTURES
        assert each["mask"] == each["picture"] == each["sequence"], each
        assert each["inMask"] == each["inPicture"] == number, each
    assert len({each["key"] for each in seen}) == 2
