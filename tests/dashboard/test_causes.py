"""What the page says of streams without results, of what the log leaves out, and of what a result holds."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.states import StreamState, WorkerStatus
from mqinfer.protocol.types import ErrorInfo, Outcome
from tests.dashboard.chromium import PageOf, Watched
from tests.dashboard.publishing import Publisher, Stream
from tests.dashboard.running import QuietSite
from tests.patience import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.slow]  # processes

MODEL = "odd_seg"
STREAM = Stream("car-1", "/front", MODEL)
AMBER = "rgb(125, 82, 0)"
_ERRORS_SAID = """(all) => {
    const number = (found) => Number(found?.[1].replace(",", "") ?? 0);
    const lines = [...document.querySelectorAll("[data-testid='log-row'][data-kind='error'] .summary")];
    const listed = lines.map((line) => number(/^([\\d,]+) \\u00d7/.exec(line.innerText)) || 1);
    const sampling = document.querySelector("[data-testid='log-sampling']").innerText;
    const unread = number(/([\\d,]+) messages were not read/.exec(sampling));
    return listed.reduce((sum, each) => sum + each, unread) === all;
}"""
"""Whether the log's lines of errors, and what it says that it has not read, are so many."""

_BROKEN = """() => {
    const broken = [];
    const texts = document.createTreeWalker(document.querySelector("tbody"), NodeFilter.SHOW_TEXT);
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
        const range = document.createRange();
        range.selectNodeContents(text);
        if (!/ /.test(text.data) && range.getClientRects().length > 1) broken.push(text.data);
    }
    return broken;
}"""
"""Words and parts of names that stand on more than one line."""


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


def test_a_tile_that_has_become_stale_says_why(quiet_site: QuietSite, page_of: PageOf, publisher: Publisher) -> None:
    """After results, the last worker of the model is lost: the tile is stale, and names the cause in amber."""
    publisher.worker("gpu-a.0", MODEL)
    state(publisher, 5)
    watched = page_of(quiet_site.url)
    watched.page.wait_for_selector("[data-testid='tile'][data-cause='']")
    sequences = itertools.count(1)

    def is_fresh() -> bool:  # a slow page may find the first results old
        publisher.result(STREAM, next(sequences), quiet_site.frames.masks[1])
        watched.wait_for_tiles(1)
        return watched.attribute("tile", "data-stale") == ["false"]

    wait_until(is_fresh)
    publisher.worker("gpu-a.0", MODEL, status=WorkerStatus.LOST)
    state(publisher, 5, no_worker=9)
    watched.page.wait_for_selector(f"[data-testid='tile'][data-stale='true'][data-cause='no worker for {MODEL}']")
    said = [each.inner_text() for each in watched.page.locator(".badge.warn").all()]
    assert said[0].startswith("stale · ")
    assert said[1] == f"no worker for {MODEL}"


def test_the_log_counts_what_it_leaves_out(quiet_site: QuietSite, page_of: PageOf, publisher: Publisher) -> None:
    """A burst is sampled and said to be; an opened result shows its classes and their shares."""
    publisher.card(MODEL, (ClassInfo("low", (200, 30, 30)), ClassInfo("middle", (30, 200, 30))))
    watched = page_of(quiet_site.url)
    watched.page.wait_for_selector("[data-testid='connection'][data-status='connected']")
    watched.show("log")
    sequences = itertools.count()

    def is_sampled() -> bool:  # what a busy machine publishes and reads slowly is no burst
        for _ in range(60):
            publisher.result(STREAM, next(sequences), quiet_site.frames.masks[1])
        watched.frames(20)
        said = watched.page.get_by_test_id("log-sampling").all_inner_texts()
        return re.search(r"\d of [\d,]+ results were listed", " ".join(said)) is not None

    wait_until(is_sampled)
    watched.page.locator("[data-testid='log-row'][data-kind='result'] button").first.click()
    answer = text_of(watched, "[data-testid='log-answer']")
    assert "low" in answer
    assert "%" in answer
    assert watched.problems == []


def test_no_error_is_left_out(quiet_site: QuietSite, page_of: PageOf, publisher: Publisher) -> None:
    """Of a burst each is counted, by stream and code; row and tile say that the last frames failed, until one comes."""
    publisher.card(MODEL)
    publisher.worker(STREAM.worker, MODEL)
    watched = page_of(quiet_site.url)
    watched.show("log")
    watched.page.wait_for_selector("[data-testid='log-row'][data-kind='state']")
    failures = {"inference_failed": (STREAM, 60), "bad_tensor": (Stream("car-2", "/front", MODEL), 20)}
    for code, (stream, count) in failures.items():
        for sequence in range(count):
            publisher.result(stream, sequence, outcome=Outcome.ERROR, error=ErrorInfo(code, "out of memory"))
    watched.page.wait_for_function(_ERRORS_SAID, arg=80)
    for code in failures:
        assert watched.page.locator("[data-testid='log-row'][data-kind='error']", has_text=code).count() == 1
    watched.page.get_by_test_id("select-stream").select_option("car-2//front")
    watched.page.locator("[data-testid='log-row']", has_text="inference_failed").wait_for(state="detached")
    assert watched.page.locator("[data-testid='log-row']", has_text="bad_tensor").count() == 1
    watched.page.get_by_test_id("reset").click()
    key = f"[data-key='{STREAM.client}/{MODEL}/{STREAM.source}']"
    cause = "the last frames failed: inference_failed"
    watched.show("streams")
    watched.page.locator(f"[data-testid='stream-row'][data-status='failing']{key}").get_by_text(cause).wait_for()
    watched.show("live")
    watched.page.wait_for_selector(f"[data-testid='tile'][data-cause='{cause}']{key}")
    publisher.result(STREAM, 1000, quiet_site.frames.masks[1])
    watched.page.wait_for_selector(f"[data-testid='tile'][data-cause='']{key}")
    watched.show("streams")
    watched.page.wait_for_selector(f"[data-testid='stream-row'][data-status='ready']{key}")


def test_long_names_break_between_their_parts(quiet_site: QuietSite, page_of: PageOf, publisher: Publisher) -> None:
    """No part of a name goes on in another line, and no column is out of sight, however narrow the table is."""
    model = "vehicle_detection_yolov8_large_1280x1280_int8_tensorrt"
    counts = {"superseded": 234, "no_worker": 26, "timeout": 4}
    stream = StreamState("/camera/front_left/image_raw", model, 7.5, 4, outcomes={"ok": 12345}, dropped=counts)
    publisher.client("vehicle-001", model=model, streams=(stream,))
    watched = page_of(quiet_site.url)
    watched.show("streams")
    watched.page.get_by_test_id("stream-row").wait_for(state="visible")
    for width in (900, 1000, 1060, 1100, 1280):
        watched.page.set_viewport_size({"width": width, "height": 760})
        watched.frames(5)
        assert watched.page.evaluate(_BROKEN) == [], width
        box = watched.page.locator(".table-box")
        assert box.evaluate("(each) => each.scrollWidth - each.clientWidth") <= 2, width
