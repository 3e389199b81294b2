"""The bounds of the tests' own browser."""

from __future__ import annotations

import pytest

from tests.chromium import at_most, chromium
from tests.dashboard.chromium import open_page


@pytest.mark.slow
def test_a_page_that_hangs_fails_its_test() -> None:
    """Nothing settles the promise: Chromium is killed, and the error says what took so long.

    The page is open by then: a browser that ends while it opens one can have Playwright wait for ever.
    """
    failed = pytest.raises(AssertionError, match="a promise took more than 2 s")
    with (
        chromium() as browser,
        failed,
        open_page(browser, "about:blank", wait=False) as watched,
        at_most(2, "a promise"),
    ):
        watched.page.evaluate("() => new Promise(() => {})")
