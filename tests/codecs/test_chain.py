"""Video of one stream over workers that come and go: each frame gets one picture, and it is never a broken one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqinfer.codecs import decode_tensor, traits_of
from mqinfer.codecs.chain import ChainDecoder, ChainEncoder, StreamHalves
from mqinfer.codecs.h264 import H264Decoder
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import BadEncoding, ReferenceLost
from mqinfer.protocol.header import CHAIN, POSITION
from mqinfer.protocol.types import EncodedTensor

HEIGHT, WIDTH, WORKERS = 32, 48, 3


@cache
def picture(number: int) -> Array:
    """Return the picture of a frame: noise that moves, on a ground whose brightness tells its number."""
    noise = np.random.default_rng(3).integers(0, 60, (HEIGHT, WIDTH, 1), np.uint8)
    grey = np.roll(noise, 3 * number, 1) + np.uint8(37 * number % 190)
    return np.repeat(grey, 3, axis=2)[None]


def stream_of(name: str) -> StreamHalves:
    """Return what an encoding keeps of each stream."""
    found = traits_of(name).stream
    assert found is not None
    return found


def h264(level: int | None = None) -> ChainEncoder:
    """Return the sender's half of one stream."""
    return stream_of("h264").encoder(level)


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

    encoder: ChainEncoder
    workers: dict[str, ChainDecoder] = field(default_factory=dict)
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
        self.workers[f"w{number}"] = ChainDecoder(H264Decoder, ahead_s=0)

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
            self.encoder.settled(sent.tensor, None)

    def deliver(self, at: int, elsewhere: int, *, doubled: bool = False) -> None:
        """Bring a message to the worker that it is meant for, or to another one; what is lost there is sent whole."""
        if not self.on_way:
            return
        sent = self.on_way.pop(at % len(self.on_way))
        worker = sent.worker if sent.worker and elsewhere >= WORKERS else f"w{elsewhere % WORKERS}"
        try:
            found = self._decode(worker, sent.tensor)
        except ReferenceLost:
            assert not sent.whole
            self.encoder.settled(sent.tensor, None)
            self.resent += 1
            self.send(sent.frame, whole=True)
            return
        assert sent.frame not in self.found
        self.found[sent.frame], self.expected[sent.frame] = found, sent.tensor
        if doubled:  # a retry of the same message; its reply comes too late
            with suppress(ReferenceLost):
                self._decode(worker, sent.tensor)
        self.encoder.settled(sent.tensor, worker)

    def _decode(self, worker: str, tensor: EncodedTensor) -> Array:
        return self.workers[worker].decode(tensor) if CHAIN in tensor.parameters else decode_tensor(tensor)

    def check(self, frames: int) -> None:
        """Compare each frame's picture with that of the unbroken stream."""
        unbroken = {}
        for sent in self.chains.values():
            decoder = ChainDecoder(H264Decoder)
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


@settings(max_examples=25, deadline=None)
@given(plan=st.lists(steps, min_size=10, max_size=40))
def test_whatever_is_lost_each_frame_gets_its_own_unbroken_picture(plan: list[tuple[object, ...]]) -> None:
    """Losses, reorderings, retries, doubles, other workers and workers that start anew, in any pattern."""
    road, frames = Road(h264(20)), 0
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
    road = Road(h264(20))
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
    encoder = h264()
    first, _ = encoder.encode("image", picture(0), {}, whole=False)
    encoder.settled(first, "w0")
    smaller, worker = encoder.encode("image", picture(1)[:, :20, :31], {}, whole=False)
    assert worker == ""
    assert smaller.parameters[POSITION] == 0
    assert ChainDecoder(H264Decoder).decode(smaller).shape == (1, 20, 31, 3)


def test_pictures_that_it_cannot_carry() -> None:
    """They have a message, and the stream goes on."""
    encoder = h264()
    with pytest.raises(BadEncoding, match="takes 8-bit RGB"):
        encoder.encode("image", np.zeros((1, 8, 8, 1), np.uint16), {}, whole=False)
    assert encoder.encode("image", picture(0), {}, whole=False)[0].parameters[POSITION] == 0
