"""What the page must not do, in each view: errors, requests to others, violations of accessibility, inline scripts."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.dashboard.chromium import PageOf, script
from tests.dashboard.running import RunningSite

pytestmark = [pytest.mark.broker, pytest.mark.slow]  # processes

VIEWS = ("live", "streams", "workers", "models", "log")
_AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"


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
