"""Drives the system's Chromium, and records what a page should not do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from tests.chromium import at_most

__all__ = ["PAGE", "Colours", "Figure", "PageOf", "Watched", "open_page", "private_bytes", "script"]

Colours: TypeAlias = Literal["light", "dark"]
Figure: TypeAlias = Callable[[str, object], None]
"""The fixture that reports a measurement."""

PAGE = Path(__file__).parents[2] / "mqinfer" / "dashboard" / "page" / "index.html"
_SCRIPTS = Path(__file__).parent / "in_page"
_PAGE_S = 300.0
"""How long a page may be open unless a test asks for more."""
PATIENCE_MS = 60_000
"""How long a page may take on a busy machine for what is else there at once."""


def script(name: str) -> str:
    """Return a function of the folder `in_page`, for `Page.evaluate`."""
    text = (_SCRIPTS / f"{name}.js").read_text(encoding="utf-8")
    return text.rstrip().removesuffix(";")


@dataclass(slots=True)
class Watched:
    """A page, and what happened in it.

    Attributes:
        page: A playwright `Page`.
        problems: Errors and warnings of the console, exceptions, and failed requests.
        requests: Address of each request and of each WebSocket.
    """

    page: Any
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @property
    def hosts(self) -> set[str]:
        """Host and port of each request that left the page."""
        split = (urlsplit(each) for each in self.requests)
        return {each.netloc for each in split if each.scheme not in {"blob", "data"}}

    def show(self, view: str) -> None:
        """Choose a view by its tab: `live`, `streams`, `workers`, `models` or `log`."""
        self.page.get_by_test_id(f"tab-{view}").click()
        self.page.get_by_test_id(f"view-{view}").wait_for(state="visible")

    def attribute(self, test_id: str, name: str) -> list[str | None]:
        """Return an attribute of each element with a test id."""
        found: list[str | None] = self.page.evaluate(
            "([id, name]) => [...document.querySelectorAll(`[data-testid='${id}']`)].map(e => e.getAttribute(name))",
            [test_id, name],
        )
        return found

    def wait_for_tiles(self, count: int) -> None:
        """Wait until so many tiles have drawn a frame, and scroll to those that the window does not show."""
        try:
            self.page.wait_for_function(script("tiles"), arg=count)
        except Exception as failed:
            failed.add_note(f"problems: {self.problems}; page: {self.page.evaluate(script('state'))}")
            raise

    def frames(self, count: int) -> None:
        """Let the page draw so many frames."""
        self.page.evaluate(
            "(count) => new Promise((done) => { const next = () => count-- > 0 ? requestAnimationFrame(next) : done();"
            " next(); })",
            count,
        )

    def heap(self) -> int:
        """Return the bytes of JavaScript's heap after a collection."""
        session = self.page.context.new_cdp_session(self.page)
        try:
            for _ in range(3):  # what a finalizer holds goes with the next one
                session.send("HeapProfiler.collectGarbage")
            return int(session.send("Runtime.getHeapUsage")["usedSize"])
        finally:
            session.detach()


PageOf: TypeAlias = Callable[..., Watched]
"""The fixture that opens pages."""


@contextmanager
def open_page(
    browser: Any,
    url: str,
    *,
    width: int = 1280,
    height: int = 900,
    colours: Colours = "light",
    wait: bool = True,
    most_s: float = _PAGE_S,
) -> Iterator[Watched]:
    """Open a page in a context of its own, without what earlier ones stored.

    Args:
        browser: From `chromium`.
        url: Address of the page.
        width: Of the window, in pixels.
        height: Of the window, in pixels.
        colours: What the system prefers.
        wait: Whether to wait for its tabs.
        most_s: How long it may be open.

    Raises:
        AssertionError: It was open for longer.
    """
    with at_most(most_s, f"a page of {url}"):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=colours)
        context.set_default_timeout(PATIENCE_MS)
        try:
            page = context.new_page()
            watched = Watched(page)
            page.on("console", lambda message: _console(watched, message))
            page.on("pageerror", lambda error: watched.problems.append(f"exception: {error}"))
            page.on("request", lambda request: watched.requests.append(request.url))
            page.on("websocket", lambda socket: watched.requests.append(socket.url))
            page.on("requestfailed", lambda request: watched.problems.append(f"{request.url} {request.failure}"))
            page.goto(url)
            if wait:
                page.get_by_test_id("tab-live").wait_for(state="visible")
            yield watched
        finally:
            context.close()


def _console(watched: Watched, message: Any) -> None:
    if message.type in {"error", "warning", "assert"}:
        watched.problems.append(f"{message.type}: {message.text}")


def private_bytes(browser: Any) -> int:
    """Return the memory that the browser's pages share with no other process, in bytes."""
    session = browser.new_browser_cdp_session()
    try:
        processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    finally:
        session.detach()
    total = 0
    for process in processes:
        if process["type"] == "renderer":
            rows = Path(f"/proc/{process['id']}/smaps_rollup").read_text(encoding="ascii").splitlines()
            total += 1024 * sum(int(row.split()[1]) for row in rows if row.startswith("Private_"))
    return total
