"""A cascade whose models look at brightness alone, so that each test knows every answer beforehand.

The small model's confidence is the mean brightness of the frame, from 0 to 1; the reference model says `car` where the
frame is brighter than the middle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mqinfer.bags.frame import Frame
from mqinfer.broker.memory import MemoryLink
from mqinfer.client.connection import LiveRegistry
from mqinfer.client.requester import Requester
from mqinfer.client.window import Policy
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.edge_agent.cascade.building import make_cascade
from mqinfer.edge_agent.cascade.cascade import Cascade
from mqinfer.edge_agent.control import EdgeControl
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.replay import Replay
from mqinfer.edge_agent.reporting.statistics import ReplayStatistics, Snapshot
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.edge_agent.spooling.spool import Spool
from mqinfer.images.picture import RawImage
from mqinfer.judging.settings import CascadeSettings, DifferenceDetector, Reference, SmallModel
from mqinfer.models.backend import Backend
from mqinfer.models.loading import LoadedModel, load_model
from mqinfer.models.repository import Repository
from mqinfer.protocol.control import Operation
from mqinfer.protocol.datatypes import Array
from tests.edge_agent.kept import Kept
from tests.patience import wait_until

WIDTH, HEIGHT = 96, 64


def frame_of(number: int, brightness: float, source: str = "/camera", noise: int = 0) -> Frame:
    """Make a frame of even brightness, with a little noise that depends on its number."""
    rng = np.random.default_rng(number)
    pixels = np.full((HEIGHT, WIDTH, 3), brightness, np.float64) + rng.integers(-noise, noise + 1, (HEIGHT, WIDTH, 3))
    data = np.clip(pixels, 0, 255).astype(np.uint8).tobytes()
    image = RawImage("rgb8", HEIGHT, WIDTH, 3 * WIDTH, is_bigendian=False, data=data)
    return Frame(source, number, 1_000_000 * number, 1_000_000 * number, "cam", image)


class Watched:
    """A back end that calls something before each run."""

    def __init__(self, inner: Backend, before: Callable[[], object]) -> None:
        self._inner, self._before = inner, before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Run."""
        self._before()
        return self._inner.infer(inputs, outputs)


@dataclass
class Rig:
    """An edge, its client and the address of its broker."""

    url: str
    models: Path
    requester: Requester
    serve: Callable[..., Worker]
    cascade: Cascade | None = None
    replay: Replay | None = None

    @property
    def link(self) -> MemoryLink:
        """The edge's connection."""
        assert isinstance(self.requester.link, MemoryLink)
        return self.requester.link

    def disconnect(self) -> None:
        """Lose the connection; return once the stages have been told."""
        self.link.drop()
        wait_until(lambda: self.replay is not None and not self.replay._table.reach.is_connected)

    def reconnect(self) -> None:
        """Connect again; return once the stages have been told."""
        self.link.restore()
        wait_until(lambda: self.replay is not None and self.replay._table.reach.is_connected)

    def settings(
        self,
        *,
        target: str | None = "car",
        t_diff: float | None = None,
        small: Mapping[str, Any] | None = None,
        **difference: Any,
    ) -> CascadeSettings:
        """Make settings: with `t_diff` the first stage, with `small` the second one."""
        first = None if t_diff is None else DifferenceDetector(t_diff, **difference)
        name, reference = ("is-car", "yolo") if target else ("small-seg", "seg")
        second = None
        if small is not None:
            given: dict[str, Any] = {"model": name, "c_high": 0.9, "repository": self.models, **small}
            second = SmallModel(**given)
        return CascadeSettings(Reference(reference), target, first, second)

    def run(
        self,
        frames: Iterable[Frame],
        settings: CascadeSettings | None,
        *,
        policy: Policy = Policy.ALL,
        timeout: float = 60.0,
        window: int = 4,
        model: str = "",
        kept: Kept | None = None,
        spool: Spool | None = None,
    ) -> tuple[Kept, Snapshot]:
        """Replay frames through a cascade, or without one; every frame has one outcome, in the order of reading."""
        read: list[Frame] = []

        def noted() -> Iterator[Frame]:
            for frame in frames:
                read.append(frame)
                yield frame

        name = settings.reference.model if settings else model
        shelf = LiveRegistry(self.requester)
        card = shelf.get(name, 30.0)
        assert card.image is not None
        preparer = Preparer(card.image, "lz4")
        statistics, kept = ReplayStatistics(), kept or Kept()
        options = ReplayOptions(name, window=window, timeout=timeout, policy=policy, card_timeout=0.2)
        if settings is None:
            Replay(self.requester, preparer, options, statistics, kept).run(noted())
        else:
            made = make_cascade(settings, card, preparer, shelf, options, self.requester)
            control = EdgeControl(self.requester, Operation.CASCADE, made.answer, slow="version")
            with closing(made) as self.cascade, closing(control):
                stages: dict[str, Any] = {"cascade": self.cascade, "spool": spool}
                self.replay = Replay(self.requester, preparer, options, statistics, kept, **stages)
                self.replay.run(noted())
        snapshot = statistics.snapshot()
        snapshot.check()
        assert snapshot.pending == 0
        assert snapshot.done == snapshot.frames_read == len(read)
        assert [(frame.source, frame.sequence) for frame, _, _ in kept.written] == [
            (frame.source, frame.sequence) for frame in read
        ]
        return kept, snapshot

    def start(self, *names: str, **options: Any) -> list[Worker]:
        """Start a worker for each of these models."""
        found = {each.name: each for each in Repository(self.models).models()}
        return [self.serve(self.url, load_model(found[name], device="cpu"), **options) for name in names]

    def start_wrapped(self, name: str, wrap: Callable[[Backend], Any]) -> Worker:
        """Start a worker whose back end is wrapped."""
        found = next(each for each in Repository(self.models).models() if each.name == name)
        loaded = load_model(found, device="cpu")
        return self.serve(self.url, LoadedModel(wrap(loaded.backend), loaded.card, loaded.config))
