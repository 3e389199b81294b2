"""What the page shows of parts that end and come back: each test ends a part of its own."""

from __future__ import annotations

import pytest

from tests.dashboard.chromium import Figure, PageOf, script
from tests.dashboard.running import RunningSite
from tests.patience import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.slow]  # processes

_STALE = "[data-testid='tile'][data-key*='{client}'][data-stale='true']"
_FRESH = "[data-testid='tile'][data-key*='{client}'][data-stale='false']"


def test_a_killed_worker_is_marked_lost(site: RunningSite, page_of: PageOf, figure: Figure) -> None:
    """Its rows say so soon after the broker publishes its will; how soon is recorded."""
    watched = page_of(site.url)
    watched.show("workers")
    watched.page.wait_for_selector("[data-testid='worker-row'][data-name='gpu-b.0'][data-status='ready']")
    watched.page.evaluate(script("note_lost"), "gpu-b.")
    site.workers["gpu-b"].kill()
    wait_until(lambda: site.witness.state_came("gpu-b.0", "lost") is not None)
    watched.page.wait_for_function("() => window.lostAt['gpu-b.0'] !== undefined")
    came = site.witness.state_came("gpu-b.0", "lost")
    assert came is not None
    took = watched.page.evaluate("() => window.lostAt['gpu-b.0']") / 1000 - came
    figure("a killed worker is marked lost after its will by", f"{1000 * took:.0f} ms")
    assert took < 10, "a busy machine is slow, and not as slow as this"


def test_a_stopped_edge_turns_its_tile_stale(site: RunningSite, page_of: PageOf) -> None:
    """The tiles of the others stay as they are."""
    watched = page_of(site.url)
    watched.wait_for_tiles(len(site.edges))
    watched.page.wait_for_selector(_FRESH.format(client="car-2"))
    site.edges["car-2"].stop()
    watched.page.wait_for_selector(_STALE.format(client="car-2"))
    watched.page.wait_for_selector(_FRESH.format(client="car-1"))


def test_the_page_comes_back_after_the_broker(site: RunningSite, page_of: PageOf) -> None:
    """Without a reload, tiles go on with frames of after the restart; meanwhile a narrow window says so in full."""
    watched = page_of(site.url, width=390)
    tile = "[data-testid='tile'][data-key*='car-1']"
    watched.page.wait_for_selector(f"{tile}[data-sequence]")
    site.broker.kill()
    watched.page.wait_for_selector(f"{tile}[data-stale='true']")
    shown = int(watched.page.get_attribute(tile, "data-sequence") or 0)
    name, words = (watched.page.locator(part).bounding_box() for part in (".top h1", "[data-status='lost']"))
    assert name is not None
    assert words is not None
    assert name["x"] + name["width"] <= words["x"]
    site.broker.start()
    watched.page.wait_for_function(
        "([tile, shown]) => Number(document.querySelector(tile)?.dataset.sequence ?? 0) > shown", arg=[tile, shown + 5]
    )
    watched.page.wait_for_selector(f"{tile}[data-stale='false']")
