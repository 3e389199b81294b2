"""The system's Chromium without a window, for the tests of the JavaScript client and of the dashboard's page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["chromium", "skip_without_chromium"]

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


def skip_without_chromium() -> str:
    """Return the path of Chromium; skip the test where it or playwright is absent."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no test in a browser")
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("Chromium is not installed; run: apt-get install chromium")
    return program


@contextmanager
def chromium(*flags: str) -> Iterator[Any]:
    """Run a Chromium, as a playwright `Browser`.

    Args:
        *flags: Further ones.
    """
    program = skip_without_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*_FLAGS, *flags])
        try:
            yield browser
        finally:
            browser.close()
