"""Takes pictures of every view, for a person to look at: `python -m tests.dashboard.screenshots FOLDER`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.lab import zoo
from mqinfer.lab.drives.labels import CLASSES
from mqinfer.lab.drives.lessons import lesson_drive, lessons_key
from mqinfer.lab.drives.recording import write_drive
from tests.chromium import chromium
from tests.dashboard.chromium import Colours, Watched, open_page
from tests.dashboard.programs import Program, Programs

_VIEWS = ("live", "streams", "workers", "models", "log")
_COLOURS: tuple[Colours, ...] = ("light", "dark")
_SIZES = {390: 844, 1280: 800, 1920: 1080}
_COUNTS = (1, 5, 16)
_MODEL = "drive_segmentation_onnx"
_FRAMES_S = 8.0
"""Frames a second of all streams together: what a small machine answers beside a browser."""
_SETTLED_MS, _DRAWN_MS = 8000, 1000
"""Charts need some seconds to show anything; a picture waits until the new size and colours are drawn."""


def take(folder: Path) -> None:
    """Write `VIEW-STREAMS-COLOURS-WIDTH.png` of what the window shows.

    After all workers were killed: `…-dead…` of the page that was open, `…-late…` of one that is opened then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as place, chromium() as browser:
        parts = Path(place)
        zoo.build(parts / "models", [_MODEL], lessons=zoo.Lessons(lesson_drive, CLASSES, lessons_key()))
        write_drive(parts / "drive.bag", ros=1, frames=40, seed=5, width=480, height=300, truth_topic=False)
        for count in _COUNTS:
            with _site(parts, count) as (url, workers):
                with _page(browser, url) as watched:
                    watched.wait_for_tiles(count)
                    _views(folder, watched, str(count))
                    if count < max(_COUNTS):
                        continue
                    for worker in workers:
                        worker.kill()
                    _views(folder, watched, "dead")
                with _page(browser, url) as watched:
                    _views(folder, watched, "late")


@contextmanager
def _site(parts: Path, count: int) -> Iterator[tuple[str, list[Program]]]:
    """Run a broker, a dashboard, two workers, and edges of up to four cameras each."""
    logs = parts / str(count)
    logs.mkdir()
    with MosquittoServer() as broker, Programs(logs, broker.url) as started:
        url, _ = started.dashboard()
        workers = [
            started.start("worker", "--repository", parts / "models", "--name", name, "--threads", "1")
            for name in ("gpu-a", "gpu-b")
        ]
        paced = ("--loop", "--rate", str(_FRAMES_S / count / 10), "--policy", "latest", "--preview", "5")
        for first in range(0, count, 4):
            cameras = [f"{side}={parts / 'drive.bag'}" for side in ("front", "left", "right", "rear")[: count - first]]
            started.start("replay", *cameras, "--model", _MODEL, "--name", f"car-{1 + first // 4}", *paced)
        yield url, workers


@contextmanager
def _page(browser: Any, url: str) -> Iterator[Watched]:
    """Open the page, and print what went wrong in it."""
    with open_page(browser, url, width=1920, height=1080) as watched:
        yield watched
        sys.stdout.write("".join(f"{problem}\n" for problem in watched.problems))


def _views(folder: Path, watched: Watched, state: str) -> None:
    """Write a picture of each view in each size and colour."""
    page = watched.page
    page.wait_for_timeout(_SETTLED_MS)
    for view, (width, height), colours in product(_VIEWS, _SIZES.items(), _COLOURS):
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=colours)
        watched.show(view)
        row = page.locator("[data-testid='log-row'][data-kind='result'] button").first
        if view == "log" and row.count() and not page.locator("section.detail").count():
            row.dispatch_event("click")  # the row moves on while results come
        page.wait_for_timeout(_DRAWN_MS)
        page.screenshot(path=folder / f"{view}-{state}-{colours}-{width}.png")


if __name__ == "__main__":
    take(Path(sys.argv[1]))
