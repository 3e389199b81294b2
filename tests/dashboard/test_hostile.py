"""A party of ill will at the broker: the page stays usable, runs nothing of it, and takes no more memory."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.dashboard.chromium import Figure, PageOf, Watched, script
from tests.dashboard.hostile import ATTACKS, COUNTED, MARK
from tests.dashboard.numbered import CLASSES
from tests.dashboard.publishing import Load, Publisher, Stream, loaded
from tests.dashboard.running import QuietSite

pytestmark = [pytest.mark.broker, pytest.mark.slow]  # processes

VIEWS = ("streams", "workers", "models", "log", "live")
_GOOD = Stream("car-1", "front", "numbers")
_FLOOD = [Stream(f"flood-{number}", "front", "numbers") for number in range(25)]
_MEGABYTE = 1 << 20
_MOST_HEAP = 100 * _MEGABYTE


def check(watched: Watched) -> None:
    """Assert that every view opens within a few frames, and that nothing of a stranger's markup is in it."""
    for view in VIEWS:
        took: Any = watched.page.evaluate(script("show_view"), view)
        assert took["frames"] <= 30, (view, took)
        for row in watched.page.get_by_test_id("log-row").all()[:5] if view == "log" else []:
            row.click()
        state = watched.page.evaluate(
            "(mark) => [window.executed, ({}).polluted, document.querySelectorAll(`.${mark}`).length]", MARK
        )
        assert state == [None, None, 0], view


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack(quiet_site: QuietSite, page_of: PageOf, attack: str) -> None:
    """A page that was open before shows the views and a good stream during and after it, as does one opened later."""
    quiet_site.forget()
    with Publisher(quiet_site.broker.url) as publisher, loaded(Load(quiet_site.broker.url, [_GOOD], quiet_site.frames)):
        publisher.card("numbers", CLASSES)
        before = page_of(quiet_site.url)
        before.wait_for_tiles(1)
        ATTACKS[attack](publisher)
        publisher.flush()
        check(before)
        if attack in COUNTED:
            before.page.wait_for_selector("[data-testid='dropped']:not([data-count='0'])")
        for watched in (before, page_of(quiet_site.url)):
            goes_on(watched)
            check(watched)
            assert watched.heap() < _MOST_HEAP
            assert watched.problems == []


def goes_on(watched: Watched) -> None:
    """Wait until the good stream's tile is fresh and draws another frame."""
    tile = "[data-testid='tile'][data-key*='car-1']"
    watched.page.wait_for_selector(f"{tile}[data-stale='false']")
    first = watched.page.get_attribute(tile, "data-sequence")
    watched.page.wait_for_function(
        "([tile, first]) => document.querySelector(tile).dataset.sequence !== first", arg=[tile, first]
    )


@pytest.mark.full
def test_a_flood(quiet_site: QuietSite, page_of: PageOf, figure: Figure) -> None:
    """500 results a second: views still open, what is not drawn is counted, and the heap stays where it was."""
    quiet_site.forget()
    watched = page_of(quiet_site.url)
    with loaded(Load(quiet_site.broker.url, _FLOOD, quiet_site.frames, rate=20)) as flood:
        watched.wait_for_tiles(5)
        first = watched.heap()
        sent, began = flood.sent, time.monotonic()
        while flood.sent < sent + 10_000:
            check(watched)
        figure("results a second of the flood", f"{(flood.sent - sent) / (time.monotonic() - began):.0f}")
        last = watched.heap()
        figure("heap before and after 10,000 more results of a flood", f"{first / 1e6:.1f} MB, {last / 1e6:.1f} MB")
    assert last < first + 30 * _MEGABYTE
    assert watched.problems == []
