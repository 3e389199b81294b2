"""Many streams at once, and links that open what they were copied from."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from mqinfer.protocol.card import ClassInfo
from tests.dashboard.chromium import PageOf, Watched
from tests.dashboard.publishing import Load, Publisher, Stream, loaded
from tests.dashboard.running import QuietSite

pytestmark = [pytest.mark.broker, pytest.mark.slow]  # processes

MODEL = "seg"
STREAMS = [Stream(f"car-{1 + number // 4}", f"/camera/{number % 4}", MODEL) for number in range(16)]
_WHOLE = (
    "() => [...document.querySelectorAll(`[data-testid='tile']`)].map((each) => each.getBoundingClientRect())"
    ".filter(({ top, bottom, left, right }) => top >= document.querySelector('.shell').getBoundingClientRect().bottom"
    " && bottom <= document.querySelector('.status-bar').getBoundingClientRect().top && left >= 0"
    " && right <= window.innerWidth).length"
)


@pytest.fixture(scope="module")
def fleet(quiet_site: QuietSite) -> Iterator[QuietSite]:
    """A site with sixteen streams of one model with two classes of a name."""
    with Publisher(quiet_site.broker.url) as publisher:
        publisher.card(MODEL, (ClassInfo("low", (200, 30, 30)), ClassInfo("middle", (30, 200, 30))))
        publisher.worker("made-up.0", MODEL)
        with loaded(Load(quiet_site.broker.url, STREAMS, quiet_site.frames, rate=2, preview_every=1)):
            yield quiet_site


def fragment(watched: Watched) -> str:
    """Return what the address says behind its hash."""
    return str(urlsplit(watched.page.url).fragment)


@pytest.mark.parametrize(("width", "height"), [(1920, 1080), (1280, 800)])
def test_sixteen_streams_are_seen_whole(fleet: QuietSite, page_of: PageOf, width: int, height: int) -> None:
    """Each tile is in the window with its picture, and names the classes of its frame with their shares."""
    watched = page_of(fleet.url, width=width, height=height)
    watched.wait_for_tiles(len(STREAMS))
    assert watched.page.evaluate(_WHOLE) == len(STREAMS)
    watched.page.wait_for_function(
        "() => [...document.querySelectorAll(`[data-testid='legend']`)].filter((each) => /\\d %/.test(each.innerText))"
        ".length === 16"
    )
    assert watched.problems == []


def test_a_link_opens_what_it_was_copied_from(fleet: QuietSite, page_of: PageOf) -> None:
    """The address follows filter, selection and the enlarged tile; the back key leads to the view before."""
    watched = page_of(fleet.url)
    watched.wait_for_tiles(len(STREAMS))
    watched.page.get_by_test_id("filter").fill("car-2")
    watched.page.get_by_test_id("select-stream").select_option("car-2//camera/1")
    watched.page.get_by_test_id("select-className").select_option("low")
    watched.page.get_by_role("button", name="Enlarge /camera/1").click()
    watched.page.get_by_role("button", name="Back to all streams").wait_for(state="visible")
    assert fragment(watched) == "live?filter=car-2&stream=car-2//camera/1&class=low&tile=car-2/seg//camera/1"
    copied = page_of(watched.page.url)
    copied.page.wait_for_selector(".tile.enlarged[data-key='car-2/seg//camera/1']")
    assert copied.page.get_by_test_id("filter").input_value() == "car-2"
    assert copied.page.get_by_test_id("select-className").input_value() == "low"
    copied.show("streams")
    assert fragment(copied) == "streams?filter=car-2&stream=car-2//camera/1&class=low"
    copied.page.go_back()
    copied.page.wait_for_selector(".tile.enlarged[data-key='car-2/seg//camera/1']")
    copied.page.get_by_test_id("reset").click()
    assert fragment(copied) == "live?tile=car-2/seg//camera/1"
