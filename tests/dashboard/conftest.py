"""Fixtures for the tests of the dashboard in a browser."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest

from tests.chromium import chromium
from tests.dashboard.chromium import PageOf, Watched, open_page
from tests.dashboard.running import QuietSite, RunningSite, quiet_site, running_site


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium for the tests of one file; playwright's event loop would be in the way of other files."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSite]:
    """A running site for the tests of one file."""
    with running_site(tmp_path_factory.mktemp("site")) as running:
        yield running


@pytest.fixture(scope="module", name="quiet_site")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuietSite]:
    """A site without edges and workers for the tests of one file."""
    with quiet_site(tmp_path_factory.mktemp("site")) as running:
        yield running


@pytest.fixture
def page_of(browser: Any) -> Iterator[PageOf]:
    """Open pages that close after the test: `page_of(url, width=390, colours="dark")`."""
    with ExitStack() as stack:

        def opened(url: str, **options: Any) -> Watched:
            context: AbstractContextManager[Watched] = open_page(browser, url, **options)
            return stack.enter_context(context)

        yield opened


@pytest.fixture
def figure(
    capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> Callable[[str, object], None]:
    """Report a measurement, which no test depends on: `figure("marked lost after", "120 ms")`."""

    def report(name: str, value: object) -> None:
        record_property(name, value)
        with capsys.disabled():
            sys.stdout.write(f"\n{name}: {value}\n")

    return report
