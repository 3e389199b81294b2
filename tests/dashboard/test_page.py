"""The page at a running site: what a person does with it, what a tile draws, and what no view may do.

Pixels are compared, not what the page says of itself.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from mqinfer.edge_agent.sinks.drawing.overlay import palette
from mqinfer.lab.drives.labels import CLASSES
from mqinfer.protocol.states import WorkerStatus
from tests.dashboard.chromium import PageOf, Watched, script
from tests.dashboard.numbered import COLUMNS, LEVELS, ROWS, palette_rows
from tests.dashboard.pixels import mask_pixels
from tests.dashboard.publishing import Publisher, Stream
from tests.dashboard.running import PICTURES, STREET, QuietSite, RunningSite
from tests.patience import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.slow]  # processes

VIEWS = ("live", "streams", "workers", "models", "log")
FRAMES = 200 if os.environ.get("MQINFER_FAULTS") == "full" else 60
_AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"


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
    """In each drawn frame both canvases carry the number of the sequence that the tile states."""
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


def test_nothing_but_its_own_server(site: RunningSite, page_of: PageOf) -> None:
    """All views come without a console message, and every request goes to the dashboard."""
    watched = page_of(site.url)
    watched.wait_for_tiles(len(site.edges))
    for view in (*VIEWS, "live"):
        watched.show(view)
        watched.frames(30)
    assert watched.hosts == {urlsplit(site.url).netloc}
    assert watched.problems == []


def test_the_policy_blocks_what_is_injected(site: RunningSite, page_of: PageOf) -> None:
    """A script, a handler, a picture and a frame of elsewhere that got into the page do nothing."""
    watched = page_of(site.url)
    found: Any = watched.page.evaluate(script("inject"))
    assert found["injected"] == []
    assert {"img-src", "script-src-elem"} <= set(found["blocked"])


def test_accessibility(site: RunningSite, page_of: PageOf) -> None:
    """In no view axe-core finds what it calls serious or critical, in both themes, narrow and wide."""
    watched = page_of(site.url)
    watched.wait_for_tiles(len(site.edges))
    watched.page.evaluate(_AXE.read_text(encoding="utf-8") + "; undefined")
    found = {}
    for colours, width, view in product(("light", "dark"), (390, 1280), VIEWS):
        watched.page.emulate_media(color_scheme=colours)
        watched.page.set_viewport_size({"width": width, "height": 900})
        watched.show(view)
        watched.frames(30)
        found[f"{view}, {colours}, {width}"] = watched.page.evaluate(script("axe"))
    assert not any(found.values()), json.dumps(found, indent=1)


def test_nothing_is_wider_than_the_window(site: RunningSite, page_of: PageOf) -> None:
    """No view scrolls sideways, and each fills the window's width but for margins."""
    watched = page_of(site.url)
    watched.wait_for_tiles(len(site.edges))
    for width, view in product((390, 768, 1280, 2560), VIEWS):
        watched.page.set_viewport_size({"width": width, "height": 900})
        watched.show(view)
        watched.frames(5)
        wide = watched.page.evaluate("() => document.documentElement.scrollWidth")
        assert wide <= width, (view, width)
