"""The system's Chromium without a window, for the tests of the JavaScript client and of the dashboard's page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["chromium"]

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
        pytest.skip("Chromium is not installed; run: apt-get install chromium libatomic1")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*_FLAGS, *flags])
        try:
            yield browser
        finally:
            browser.close()
