"""What the page says of streams without results, of what the log leaves out, and of what a result holds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.states import StreamState, WorkerStatus
from tests.dashboard.chromium import PageOf, Watched
from tests.dashboard.publishing import Publisher, Stream
from tests.dashboard.running import QuietSite

pytestmark = [pytest.mark.broker, pytest.mark.slow]  # processes

MODEL = "odd_seg"
STREAM = Stream("car-1", "/front", MODEL)
AMBER = "rgb(125, 82, 0)"


@pytest.fixture
def publisher(quiet_site: QuietSite) -> Iterator[Publisher]:
    """A publisher on a broker that keeps nothing of earlier tests."""
    quiet_site.forget()
    with Publisher(quiet_site.broker.url) as opened:
        yield opened


def state(publisher: Publisher, ok: int, **dropped: int) -> None:
    """Publish the state of an edge with one stream."""
    stream = StreamState(STREAM.source, MODEL, 7.5, 4, outcomes={"ok": ok}, dropped=dropped)
    publisher.client(STREAM.client, model=MODEL, streams=(stream,))


def text_of(watched: Watched, selector: str) -> str:
    """Return what an element shows."""
    found: str = watched.page.locator(selector).first.inner_text()
    return found


def test_a_stream_without_a_worker_says_so(quiet_site: QuietSite, page_of: PageOf, publisher: Publisher) -> None:
    """Its row is amber, its tile names the cause before any result came, and the log has what the client gave up."""
    publisher.worker("gpu-a.0", MODEL, status=WorkerStatus.LOST)
    state(publisher, 5)
    watched = page_of(quiet_site.url)
    watched.page.wait_for_selector(f"[data-testid='tile'][data-cause='no worker for {MODEL}']")
    assert f"no worker for {MODEL}" in text_of(watched, ".cause")
    watched.show("streams")
    row = "[data-testid='stream-row'][data-status='failing']"
    watched.page.wait_for_selector(row)
    assert f"no worker for {MODEL}" in text_of(watched, row)
    colour = watched.page.locator(f"{row} .trouble").evaluate("(each) => getComputedStyle(each).color")
    assert colour == AMBER
    state(publisher, 5, no_worker=26)
    watched.show("log")
    watched.page.wait_for_selector("[data-testid='log-row'][data-kind='error']")
    line = text_of(watched, "[data-kind='error']")
    assert "26 " in line
    assert "car-1 /front odd_seg: no_worker: settled by the client" in line
    publisher.worker("gpu-a.0", MODEL, status=WorkerStatus.READY)
    state(publisher, 9, no_worker=26)
    watched.show("streams")
    watched.page.wait_for_selector("[data-testid='stream-row'][data-status='ready']")


def test_the_log_counts_what_it_leaves_out(quiet_site: QuietSite, page_of: PageOf, publisher: Publisher) -> None:
    """A burst is sampled and said to be; an opened result shows its classes and their shares."""
    publisher.card(MODEL, (ClassInfo("low", (200, 30, 30)), ClassInfo("middle", (30, 200, 30))))
    watched = page_of(quiet_site.url)
    watched.page.wait_for_selector("[data-testid='connection'][data-status='connected']")
    watched.show("log")
    for sequence in range(60):
        publisher.result(STREAM, sequence, quiet_site.frames.masks[1])
    watched.page.wait_for_function(
        "() => document.querySelector(`[data-testid='log-sampling']`)?.innerText.includes(' of 60 results were listed')"
    )
    watched.page.locator("[data-testid='log-row'][data-kind='result'] button").first.click()
    answer = text_of(watched, "[data-testid='log-answer']")
    assert "low" in answer
    assert "%" in answer
    assert watched.problems == []
