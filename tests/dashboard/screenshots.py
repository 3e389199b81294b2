"""Takes pictures of every view, for a person to look at: `python -m tests.dashboard.screenshots FOLDER`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mqinfer.lab.drives.labels import CLASSES
from mqinfer.lab.drives.synthetic import SyntheticDrive
from mqinfer.protocol.states import StreamState, WorkerStatus
from tests.chromium import chromium
from tests.dashboard.chromium import Colours, open_page
from tests.dashboard.publishing import Frames, Load, Publisher, Stream, loaded
from tests.dashboard.running import QuietSite, quiet_site

_VIEWS = ("live", "streams", "workers", "models", "log")
_COLOURS: tuple[Colours, ...] = ("light", "dark")
_SIZES = {390: 844, 1280: 800, 1920: 1080}
_MODEL = "street"


def take(folder: Path) -> None:
    """Write `VIEW-STREAMS-COLOURS-WIDTH.png` of what the window shows, then `…-dead…` of all workers lost."""
    folder.mkdir(parents=True, exist_ok=True)
    drive = SyntheticDrive(5, 480, 300)
    scenes = [drive.scene(index) for index in range(24)]
    frames = Frames.of([scene.mask for scene in scenes], [scene.picture for scene in scenes])
    with TemporaryDirectory() as place, quiet_site(Path(place)) as site, chromium() as browser:
        for count in (1, 5, 16):
            with _fleet(site, frames, count):
                _pages(folder, site, browser, str(count), count)
            site.forget()
        with Publisher(site.broker.url) as publisher:
            _state(publisher, 16, {"no_worker": 40}, WorkerStatus.LOST)
            _pages(folder, site, browser, "dead", 0)


@contextmanager
def _fleet(site: QuietSite, frames: Frames, count: int) -> Iterator[None]:
    with Publisher(site.broker.url) as publisher:
        _state(publisher, count, {}, WorkerStatus.READY)
        with loaded(Load(site.broker.url, _streams(count), frames, rate=8, preview_every=2)):
            yield


def _streams(count: int) -> list[Stream]:
    return [Stream(f"car-{1 + number // 4}", f"/camera/{number % 4}", _MODEL, "gpu-a.0") for number in range(count)]


def _state(publisher: Publisher, count: int, dropped: dict[str, int], status: WorkerStatus) -> None:
    publisher.card(_MODEL, CLASSES)
    for name in ("gpu-a.0", "gpu-b.0"):
        publisher.worker(name, _MODEL, status=status)
    streams = _streams(count)
    for client in sorted({stream.client for stream in streams}):
        own = (
            StreamState(each.source, _MODEL, 8.0, 4, outcomes={"ok": 120, "error": 40}, dropped=dropped)
            for each in streams
            if each.client == client
        )
        publisher.client(client, model=_MODEL, streams=tuple(own))


def _pages(folder: Path, site: QuietSite, browser: Any, name: str, tiles: int) -> None:
    for (width, height), colours in product(_SIZES.items(), _COLOURS):
        with open_page(browser, site.url, width=width, height=height, colours=colours) as watched:
            watched.wait_for_tiles(tiles)
            watched.page.wait_for_timeout(4000)  # charts need some seconds to show anything
            for view in _VIEWS:
                watched.show(view)
                watched.frames(20)
                if view == "log" and tiles:
                    watched.page.locator("[data-testid='log-row'][data-kind='result'] button").first.click()
                watched.page.screenshot(path=folder / f"{view}-{name}-{colours}-{width}.png")
            sys.stdout.write("".join(f"{problem}\n" for problem in watched.problems))


if __name__ == "__main__":
    take(Path(sys.argv[1]))
