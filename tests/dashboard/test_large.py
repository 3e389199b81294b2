"""Results of 2 MB through the relay in the browser, and who may use the relay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mqinfer.codecs import encode_tensor
from mqinfer.protocol.topics import Topics
from tests.dashboard.chromium import Figure, PageOf, script
from tests.dashboard.publishing import Frames, Load, Stream, loaded
from tests.dashboard.running import QuietSite
from tests.patience import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.slow]  # processes

_SIDE = 1448
"""Pixels of a square mask of 2 MB."""


@pytest.mark.full
def test_results_of_2_megabytes(quiet_site: QuietSite, page_of: PageOf, figure: Figure) -> None:
    """The tile goes on, and a bare client in the page gets them as fast as they are published."""
    noise = np.random.default_rng(3).integers(0, 9, (_SIDE, _SIDE), dtype=np.uint8)
    raw = encode_tensor("output", noise, "raw")
    small = encode_tensor("preview", np.zeros((64, 64, 3), np.uint8), "jpeg")
    frames = Frames((raw,), (small,), (_SIDE, _SIDE))
    watched = page_of(quiet_site.url)
    exchange = {
        "url": quiet_site.url.replace("http", "ws") + "mqtt",
        "subscribe": [f"{Topics().root}/results/+/+/+"],
        "publish": [],
        "expect": 100,
        "timeoutMs": 120_000,
    }
    watched.page.evaluate(f"(exchange) => {{ window.exchange = ({script('bare_mqtt')})(exchange); }}", exchange)
    # The browser reports each frame to playwright, whose answers queue behind that: none is asked for meanwhile.
    load = Load(quiet_site.broker.url, [Stream("large", "front", "numbers")], frames, rate=12)
    with loaded(load):
        wait_until(lambda: load.sent >= 150)
    found: Any = watched.page.evaluate("() => window.exchange")
    rate = 1000 * (found["messages"] - 1) / found["ms"]
    figure("results of 2 MB a second through the relay, published at 12", f"{rate:.1f}")
    assert found["messages"] == 100
    assert found["bytes"] > 100 * _SIDE * _SIDE
    watched.page.wait_for_function(
        "() => Number(document.querySelector(`[data-testid='tile'][data-key*='large']`).dataset.sequence) > 100"
    )
    assert watched.problems == []


def test_pages_of_other_origins_are_refused(quiet_site: QuietSite, page_of: PageOf) -> None:
    """A script on another site can open no connection, nor one without an origin."""
    exchange = {
        "url": quiet_site.url.replace("http", "ws") + "mqtt",
        "subscribe": [],
        "publish": [],
        "expect": 0,
        "timeoutMs": 60_000,
    }
    watched = page_of(quiet_site.url)
    assert watched.page.evaluate(script("bare_mqtt"), exchange)["connack"] == 0
    watched.page.route(
        "http://elsewhere.test/**", lambda route: route.fulfill(body="<p>elsewhere", content_type="text/html")
    )
    for other in ("http://elsewhere.test/", "data:text/html,<p>nowhere"):
        watched.page.goto(other)
        found = watched.page.evaluate(script("bare_mqtt"), exchange)
        assert (found["opened"], found["connack"]) == (False, None), other
