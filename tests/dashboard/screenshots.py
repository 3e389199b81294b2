"""Takes pictures of every view, for a person to look at: `python -m tests.dashboard.screenshots FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.chromium import chromium
from tests.dashboard.chromium import Colours, open_page
from tests.dashboard.running import running_site

_VIEWS = ("live", "streams", "workers", "models", "log")
_COLOURS: tuple[Colours, ...] = ("light", "dark")
_WIDTHS = {390: 844, 1280: 800, 2560: 1440}


def take(folder: Path) -> None:
    """Write `VIEW-COLOURS-WIDTH.png` of what the window shows, and `…-whole.png` of all that can be scrolled to."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as place, running_site(Path(place)) as site, chromium() as browser:
        for width, height in _WIDTHS.items():
            for colours in _COLOURS:
                with open_page(browser, site.url, width=width, height=height, colours=colours) as watched:
                    watched.wait_for_tiles(len(site.edges))
                    watched.page.wait_for_timeout(4000)  # charts need some seconds to show anything
                    for view in _VIEWS:
                        watched.show(view)
                        watched.frames(20)
                        path = folder / f"{view}-{colours}-{width}.png"
                        watched.page.screenshot(path=path)
                        watched.page.screenshot(path=path.with_stem(f"{path.stem}-whole"), full_page=True)
                    sys.stdout.write("".join(f"{problem}\n" for problem in watched.problems))


if __name__ == "__main__":
    take(Path(sys.argv[1]))
