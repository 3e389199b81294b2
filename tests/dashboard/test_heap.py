"""A page that stays open keeps its memory, at 8 streams of 20 results a second."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from tests.dashboard.chromium import Figure, PageOf, private_bytes
from tests.dashboard.numbered import CLASSES
from tests.dashboard.publishing import Load, Publisher, Stream, loaded
from tests.dashboard.running import QuietSite

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.full]  # processes

_STREAMS = [Stream(f"car-{number}", "front", "numbers") for number in range(8)]
_FULL = os.environ.get("MQINFER_FAULTS") == "full"
_FIRST_S, _LAST_S = (60, 600) if _FULL else (20, 60)
"""When the heap is measured. With `MQINFER_FAULTS=full` after one minute and after ten."""
_ROOM = 3 << 20


@pytest.mark.timeout(1200)
def test_the_heap_does_not_grow(quiet_site: QuietSite, page_of: PageOf, browser: Any, figure: Figure) -> None:
    """It is within 10 % of what it was, or 3 MB where that is more."""
    with Publisher(quiet_site.broker.url) as publisher:
        publisher.card("numbers", CLASSES)
        for stream in _STREAMS:
            publisher.client(stream.client, source="front", model="numbers")
    watched = page_of(quiet_site.url, width=1920, height=1080, most_s=900)
    with loaded(Load(quiet_site.broker.url, _STREAMS, quiet_site.frames, rate=20)) as load:
        watched.wait_for_tiles(len(_STREAMS))
        began = time.monotonic()
        found = []
        for moment in (_FIRST_S, (_FIRST_S + _LAST_S) / 2, _LAST_S):
            watched.page.wait_for_timeout(max(0.0, 1000 * (began + moment - time.monotonic())))
            found.append((watched.heap(), private_bytes(browser)))
        rate = load.sent / (time.monotonic() - began)
    figure("results a second that were published", f"{rate:.0f}")
    for name, (heap, private) in zip(("first", "middle", "last"), found, strict=True):
        figure(f"heap and private memory of the renderers, {name}", f"{heap / 1e6:.1f} MB, {private / 1e6:.0f} MB")
    first, last = found[0][0], found[-1][0]
    assert last <= max(first * 1.1, first + _ROOM)
    assert watched.problems == []
