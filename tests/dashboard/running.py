"""A running site: a Mosquitto, two workers, three edges with previews, and a dashboard, all as processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.lab.drives.recording import write_drive
from mqinfer.protocol.topics import Topics
from tests.broker.bridges import Bridges
from tests.dashboard.numbered import mask_of, picture_of, write_numbered, write_reader
from tests.dashboard.programs import Program, Programs
from tests.dashboard.publishing import Frames
from tests.dashboard.watching import Witness, witness
from tests.patience import wait_until
from tests.segmenter import write_segmenter

__all__ = ["NUMBERS", "PICTURES", "STREET", "TILES", "QuietSite", "RunningSite", "quiet_site", "running_site"]

NUMBERS, STREET = "numbers", "street"
"""The models: masks that carry their frames' numbers, and masks of nine classes of a synthetic drive."""
TILES = (("car-1", "front", NUMBERS), ("car-2", "rear", NUMBERS), ("car-3", "/camera/image_raw", STREET))
"""Client, source and model of each stream."""

PICTURES = 1024
"""Numbered pictures of an edge: a frame has the number of its sequence, modulo this."""


@dataclass(frozen=True, slots=True)
class RunningSite:
    """What tests use of it.

    Attributes:
        url: Address of the page.
        broker: The Mosquitto.
        programs: Starts further ones.
        workers: By name.
        edges: By name.
        dashboard: The page's server.
        witness: Another client.
    """

    url: str
    broker: MosquittoServer
    programs: Programs
    workers: dict[str, Program]
    edges: dict[str, Program]
    dashboard: Program
    witness: Witness

    def check(self) -> None:
        """Assert that all of it runs."""
        for each in (*self.workers.values(), *self.edges.values(), self.dashboard):
            each.check()


@contextmanager
def running_site(folder: Path, *, previews: float = 5, far: str | None = None) -> Iterator[RunningSite]:
    """Start all of it, and wait for the first results.

    Args:
        folder: For models, recordings and logs.
        previews: Previews a second.
        far: URL of another broker, where the workers are; two bridges lead there.
    """
    repository = write_segmenter(write_reader(folder / "models", NUMBERS), STREET)
    drive = write_drive(folder / "drive", ros=2, frames=30, seed=5, width=192, height=128, truth_topic=False)
    numbered = write_numbered(folder / "pictures", PICTURES)
    with ExitStack() as stack:
        broker = stack.enter_context(MosquittoServer())
        started = stack.enter_context(Programs(folder, broker.url))
        kept = stack.enter_context(witness(broker.url))
        if far is not None:
            stack.enter_context(Bridges(broker.url, far, Topics()))
        workers = {
            name: started.start("worker", "--repository", repository, "--name", name, "--threads", "1", broker=far)
            for name in ("gpu-a", "gpu-b")
        }
        url, dashboard = started.dashboard()
        paced = ("--loop", "--rate", "1", "--policy", "latest", "--preview", str(previews))
        edges = {
            "car-1": started.start("replay", f"front={numbered}", "--model", NUMBERS, "--name", "car-1", *paced),
            "car-2": started.start("replay", f"rear={numbered}", "--model", NUMBERS, "--name", "car-2", *paced),
            "car-3": started.start("replay", drive, "--model", STREET, "--name", "car-3", *paced),
        }
        site = RunningSite(url, broker, started, workers, edges, dashboard, kept)

        def has_begun() -> bool:
            site.check()
            return all(kept.results_of(name) > 0 for name in edges)

        wait_until(has_begun)
        yield site


@dataclass(frozen=True, slots=True)
class QuietSite:
    """A Mosquitto and a dashboard without edges and workers: tests publish what they need.

    Attributes:
        url: Address of the page.
        broker: The Mosquitto.
        dashboard: The page's server.
        frames: Small numbered frames to publish.
    """

    url: str
    broker: MosquittoServer
    dashboard: Program
    frames: Frames

    def forget(self) -> None:
        """Remove all that the broker keeps: it keeps it in memory alone."""
        self.broker.stop()
        self.broker.start()


@contextmanager
def quiet_site(folder: Path) -> Iterator[QuietSite]:
    """Start both.

    Args:
        folder: For logs.
    """
    masks, pictures = ([make(number) for number in range(64)] for make in (mask_of, picture_of))
    with MosquittoServer() as broker, Programs(folder, broker.url) as started:
        url, dashboard = started.dashboard()
        yield QuietSite(url, broker, dashboard, Frames.of(masks, pictures))
