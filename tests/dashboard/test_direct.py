"""The same page without the relay: at Mosquitto's own websockets, which are slow, with small masks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from mqinfer.broker.mosquitto.configuration import render
from mqinfer.broker.mosquitto.server import MosquittoServer
from tests.dashboard.chromium import PageOf
from tests.dashboard.numbered import CLASSES, mask_of, picture_of
from tests.dashboard.programs import Programs
from tests.dashboard.publishing import Frames, Load, Publisher, Stream, loaded
from tests.ports import free_port

pytestmark = [pytest.mark.broker, pytest.mark.slow]  # processes


@pytest.fixture
def direct(tmp_path: Path) -> Iterator[tuple[str, str, str]]:
    """Addresses of a page, of the broker, and of its websockets."""
    port = free_port()
    with (
        MosquittoServer(configuration=lambda chosen: render(chosen, websockets_port=port)) as broker,
        Programs(tmp_path, broker.url) as programs,
    ):
        url, _ = programs.dashboard("--direct", f"ws://127.0.0.1:{port}")
        yield url, broker.url, f"127.0.0.1:{port}"


def test_the_page_at_the_brokers_own_websockets(direct: tuple[str, str, str], page_of: PageOf) -> None:
    """Tiles, rows and previews come as by the relay, and requests go to the page's server and the broker alone."""
    url, broker, websockets = direct
    masks, pictures = ([make(number) for number in range(16)] for make in (mask_of, picture_of))
    frames = Frames.of(masks, pictures)
    with Publisher(broker) as publisher:
        publisher.card("numbers", CLASSES)
        publisher.worker("gpu.0", "numbers")
    with loaded(Load(broker, [Stream("car-1", "front", "numbers", "gpu.0")], frames, rate=5, preview_every=2)):
        watched = page_of(url)
        watched.wait_for_tiles(1)
        watched.page.wait_for_selector("[data-testid='tile-picture'][data-sequence]:not([data-sequence=''])")
        watched.show("workers")
        watched.page.wait_for_selector("[data-testid='worker-row'][data-name='gpu.0']")
    assert watched.hosts == {urlsplit(url).netloc, websockets}
    assert watched.problems == []
