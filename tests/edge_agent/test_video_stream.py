"""Video of one stream over workers that come and go: each frame gets one picture, and it is never a broken one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqinfer.client.result import InferResult
from mqinfer.cloud_worker.serving.stream_states import StreamStates
from mqinfer.codecs import codecs_for, decode_tensor
from mqinfer.codecs.video_chain import VideoChain
from mqinfer.edge_agent.preparing.choices import choose_encoding
from mqinfer.edge_agent.preparing.video_stream import VideoStream
from mqinfer.protocol.card import ColourOrder, ImageContract, ModelCard
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import BadEncoding, ConfigError, MissingExtra, MqinferError, ReferenceLost
from mqinfer.protocol.header import CHAIN, POSITION
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.protocol.types import EncodedTensor, ErrorInfo, Outcome

HEIGHT, WIDTH, WORKERS = 32, 48, 3
CODECS = codecs_for("cpu")


@cache
def picture(number: int) -> Array:
    """Return the picture of a frame: noise that moves, on a ground whose brightness tells its number."""
    noise = np.random.default_rng(3).integers(0, 60, (HEIGHT, WIDTH, 1), np.uint8)
    grey = np.roll(noise, 3 * number, 1) + np.uint8(37 * number % 190)
    return np.repeat(grey, 3, axis=2)[None]


def result(outcome: Outcome, worker: str = "", error: MqinferError | None = None) -> InferResult:
    """Return an outcome as the client hands it over."""
    info = None if error is None else ErrorInfo(error.code, str(error))
    return InferResult("", outcome, "m", worker=worker, error=info)


@dataclass(eq=False)
class Sent:
    """A frame on its way, once or again."""

    frame: int
    tensor: EncodedTensor
    worker: str
    whole: bool = False


@dataclass
class Road:
    """One edge's stream, and workers that may be lost; the test decides which message goes where, and when."""

    encoder: VideoStream
    workers: dict[str, VideoChain] = field(default_factory=dict)
    on_way: list[Sent] = field(default_factory=list)
    chains: dict[int, list[EncodedTensor]] = field(default_factory=dict)
    found: dict[int, Array] = field(default_factory=dict)
    given_up: set[int] = field(default_factory=set)
    expected: dict[int, EncodedTensor] = field(default_factory=dict)
    resent: int = 0

    def __post_init__(self) -> None:
        for number in range(WORKERS):
            self.restart(number)

    def restart(self, number: int) -> None:
        """Start a worker anew: it has nothing."""
        self.workers[f"w{number}"] = VideoChain(ahead_s=0)

    def send(self, frame: int, *, whole: bool = False) -> None:
        """Encode a frame."""
        tensor, worker = self.encoder.encode("image", picture(frame), {"image_encoding": "rgb8"}, whole=whole)
        if CHAIN in tensor.parameters:
            self.chains.setdefault(int(tensor.parameters[CHAIN]), []).append(tensor)
        self.on_way.append(Sent(frame, tensor, worker, whole))

    def lose(self, at: int) -> None:
        """End a frame without a result: superseded, expired, or its reply was lost."""
        if self.on_way:
            sent = self.on_way.pop(at % len(self.on_way))
            self.given_up.add(sent.frame)
            self.encoder.on_result(sent.tensor, result(Outcome.SUPERSEDED))

    def deliver(self, at: int, elsewhere: int, *, doubled: bool = False) -> None:
        """Bring a message to the worker that it is meant for, or to another one; what is lost there is sent whole."""
        if not self.on_way:
            return
        sent = self.on_way.pop(at % len(self.on_way))
        worker = sent.worker if sent.worker and elsewhere >= WORKERS else f"w{elsewhere % WORKERS}"
        try:
            found = self._decode(worker, sent.tensor)
        except ReferenceLost as error:
            assert not sent.whole
            self.encoder.on_result(sent.tensor, result(Outcome.ERROR, worker, error))
            self.resent += 1
            self.send(sent.frame, whole=True)
            return
        assert sent.frame not in self.found
        self.found[sent.frame], self.expected[sent.frame] = found, sent.tensor
        if doubled:  # a retry of the same message; its reply comes too late
            with suppress(ReferenceLost):
                self._decode(worker, sent.tensor)
        self.encoder.on_result(sent.tensor, result(Outcome.OK, worker))

    def _decode(self, worker: str, tensor: EncodedTensor) -> Array:
        return self.workers[worker].decode(tensor) if CHAIN in tensor.parameters else decode_tensor(tensor)

    def check(self, frames: int) -> None:
        """Compare each frame's picture with that of the unbroken stream."""
        unbroken = {}
        for sent in self.chains.values():
            decoder = VideoChain()
            for tensor in sorted(sent, key=lambda each: int(each.parameters[POSITION])):
                unbroken[id(tensor)] = decoder.decode(tensor)
        assert self.found.keys() | self.given_up == set(range(frames))
        assert not self.found.keys() & self.given_up
        for frame, found in self.found.items():
            tensor = self.expected[frame]
            right = unbroken[id(tensor)] if CHAIN in tensor.parameters else decode_tensor(tensor)
            np.testing.assert_array_equal(found, right)
            assert np.abs(found.astype(int) - picture(frame)).mean() < 8, "the picture of another frame"


steps = st.one_of(
    st.just(("send",)),
    st.tuples(st.just("deliver"), st.integers(0, 7), st.integers(0, 2 * WORKERS), st.booleans()),
    st.tuples(st.just("deliver"), st.just(0), st.just(WORKERS), st.just(False)),
    st.tuples(st.just("lose"), st.integers(0, 7)),
    st.tuples(st.just("restart"), st.integers(0, WORKERS - 1)),
)


@pytest.mark.parametrize("name", ["h264", "h265"])
@settings(max_examples=25, deadline=None)
@given(plan=st.lists(steps, min_size=10, max_size=40))
def test_whatever_is_lost_each_frame_gets_its_own_unbroken_picture(name: str, plan: list[tuple[object, ...]]) -> None:
    """Losses, reorderings, retries, doubles, other workers and workers that start anew, in any pattern."""
    road, frames = Road(VideoStream(name, "20")), 0
    for step in plan:
        match step:
            case ("send",):
                road.send(frames)
                frames += 1
            case ("deliver", int(at), int(elsewhere), bool(doubled)):
                road.deliver(at, elsewhere, doubled=doubled)
            case ("lose", int(at)):
                road.lose(at)
            case ("restart", int(number)):
                road.restart(number)
    while road.on_way:
        road.deliver(0, WORKERS)
    road.check(frames)


def test_a_healthy_stream_has_one_key_frame() -> None:
    """All others are small, and go to the worker that has the one before; with several in flight too."""
    road = Road(VideoStream("h264", "20"))
    road.send(0)
    road.deliver(0, 1)
    for frame in range(1, 12):
        road.send(frame)
        assert road.on_way[-1].worker == "w1"
        if frame > 2:
            road.deliver(0, WORKERS)
    while road.on_way:
        road.deliver(0, WORKERS)
    road.check(12)
    assert len(road.chains) == 1
    assert not road.resent


def test_another_size_begins_a_new_chain() -> None:
    """As where a thin link makes pictures smaller: the first one is a key frame, which any worker decodes."""
    encoder = VideoStream("h264")
    first, _ = encoder.encode("image", picture(0), {}, whole=False)
    encoder.on_result(first, result(Outcome.OK, "w0"))
    smaller, worker = encoder.encode("image", picture(1)[:, :20, :31], {}, whole=False)
    assert worker == ""
    assert smaller.parameters[POSITION] == 0
    assert VideoChain().decode(smaller).shape == (1, 20, 31, 3)


def test_levels_and_pictures_that_it_cannot_carry() -> None:
    """Each has a message, and the stream goes on."""
    with pytest.raises(BadEncoding, match=r"levels of h264: 0 to 100000"):
        VideoStream("h264", "best")
    encoder = VideoStream("h264")
    with pytest.raises(BadEncoding, match="takes 8-bit RGB"):
        encoder.encode("image", np.zeros((1, 8, 8, 1), np.uint16), {}, whole=False)
    assert encoder.encode("image", picture(0), {}, whole=False)[0].parameters[POSITION] == 0


def test_what_is_refused_before_a_frame_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A level outside the range, a worker that lists no video, depth, frames kept on the disk, no PyAV at the edge."""
    names = ("raw", "lz4", "jpeg", "png", "h264", "h265")
    card = ModelCard("seg", "1", ("1",), "onnx", (), (), encodings=names, image=ImageContract("x", 8, 8))
    assert choose_encoding("h264:1500", card) == "h264:1500"
    with pytest.raises(ConfigError, match=r"encoding 'h264:x' has no such level; levels of h264: 0 to 100000"):
        choose_encoding("h264:x", card)
    with pytest.raises(ConfigError, match="can't decode 'h265'"):
        choose_encoding("h265", replace(card, encodings=("raw", "lz4", "h264")))
    with pytest.raises(ConfigError, match="takes depth pictures, which 'h264' can't carry"):
        choose_encoding("h264", replace(card, image=ImageContract("x", 8, 8, colour=ColourOrder.DEPTH)))
    with pytest.raises(ConfigError, match="needs the frames before"):
        choose_encoding("h264", card, alone=True)
    monkeypatch.setattr("mqinfer.codecs.registry.find_spec", lambda name: None if name == "av" else True)
    with pytest.raises(MissingExtra, match=r"av is not installed; run: pip install 'mqinfer\[edge\]'"):
        choose_encoding("h264", card)
    assert "h264" not in choose_encoding("auto", card)


def test_streams_are_bounded_by_client_and_forgotten_when_idle() -> None:
    """Who opens most loses first: the other client's chain goes on; all is counted."""
    now = [0.0]
    counts: list[str] = []
    states = StreamStates(counts.append, most_streams=4, clock=lambda: now[0])

    def decode(client: str, source: str, tensor: EncodedTensor) -> Array:
        return states.decode(tensor, (client, source, "image"), DEFAULT_LIMITS, CODECS)

    polite = VideoStream("h264")
    first, _ = polite.encode("image", picture(0), {}, whole=False)
    polite.on_result(first, result(Outcome.OK, "w"))
    second, _ = polite.encode("image", picture(1), {}, whole=False)
    third, _ = polite.encode("image", picture(2), {}, whole=False)
    decode("polite", "/camera", first)
    for number in range(8):
        decode("greedy", f"/{number}", first)
    assert decode("polite", "/camera", second).shape == (1, HEIGHT, WIDTH, 3)
    with pytest.raises(ReferenceLost):
        decode("greedy", "/0", second)
    assert counts.count("streams_forgotten") >= 5
    now[0] = 60.0
    states.forget_idle()
    assert counts.count("streams_idle") == 4
    with pytest.raises(ReferenceLost):
        decode("polite", "/camera", third)
    assert counts.count("references_lost") == 2
