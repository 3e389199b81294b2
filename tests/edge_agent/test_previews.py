"""When a preview is made and when it is given up, what it shows, and what an edge states of its streams."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from mqinfer.answers.outputs import Picture
from mqinfer.bags.frame import Frame
from mqinfer.broker import make_link
from mqinfer.broker.link import Message
from mqinfer.broker.memory import MemoryLink
from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.codecs import decode_tensor, encode_tensor
from mqinfer.edge_agent.frames.published import PublishedCounts
from mqinfer.edge_agent.frames.times import EdgeStage
from mqinfer.edge_agent.metrics import EdgeStreams
from mqinfer.edge_agent.model_run import ModelRun
from mqinfer.edge_agent.preparing.framing import Framing
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.preparing.quality_ladder import QualityStep
from mqinfer.edge_agent.previews import PreviewDrop, Previews, check_rate
from mqinfer.edge_agent.replay import Replay
from mqinfer.edge_agent.reporting.statistics import FrameCounts, ReplayStatistics
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.edge_agent.spooling.spool import Spool
from mqinfer.images.decode import as_image
from mqinfer.images.picture import CompressedImage, RawImage
from mqinfer.lab.drives.mosaic import raw_image
from mqinfer.lab.drives.synthetic import SyntheticDrive
from mqinfer.protocol.card import ColourOrder, ImageContract, Resize
from mqinfer.protocol.envelope import decode_response
from mqinfer.protocol.errors import ConfigError, NotConnected
from mqinfer.protocol.states import StreamState
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Capture, Outcome, Timings
from tests.clock import Clock

SCENE = SyntheticDrive(1, 192, 120).scene(0).picture
RECORDED = as_image(SCENE, "rgb8")
FRONT = Capture("/front", 7, 123, "camera")


@dataclass
class Client:
    """The part of a requester that previews use, with its link."""

    connected: bool = True
    name: str = "car-1"
    topics: Topics = field(default_factory=Topics)
    sent: list[Message] = field(default_factory=list)

    @property
    def link(self) -> Client:
        """Itself."""
        return self

    def publish(self, message: Message) -> None:
        """Keep a message, or refuse it as a link does."""
        if not self.connected:
            raise NotConnected("the link is down")
        self.sent.append(message)


def previews_of(client: Client, rate: float = 2.0) -> tuple[Previews, Clock]:
    """Return the previews of a client, and their clock."""
    clock = Clock(100.0)
    return Previews(cast(Requester, client), "seg", rate, clock), clock


def outcome(what: Outcome, transit_s: float = 0.0, attempts: int = 1) -> InferResult:
    """Return a frame's outcome."""
    return InferResult("id", what, "seg", timings=Timings(transmission=round(transit_s * 1e9)), attempts=attempts)


def test_the_rate_is_a_streams_own() -> None:
    """Of 10 frames a second 2 get a preview, of each stream; what is not due counts as nothing."""
    previews, clock = previews_of(Client())
    wanted = {"/front": 0, "/rear": 0}
    for _ in range(40):
        for source in wanted:
            wanted[source] += previews.wants(source, has_room=True, is_full_quality=True)
        clock.now += 0.125
    assert wanted == {"/front": 10, "/rear": 10}
    assert previews.total == PublishedCounts()


@pytest.mark.parametrize("rate", [0.2, 1, 7.5, 10])
def test_rates(rate: float) -> None:
    """Fractions are allowed, and none is none."""
    assert check_rate(rate) == rate
    assert check_rate(None) is None


@pytest.mark.parametrize("rate", [0, 0.19, -1, 10.1, float("nan"), float("inf")])
def test_wrong_rates_are_refused(rate: float) -> None:
    """The message names the bounds."""
    with pytest.raises(ConfigError, match=r"expected 0\.2 to 10 previews a second"):
        check_rate(rate)


def wanted(previews: Previews, clock: Clock, *, has_room: bool = False, is_full_quality: bool = True) -> bool:
    """Ask for the next one that is due."""
    clock.now += 1.0
    return previews.wants("/front", has_room=has_room, is_full_quality=is_full_quality)


def test_a_thin_link_has_no_previews() -> None:
    """They are given up while the window is full and the network is what its frames wait for, and come back after."""
    previews, clock = previews_of(Client())
    assert wanted(previews, clock)  # nothing is known yet
    previews.on_result(outcome(Outcome.OK, 0.05))
    assert wanted(previews, clock), "the worker is what they wait for"
    previews.on_result(outcome(Outcome.OK, 0.6))
    assert not wanted(previews, clock)
    assert wanted(previews, clock, has_room=True), "far away, and not behind"
    previews.on_result(outcome(Outcome.OK, 0.05))
    assert wanted(previews, clock)
    assert previews.total.dropped == {PreviewDrop.LINK_BEHIND: 1}


@pytest.mark.parametrize("what", [Outcome.EXPIRED, Outcome.SUPERSEDED])
def test_a_link_that_brings_nothing_has_no_previews(what: Outcome) -> None:
    """Frames that were sent and had no reply in time count as a link that is behind; other frames do not."""
    previews, clock = previews_of(Client())
    previews.on_result(outcome(what, attempts=0))
    previews.on_result(outcome(Outcome.ERROR))
    assert wanted(previews, clock)
    previews.on_result(outcome(what))
    assert not wanted(previews, clock)


def test_lowered_quality_and_a_lost_connection() -> None:
    """Before frames are sent smaller no picture is for people alone, and none is made without a connection."""
    client = Client()
    previews, clock = previews_of(client)
    assert not wanted(previews, clock, is_full_quality=False)
    client.connected = False
    assert not wanted(previews, clock)
    previews.publish("r", FRONT, lambda: SCENE, (192, 120))  # lost since it was due
    assert previews.total == PublishedCounts(0, {PreviewDrop.QUALITY_LOWERED: 1, PreviewDrop.NOT_CONNECTED: 2})
    assert client.sent == []


def test_what_was_given_up_is_not_due_at_once() -> None:
    """Dropped previews are counted at the rate, not at that of the frames."""
    client = Client(connected=False)
    previews, clock = previews_of(client, rate=1.0)
    for _ in range(30):
        previews.wants("/front", has_room=True, is_full_quality=True)
        clock.now += 0.125
    assert previews.of("/front") == PublishedCounts(0, {PreviewDrop.NOT_CONNECTED: 4})
    assert previews.of("/rear") == PublishedCounts()


def test_a_preview_travels_as_a_reply() -> None:
    """Small, with the stamps of its frame and the size of the model's picture."""
    client = Client()
    previews, _ = previews_of(client)
    large = np.repeat(np.repeat(SCENE, 5, axis=0), 5, axis=1)
    previews.publish("0123", FRONT, lambda: large, (960, 600))
    (message,) = client.sent
    assert (message.topic, message.qos, message.retain) == ("mqinfer/v1/clients/car-1/preview/front", 0, False)
    found = decode_response(message.payload)
    assert (found.id, found.model_name, found.capture, found.outcome) == ("0123", "seg", FRONT, Outcome.OK)
    assert dict(found.parameters) == {"picture_width": 960, "picture_height": 600}
    assert found.outputs[0].shape == (300, 480, 3)
    previews.publish("", FRONT, lambda: SCENE, (192, 120))
    small = decode_response(client.sent[1].payload)
    assert small.outputs[0].shape == (120, 192, 3), "it is not made larger"
    assert len(small.id) == 32


def test_a_picture_that_is_none_is_counted() -> None:
    """Neither a picture that can't be decoded nor one that is too large for receivers ends the thread."""
    client = Client()
    previews, _ = previews_of(client)

    def broken() -> Picture:
        raise ValueError("not a picture")

    noise = np.random.default_rng(1).integers(0, 255, (4000, 480, 3), np.uint8)
    previews.publish("r", FRONT, broken, (1, 1))
    previews.publish("r", FRONT, lambda: noise, (480, 4000))
    assert previews.total == PublishedCounts(0, {PreviewDrop.FAILED: 1, PreviewDrop.TOO_LARGE: 1})
    assert client.sent == []


def frame_of(image: RawImage | CompressedImage) -> Frame:
    """Put an image into a frame."""
    return Frame("/front", 0, 1, 2, "camera", image)


def tapped(preparer: Preparer, frame: Frame, step: QualityStep | None = None) -> tuple[Picture, Any]:
    """Return what a preview shows of a frame, and what travels."""
    taken: list[Callable[[], Picture]] = []
    steps = () if step is None else (step,)
    prepared = preparer.prepare(frame, ignore, *steps, tap=taken.append)
    assert preparer.prepare(frame, ignore, *steps).placement == prepared.placement
    (picture,) = taken
    return picture(), prepared


def ignore(stage: EdgeStage, nanoseconds: int) -> None:
    """Take no notice."""


@pytest.mark.parametrize("encoding", ["raw", "png", "jpeg:100"])
@pytest.mark.parametrize("resize", list(Resize))
def test_a_preview_shows_what_the_model_gets(encoding: str, resize: Resize) -> None:
    """After a cut, with margins where the model has them, in each encoding."""
    framing = Framing.parse(["10,20,160,90"], rectify=False)
    preparer = Preparer(ImageContract("x", 96, 96, resize=resize), encoding, framing=framing)
    picture, prepared = tapped(preparer, frame_of(RECORDED))
    assert picture.shape == (96, 96, 3)
    assert prepared.placement.picture == (96, 96)
    sent = decode_tensor(prepared.tensors[0])[0]
    assert np.abs(picture.astype(int) - sent).mean() < (3 if encoding.startswith("jpeg") else 0.01)


def test_a_preview_of_a_jpeg_that_passes_untouched() -> None:
    """It is decoded when its preview is made, and not before."""
    data = bytes(encode_tensor("x", SCENE, "jpeg:95").data)
    preparer = Preparer(ImageContract("x", 192, 120), "jpeg:90")
    picture, prepared = tapped(preparer, frame_of(CompressedImage("jpeg", data)))
    assert bytes(prepared.tensors[0].data) == data
    np.testing.assert_array_equal(picture, decode_tensor(prepared.tensors[0])[0])


def test_a_preview_of_a_mosaic_has_the_models_size() -> None:
    """Demosaiced and resized as the worker does it."""
    mosaic = raw_image(SCENE, "bayer_rggb8")
    picture, prepared = tapped(Preparer(ImageContract("x", 96, 60), "bayer"), frame_of(mosaic))
    assert prepared.tensors[0].shape[1:3] == (120, 192)
    assert picture.shape == (60, 96, 3)
    small, _ = tapped(Preparer(ImageContract("x", 96, 60), "raw"), frame_of(RECORDED))
    assert np.abs(picture.astype(int) - small).mean() < 8


def test_a_preview_of_distances_and_of_a_smaller_step() -> None:
    """Distances are shown as the sinks show them; where frames are sent smaller the view is the same."""
    metres = np.linspace(0.5, 20, 24 * 32, dtype=np.float32).reshape(24, 32)
    depth = Preparer(ImageContract("x", 16, 12, colour=ColourOrder.DEPTH), "lz4")
    picture, _ = tapped(depth, frame_of(as_image(metres, "32FC1")))
    assert picture.shape == (12, 16, 3)
    assert picture.dtype == np.uint8
    half, prepared = tapped(Preparer(ImageContract("x", 96, 60), "jpeg:90"), frame_of(RECORDED), QualityStep(50, 0.5))
    assert prepared.tensors[0].shape[1:3] == (30, 48)
    assert (half.shape, prepared.placement.picture) == ((60, 96, 3), (96, 60))


def test_counts_of_a_stream() -> None:
    """Frames without a result are counted by their reason, and superseded ones as such."""
    statistics = ReplayStatistics()
    for what in (Outcome.OK, Outcome.SUPERSEDED, Outcome.EXPIRED):
        statistics.frame_read("/front")
        statistics.request_sent("/front")
        statistics.finished(InferResult("id", what, "seg", capture=FRONT), bytes_raw=1)
    statistics.frame_read("/front")
    statistics.request_sent("/front")
    (found,) = statistics.counts()
    outcomes = {Outcome.OK: 1, Outcome.SUPERSEDED: 1, Outcome.EXPIRED: 1}
    assert found == FrameCounts("/front", 4, 1, outcomes, {"superseded": 1, "expired": 1})


@dataclass
class Run:
    """The part of a run that states read."""

    model: str
    read: dict[str, int]

    def streams(self) -> list[tuple[FrameCounts, StreamState]]:
        """Return the streams."""
        return [
            (FrameCounts(source, count, 0, {}, {}), StreamState(source, self.model))
            for source, count in self.read.items()
        ]


def test_the_rate_of_a_stream_is_that_since_the_state_before() -> None:
    """By stream and model; a state right behind another one repeats its rates, and odd names can be sent."""
    clock, run, other = Clock(100.0), Run("seg", {"/front": 0}), Run("det", {"/front": 0})
    states = EdgeStreams(cast(list[ModelRun], [run, other]), clock)
    clock.now += 2
    run.read, other.read = {"/front": 20, "b\udc80": 10}, {"/front": 5}
    assert [state.rate for state in states.read()] == [10.0, 5.0, 2.5]
    clock.now += 0.1
    run.read["/front"] = 21
    assert [state.rate for state in states.read()] == [10.0, 5.0, 2.5]
    clock.now += 1.9
    assert [state.rate for state in states.read()] == [0.5, 0.0, 0.0]
    assert [state.source for state in states.read()] == ["/front", r"b\udc80", "/front"]


def test_every_preview_that_is_due_is_published_or_counted(
    url: str,
    edge: Callable[..., Requester],
    write_echo: Callable[..., Path],
    unique: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """Also where the connection is lost and the frames go to the disk: those have none later."""
    requester, heard = edge(write_echo("echo", ("image", "UINT8", [-1, 120, 192, 3])), window=4), list[Message]()
    dashboard = make_link(url, client_id=unique("dash"))
    dashboard.open()
    dashboard.subscribe(Topics().previews.filter(), heard.append)
    link, statistics = requester.link, ReplayStatistics()
    assert isinstance(link, MemoryLink)

    def frames() -> Iterator[Frame]:
        for number in range(40):
            {10: link.drop, 30: link.restore}.get(number, lambda: None)()
            image = replace(RECORDED, data=b"") if number == 35 else RECORDED  # one that can't be decoded
            yield Frame("/front", number, number, number, "camera", image)

    previews = Previews(requester, "echo", 1.0, itertools.count().__next__)
    preparer = Preparer(ImageContract("image", 192, 120), "lz4")
    with closing(Spool(tmp_path / "spool")) as spool:
        Replay(
            requester, preparer, ReplayOptions("echo", window=2), statistics, None, spool=spool, previews=previews
        ).run(frames())
    requester.close()
    dashboard.close()
    counts = previews.total
    assert counts.published + sum(counts.dropped.values()) == 40
    assert counts.dropped[PreviewDrop.NOT_CONNECTED] >= 1
    assert counts.dropped[PreviewDrop.NOT_SENT] + counts.dropped[PreviewDrop.NOT_CONNECTED] >= 2
    shown = [decode_response(message.payload).capture.sequence for message in heard]
    assert len(shown) == len(set(shown)) == counts.published
    assert not set(shown) & set(range(14, 22))  # read and prepared without a connection
    assert statistics.snapshot().outcomes[Outcome.OK] == 39
