"""A page on a machine that is too slow for what comes: it shows the latest, and hoards nothing."""

from __future__ import annotations

import numpy as np
import pytest

from tests.dashboard.chromium import Figure, PageOf
from tests.dashboard.numbered import CLASSES, mask_of, picture_of
from tests.dashboard.publishing import Frames, Load, Publisher, Stream, loaded
from tests.dashboard.running import QuietSite

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.full]  # processes

_STREAMS = [Stream(f"car-{number}", "front", "numbers") for number in range(8)]
_RATE, _LARGER, _SLOWER = 20, 8, 4
"""Results a second of each stream, factor on the size of the masks, and on the time that the page needs."""
_BEHIND_S, _ROUNDS = 5, 5
"""How far it may be behind, and how often that is measured at each load."""
_MEGABYTE = 1 << 20


def test_a_slow_page_shows_the_latest(quiet_site: QuietSite, page_of: PageOf, figure: Figure) -> None:
    """Most frames are left out, so that tiles catch up with what is published, and the heap keeps its size."""
    block = np.ones((_LARGER, _LARGER), np.uint8)
    masks = [np.kron(mask_of(number), block) for number in range(16)]
    pictures = [np.kron(picture_of(number), block[:, :, np.newaxis]) for number in range(16)]
    with Publisher(quiet_site.broker.url) as publisher:
        publisher.card("numbers", CLASSES)
    watched = page_of(quiet_site.url, width=2560, height=1440)  # only what is visible is drawn
    session = watched.page.context.new_cdp_session(watched.page)
    session.send("Emulation.setCPUThrottlingRate", {"rate": _SLOWER})
    load = Load(quiet_site.broker.url, _STREAMS, Frames.of(masks, pictures), rate=_RATE)
    with loaded(load):
        watched.wait_for_tiles(len(_STREAMS))
        heaps: list[int] = []
        behind: list[float] = []
        while len(behind) < _ROUNDS or behind[-1] > _BEHIND_S:  # the suite's timeout ends a page that never catches up
            watched.page.wait_for_timeout(4000)
            published = load.sent // len(_STREAMS)
            shown = [int(each or 0) for each in watched.attribute("tile", "data-sequence")]
            behind.append((published - min(shown)) / load.rate)
            heaps.append(watched.heap())
            if len(behind) % _ROUNDS == 0:  # a machine that has other work, too, needs a smaller load
                load.rate /= 2
    figure("seconds that a page at a fourth of the speed is behind", ", ".join(f"{each:.1f}" for each in behind))
    figure("its heap", ", ".join(f"{each / 1e6:.1f} MB" for each in heaps))
    assert max(heaps) < min(heaps) + 30 * _MEGABYTE
    assert watched.problems == []
