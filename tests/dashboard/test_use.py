"""What a person does with the page: keys, pause and step, selection, theme, one stream enlarged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mqinfer.edge_agent.sinks.drawing.overlay import palette
from mqinfer.lab.drives.labels import CLASSES
from mqinfer.protocol.states import WorkerStatus
from tests.dashboard.chromium import PageOf, Watched
from tests.dashboard.pixels import mask_pixels
from tests.dashboard.publishing import Publisher, Stream
from tests.dashboard.running import STREET, QuietSite, RunningSite
from tests.patience import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.slow]  # processes

VIEWS = ("live", "streams", "workers", "models", "log")


def sequences(watched: Watched) -> list[str | None]:
    """Return what each tile shows."""
    return watched.attribute("tile-mask", "data-sequence")


def test_keys_open_the_views(site: RunningSite, page_of: PageOf) -> None:
    """1 to 5, the arrows among the tabs, and the browser's back button; the question mark opens the help."""
    watched = page_of(site.url)
    for number, view in enumerate(VIEWS, 1):
        watched.page.keyboard.press(str(number))
        watched.page.get_by_test_id(f"view-{view}").wait_for(state="visible")
    watched.page.go_back()
    watched.page.get_by_test_id("view-models").wait_for(state="visible")
    watched.page.get_by_test_id("tab-models").focus()
    watched.page.keyboard.press("ArrowLeft")
    watched.page.get_by_test_id("view-workers").wait_for(state="visible")
    watched.page.keyboard.press("?")
    watched.page.get_by_test_id("help-dialog").wait_for(state="visible")
    watched.page.keyboard.press("Escape")
    watched.page.get_by_test_id("help-dialog").wait_for(state="hidden")
    assert watched.problems == []


def test_everything_can_be_reached_by_the_tab_key(site: RunningSite, page_of: PageOf) -> None:
    """Each control gets the focus in turn, and shows it."""
    watched = page_of(site.url)
    watched.wait_for_tiles(len(site.edges))
    reached: set[str] = set()
    for _ in range(60):
        watched.page.keyboard.press("Tab")
        found: Any = watched.page.evaluate(
            "() => { const now = document.activeElement; const style = getComputedStyle(now);"
            " return [now.dataset.testid ?? now.tagName,"
            " style.outlineStyle !== 'none' || style.boxShadow !== 'none']; }"
        )
        reached.add(found[0])
        assert found[0] == "BODY" or found[1], f"{found[0]} has the focus and does not show it"
    assert {"pause", "theme", "filter", "select-stream", "select-model"} <= reached


def test_pause_and_step(site: RunningSite, page_of: PageOf) -> None:
    """No tile changes while the page is paused, but for one frame of each with a step."""
    watched = page_of(site.url)
    watched.wait_for_tiles(len(site.edges))
    watched.page.keyboard.press(" ")
    watched.page.wait_for_selector("[data-testid='pause'][aria-pressed='true']")
    watched.frames(30)  # what is being decoded comes to its end
    shown = sequences(watched)
    results = site.witness.results_of("car-1")
    wait_until(lambda: site.witness.results_of("car-1") > results)
    watched.page.wait_for_timeout(2000)
    assert sequences(watched) == shown
    watched.page.keyboard.press(".")
    watched.page.wait_for_function(
        "(shown) => [...document.querySelectorAll(`[data-testid='tile-mask']`)]"
        ".every((each, index) => each.dataset.sequence !== shown[index])",
        arg=shown,
    )
    watched.frames(30)
    stepped = sequences(watched)
    watched.page.wait_for_timeout(1000)
    assert sequences(watched) == stepped
    watched.page.get_by_test_id("pause").click()
    watched.page.wait_for_function(
        "(shown) => [...document.querySelectorAll(`[data-testid='tile-mask']`)]"
        ".every((each, index) => Number(each.dataset.sequence) > Number(shown[index]) + 3)",
        arg=stepped,
    )


def test_steps_go_by_the_time_of_capture(quiet_site: QuietSite, page_of: PageOf) -> None:
    """With each step a fast stream shows the frame that was captured with the next one of a slow stream."""
    fast, slow = Stream("car-1", "/fast", "seg"), Stream("car-2", "/slow", "seg")
    with Publisher(quiet_site.broker.url) as publisher:
        watched = page_of(quiet_site.url)
        publisher.worker("gpu-a.0", "seg")
        watched.show("workers")
        watched.page.get_by_test_id("worker-row").first.wait_for(state="visible")
        watched.show("live")
        for stream in (fast, slow):
            publisher.result(stream, 0, quiet_site.frames.masks[0])
        watched.wait_for_tiles(2)
        watched.page.keyboard.press(" ")
        watched.page.wait_for_selector("[data-testid='pause'][aria-pressed='true']")
        for sequence in range(1, 13):
            for stream in (fast, slow) if sequence % 4 == 0 else (fast,):
                publisher.result(stream, sequence, quiet_site.frames.masks[sequence])
        publisher.worker("gpu-a.0", "seg", status=WorkerStatus.LOST)
        watched.page.wait_for_selector("[data-testid='tab-workers'] .alarm")  # so the page has what came before
        for wanted in ("4", "8", "12"):
            watched.page.keyboard.press(".")
            watched.page.wait_for_function(
                "(wanted) => [...document.querySelectorAll(`[data-testid='tile-mask']`)]"
                ".every((each) => each.dataset.sequence === wanted)",
                arg=wanted,
            )


def test_selection(site: RunningSite, page_of: PageOf) -> None:
    """A stream, a model and words leave their tiles; a class leaves its pixels."""
    watched = page_of(site.url)
    watched.wait_for_tiles(len(site.edges))
    tiles = watched.page.get_by_test_id("tile")
    watched.page.get_by_test_id("select-model").select_option(STREET)
    watched.page.wait_for_function("() => document.querySelectorAll(`[data-testid='tile']`).length === 1")
    watched.page.get_by_test_id("reset").click()
    watched.page.get_by_test_id("filter").fill("car-2")
    watched.page.wait_for_function("() => document.querySelectorAll(`[data-testid='tile']`).length === 1")
    assert "car-2" in (tiles.first.get_attribute("data-key") or "")
    watched.page.get_by_test_id("filter").fill("")
    watched.wait_for_tiles(len(site.edges))
    _, pixels = mask_pixels(watched, "car-3")
    colours = palette(CLASSES)[: len(CLASSES)]
    chosen = int(np.argmax([(pixels[:, :, :3] == colour).all(axis=2).sum() for colour in colours]))
    watched.page.get_by_test_id("select-className").select_option(CLASSES[chosen].name)
    watched.frames(30)
    sequence, pixels = mask_pixels(watched, "car-3")
    mask = site.witness.mask("car-3", "/camera/image_raw", sequence)
    assert np.array_equal(pixels[:, :, 3] == 255, mask == chosen)
    assert (pixels[:, :, :3][mask == chosen] == colours[chosen]).all()


def test_a_stream_enlarged(site: RunningSite, page_of: PageOf) -> None:
    """It has the view for itself, and goes on; Escape leads back."""
    watched = page_of(site.url)
    watched.wait_for_tiles(len(site.edges))
    small = watched.page.get_by_test_id("tile-mask").first.bounding_box()["width"]
    watched.page.keyboard.press("f")
    watched.page.wait_for_function("() => document.querySelectorAll(`[data-testid='tile']`).length === 1")
    mask = watched.page.get_by_test_id("tile-mask")
    mask.wait_for(state="visible")
    assert mask.bounding_box()["width"] > small
    watched.page.keyboard.press("Escape")
    watched.wait_for_tiles(len(site.edges))


def test_the_theme_is_kept(site: RunningSite, page_of: PageOf) -> None:
    """It follows the system until one is chosen, which a reload keeps."""
    watched = page_of(site.url, colours="dark")
    colour = "() => getComputedStyle(document.documentElement).backgroundColor"
    dark = watched.page.evaluate(colour)
    watched.page.emulate_media(color_scheme="light")
    light = watched.page.evaluate(colour)
    assert dark != light
    watched.page.get_by_test_id("theme").click()
    watched.page.wait_for_function(
        "(dark) => getComputedStyle(document.documentElement).backgroundColor === dark", arg=dark
    )
    watched.page.reload()
    watched.page.get_by_test_id("tab-live").wait_for(state="visible")
    assert watched.page.evaluate(colour) == dark
