"""The bounds of the tests' own browser."""

from __future__ import annotations

import pytest

from tests.chromium import chromium
from tests.dashboard.chromium import open_page


@pytest.mark.slow
def test_a_page_that_hangs_fails_its_test() -> None:
    """Nothing settles the promise: Chromium is killed, and the error says what took so long."""
    failed = pytest.raises(AssertionError, match="a page of about:blank took more than 2 s")
    with chromium() as browser, failed, open_page(browser, "about:blank", wait=False, most_s=2) as watched:
        watched.page.evaluate("() => new Promise(() => {})")
