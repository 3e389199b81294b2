"""The system's Chromium without a window, for the tests of the JavaScript client and of the dashboard's page."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

__all__ = ["at_most", "chromium"]

_MINE = f"--tests-of={os.getpid()}"
"""Stands in the command line of each Chromium that this process has started."""
_START_S, _END_S = 120.0, 60.0

_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--enable-precise-memory-info",  # else the heap's size comes in steps, and late
    # A page that nobody looks at is slowed down otherwise.
    "--disable-background-timer-throttling",
    "--disable-renderer-backgrounding",
    "--disable-backgrounding-occluded-windows",
)


@contextmanager
def chromium(*flags: str) -> Iterator[Any]:
    """Run a Chromium, as a playwright `Browser`.

    Args:
        *flags: Further ones.
    """
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("Chromium is not installed; scripts/setup does so on Debian")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        with at_most(_START_S, "the start of Chromium"):
            browser = playwright.chromium.launch(executable_path=program, args=[*_FLAGS, _MINE, *flags])
        try:
            yield browser
        finally:
            with at_most(_END_S, "the end of Chromium"):
                browser.close()


@contextmanager
def at_most(seconds: float, what: str) -> Iterator[None]:
    """Kill Chromium if this context takes longer, so that whatever waits for it fails and says what took so long.

    Playwright bounds its own waiting for elements; it waits without end for a script of a page that has hung, for a
    promise that nothing settles, and for the browser itself.
    """
    over = threading.Event()

    def kill() -> None:
        over.set()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                if _MINE.encode() in (process / "cmdline").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)

    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        assert not over.is_set(), f"{what} took more than {seconds:g} s; Chromium was killed"
